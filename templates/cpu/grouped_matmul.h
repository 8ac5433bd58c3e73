// SPDX-License-Identifier: Apache-2.0
// grouped_matmul, a grouped GEMM: out[i, j] = sum over p of x[i / share, p] w[which(i), j, p], each row i by
// the matrix that it chooses, as the tokens of a mixture of experts are. All f32 and row-major: x
// [.., k], w [groups, columns, k], out [rows, columns].
//
// A work item is (slot, block of kBlockColumns columns), slots first: its rows are those that chose one
// matrix. Where there are fewer rows than matrices that is the matrix of row number `slot`, unless a row before
// it chose the same. kRows rows times kColumns columns are summed in registers, a lane for every kLanes-th p;
// the sum of a row does not depend on the rows and columns around it.
// w is StoredMatrices, or is computed, a few columns of a matrix at a time: CodedMatrices from bytes of
// codes, as weights of matmul_panel are, ComputedMatrices by a functor of matrix, column and p.
// Spec: groups, k; of codes also Code, per_code. Bound: few rows: the bytes of the matrices that are
// chosen, of codes what turns them into values; many: multiply-adds.
#pragma once

#include "expr.h"

namespace grouped_matmul_detail {

inline constexpr int kBlockColumns = 64;
inline constexpr int kLongRow = 4096;

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

/// By the rows from `first` on that chose the matrix, `wide` columns from column j on, whose rows are
/// `w`.
template <class Spec, class Which>
TFCC_FN void multiply(f32* out, const f32* x, const f32* w, idx first, idx rows, idx columns, idx j,
                      idx wide, idx share, i64 group, const Which& which) {
  f32* to[kRows];
  const f32* from[kRows];
  int count = 0;
  for (idx i = first; i < rows; ++i) {
    if (which(i) != group) continue;
    to[count] = out + i * columns + j;
    from[count] = x + i / share * (i64)Spec::k;
    if (++count < kRows) continue;
    all_columns<Spec, kRows>(to, from, w, wide);
    count = 0;
  }
  for (int r = 0; r < count; ++r) all_columns<Spec, 1>(to + r, from + r, w, wide);
}

}  // namespace grouped_matmul_detail

/// Matrices of values.
struct StoredMatrices {
  static constexpr bool stored = true;
  const f32* values;
};

/// Of codes, bytes [groups, columns, k / per_code]: weight.value(..) of each value in a code. All but
/// the code is shared by `chunk` neighbours along k, of a column counted through all matrices
/// (codegen/matmul/matmul.h).
template <class Spec, class Weight> struct CodedMatrices {
  static constexpr bool stored = false;
  const typename Spec::Code* codes;
  Weight weight;

  static TFCC_FN int code(u8 c) { return c; }
  static TFCC_FN int code(i8 c) { return c + 128; }
  template <int k> TFCC_FN void compute(f32* to, i64 group, idx columns, idx j) const {
    constexpr int bytes = 16, per = Spec::per_code, chunk = bytes * per;
    const idx column = (idx)group * columns + j;
    const auto* from = codes + column * (i64)(k / per);
    for (int c = 0; c < k / chunk; ++c, from += bytes, to += chunk) {
      const auto shared = weight.shared(column, c);
      for (int byte = 0; byte < bytes; ++byte) {
        for (int v = 0; v < per; ++v)
          to[byte * per + v] = weight.value(shared, byte * per + v, code(from[byte]));
      }
    }
  }
};

/// Of whatever weight(group, column, p) is.
template <class Weight> struct ComputedMatrices {
  static constexpr bool stored = false;
  Weight weight;

  template <int k> TFCC_FN void compute(f32* to, i64 group, idx, idx j) const {
    for (int p = 0; p < k; ++p) to[p] = weight((idx)group, j, p);
  }
};

template <class Spec, class Matrices, class Which>
TFCC_FN void grouped_matmul(f32* __restrict out, const f32* __restrict x, const Matrices& w,
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
    if constexpr (Matrices::stored) {
      multiply<Spec>(out, x, w.values + (group * columns + j) * (i64)Spec::k, first, rows, columns,
                     j, wide, share, group, which);
    } else {
      constexpr int at_once = Spec::k <= kLongRow ? kColumns : 1;  // threads have small stacks
      alignas(64) f32 values[at_once * Spec::k];
      for (idx c = 0; c < wide; c += at_once) {
        const idx count = imin(at_once, wide - c);
        for (idx e = 0; e < count; ++e)
          w.template compute<Spec::k>(values + e * (i64)Spec::k, group, columns, j + c + e);
        multiply<Spec>(out, x, values, first, rows, columns, j + c, count, share, group, which);
      }
    }
  }
}
