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
