// SPDX-License-Identifier: Apache-2.0
// 100,000 random expressions of depth up to 6: the value of the tree, of what the builders make of
// it, and of that rebuilt are the same, bit by bit in f32 (up to the sign of a zero).
#include <gtest/gtest.h>

#include <memory>

#include "tests/ir/raw_expr.h"

namespace tfcc::ir {
namespace {

constexpr int kExpressions = 100'000, kSamples = 3, kPerPool = 500;

class RandomExpressions : public ::testing::TestWithParam<int> {};

TEST_P(RandomExpressions, Agree) {
  constexpr int kParts = 4;
  std::mt19937 random(static_cast<uint32_t>(GetParam()));
  RawMaker maker(static_cast<uint32_t>(GetParam()) + 100, true);
  std::unique_ptr<ExprPool> pool;
  int compared = 0, open = 0;
  for (int k = 0; k < kExpressions / kParts && !HasFailure(); ++k) {
    if (k % kPerPool == 0) {
      pool = std::make_unique<ExprPool>();
      pool->set_range("N", {1, 4});
    }
    const int depth = 1 + k % 6;
    const Raw raw = k % 3 == 0   ? maker.integer(depth)
                    : k % 3 == 1 ? maker.condition(depth)
                                 : maker.real(depth);
    const ExprRef e = build(raw, *pool);
    const ExprRef again = rewrite(e, [](ExprRef) -> ExprRef { return nullptr; });
    if (poison_of(e) != Poison::none || poison_of(again) != Poison::none)
      continue;  // an error of the import, not a value
    for (int t = 0; t < kSamples; ++t) {
      const RawSample sample = random_sample(random);
      RawEval eval(sample);
      const ScalarValue want = eval(raw);
      if (eval.open) {
        ++open;
        continue;
      }
      ++compared;
      bool flagged = false;
      EXPECT_TRUE(same(raw.type, want, interpret(e, sample, flagged)))
          << print(e) << ": " << want.i << " " << want.r;
      EXPECT_TRUE(eval.flagged || !flagged) << print(e);
      EXPECT_TRUE(same(raw.type, want, interpret(again, sample, flagged))) << print(again);
    }
  }
  EXPECT_GT(compared, 5 * open);
}

INSTANTIATE_TEST_SUITE_P(Parts, RandomExpressions, ::testing::Range(0, 4));

}  // namespace
}  // namespace tfcc::ir
