// SPDX-License-Identifier: Apache-2.0
// cumsum: out[o, k, c] = sum of x[o, j, c] over j <= k; j < k if exclusive, from the other end if
// reverse.
//
// x and out are [outer, length, inner]. contiguous (inner is 1): one warp a line, a scan over 32
// elements at a time.
// Otherwise one thread a line, neighbouring threads on neighbouring lines. No shared memory.
// Spec: In, Out; exclusive, reverse, contiguous. Grid: see templates/README.md. Bound: bytes of x
// and out.
#pragma once
#include "cuda/prelude.cuh"

template <class V> TFCC_FN V scan_lanes(V v) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    V other = __shfl_up_sync(kAllLanes, v, step);
    if (lane >= step) v += other;
  }
  return v;
}

template <class Spec, class In, class Out>
TFCC_FN void cumsum_line_of_warp(Out* out, const In* x, idx lines, idx length) {
  using V = Compute<Out>;
  const idx line = (idx)((blockIdx.x * blockDim.x + threadIdx.x) / kWarp);
  if (line >= lines) return;
  const int lane = threadIdx.x % kWarp;
  V carry = V(0);
  for (idx first = 0; first < length; first += kWarp) {
    const idx k = Spec::reverse ? length - 1 - first - lane : first + lane;
    const bool inside = first + lane < length;
    const V own = inside ? (V)load(x, line * length + k) : V(0);
    const V sum = carry + scan_lanes(own);
    V before = __shfl_up_sync(kAllLanes, sum, 1);
    if (lane == 0) before = carry;
    if (inside) store(out, line * length + k, Spec::exclusive ? before : sum);
    carry = __shfl_sync(kAllLanes, sum, kWarp - 1);
  }
}

template <class Spec, class In, class Out>
TFCC_FN void cumsum_line_of_thread(Out* out, const In* x, idx lines, idx length, idx inner) {
  using V = Compute<Out>;
  const idx line = (idx)(blockIdx.x * blockDim.x + threadIdx.x);
  if (line >= lines) return;
  const idx outer = line / inner;
  const idx base = outer * length * inner + (line - outer * inner);
  V sum = V(0);
#pragma unroll 4
  for (idx k = 0; k < length; ++k) {
    const idx at = base + (Spec::reverse ? length - 1 - k : k) * inner;
    const V own = (V)load(x, at);
    store(out, at, Spec::exclusive ? sum : sum + own);
    sum += own;
  }
}

template <class Spec>
TFCC_FN void cumsum(typename Spec::Out* out, const typename Spec::In* x, idx length, idx inner,
                    idx outer) {
  if constexpr (Spec::contiguous) cumsum_line_of_warp<Spec>(out, x, outer * inner, length);
  else cumsum_line_of_thread<Spec>(out, x, outer * inner, length, inner);
}
