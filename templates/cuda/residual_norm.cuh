// SPDX-License-Identifier: Apache-2.0
// residual_norm: s = x + residual (+ bias[c]); out = layer norm or RMS norm of s; optionally sum = s.
//
// x, residual, sum, out [rows, hidden]; gamma, beta, bias [hidden]. One row per warp or per block, in registers; the
// norm uses s before it is rounded to In for `sum`, which may be the buffer of x or of residual.
// Spec: In, Weight, Out; hidden, vec, threads_per_row, threads; rms, has_beta, has_bias, has_sum; eps.
// Bound: bytes of x, residual, out and sum. Shared memory: static, 4 bytes a warp.
#pragma once
#include "cuda/norm.cuh"

template <class Spec>
TFCC_FN void residual_norm(typename Spec::Out* out, typename Spec::In* sum, const typename Spec::In* x,
                           const typename Spec::In* residual, const typename Spec::Weight* gamma,
                           const typename Spec::Weight* beta, const typename Spec::Weight* bias, idx rows) {
  const idx row = row_of_thread<Spec>();
  if (row >= rows) return;
  const i64 at = (i64)row * Spec::hidden;
  NormRow<Spec> r;
  r.load(x + at);
  r.add(residual + at);
  if constexpr (Spec::has_bias) r.add(bias);
  if constexpr (Spec::has_sum) r.store(sum + at);
  r.template normalize<Spec::rms, Spec::has_beta>(out + at, gamma, beta);
}
