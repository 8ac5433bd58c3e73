// SPDX-License-Identifier: Apache-2.0
// matmul_coded, a GEMM: out[i, j] = epilogue(sum over p of a[i, p] b[j, p], i, j), or gated out[i, j] =
// epilogue(s, t, i, j) with the sums of columns 16 (j / 8) + j % 8 and eight behind it, for at most
// 16 rows i by a weight b in codes. Sums are in f32, p in order, sixteen at a time: the bits of a row are
// those of matmul_ordered and matmul_wgmma by the values that the codes are.
//
// a [rows, k], b bytes [columns, k / per_code], out [rows, columns] or, gated, [rows, columns / 2], all
// row-major. A block has block_n columns, of which each warp that multiplies has 16.
// The first codes are asked for before the launches before this one have ended, if `early`, where
// b is a constant and no launch makes the number of rows.
//
// Spec: as of CodedTile. Block: threads. Grid: ceil(columns, block_n). Shared:
// CodedTileShape<Spec>::shared_bytes.
// Bound: the bytes of b; k / 16 products that wait for each other, of 25 cycles on Hopper; and of digits
// some five instructions for each 32 x 2 values. Measured on an H200 alone, one row, four bits: 22016 x
// 4096 at 55% of 4.3 TB/s, 12288 x 4096 at 43%, 4096 x 11008 at 32%, 2048 x 2048 at 10%.
#pragma once
#include "cuda/coded_tile.cuh"

/// rows() is read before the launches before this one have ended if Spec::early.
template <class Spec, class Rows, class Epilogue, class Weight>
TFCC_FN void matmul_coded(typename Spec::Out* out, const typename Spec::T* a,
                          const typename Spec::Code* b, const Rows& rows, idx columns, idx k,
                          const Epilogue& epilogue, const Weight& weight) {
  TFCC_DYNAMIC_SHARED(memory);
  if constexpr (!Spec::early) wait_for_predecessor();
  CodedTile<Spec> tile{memory, rows(), columns, k, (idx)blockIdx.x * Spec::block_n};
  tile.run(out, a, CodedRows<Spec, Weight>{b, weight, 0}, epilogue);
}
