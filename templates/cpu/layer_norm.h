// SPDX-License-Identifier: Apache-2.0
// layer_norm: out[r, j] = (x[r, j] - mean) / sqrt(variance + eps) * gamma[j] + beta[j] over rows of
// `hidden` elements. One row per work item; mean first, then the variance around it. layer_norm_of
// reads its row through value(row, j), which it calls three times for each element. normalize_row
// also serves rms_norm and residual_norm.
#pragma once

#include "cpu/reduce.h"

/// put(j, finish(j, y[j])) for the norm y of the row x(0) ... x(cols-1).
template <class T, bool rms, class X, class Finish, class Put>
TFCC_FN void normalize_row(idx cols, T eps, const X& x, const Finish& finish, const Put& put) {
  T mean = 0;
  if constexpr (!rms) mean = reduce_lanes<Sum, T>(cols, x) / (T)cols;
  const T squares = reduce_lanes<Sum, T>(cols, [&](idx j) {
    T d = x(j) - mean;
    return d * d;
  });
  const T scale = (T)1 / fsqrt(squares / (T)cols + eps);
#pragma clang loop vectorize(assume_safety)
  for (idx j = 0; j < cols; ++j) put(j, finish(j, (x(j) - mean) * scale));
}

/// Spec: Weight, Out, hidden, has_beta, eps. value(row, j) is the element to normalise.
template <class Spec, class Value>
TFCC_FN void layer_norm_of(typename Spec::Out* out, const Value& value,
                           const typename Spec::Weight* gamma, const typename Spec::Weight* beta,
                           i64 begin, i64 end) {
  using T = decltype(value(idx{}, idx{}));
  for (i64 row = begin; row < end; ++row) {
    auto* to = out + row * Spec::hidden;
    normalize_row<T, false>(
        Spec::hidden, (T)Spec::eps, [&](idx j) { return value(row, j); },
        [&](idx j, T y) {
          y = y * (T)load(gamma, j);
          if constexpr (Spec::has_beta) y = y + (T)load(beta, j);
          return y;
        },
        [&](idx j, T y) { store(to, j, y); });
  }
}

/// Spec: In, Weight, Out, hidden, has_beta, eps.
template <class Spec>
TFCC_FN void layer_norm(typename Spec::Out* out, const typename Spec::In* x,
                        const typename Spec::Weight* gamma, const typename Spec::Weight* beta,
                        i64 begin, i64 end) {
  auto value = [&](idx row, idx j) { return load(x, row * Spec::hidden + j); };
  layer_norm_of<Spec>(out, value, gamma, beta, begin, end);
}
