// SPDX-License-Identifier: Apache-2.0
// What an integer expression may be on a machine of 64 bits: the bounds of its value, and whether a
// sum of products means what it says or may wrap. Every proof stands on these. Internal to ir/,
// to what prints expressions and to passes that store an integer.
#pragma once

#include <cstdint>
#include <unordered_map>

#include "ir/expr_poly.h"

namespace tfcc::ir {

/// Bounds, both included, of what an integer expression evaluates to.
struct Interval {
  int64_t lo = INT64_MIN, hi = INT64_MAX;
  bool inside(int64_t least, int64_t most) const { return least <= lo && hi <= most; }
};

/// Of the value as evaluated modulo 2^64: loads have the range of their type, indices that of their
/// extents, a size is at most kLargestSize. Never narrower than what can occur.
Interval range_of(ExprRef e);

/// True if the mathematical value of the polynomial over the evaluated values of its atoms always
/// fits 64 bits, so that evaluating it does not wrap. Polynomials of sizes and indices alone, whose
/// products no range bounds well, are taken to fit where they do at usual sizes (4096 each); the
/// pool then remembers what was assumed (ExprPool::assumed) and the run refuses sizes at which it
/// does not hold.
bool fits(const Poly& p, ExprPool& pool);
bool fits(ExprRef e);

/// True if that mathematical value lies within (-2^64, 2^64): it is 0 exactly where what is
/// evaluated is 0.
bool fits_twice(const Poly& p, ExprPool& pool);

/// A sum of products of sizes alone that the magnitude of `e` never exceeds, or null where data or
/// an unknown is left without a bound.
ExprRef magnitude(ExprRef e);

/// One bound for all that was assumed: the largest coefficient of each product of sizes. It may have
/// more terms than an expression. Without terms if nothing was.
Poly assumed_sizes(ExprPool& pool);

struct ExprPool::Known {
  std::unordered_map<ExprRef, Interval> ranges;
  std::unordered_map<ExprRef, ExprRef> magnitudes;  // null: none
  std::unordered_map<ExprRef, bool> fitting;
};

}  // namespace tfcc::ir
