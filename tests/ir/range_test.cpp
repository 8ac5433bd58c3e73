// SPDX-License-Identifier: Apache-2.0
// What may be proved of integers that wrap: bounds of values, comparisons of the ends of 64 bits,
// indices from data.
#include <gtest/gtest.h>

#include <cmath>

#include "ir/ir.h"
#include "ir/range.h"

namespace tfcc::ir {
namespace {

class RangeTest : public ::testing::Test {
 protected:
  RangeTest() { pool.set_range("S", {1, 512}); }

  ExprRef load(DType type, int64_t slot = 0) { return pool.load(slot, type, {}); }
  ExprRef integer(int64_t v) { return pool.integer(v); }

  // The value where operand k is data[k].
  int64_t value(ExprRef e, std::vector<int64_t> data) {
    ScalarEnv env;
    env.load = [&](int64_t slot, std::span<const int64_t>, int64_t& i, double&) {
      i = data.at(static_cast<size_t>(slot));
    };
    env.symbol = [](std::string_view) { return 1; };
    return eval_expr(e, env).i;
  }

  ExprPool pool;
};

constexpr int64_t kLeast = INT64_MIN, kMost = INT64_MAX;

TEST_F(RangeTest, ClampsBoundWhatIsTruncated) {
  ExprRef x = pool.load(0, DType::f32, {});
  const auto real = [&](double v) { return pool.real(v); };
  const auto expect = [&](ExprRef e, int64_t lo, int64_t hi) {
    const Interval i = range_of(convert(e, Scalar::i64));
    EXPECT_EQ(i.lo, lo) << print(e);
    EXPECT_EQ(i.hi, hi) << print(e);
  };
  const auto clamped = [&](double lo, double hi) { return min(max(x, real(lo)), real(hi)); };
  expect(clamped(0, 255), 0, 255);
  expect(unary(ExprKind::rint, clamped(-128, 127)), -128, 127);
  expect(unary(ExprKind::ceil, clamped(0.5, 7.5)), 0, 8);
  expect(clamped(5, 9), 0, 9);  // what is no number becomes 0
  expect(clamped(-9, -5), -9, 0);
  expect(min(x, real(3)), kLeast, 3);
  expect(max(x, real(-3)), -3, kMost);
  expect(x, kLeast, kMost);
  expect(clamped(0, 2147483647), 0, 2147483648);  // which f32 has instead
  expect(max(x, real(NAN)), kLeast, kMost);
  expect(clamped(-1e300, 1e300), kLeast, kMost);
}

TEST_F(RangeTest, LoadsHaveTheRangeOfTheirType) {
  const auto expect = [&](DType t, int64_t lo, int64_t hi) {
    EXPECT_EQ(range_of(load(t)).lo, lo);
    EXPECT_EQ(range_of(load(t)).hi, hi);
  };
  expect(DType::i64, kLeast, kMost);
  expect(DType::i32, INT32_MIN, INT32_MAX);
  expect(DType::i16, -32768, 32767);
  expect(DType::i8, -128, 127);
  expect(DType::u8, 0, 255);
}

TEST_F(RangeTest, SumsThatWrapHaveNoSign) {
  ExprRef x = load(DType::i64, 0), y = load(DType::i64, 1);
  for (ExprRef e : {add(abs(x), abs(y)), mul(abs(x), abs(y)), mul(abs(x), integer(31)),
                    neg(min(x, integer(0))), abs(sub(x, y)), abs(x), mul(x, x)}) {
    EXPECT_FALSE(prove_ge0(e)) << print(e);
    EXPECT_NE(bounded(min(e, integer(7)), integer(8), 0)->kind, ExprKind::imin) << print(e);
  }
  ExprRef i = load(DType::i32, 0), j = load(DType::i32, 1);
  for (ExprRef e : {add(abs(i), abs(j)), mul(abs(i), abs(j)), neg(min(i, integer(0))),
                    abs(sub(i, j)), mul(abs(i), integer(31))}) {
    EXPECT_TRUE(prove_ge0(e)) << print(e);
    EXPECT_EQ(bounded(min(e, integer(7)), integer(8), 0), min(e, integer(7))) << print(e);
  }
}

TEST_F(RangeTest, WhatIsClampedOnBothSidesIsInside) {
  ExprRef x = load(DType::i64);
  ExprRef wild = mul(add(x, integer(5)), integer(1 << 20));
  EXPECT_TRUE(prove_in(max(integer(0), min(wild, integer(7))), integer(8)));
  EXPECT_TRUE(prove_in(mod(wild, integer(8)), integer(8)));
  EXPECT_TRUE(prove_in(wrap(wild, 3, false), integer(8)));
  EXPECT_TRUE(prove_in(bit_and(wild, integer(7)), integer(8)));
  EXPECT_FALSE(prove_in(min(wild, integer(7)), integer(8)));
  EXPECT_FALSE(prove_in(mod(wild, integer(9)), integer(8)));
}

TEST_F(RangeTest, ComparisonsAtTheEnds) {
  ExprRef x = load(DType::i64, 0), y = load(DType::i64, 1);
  const int64_t ends[] = {kLeast, kLeast + 1, -7, -2, -1, 0, 1, 7, kMost - 1, kMost};
  for (int64_t c : ends) {
    for (int64_t v : ends) {
      EXPECT_EQ(value(select(lt(x, integer(c)), integer(1), integer(0)), {v, 0}), v < c)
          << v << " < " << c;
      EXPECT_EQ(value(select(le(x, integer(c)), integer(1), integer(0)), {v, 0}), v <= c)
          << v << " <= " << c;
      EXPECT_EQ(value(select(lt(integer(c), x), integer(1), integer(0)), {v, 0}), c < v)
          << c << " < " << v;
      EXPECT_EQ(value(select(logical_not(lt(x, y)), integer(1), integer(0)), {v, c}), v >= c)
          << v << " >= " << c;
      EXPECT_EQ(value(select(eq(x, y), integer(1), integer(0)), {v, c}), v == c)
          << v << " == " << c;
    }
  }
}

TEST_F(RangeTest, ComparisonsOfWhatWraps) {
  ExprRef x = load(DType::i64, 0), y = load(DType::i64, 1);
  ExprRef sum = add(x, y);
  EXPECT_EQ(value(select(lt(sum, integer(0)), integer(1), integer(0)), {kMost, 1}), 1);
  EXPECT_EQ(value(select(le(integer(0), sum), integer(1), integer(0)), {kLeast, -1}), 1);
  // Twice a number is 0 for one that is not: nothing is divided away.
  EXPECT_EQ(value(select(eq(mul(x, integer(2)), integer(0)), integer(1), integer(0)), {kLeast, 0}),
            1);
  EXPECT_EQ(value(div(add(mul(x, integer(4)), integer(1)), integer(4)), {int64_t{1} << 62, 0}), 0);
  EXPECT_EQ(value(sub(x, integer(kLeast)), {5, 0}), kLeast + 5);
  EXPECT_EQ(poison_of(sub(x, integer(kLeast))), Poison::none) << "a number modulo 2^64, not a size";
}

// What might wrap is compared by the larger of both; where its parts become sizes, as they are.
TEST_F(RangeTest, AnExtremumThatIsOneOfTwoIsAComparison) {
  ExprRef n = load(DType::i64, 0), size = pool.symbol("S");
  ExprRef i = pool.index(0, size), j = pool.index(1, pool.symbol("T"));
  const auto with_size = [&](ExprRef e) {
    return rewrite(e, [&](ExprRef x) { return x == n ? size : nullptr; });
  };
  ExprRef behind = le(j, add(i, n));
  EXPECT_EQ(behind->kind, ExprKind::eq0);
  EXPECT_EQ(with_size(behind), le(j, add(i, size)));
  EXPECT_EQ(with_size(lt(add(i, n), j)), lt(add(i, size), j));
  EXPECT_EQ(eq(min(i, j), i), le(i, j));
  EXPECT_EQ(eq(add(max(i, j), size), add(j, size)), le(i, j));
  EXPECT_EQ(eq(sub(size, max(i, j)), sub(size, j)), le(i, j));
  // Neither side, or twice: no comparison.
  EXPECT_EQ(eq(max(i, j), size)->kind, ExprKind::eq0);
  EXPECT_EQ(eq(mul(max(i, j), integer(2)), add(i, j))->kind, ExprKind::eq0);
  // On a machine, too: the sum wraps, and so does what it is compared with.
  ExprRef x = load(DType::i64, 0), y = load(DType::i64, 1);
  for (int64_t a : {kLeast, int64_t{-1}, int64_t{0}, kMost}) {
    for (int64_t b : {kLeast, int64_t{-1}, int64_t{0}, kMost})
      EXPECT_EQ(value(select(eq(add(max(x, y), x), add(y, x)), integer(1), integer(0)), {a, b}),
                a <= b)
          << a << " <= " << b;
  }
}

// A condition taken apart and put together keeps its meaning, also where one side alone does not
// fit.
TEST_F(RangeTest, RewritingKeepsComparisons) {
  ExprRef x = load(DType::i64, 0);
  ExprRef i = pool.index(0, pool.symbol("S"));
  ExprRef before = le(select(le(integer(1), i), i, integer(kMost)), pool.symbol("S"));
  EXPECT_EQ(rewrite(before, [](ExprRef) -> ExprRef { return nullptr; }), before);
  ExprRef condition = le(i, integer(5));
  ExprRef of_data = substitute_indices(condition, {add(x, integer(kMost))});
  EXPECT_EQ(value(select(of_data, integer(1), integer(0)), {2}), 1)
      << "2 + INT64_MAX wraps to less than 5";
  EXPECT_EQ(value(select(of_data, integer(1), integer(0)), {0}), 0);
}

TEST_F(RangeTest, WrapKeepsLowBits) {
  ExprRef x = load(DType::i64), n = load(DType::i32);
  EXPECT_EQ(wrap(n, 32, true), n);
  EXPECT_EQ(wrap(wrap(x, 32, true), 8, false), wrap(x, 8, false));
  EXPECT_NE(wrap(wrap(x, 8, true), 32, true), wrap(x, 32, true));
  EXPECT_EQ(wrap(integer(int64_t{1} << 31), 32, true), integer(INT32_MIN));
  EXPECT_EQ(wrap(integer(-1), 4, false), integer(15));
  EXPECT_EQ(print(wrap(add(n, integer(1)), 32, true)), "i32(%0[] + 1)");
  EXPECT_EQ(value(wrap(add(n, integer(1)), 32, true), {INT32_MAX}), INT32_MIN);
}

TEST_F(RangeTest, WhatIsAssumedOfSizesIsRemembered) {
  ExprRef many = pool.symbol("B");
  for (const char* s : {"C", "D", "E"}) many = mul(many, pool.symbol(s));
  EXPECT_TRUE(fits(many)) << "at usual sizes";
  EXPECT_EQ(from_poly(pool, assumed_sizes(pool)), many);
  ExprRef hash = mul(pool.symbol("B"), integer(0x1E3779B97F4A7C15));
  EXPECT_FALSE(fits(hash)) << "meant to wrap";
  ExprPool plain;
  EXPECT_TRUE(fits(mul(plain.symbol("B"), plain.symbol("S")))) << "by the largest size";
  EXPECT_TRUE(assumed_sizes(plain).terms.empty());
}

// A bound that has too many terms is no bound: what may wrap stays what a machine computes.
TEST_F(RangeTest, WhatHasNoBoundIsNotTakenToFit) {
  std::vector<ExprRef> larger;
  for (int k = 0; k < 13; ++k)
    larger.push_back(
        max(pool.symbol("A" + std::to_string(k)), pool.symbol("B" + std::to_string(k))));
  ExprRef sum = integer(0);
  int products = 0;
  for (size_t a = 0; a < larger.size(); ++a) {
    for (size_t b = 0; b < a && products < 65; ++b, ++products)  // each bounded by four products
      sum = add(sum, mul(mul(larger[a], larger[b]), integer(int64_t{1} << 50)));
  }
  ASSERT_EQ(products, 65);
  ASSERT_EQ(poison_of(sum), Poison::none);
  EXPECT_EQ(magnitude(sum), nullptr);
  EXPECT_FALSE(fits(sum));
  EXPECT_FALSE(prove_ge0(sum));
}

TEST_F(RangeTest, QuotientsOfOneValueAreThatNumber) {
  pool.set_range("T", {1, 64});
  ExprRef s = pool.symbol("S"), t = pool.symbol("T");
  const auto minus = [&](ExprRef e) { return mul(e, integer(-1)); };
  EXPECT_EQ(div(minus(t), integer(64)), integer(-1));  // -64 and -1 alike
  EXPECT_NE(div(minus(t), integer(63)), integer(-1));  // of -64 it is -2
  EXPECT_NE(div(minus(s), integer(64)), integer(-1));
  EXPECT_EQ(div(add(minus(t), integer(-64)), integer(64)), integer(-2));
  EXPECT_EQ(div(add(t, integer(192)), integer(257)), integer(0));
  EXPECT_EQ(div(add(t, integer(127)), integer(128)), integer(1));  // 128..191
}

TEST_F(RangeTest, AChoiceThatGoesOnFromItsFirstElementIsNone) {
  ExprRef i = pool.index(0, pool.symbol("S")), j = pool.index(1, pool.symbol("S")),
          zero = integer(0);
  ExprRef rest = sub(mul(i, integer(3)), integer(1));
  for (ExprRef first : {le(i, zero), eq(i, zero)}) {
    EXPECT_EQ(select(first, integer(-1), rest), rest);
    EXPECT_EQ(select(first, j, add(rest, add(j, integer(1)))), add(rest, add(j, integer(1))));
    EXPECT_EQ(select(first, integer(0), rest)->kind, ExprKind::select);
  }
  EXPECT_EQ(select(le(i, integer(1)), integer(-1), rest)->kind, ExprKind::select);
  // What only a choice keeps from being read, or from raising a flag.
  ExprRef read = mul(i, pool.load(0, DType::i64, {sub(i, integer(1))}));
  EXPECT_EQ(select(le(i, zero), zero, read)->kind, ExprKind::select);
  EXPECT_EQ(select(le(i, zero), zero, mul(i, bounded(load(DType::i64, 0), integer(3), 0)))->kind,
            ExprKind::select);
  EXPECT_EQ(select(le(j, zero), integer(-1), rest)->kind, ExprKind::select);
  EXPECT_EQ(select(le(load(DType::i64, 0), zero), integer(-1), rest)->kind, ExprKind::select);
}

}  // namespace
}  // namespace tfcc::ir
