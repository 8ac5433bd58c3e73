// SPDX-License-Identifier: Apache-2.0
// grouped_matmul, a grouped GEMM: out[i, j] = sum over p of x[i / share, p] w[which(i), j, p], each row i by
// the matrix that it chooses, as the tokens of a mixture of experts are. x [.., k] and out [rows, n] are f32
// and row-major.
//
// Constants, of columns in sixteens, are packed as one weight of matmul_panel, whose columns are
// theirs, one matrix behind the other: PanelMatrices, of f32, f16, bf16 or codes. Others are rows of k
// values, [groups, n, k]: StoredMatrices of f32, f16 or bf16, or ComputedMatrices.
//
// A work item is (slot, block of columns), slots first: its rows are those that chose one
// matrix. Where there are fewer rows than matrices that is the matrix of row number `slot`, unless a row before
// it chose the same. A thread takes its columns of a matrix in order. The sum of a row does not
// depend on the rows around it.
// Spec: groups, n, k; of panels what matmul_panel has. Bound: few rows: the bytes of the matrices that
// are chosen, of codes what turns them into values; many: multiply-adds.
#pragma once

#include "cpu/matmul_panel.h"
#include "cpu/vectors.h"
#include "expr.h"

namespace grouped_matmul_detail {

inline constexpr int kBlockColumns = 64;  // of an item without panels
inline constexpr int kLongRow = 4096;
inline constexpr int kListed = 128;  // rows that are looked up at once

/// Rows of x and of out, wherever they are.
struct RowsByAddress {
  f32* const* to;
  const f32* const* from;
  TFCC_FN f32* out(int r) const { return to[r]; }
  TFCC_FN const f32* a(int r) const { return from[r]; }
  TFCC_FN RowsByAddress after(int r) const { return {to + r, from + r}; }
};

/// What grouped_matmul is about but its matrices.
template <class Which> struct Problem {
  f32* out;
  const f32* x;
  idx rows, share;
  const Which& which;
};

/// multiply(rows, count, group, first, last) for rows that chose a matrix, at most kListed at a time, and
/// the blocks of columns first, .., last - 1 that are among the work items.
template <class Spec, class Which, class Multiply>
TFCC_FN void for_each_matrix(const Problem<Which>& of, i64 begin, i64 end,
                             const Multiply& multiply) {
  f32* out[kListed];
  const f32* x[kListed];
  const idx slots = imin(of.rows, Spec::groups);
  const auto blocks_below = [&](i64 item, idx slot) {
    return item > slot ? (item - slot + slots - 1) / slots : 0;
  };
  for (idx slot = 0; slot < slots; ++slot) {
    const idx first = blocks_below(begin, slot), last = blocks_below(end, slot);
    if (first >= last) continue;
    idx i = 0;
    i64 group = slot;
    if (slots == of.rows) {
      group = of.which(slot);
      while (i < slot && of.which(i) != group) ++i;
      if (i < slot) continue;
    }
    while (i < of.rows) {
      int count = 0;
      for (; i < of.rows && count < kListed; ++i) {
        if (of.which(i) != group) continue;
        out[count] = of.out + i * Spec::n;
        x[count++] = of.x + i / of.share * (i64)Spec::k;
      }
      if (count > 0) multiply(RowsByAddress{out, x}, count, group, first, last);
    }
  }
}

TFCC_FN f32 sum_of(Vector v) {
  f32 sum = 0.0f;
  for (int i = 0; i < kLanes; ++i) sum += v[i];
  return sum;
}

/// count x columns sums: of these rows, by rows of the matrix that lie one behind the other.
template <class Spec, int count, int columns, class W>
TFCC_FN void tile(const RowsByAddress& rows, const W* w, idx j) {
  Vector sum[count][columns] = {};
  constexpr int whole = Spec::k / kLanes * kLanes;
  for (int p = 0; p < whole; p += kLanes) {
    Vector y[columns];
    for (int c = 0; c < columns; ++c) y[c] = load_vector(w + c * (i64)Spec::k + p);
    for (int r = 0; r < count; ++r) {
      const Vector v = load_vector(rows.a(r) + p);
      for (int c = 0; c < columns; ++c) sum[r][c] += v * y[c];
    }
  }
  for (int r = 0; r < count; ++r) {
    for (int c = 0; c < columns; ++c) {
      f32 s = sum_of(sum[r][c]);
      for (int p = whole; p < Spec::k; ++p) s += rows.a(r)[p] * load(w, c * (i64)Spec::k + p);
      rows.out(r)[j + c] = s;
    }
  }
}

/// The same of any number of rows.
template <class Spec, int columns, class W>
TFCC_FN void all_rows(RowsByAddress rows, int count, const W* w, idx j) {
  for (; count >= 3; count -= 3, rows = rows.after(3)) tile<Spec, 3, columns>(rows, w, j);
  for (; count >= 1; --count, rows = rows.after(1)) tile<Spec, 1, columns>(rows, w, j);
}

inline constexpr int kColumns = 4;  // of a tile

/// The same of `wide` columns.
template <class Spec, class W>
TFCC_FN void all_columns(const RowsByAddress& rows, int count, const W* w, idx j, idx wide) {
  for (; wide >= kColumns; wide -= kColumns, j += kColumns, w += kColumns * (i64)Spec::k)
    all_rows<Spec, kColumns>(rows, count, w, j);
  for (; wide > 0; --wide, ++j, w += Spec::k) all_rows<Spec, 1>(rows, count, w, j);
}

}  // namespace grouped_matmul_detail

/// Matrices of f32, f16 or bf16.
template <class W> struct StoredMatrices {
  const W* values;

  template <class Spec>
  TFCC_FN void multiply(const grouped_matmul_detail::RowsByAddress& rows, int count, i64 group,
                        idx first, idx last) const {
    using namespace grouped_matmul_detail;
    const idx j = first * kBlockColumns, end = imin(last * kBlockColumns, Spec::n);
    all_columns<Spec>(rows, count, values + (group * Spec::n + j) * (i64)Spec::k, j, end - j);
  }
};
template <class W> StoredMatrices(const W*) -> StoredMatrices<W>;

/// Of whatever weight(group, column, p) is, a few columns at a time.
template <class Weight> struct ComputedMatrices {
  Weight weight;

  template <class Spec>
  TFCC_FN void multiply(const grouped_matmul_detail::RowsByAddress& rows, int count, i64 group,
                        idx first, idx last) const {
    using namespace grouped_matmul_detail;
    const idx end = imin(last * kBlockColumns, Spec::n);
    constexpr int at_once = Spec::k <= kLongRow ? kColumns : 1;  // threads have small stacks
    alignas(64) f32 values[at_once * Spec::k];
    for (idx j = first * kBlockColumns; j < end; j += at_once) {
      const idx made = imin(at_once, end - j);
      for (idx c = 0; c < made; ++c) {
        for (int p = 0; p < Spec::k; ++p)
          values[c * (i64)Spec::k + p] = weight((idx)group, j + c, p);
      }
      all_columns<Spec>(rows, count, values, j, made);
    }
  }
};

/// Panels of the columns of all matrices: StoredPanels or PackedPanels.
template <class Panels> struct PanelMatrices {
  Panels panels;

  template <class Spec>
  TFCC_FN void multiply(const grouped_matmul_detail::RowsByAddress& rows, int count, i64 group,
                        idx first, idx last) {
    matmul_panel_detail::multiply_panels<Spec>(rows, count, panels,
                                               (idx)group * (Spec::n / Spec::panel), first, last,
                                               [](int, int, idx) {});
  }
};
template <class Panels> PanelMatrices(Panels) -> PanelMatrices<Panels>;

template <class Spec, class Matrices, class Which>
TFCC_FN void grouped_matmul(f32* __restrict out, const f32* __restrict x, Matrices w, idx rows,
                            idx share, const Which& which, i64 begin, i64 end) {
  using namespace grouped_matmul_detail;
  for_each_matrix<Spec>(Problem<Which>{out, x, rows, share, which}, begin, end,
                        [&](const RowsByAddress& at, int count, i64 group, idx first, idx last) {
                          w.template multiply<Spec>(at, count, group, first, last);
                        });
}
