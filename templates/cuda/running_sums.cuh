// SPDX-License-Identifier: Apache-2.0
// Running sums of a chunk of 64 numbers, by one warp.
#pragma once
#include "cuda/prelude.cuh"

/// to[j] = of(0) + .. + of(j) for 64 numbers, by all lanes of a warp, two of them each. What lies
/// behind j, NaN or infinite as it may be, is not seen in to[j]: it must not be taken off again.
template <class Of> TFCC_FN void running_sums(const Of& of, f32* to) {
  const int lane = threadIdx.x % kWarp;
  const f32 first = of(2 * lane), second = of(2 * lane + 1);
  f32 sum = first + second;
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const f32 before = __shfl_up_sync(kAllLanes, sum, step);
    if (lane >= step) sum += before;
  }
  const f32 before = __shfl_up_sync(kAllLanes, sum, 1);
  to[2 * lane] = lane > 0 ? before + first : first;
  to[2 * lane + 1] = sum;
}
