// SPDX-License-Identifier: Apache-2.0
// Random expressions for tests: floor divisions of negatives, infinities and NaN, guarded loads,
// every kind of node.
#pragma once

#include <cmath>
#include <random>

#include "ir/expr.h"

namespace tfcc::ir {

/// Index variables 0 over N and 1 over 5; operand 0: f32[N,5], 1: i64[N], 2: bool[]; flag 0.
class RandomExpr {
 public:
  RandomExpr(ExprPool& pool, uint32_t seed) : pool_(pool), random_(seed) {}

  ExprRef integer(int depth) {
    if (depth == 0) {
      switch (random_() % 5) {
        case 0: return pool_.integer(static_cast<int64_t>(random_() % 9) - 4);
        case 1: return pool_.index(0, pool_.symbol("N"));
        case 2: return pool_.index(1, pool_.integer(5));
        case 3: return pool_.symbol("N");
        default: return pool_.load(1, Scalar::i64, {pool_.index(0, pool_.symbol("N"))});
      }
    }
    ExprRef a = integer(depth - 1), b = integer(depth - 1);
    ExprRef positive = pool_.integer(static_cast<int64_t>(random_() % 7) + 1);
    switch (random_() % 13) {
      case 0: return add(a, b);
      case 1: return sub(a, b);
      case 2: return depth < 4 ? mul(a, b) : neg(a);
      case 3: return div(a, positive);
      case 4: return mod(a, positive);
      case 5: return min(a, b);
      case 6: return max(a, b);
      case 7: return abs(a);
      case 8: return select(condition(depth - 1), a, b);
      case 9: return bounded(a, pool_.integer(5), 0);
      case 10: return neg(a);
      case 11: return bit_and(a, b);
      default: return convert(real(depth - 1), Scalar::i64);
    }
  }

  ExprRef condition(int depth) {
    if (depth == 0) return pool_.load(2, Scalar::boolean, {});
    switch (random_() % 8) {
      case 0: return lt(integer(depth - 1), integer(depth - 1));
      case 1: return eq(integer(depth - 1), integer(depth - 1));
      case 2: return lt(real(depth - 1), real(depth - 1));
      case 3: return le(real(depth - 1), real(depth - 1));
      case 4: return logical_and(condition(depth - 1), condition(depth - 1));
      case 5: return logical_or(condition(depth - 1), condition(depth - 1));
      case 6: return is_nan(real(depth - 1));
      default: return logical_not(condition(depth - 1));
    }
  }

  ExprRef real(int depth) {
    if (depth == 0) {
      constexpr double kValues[] = {0.5, -0.0, 1e-12, 3.0, -1.5, 1e30, INFINITY, -INFINITY, NAN};
      if (random_() % 2) return pool_.real(kValues[random_() % 9]);
      return pool_.load(0, Scalar::f32,
                        {pool_.index(0, pool_.symbol("N")), pool_.index(1, pool_.integer(5))});
    }
    constexpr ExprKind kUnary[] = {
        ExprKind::exp,  ExprKind::log,   ExprKind::sqrt, ExprKind::erf,        ExprKind::tanh,
        ExprKind::sin,  ExprKind::floor, ExprKind::rint, ExprKind::sign,       ExprKind::round_f16,
        ExprKind::ceil, ExprKind::cos,   ExprKind::fneg, ExprKind::round_bf16, ExprKind::atan};
    ExprRef a = real(depth - 1), b = real(depth - 1);
    switch (random_() % 13) {
      case 0: return add(a, b);
      case 1: return sub(a, b);
      case 2: return mul(a, b);
      case 3: return div(a, b);
      case 4: return pow(a, b);
      case 5: return mod(a, b);
      case 6: return min(a, b);
      case 7: return max(a, b);
      case 8: return select(condition(depth - 1), a, b);
      case 9: return convert(integer(depth - 1), Scalar::f32);
      case 10: return convert(convert(a, Scalar::f64), Scalar::f32);
      case 11: return abs(a);
      default: return unary(kUnary[random_() % std::size(kUnary)], a);
    }
  }

 private:
  ExprPool& pool_;
  std::mt19937 random_;
};

}  // namespace tfcc::ir
