// SPDX-License-Identifier: Apache-2.0
// bind: block[k] = values[k]: the sizes and addresses of a run, passed by value, go to the device
// block.
//
// The first launch of every run, so that the others, captured once, serve any sizes and pointers
// (docs/kernel-abi.md).
#pragma once
#include "cuda/prelude.cuh"

template <int count> TFCC_FN void bind(const i64 (&values)[count], i64* block) {
  for (int k = threadIdx.x; k < count; k += (int)blockDim.x) block[k] = values[k];
}
