// SPDX-License-Identifier: Apache-2.0
// bias_gelu: out[r, c] = gelu(x[r, c] + bias[c]), erf or tanh as cuda/gelu.cuh defines them.
//
// x, out [rows, hidden]; bias [hidden]. One thread computes vec neighbours of a row. No shared memory.
// Spec: In, Weight, Out; hidden, vec (a power of two that divides hidden, at most 16 bytes of In); tanh.
// Grid: ceil(rows * hidden, threads * vec). Bound: bytes of x and out.
#pragma once
#include "cuda/gelu.cuh"

template <class Spec>
TFCC_FN void bias_gelu(typename Spec::Out* out, const typename Spec::In* x, const typename Spec::Weight* bias,
                       idx rows) {
  constexpr int vec = Spec::vec;
  static_assert(is_power_of_two(vec) && Spec::hidden % vec == 0, "vec: a power of two that divides hidden");
  static_assert(vec * sizeof(typename Spec::In) <= 16, "vec: at most 16 bytes of In");
  using V = Compute<typename Spec::Out>;
  const u32 first = (blockIdx.x * blockDim.x + threadIdx.x) * vec;
  if (first >= (u32)rows * Spec::hidden) return;
  Compute<typename Spec::In> v[vec];
  Compute<typename Spec::Weight> b[vec];
  load_pack(x + first, v);
  load_pack(bias + first % Spec::hidden, b);
  V y[vec];
#pragma unroll
  for (int k = 0; k < vec; ++k) y[k] = gelu_of<Spec::tanh, typename Spec::Out>((V)v[k] + (V)b[k]);
  store_pack(out + first, y);
}
