// SPDX-License-Identifier: Apache-2.0
// grouped_matmul, a grouped GEMM: out[i, j] = sum over p of x[i / share, p] w[which(i), j, p], each row i by
// the matrix that it chooses, as the tokens of a mixture of experts are. All f32 and row-major: x
// [.., k], w [groups, columns, k], out [rows, columns].
//
// A work item is (slot, block of kBlockColumns columns), slots first: its rows are those that chose one
// matrix. Where there are fewer rows than matrices that is the matrix of row number `slot`, unless a row before
// it chose the same. kRows rows times kColumns columns are summed in registers, a lane for every kLanes-th p;
// the sum of a row does not depend on the rows and columns around it.
// Spec: groups, k. Bound: few rows: the bytes of the matrices that are chosen; many: multiply-adds.
#pragma once

#include "expr.h"

namespace grouped_matmul_detail {

inline constexpr int kBlockColumns = 64;

typedef f32 Vector __attribute__((vector_size(kLanes * 4)));
typedef f32 Unaligned __attribute__((vector_size(kLanes * 4), aligned(4)));

/// Registers: 32 vectors with AVX-512, else 16; sums take most of them.
inline constexpr int kRows = kLanes == 16 ? 6 : 3, kColumns = 4;

TFCC_FN f32 sum_of(Vector v) {
  f32 sum = 0.0f;
  for (int i = 0; i < kLanes; ++i) sum += v[i];
  return sum;
}

/// rows x columns sums: of these rows of x, by `columns` rows of the matrix one behind the other.
template <class Spec, int rows, int columns>
TFCC_FN void tile(f32* const* out, const f32* const* x, const f32* w) {
  Vector sum[rows][columns] = {};
  constexpr int whole = Spec::k / kLanes * kLanes;
  for (int p = 0; p < whole; p += kLanes) {
    Vector y[columns];
    for (int c = 0; c < columns; ++c) y[c] = *(const Unaligned*)(w + c * (i64)Spec::k + p);
    for (int r = 0; r < rows; ++r) {
      const Vector v = *(const Unaligned*)(x[r] + p);
      for (int c = 0; c < columns; ++c) sum[r][c] += v * y[c];
    }
  }
  for (int r = 0; r < rows; ++r) {
    for (int c = 0; c < columns; ++c) {
      f32 s = sum_of(sum[r][c]);
      for (int p = whole; p < Spec::k; ++p) s += x[r][p] * w[c * (i64)Spec::k + p];
      out[r][c] = s;
    }
  }
}

/// The same of any number of columns.
template <class Spec, int rows>
TFCC_FN void all_columns(f32* const* out, const f32* const* x, const f32* w, idx columns) {
  f32* to[rows];
  for (int r = 0; r < rows; ++r) to[r] = out[r];
  for (; columns >= kColumns; columns -= kColumns, w += kColumns * (i64)Spec::k) {
    tile<Spec, rows, kColumns>(to, x, w);
    for (int r = 0; r < rows; ++r) to[r] += kColumns;
  }
  for (; columns > 0; --columns, w += Spec::k) {
    tile<Spec, rows, 1>(to, x, w);
    for (int r = 0; r < rows; ++r) ++to[r];
  }
}

}  // namespace grouped_matmul_detail

template <class Spec, class Which>
TFCC_FN void grouped_matmul(f32* __restrict out, const f32* __restrict x, const f32* __restrict w,
                            idx rows, idx columns, idx share, const Which& which, i64 begin,
                            i64 end) {
  using namespace grouped_matmul_detail;
  const idx slots = imin(rows, Spec::groups);
  for (; begin < end; ++begin) {
    const idx slot = begin % slots, j = begin / slots * kBlockColumns;
    const idx wide = imin(kBlockColumns, columns - j);
    idx first = 0;
    i64 group = slot;
    if (slots == rows) {
      group = which(slot);
      while (first < slot && which(first) != group) ++first;
      if (first < slot) continue;
    }
    const f32* const matrix = w + (group * columns + j) * (i64)Spec::k;
    f32* to[kRows];
    const f32* from[kRows];
    int count = 0;
    for (idx i = first; i < rows; ++i) {
      if (which(i) != group) continue;
      to[count] = out + i * columns + j;
      from[count] = x + i / share * (i64)Spec::k;
      if (++count < kRows) continue;
      all_columns<Spec, kRows>(to, from, matrix, wide);
      count = 0;
    }
    for (int r = 0; r < count; ++r) all_columns<Spec, 1>(to + r, from + r, matrix, wide);
  }
}
