// SPDX-License-Identifier: Apache-2.0
#include "runtime/generate/pages.h"

#include <gtest/gtest.h>

#include <random>

namespace tfcc::generate {
namespace {

using Ids = std::vector<int32_t>;

TEST(Pages, AreTakenAndGivenBack) {
  Pages pages(2);
  const auto a = pages.take(), b = pages.take();
  ASSERT_TRUE(a && b);
  EXPECT_NE(*a, *b);
  EXPECT_FALSE(pages.take());
  EXPECT_EQ(pages.held(), 2);
  pages.release(*a);
  EXPECT_EQ(pages.take(), a);
}

TEST(Pages, ArePublishedByWhatTheyHoldAndWhatIsBefore) {
  Pages pages(4);
  const int32_t a = *pages.take(), b = *pages.take();
  pages.publish(a, -1, Ids{1, 2});
  pages.publish(b, a, Ids{1, 2});
  EXPECT_EQ(pages.find(-1, Ids{1, 2}), a);
  EXPECT_EQ(pages.find(a, Ids{1, 2}), b);
  EXPECT_FALSE(pages.find(-1, Ids{1, 3}));
  EXPECT_FALSE(pages.find(b, Ids{1, 2}));
  pages.release(a);
  EXPECT_EQ(pages.held(), 2);  // found: two holders each
}

TEST(Pages, KeepWhatNobodyHoldsUntilMemoryIsNeeded) {
  Pages pages(2);
  const int32_t a = *pages.take(), b = *pages.take();
  pages.publish(a, -1, Ids{1});
  pages.publish(b, a, Ids{2});
  pages.release(b);
  pages.release(a);
  EXPECT_EQ(pages.held(), 0);
  EXPECT_EQ(pages.find(-1, Ids{1}),
            a);  // held again, so b, which was let go first and is held by none, goes
  EXPECT_EQ(pages.take(), b);
  EXPECT_FALSE(pages.find(a, Ids{2}));
  EXPECT_FALSE(pages.take());
}

// A page that was taken again is another one to those that stood behind it.
TEST(Pages, ForgetWhatStoodBehindAPageThatIsTakenAgain) {
  Pages pages(3);
  const int32_t a = *pages.take(), b = *pages.take();
  pages.publish(a, -1, Ids{1});
  pages.publish(b, a, Ids{2});
  pages.release(a);
  const int32_t c = *pages.take(), again = *pages.take();
  EXPECT_EQ(again, a);
  pages.publish(again, -1, Ids{9});
  EXPECT_FALSE(pages.find(again, Ids{2}));  // b is behind the a of before
  pages.release(b), pages.release(c), pages.release(again);
  EXPECT_EQ(pages.held(), 0);
}

TEST(Pages, NoneIsLostInRandomUse) {
  std::mt19937 random(1);
  Pages pages(8);
  std::vector<Ids> holders;  // pages of each
  std::vector<Ids> contents;
  for (int step = 0; step < 20000; ++step) {
    if (random() % 3 && holders.size() < 6) {
      Ids held, tokens;
      for (int i = 0; i < 3; ++i) {
        const Ids content{static_cast<int32_t>(random() % 2)};
        auto page = pages.find(held.empty() ? -1 : held.back(), content);
        if (!page) {
          page = pages.take();
          if (!page) break;
          pages.publish(*page, held.empty() ? -1 : held.back(), content);
        }
        held.push_back(*page);
      }
      holders.push_back(held);
    } else if (!holders.empty()) {
      const size_t i = random() % holders.size();
      for (size_t k = holders[i].size(); k-- > 0;) pages.release(holders[i][k]);
      holders.erase(holders.begin() + static_cast<std::ptrdiff_t>(i));
    }
    std::vector<bool> is_held(8);
    for (const Ids& h : holders)
      for (int32_t p : h) is_held[static_cast<size_t>(p)] = true;
    ASSERT_EQ(pages.held(), std::count(is_held.begin(), is_held.end(), true));
  }
}

}  // namespace
}  // namespace tfcc::generate
