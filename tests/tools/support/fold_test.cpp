// SPDX-License-Identifier: Apache-2.0
#include "tools/support/fold.h"

#include <gtest/gtest.h>

namespace tfcc::tools {
namespace {

std::vector<std::string> folded(const std::vector<std::pair<std::string, std::string>>& items) {
  std::vector<std::string> out;
  for (const Folded& f : fold(items)) out.push_back(f.name + " x" + std::to_string(f.count));
  return out;
}

using Lines = std::vector<std::string>;

TEST(Fold, JoinsWhatDiffersInNumbers) {
  EXPECT_EQ(folded({{"past.0.key", "f32"},
                    {"past.0.value", "f32"},
                    {"past.1.key", "f32"},
                    {"past.1.value", "f32"}}),
            (Lines{"past.0..1.key x2", "past.0..1.value x2"}));
}

TEST(Fold, KeepsWhatElseDiffers) {
  EXPECT_EQ(folded({{"a.0", "x"}, {"a.1", "y"}, {"a.2", "x"}}), (Lines{"a.* x2", "a.1 x1"}));
}

TEST(Fold, NumbersThatAreNoRunAreAStar) {
  EXPECT_EQ(
      folded({{"layers.0/MatMul_3", ""}, {"layers.1/MatMul_9", ""}, {"layers.2/MatMul_27", ""}}),
      (Lines{"layers.0..2/MatMul_* x3"}));
  EXPECT_EQ(folded({{"a1", ""}, {"a0", ""}}), (Lines{"a* x2"}));
  EXPECT_EQ(folded({{"x99999999999999999999", ""}, {"x99999999999999999998", ""}}),
            (Lines{"x* x2"}));
}

TEST(Fold, LeavesOneAsItIs) {
  EXPECT_EQ(folded({{"h.11.attn", ""}, {"", ""}, {"12", ""}}),
            (Lines{"h.11.attn x1", " x1", "12 x1"}));
  EXPECT_TRUE(folded({}).empty());
}

TEST(Fold, EqualNamesAreOne) {
  EXPECT_EQ(folded({{"check", ""}, {"check", ""}}), (Lines{"check x2"}));
}

}  // namespace
}  // namespace tfcc::tools
