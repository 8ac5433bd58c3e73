// SPDX-License-Identifier: Apache-2.0
// pointwise_norm: x[r, j] = value(i0, ...)(j); out = layer or RMS norm of x over its rows; x itself
// is stored as `sum` if asked for. A work item is a row. value takes the indices of a row, computes
// what is the same for all of it (the ids of its embeddings), and returns the function of the
// column, which is called again in each sweep over the row.
#pragma once

#include "cpu/layer_norm.h"

/// Spec: In (of sum), Weight, Out, rank, hidden, rms, has_beta, has_sum, eps.
template <class Spec, class Value>
TFCC_FN void pointwise_norm(typename Spec::Out* out, typename Spec::In* sum,
                            const Dims<Spec::rank - 1>& outer, const Value& value,
                            const typename Spec::Weight* gamma, const typename Spec::Weight* beta,
                            i64 begin, i64 end) {
  using T = Compute<typename Spec::In>;
  constexpr int axes = Spec::rank - 1;
  idx i[Spec::rank] = {};
  unravel<axes>(begin, outer, i);
  for (i64 row = begin; row < end; ++row) {
    const idx at = row * Spec::hidden;
    const auto x = apply<axes>(value, i);
    auto finish = [&](idx j, T y) {
      y = y * (T)load(gamma, j);
      if constexpr (Spec::has_beta) y = y + (T)load(beta, j);
      return y;
    };
    normalize_row<T, Spec::rms>(Spec::hidden, (T)Spec::eps, x, finish, [&](idx j, T y) {
      if constexpr (Spec::has_sum) store(sum, at + j, (T)x(j));
      store(out, at + j, y);
    });
    for (int k = axes - 1; k >= 0 && ++i[k] == outer[k]; --k) i[k] = 0;
  }
}
