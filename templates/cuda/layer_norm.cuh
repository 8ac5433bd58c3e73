// SPDX-License-Identifier: Apache-2.0
// layer_norm: out[r, c] = (x[r, c] - mean_r) / sqrt(var_r + eps) * gamma[c] (+ beta[c]), the variance over hidden.
//
// x, out [rows, hidden]; gamma, beta [hidden]. One row per warp (threads_per_row 32) or per block, in registers.
// Spec: In, Weight, Out; hidden, vec, threads_per_row, threads; has_beta; eps. Rules: cuda/norm.cuh.
// Bound: bytes of x and out. Shared memory: static, 4 bytes a warp.
#pragma once
#include "cuda/norm.cuh"

template <class Spec>
TFCC_FN void layer_norm(typename Spec::Out* out, const typename Spec::In* x, const typename Spec::Weight* gamma,
                        const typename Spec::Weight* beta, idx rows) {
  const idx row = row_of_thread<Spec>();
  if (row >= rows) return;
  NormRow<Spec> r;
  r.load(x + (i64)row * Spec::hidden);
  r.template normalize<false, Spec::has_beta>(out + (i64)row * Spec::hidden, gamma, beta);
}
