// SPDX-License-Identifier: Apache-2.0
// What templates/cuda/pack.cuh, running_sums.cuh and grouped_matmul.cuh use of cuda/prelude.cuh, for the CPU: votes and shuffles of a warp.
#pragma once

#include <bit>

#include "cuda/sm90.cuh"

inline int __popc(u32 x) { return std::popcount(x); }
inline int __shfl_up_sync(u32, int value, int step) {
  return __shfl_sync(kAllLanes, value, simt().lane() < step ? simt().lane() : simt().lane() - step);
}
inline f32 __shfl_up_sync(u32, f32 value, int step) {
  return std::bit_cast<f32>(__shfl_up_sync(kAllLanes, std::bit_cast<int>(value), step));
}
inline u32 __ballot_sync(u32, bool vote) { return simt().ballot(vote); }
inline void atomicAdd(int* at, int value) { *at += value; }
/// Whether any thread of the block votes so.
inline int __syncthreads_or(int vote) {
  static int any;
  __syncthreads();
  any = 0;
  __syncthreads();
  any |= vote;
  __syncthreads();
  return any;
}

// ---- what templates/cuda/linear_attention_step.cuh uses besides ----

struct bf16 {
  int16_t whole;
};
struct float2 {
  f32 x, y;
};
struct float4 {
  f32 x, y, z, w;
};
inline float4 make_float4(f32 x, f32 y, f32 z, f32 w) { return {x, y, z, w}; }
inline constexpr f32 kInf = std::numeric_limits<f32>::infinity();
inline constexpr bool is_power_of_two(int x) { return x > 0 && (x & (x - 1)) == 0; }
inline idx imax(idx a, idx b) { return a > b ? a : b; }
inline int min(int a, int b) { return a < b ? a : b; }
inline int __ffs(u32 x) { return x ? std::countr_zero(x) + 1 : 0; }
inline f32 __fmaf_rn(f32 a, f32 b, f32 c) { return std::fmaf(a, b, c); }
inline f32 __fadd_rn(f32 a, f32 b) { return a + b; }
struct Add {
  f32 operator()(f32 a, f32 b) const { return a + b; }
};
inline i32 fresh(const i32* p) { return *p; }
inline f32 load(const f32* p, idx i) { return p[i]; }
