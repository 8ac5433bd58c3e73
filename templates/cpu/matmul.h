// SPDX-License-Identifier: Apache-2.0
// matmul of integers: out[i...] = sum over p of a(i..., p) * b(i..., p), exact modulo the width of
// Acc. Reals go to the library. Spec::across: b runs along the last output index (weights [k, n]),
// lanes are neighbouring outputs, and four rows share what is read of b. Otherwise b runs along p
// and lanes are partial sums.
#pragma once

#include "expr.h"

/// Lanes of one accumulator row, rows of a block: what stays in registers, and is zeroed without a
/// call of memset.
inline constexpr int kProductLanes = 2 * kLanes, kProductRows = 4;

/// Out[row .. row+rows-1], which differ in index rank-2 alone.
template <class Spec, int rows, class A, class B>
TFCC_FN void product_rows(typename Spec::Out* __restrict out, idx cols, idx inner, const A& a,
                          const B& b, const idx* i) {
  constexpr int rank = Spec::rank;
  using Acc = typename Spec::Acc;
  idx at[rows][rank + 1];
  for (int r = 0; r < rows; ++r) {
    for (int k = 0; k < rank - 1; ++k) at[r][k] = i[k] + (k == rank - 2 ? r : 0);
    at[r][rank - 1] = 0;
  }
  for (idx first = 0; first < cols; first += kProductLanes) {
    const idx width = cols - first < kProductLanes ? cols - first : kProductLanes;
    Acc sum[rows][kProductLanes] = {};
    auto sweep = [&](idx limit) {
      for (idx p = 0; p < inner; ++p) {
        Acc left[rows];
        for (int r = 0; r < rows; ++r) {
          at[r][rank] = p;
          left[r] = (Acc)apply<rank + 1>(a, at[r]);
        }
#pragma clang loop vectorize(assume_safety)
        for (idx j = 0; j < limit; ++j) {
          idx here[rank + 1];
          for (int k = 0; k < rank - 1; ++k) here[k] = i[k];
          here[rank - 1] = first + j;
          here[rank] = p;
          const Acc right = (Acc)apply<rank + 1>(b, here);
          for (int r = 0; r < rows; ++r) sum[r][j] += left[r] * right;
        }
      }
    };
    if (width == kProductLanes) sweep(kProductLanes);
    else sweep(width);
    for (int r = 0; r < rows; ++r) {
      for (idx j = 0; j < width; ++j) store(out, r * cols + first + j, (i64)sum[r][j]);
    }
  }
}

template <class Spec, class A, class B>
TFCC_FN void product_dots(typename Spec::Out* __restrict out, idx cols, idx inner, const A& a,
                          const B& b, const idx* i) {
  constexpr int rank = Spec::rank;
  using Acc = typename Spec::Acc;
  for (idx j = 0; j < cols; ++j) {
    Acc sum = 0;
#pragma clang loop vectorize(assume_safety)
    for (idx p = 0; p < inner; ++p) {
      idx here[rank + 1];
      for (int k = 0; k < rank - 1; ++k) here[k] = i[k];
      here[rank - 1] = j;
      here[rank] = p;
      sum += (Acc)apply<rank + 1>(a, here) * (Acc)apply<rank + 1>(b, here);
    }
    store(out, j, (i64)sum);
  }
}

/// Spec: Out; Acc u32 or u64, as wide as Out; rank >= 2; across. A, B: rank indices of the output,
/// then p -> i64.
template <class Spec, class A, class B>
TFCC_FN void matmul(typename Spec::Out* __restrict out, const Dims<Spec::rank>& dims, idx inner,
                    const A& a, const B& b, i64 begin, i64 end) {
  constexpr int rank = Spec::rank;
  static_assert(rank >= 2 && sizeof(typename Spec::Acc) == sizeof(typename Spec::Out),
                "matrices; accumulators as wide as Out");
  const idx cols = dims[rank - 1];
  for (i64 row = begin; row < end;) {
    idx i[rank];
    unravel<rank - 1>(row, dims, i);
    if constexpr (!Spec::across) {
      product_dots<Spec>(out + row * cols, cols, inner, a, b, i);
      ++row;
    } else if (end - row >= kProductRows && dims[rank - 2] - i[rank - 2] >= kProductRows) {
      product_rows<Spec, kProductRows>(out + row * cols, cols, inner, a, b, i);
      row += kProductRows;
    } else {
      product_rows<Spec, 1>(out + row * cols, cols, inner, a, b, i);
      ++row;
    }
  }
}
