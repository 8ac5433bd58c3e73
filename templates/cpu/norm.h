// SPDX-License-Identifier: Apache-2.0
// norm: x[r, j] = value(i0, ...)(j); out[r, j] = (x[r, j] - mean) / sqrt(variance + eps) * gamma[j]
// + beta[j] over rows of `hidden` elements; rms: x[r, j] / sqrt(mean of squares + eps) * gamma[j]. x
// itself is stored as `sum` if asked for.
//
// A work item is a row; mean first, then the variance around it. value takes the indices of a row,
// computes what is the same for all of it (the ids of its embeddings), and returns the function of
// the column, which is called again in each sweep over the row: what it reads is in the first cache
// by then.
#pragma once

#include "cpu/reduce.h"

/// Spec: Real f32 or f64, of x; rank, hidden, rms, eps. sum and beta may be nullptr.
template <class Spec, class Out, class Sum, class Value, class Gamma, class Beta>
TFCC_FN void norm(Out* out, Sum sum, const Dims<Spec::rank - 1>& outer, const Value& value,
                  const Gamma* gamma, Beta beta, i64 begin, i64 end) {
  using T = typename Spec::Real;
  constexpr bool has_beta = !kSame<Beta, decltype(nullptr)>;
  constexpr bool has_sum = !kSame<Sum, decltype(nullptr)>;
  constexpr int axes = Spec::rank - 1;
  constexpr idx cols = Spec::hidden;
  idx i[Spec::rank] = {};
  unravel<axes>(begin, outer, i);
  for (i64 row = begin; row < end; ++row) {
    const idx at = row * cols;
    const auto x = apply<axes>(value, i);
    T mean = 0;
    if constexpr (!Spec::rms) mean = reduce_lanes<::Sum, T>(cols, x) / (T)cols;
    const T squares = reduce_lanes<::Sum, T>(cols, [&](idx j) {
      const T d = x(j) - mean;
      return d * d;
    });
    const T scale = (T)1 / fsqrt(squares / (T)cols + (T)Spec::eps);
#pragma clang loop vectorize(assume_safety)
    for (idx j = 0; j < cols; ++j) {
      // Read before either result is written: both may take the place of an operand.
      const T v = x(j);
      T y = (v - mean) * scale * (T)load(gamma, j);
      if constexpr (has_beta) y = y + (T)load(beta, j);
      if constexpr (has_sum) store(sum, at + j, v);
      store(out, at + j, y);
    }
    for (int k = axes - 1; k >= 0 && ++i[k] == outer[k]; --k) i[k] = 0;
  }
}
