// SPDX-License-Identifier: Apache-2.0
// Sizes that never shrink: by form and by difference, and against the values of random sizes.
#include <gtest/gtest.h>

#include <random>

#include "ir/ir.h"

namespace tfcc::ir {
namespace {

struct MonotoneTest : testing::Test {
  MonotoneTest() { pool.set_range("P", {0, std::nullopt}); }
  ExprRef n(int64_t v) { return pool.integer(v); }
  ExprPool pool;
  ExprRef b = pool.symbol("B"), s = pool.symbol("S"), p = pool.symbol("P");
};

TEST_F(MonotoneTest, sums_products_quotients_and_ends) {
  EXPECT_TRUE(never_decreases(n(5)));
  EXPECT_TRUE(never_decreases(mul(add(p, s), n(64))));
  EXPECT_TRUE(never_decreases(div(add(mul(b, s), n(255)), n(256))));
  EXPECT_TRUE(never_decreases(min(max(mul(b, p), s), mul(b, n(8)))));
  EXPECT_TRUE(never_decreases(sub(s, n(1))));
  EXPECT_TRUE(never_decreases(mul(b, div(s, n(2)))));
}

TEST_F(MonotoneTest, by_difference) {
  EXPECT_TRUE(never_decreases(sub(mul(b, s), b))) << "S >= 1";
  EXPECT_FALSE(never_decreases(sub(mul(b, p), b))) << "P may be 0";
}

TEST_F(MonotoneTest, what_may_shrink) {
  EXPECT_FALSE(never_decreases(sub(n(100), s)));
  EXPECT_FALSE(never_decreases(div(n(100), s)));
  EXPECT_FALSE(never_decreases(mod(s, n(8))));
  EXPECT_FALSE(never_decreases(sub(mul(b, n(2)), mul(s, n(2)))));
  EXPECT_FALSE(never_decreases(max(sub(n(9), s), b)));
  EXPECT_FALSE(never_decreases(abs(sub(s, n(4)))));
  EXPECT_FALSE(never_decreases(mul(sub(s, n(4)), b)))
      << "negative while S < 4: shrinks when B grows";
}

TEST_F(MonotoneTest, agrees_with_values) {
  std::mt19937 random(5);
  const std::vector<ExprRef> leaves = {b, s, p, n(1), n(3), n(-2)};
  size_t proved = 0;
  for (int k = 0; k < 3000; ++k) {
    std::vector<ExprRef> e(leaves);
    for (int i = 0; i < 5; ++i) {
      ExprRef x = e[random() % e.size()], y = e[random() % e.size()];
      switch (random() % 6) {
        case 0: e.push_back(add(x, y)); break;
        case 1: e.push_back(sub(x, y)); break;
        case 2: e.push_back(mul(x, y)); break;
        case 3: e.push_back(div(x, n(static_cast<int64_t>(random() % 5) + 1))); break;
        case 4: e.push_back(min(x, y)); break;
        default: e.push_back(max(x, y));
      }
    }
    if (!never_decreases(e.back())) continue;
    ++proved;
    auto value = [&](const int64_t(&v)[3]) {
      return eval_size(e.back(), [&](std::string_view name) {
        return v[name == "B" ? 0 : name == "S" ? 1 : 2];
      });
    };
    for (int t = 0; t < 30; ++t) {
      const int64_t from[3] = {1 + static_cast<int64_t>(random() % 6),
                               1 + static_cast<int64_t>(random() % 6),
                               static_cast<int64_t>(random() % 6)};
      int64_t to[3];
      for (int i = 0; i < 3; ++i) to[i] = from[i] + static_cast<int64_t>(random() % 5);
      ASSERT_LE(value(from), value(to)) << print(e.back());
    }
  }
  EXPECT_GT(proved, 800u);
}

}  // namespace
}  // namespace tfcc::ir
