// SPDX-License-Identifier: Apache-2.0
// pointwise_norm: x[r, c] = value(i0, ...)(c); out = layer or RMS norm of x over its rows; x itself is stored as `sum` if asked for.
//
// out, sum [rows, hidden] with rows = outer[0] * ...; gamma, beta [hidden]. value takes the indices of a row, computes what
// is the same for all of it (the ids of its embeddings), and returns the function of the column. One row per warp or per
// block, in registers; the norm uses x before it is rounded to In for `sum`.
// Spec: In, Weight, Out; rank, hidden, vec, threads_per_row, threads; rms, has_beta, has_sum; eps. Rules: cuda/norm.cuh.
// Bound: bytes that value loads, out and sum. Shared memory: static, 4 bytes a warp.
#pragma once
#include "cuda/norm.cuh"

template <class Spec, class Value>
TFCC_FN void pointwise_norm(typename Spec::Out* out, typename Spec::In* sum, const Dims<Spec::rank - 1>& outer,
                            const Value& value, const typename Spec::Weight* gamma, const typename Spec::Weight* beta) {
  const idx row = row_of_thread<Spec>();
  if (row >= outer.count()) return;
  const i64 at = (i64)row * Spec::hidden;
  idx i[Spec::rank];
  unravel<Spec::rank - 1>(row, outer, i);
  NormRow<Spec> r;
  r.load_values(apply<Spec::rank - 1>(value, i));
  if constexpr (Spec::has_sum) r.store(sum + at);
  r.template normalize<Spec::rms, Spec::has_beta>(out + at, gamma, beta);
}
