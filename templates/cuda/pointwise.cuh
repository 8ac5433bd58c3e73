// SPDX-License-Identifier: Apache-2.0
// pointwise: out[i0, ..., i_rank-1] = body(i0, ..)(i_rank-1), out dense in row-major order.
//
// One thread computes Spec::vec neighbours of the last dim and writes them as one pack. body takes
// the indices of a row, computes what is the same for all of it, and returns the function that
// fills a pack from a column on. No shared memory.
// Spec: Out; rank 1..8; vec 1, 2, 4, 8, 16 (divides the last dim, which is a compile-time size; a
// pack is <= 16 bytes).
// Grid: ceil(elements, threads * vec). Bound: the bytes that body reads and the output.
#pragma once
#include "cuda/prelude.cuh"

template <class Spec, class Body>
TFCC_FN void pointwise(typename Spec::Out* out, const Dims<Spec::rank>& dims, const Body& body) {
  using Out = typename Spec::Out;
  constexpr int rank = Spec::rank, vec = Spec::vec;
  static_assert(rank >= 1 && rank <= 8, "rank: 1..8");
  static_assert(is_power_of_two(vec) && vec * sizeof(Out) <= 16,
                "vec: a power of two, at most 16 bytes of Out");
  const u32 first = (blockIdx.x * blockDim.x + threadIdx.x) * vec;
  if (first >= (u32)dims.count()) return;
  idx i[rank];
  unravel<rank>((idx)first, dims, i);
  Compute<Out> v[vec];
  apply<rank - 1>(body, i)(i[rank - 1], v);
  write_pack(out + first, v);
}
