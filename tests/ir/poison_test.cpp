// SPDX-License-Identifier: Apache-2.0
// A builder that cannot give an expression returns a poison, and whatever is built from one is one.
#include <gtest/gtest.h>

#include "ir/expr.h"
#include "ir/ir.h"

namespace tfcc::ir {
namespace {

class PoisonTest : public ::testing::Test {
 protected:
  ExprPool pool;
  ExprRef n = pool.symbol("N");
  ExprRef huge = pool.integer(INT64_MAX);
  ExprRef overflow = mul(mul(huge, n), pool.integer(2));
};

TEST_F(PoisonTest, HasTheReason) {
  EXPECT_EQ(poison_of(n), Poison::none);
  EXPECT_EQ(poison_of(overflow), Poison::overflow);
  EXPECT_EQ(poison_of(add(n, pool.real(1))), Poison::ill_typed);
  ExprRef power = n;
  for (int k = 0; k < 8; ++k) power = mul(power, power);  // N^256
  EXPECT_EQ(poison_of(power), Poison::too_large);
}

TEST_F(PoisonTest, SpreadsThroughEveryBuilder) {
  ExprRef c = le(overflow, n), r = convert(overflow, Scalar::f32);
  ExprRef index = pool.index(0, overflow);
  const ExprRef built[] = {
      add(overflow, n),
      sub(overflow, overflow),
      mul(overflow, pool.integer(0)),
      div(overflow, n),
      div(n, overflow),
      mod(n, overflow),
      neg(overflow),
      min(overflow, n),
      max(n, overflow),
      abs(overflow),
      wrap(overflow, 8, true),
      bit_and(overflow, n),
      bounded(n, overflow, 0),
      bounded(overflow, n, 0),
      index,
      pool.load(0, Scalar::f32, {n, overflow}),
      c,
      lt(n, overflow),
      eq(overflow, overflow),
      logical_not(c),
      logical_and(c, c),
      logical_and(c, logical_not(c)),
      logical_or(c, logical_not(c)),
      select(c, n, pool.integer(1)),
      select(le(n, pool.integer(4)), overflow, n),
      r,
      mul(r, pool.real(2)),
      unary(ExprKind::exp, r),
      is_nan(r),
      convert(unary(ExprKind::floor, r), Scalar::i64),
  };
  for (size_t k = 0; k < std::size(built); ++k)
    EXPECT_EQ(poison_of(built[k]), Poison::overflow) << k << ": " << print(built[k]);
}

TEST_F(PoisonTest, ProvesNothing) {
  EXPECT_FALSE(prove_ge0(overflow));
  EXPECT_FALSE(prove_le(overflow, n));
  EXPECT_FALSE(prove_in(pool.integer(0), overflow));
  EXPECT_FALSE(exact_div(overflow, n));
  EXPECT_FALSE(exact_div(n, overflow));
}

// What comes to nothing leaves no trace: an attempt at a proof, and an arm that is never taken.
TEST_F(PoisonTest, LeavesNoTrace) {
  prove_le(huge, mul(n, huge));
  EXPECT_EQ(poison_of(add(n, n)), Poison::none);
  EXPECT_EQ(select(pool.boolean(true), n, overflow), n);
}

TEST_F(PoisonTest, DataWraps) {
  ExprRef x = pool.load(0, Scalar::i64, {});
  EXPECT_EQ(poison_of(mul(mul(x, huge), pool.integer(2))), Poison::none);
}

TEST_F(PoisonTest, IsNoSizeComparedWithTheLeastInteger) {
  EXPECT_EQ(eq(n, pool.integer(INT64_MIN)), pool.boolean(false));
}

TEST_F(PoisonTest, IsOneInAnotherPool) {
  ExprPool other;
  EXPECT_EQ(poison_of(transfer(overflow, other)), Poison::overflow);
  EXPECT_EQ(transfer(overflow, other)->pool, &other);
}

TEST_F(PoisonTest, IsRefusedInText) {
  const auto name = [&](std::string_view s) -> ExprRef { return s == "N" ? n : nullptr; };
  const auto e = parse_expr("N * 9223372036854775807 * 2", pool, name, {});
  ASSERT_FALSE(e);
  EXPECT_NE(e.error().message.find("an integer does not fit 64 bits"), std::string::npos)
      << e.error().message;
}

}  // namespace
}  // namespace tfcc::ir
