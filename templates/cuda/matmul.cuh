// SPDX-License-Identifier: Apache-2.0
// matmul of integers: out[i...] = sum over p of a(i..., p) * b(i..., p), exact modulo the width of
// Acc. Reals go to the library.
//
// A block of 256 threads computes 64 x 64 outputs of one matrix, 4 x 4 per thread, from slices of
// 16 along p in shared memory.
// Spec: Out; Acc u32 or u64, as wide as Out; rank 2..8; a_across, b_across: the operand lies along
// the output and not along p.
// Grid: matrices * ceil(m, 64) * ceil(n, 64). Bound: integer multiply-adds, 64 per clock and SM.
#pragma once
#include "cuda/prelude.cuh"

inline constexpr int kProductTile = 64, kProductDepth = 16;

/// Tile [p][row or column] of one operand: element(o, p) for 64 outputs from `first` and 16 p from
/// `depth`, 0 outside.
template <bool across, class Acc, class Element>
TFCC_FN void load_tile(Acc (&tile)[kProductDepth][kProductTile + 1], idx first, idx limit,
                       idx depth, idx inner, const Element& element) {
#pragma unroll
  for (int t = threadIdx.x; t < kProductTile * kProductDepth; t += 256) {
    const int o = across ? t % kProductTile : t / kProductDepth;
    const int p = across ? t / kProductTile : t % kProductDepth;
    tile[p][o] =
        first + o < limit && depth + p < inner ? (Acc)element(first + o, depth + p) : Acc(0);
  }
}

/// sum += the products of parts of both factors, for rows tm, tm + 16, .. and columns tn, tn + 16,
/// ..
template <class Acc>
TFCC_FN void multiply_parts(Acc (&sum)[4][4], const Acc (&left)[kProductDepth][kProductTile + 1],
                            const Acc (&right)[kProductDepth][kProductTile + 1], int tm, int tn) {
#pragma unroll
  for (int p = 0; p < kProductDepth; ++p) {
    Acc x[4], y[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) x[k] = left[p][tm + 16 * k], y[k] = right[p][tn + 16 * k];
#pragma unroll
    for (int r = 0; r < 4; ++r) {
#pragma unroll
      for (int c = 0; c < 4; ++c) sum[r][c] += x[r] * y[c];
    }
  }
}

/// A, B: rank indices of the output, then p -> i64. A does not use index rank-1, B does not use
/// index rank-2.
template <class Spec, class A, class B>
TFCC_FN void matmul(typename Spec::Out* out, const Dims<Spec::rank>& dims, idx inner, const A& a,
                    const B& b) {
  using Acc = typename Spec::Acc;
  constexpr int rank = Spec::rank;
  static_assert(rank >= 2 && sizeof(Acc) == sizeof(typename Spec::Out),
                "matrices; accumulators as wide as Out");
  __shared__ Acc left[kProductDepth][kProductTile + 1], right[kProductDepth][kProductTile + 1];
  const idx m = dims[rank - 2], n = dims[rank - 1];
  const idx tiles_m = ceil_div(m, kProductTile), tiles_n = ceil_div(n, kProductTile);
  idx matrices = 1;
#pragma unroll
  for (int k = 0; k < rank - 2; ++k) matrices *= dims[k];
  const idx block = (idx)blockIdx.x;
  if (tiles_m * tiles_n == 0 || block / (tiles_m * tiles_n) >= matrices) return;
  const idx first_n = block % tiles_n * kProductTile,
            first_m = block / tiles_n % tiles_m * kProductTile;
  idx i[rank + 1], rest = block / (tiles_m * tiles_n);
  const idx matrix = rest;
#pragma unroll
  for (int k = rank - 3; k >= 0; --k) {
    i[k] = rest % dims[k];
    rest /= dims[k];
  }
  i[rank - 2] = i[rank - 1] = 0;
  const int tm = threadIdx.x / 16, tn = threadIdx.x % 16;
  Acc sum[4][4] = {};
  for (idx depth = 0; depth < inner; depth += kProductDepth) {
    load_tile<Spec::a_across>(left, first_m, m, depth, inner, [&](idx o, idx p) {
      i[rank - 2] = o;
      i[rank] = p;
      return apply<rank + 1>(a, i);
    });
    load_tile<Spec::b_across>(right, first_n, n, depth, inner, [&](idx o, idx p) {
      i[rank - 1] = o;
      i[rank] = p;
      return apply<rank + 1>(b, i);
    });
    __syncthreads();
    multiply_parts(sum, left, right, tm, tn);
    __syncthreads();
  }
#pragma unroll
  for (int r = 0; r < 4; ++r) {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const idx row = first_m + tm + 16 * r, column = first_n + tn + 16 * c;
      if (row < m && column < n) store(out, (matrix * m + row) * n + column, sum[r][c]);
    }
  }
}
