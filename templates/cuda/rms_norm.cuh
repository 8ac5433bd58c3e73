// SPDX-License-Identifier: Apache-2.0
// rms_norm: out[r, c] = x[r, c] / sqrt(mean of x[r, .]^2 + eps) * gamma[c].
//
// x, out [rows, hidden]; gamma [hidden]. One row per warp (threads_per_row 32) or per block, in registers.
// Spec: In, Weight, Out; hidden, vec, threads_per_row, threads; eps. Rules: cuda/norm.cuh.
// Bound: bytes of x and out. Shared memory: static, 4 bytes a warp.
#pragma once
#include "cuda/norm.cuh"

template <class Spec>
TFCC_FN void rms_norm(typename Spec::Out* out, const typename Spec::In* x, const typename Spec::Weight* gamma,
                      idx rows) {
  const idx row = row_of_thread<Spec>();
  if (row >= rows) return;
  NormRow<Spec> r;
  r.load(x + (i64)row * Spec::hidden);
  r.template normalize<true, false>(out + (i64)row * Spec::hidden, gamma, gamma);
}
