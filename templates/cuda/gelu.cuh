// SPDX-License-Identifier: Apache-2.0
// gelu: out = x/2 * (1 + erf(x / sqrt 2)); tanh: x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3))).
//
// x, out: any dense arrays of cols * rows elements. One thread computes vec neighbours. No shared memory.
// Spec: In, Out; vec (a power of two, at most 16 bytes of either type); tanh. Grid: ceil(cols * rows, threads * vec).
// Bound: bytes of x and out.
#pragma once
#include "cuda/prelude.cuh"

template <bool tanh, class Out, class V>
TFCC_FN V gelu_of(V x) {
  if constexpr (tanh) {
    const V inner = (V)0.79788456080286535588 * (x + (V)0.044715 * x * x * x);
    return (V)0.5 * x * ((V)1 + ftanh(inner));
  } else {
    return (V)0.5 * x * one_plus_erf<Out>(x * (V)0.70710678118654752440);
  }
}

template <class Spec>
TFCC_FN void gelu(typename Spec::Out* out, const typename Spec::In* x, idx cols, idx rows) {
  constexpr int vec = Spec::vec;
  static_assert(is_power_of_two(vec) && vec * sizeof(typename Spec::In) <= 16 && vec * sizeof(typename Spec::Out) <= 16,
                "vec: a power of two, at most 16 bytes");
  using V = Compute<typename Spec::Out>;
  const idx elements = cols * rows;
  const u32 first = (blockIdx.x * blockDim.x + threadIdx.x) * vec;
  if (first >= (u32)elements) return;
  if (first + vec <= (u32)elements && pack_aligned<vec>(x) && pack_aligned<vec>(out)) {
    Compute<typename Spec::In> v[vec];
    V y[vec];
    load_pack(x + first, v);
#pragma unroll
    for (int k = 0; k < vec; ++k) y[k] = gelu_of<Spec::tanh, typename Spec::Out>((V)v[k]);
    store_pack(out + first, y);
  } else {
    for (u32 e = first; e < first + vec && e < (u32)elements; ++e) {
      store(out, (idx)e, gelu_of<Spec::tanh, typename Spec::Out>((V)load(x, (idx)e)));
    }
  }
}
