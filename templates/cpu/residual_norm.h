// SPDX-License-Identifier: Apache-2.0
// residual_norm: sum = x + residual (+ bias); out = layer or RMS norm of sum. Rows of `hidden`
// elements, one per work item. The sum is computed again in each sweep over the row, which is in
// the first cache by then, and stored once if asked for.
#pragma once

#include "cpu/layer_norm.h"

/// Spec: In, Weight, Out, hidden, rms, has_beta, has_bias, has_sum, eps. x, residual and sum are
/// In.
template <class Spec>
TFCC_FN void residual_norm(typename Spec::Out* out, typename Spec::In* sum,
                           const typename Spec::In* x, const typename Spec::In* residual,
                           const typename Spec::Weight* gamma, const typename Spec::Weight* beta,
                           const typename Spec::Weight* bias, i64 begin, i64 end) {
  using T = Compute<typename Spec::In>;
  for (i64 row = begin; row < end; ++row) {
    const idx at = row * Spec::hidden;
    auto total = [&](idx j) {
      T v = load(x, at + j);
      if constexpr (Spec::has_bias) v = v + (T)load(bias, j);
      return v + load(residual, at + j);
    };
    auto finish = [&](idx j, T y) {
      y = y * (T)load(gamma, j);
      if constexpr (Spec::has_beta) y = y + (T)load(beta, j);
      return y;
    };
    normalize_row<T, Spec::rms>(Spec::hidden, (T)Spec::eps, total, finish, [&](idx j, T y) {
      if constexpr (Spec::has_sum) {
        // Read before either result is written: both may take the place of an operand.
        T s = total(j);
        store(sum, at + j, s);
      }
      store(out, at + j, y);
    });
  }
}
