// SPDX-License-Identifier: Apache-2.0
// softmax: out[row, c] = e_c / sum of e, e_c = exp(x_c - max x), x_c = value(row, c); log: x_c -
// max x - log(sum of e).
//
// One row per warp or per block. Rows up to registers * threads_per_row are read once; longer ones
// three times.
// Spec: Out (f32, f16, bf16, f64); registers 1..32; threads_per_row 32 or threads; threads; log.
// Statistics in Compute<Out>. By definition a row of -inf alone gives NaN. Grid: ceil(rows, threads
// / threads_per_row).
// Bound: bytes read by value and written.
#pragma once
#include "cuda/prelude.cuh"

struct LargerOf {
  template <class V> TFCC_FN V operator()(V a, V b) const { return fmax_(a, b); }
};

template <class Spec, class V> TFCC_FN V softmax_value(V x, V top, V scale) {
  return Spec::log ? x - top - scale : fexp(x - top) * scale;
}

template <class Spec, class V, class Value>
TFCC_FN void softmax_in_registers(typename Spec::Out* out, idx row, idx cols, const Value& value) {
  constexpr int step = Spec::threads_per_row;
  const int lane = lane_of_row<Spec>();
  V x[Spec::registers];
  V top = (V)-kInf;
#pragma unroll
  for (int k = 0; k < Spec::registers; ++k) {
    const idx c = lane + k * step;
    x[k] = c < cols ? (V)value(row, c) : (V)-kInf;
    top = fmax_(top, x[k]);
  }
  top = reduce_row<Spec>(top, LargerOf());
  V sum = V(0);
#pragma unroll
  for (int k = 0; k < Spec::registers; ++k) {
    const V e = lane + k * step < cols ? fexp(x[k] - top) : V(0);
    sum += e;
    if (!Spec::log) x[k] = e;
  }
  sum = reduce_row<Spec>(sum, Add());
  const V scale = Spec::log ? flog(sum) : V(1) / sum;
#pragma unroll
  for (int k = 0; k < Spec::registers; ++k) {
    const idx c = lane + k * step;
    if (c < cols) store(out, row * cols + c, Spec::log ? x[k] - top - scale : x[k] * scale);
  }
}

template <class Spec, class V, class Value>
TFCC_FN void softmax_in_passes(typename Spec::Out* out, idx row, idx cols, const Value& value) {
  constexpr int step = Spec::threads_per_row;
  const int lane = lane_of_row<Spec>();
  V top = (V)-kInf;
#pragma unroll 4
  for (idx c = lane; c < cols; c += step) top = fmax_(top, (V)value(row, c));
  top = reduce_row<Spec>(top, LargerOf());
  V sum = V(0);
#pragma unroll 4
  for (idx c = lane; c < cols; c += step) sum += fexp((V)value(row, c) - top);
  sum = reduce_row<Spec>(sum, Add());
  const V scale = Spec::log ? flog(sum) : V(1) / sum;
#pragma unroll 4
  for (idx c = lane; c < cols; c += step)
    store(out, row * cols + c, softmax_value<Spec>((V)value(row, c), top, scale));
}

template <class Spec, class Value>
TFCC_FN void softmax(typename Spec::Out* out, idx cols, const Value& value, idx rows) {
  static_assert(kIsReal<typename Spec::Out>, "Out: a real type");
  static_assert(Spec::registers >= 1 && Spec::registers <= 32, "registers: 1..32");
  using V = Compute<typename Spec::Out>;
  const idx row = row_of_thread<Spec>();
  if (row >= rows) return;
  if (cols <= Spec::registers * Spec::threads_per_row)
    softmax_in_registers<Spec, V>(out, row, cols, value);
  else softmax_in_passes<Spec, V>(out, row, cols, value);
}
