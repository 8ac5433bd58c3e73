// SPDX-License-Identifier: Apache-2.0
// matmul_panel: out[i, j] = epilogue(sum_k a[i, k] b[k, j], i, j) for a weight b, a and out f32 and
// row-major. b is stored in f32, f16 or bf16, or in codes of 8, 4 or 2 bits that it is computed from.
//
// b is packed when the model is compiled: panels of `panel` columns, [n / panel, k, panel], so that
// it is read in order whatever n is. A work item is (block of kBlockRows rows, panel), panels
// first. In an item small blocks of rows times all columns of the panel (or as many as there are
// registers for) are summed over k in registers; the panel stays in the second cache from block to
// block while the next one is fetched. A row's sum does not depend on the rows around it: every
// product is a chain of fused multiply-adds over k in order.
#pragma once

#include "cpu/vectors.h"
#include "expr.h"

/// A weight of Spec::B, [n / panel, k, panel].
template <class Spec> struct StoredPanels {
  static constexpr bool made = false, coded = false;
  using B = typename Spec::B;
  static constexpr int parts = (Spec::k + 1535) / 1536;  // by which out is visited
  static constexpr int depth = (Spec::k + parts - 1) / parts;
  const B* b;
  /// Rows k, k + 1, .. of panel p, [.., panel].
  TFCC_FN const B* rows(idx p, int k, int) { return b + (p * Spec::k + k) * Spec::panel; }
};

/// A weight of 16 bits of which a part of a panel becomes f32 before many rows are multiplied by it.
template <class Spec> struct WidePanels {
  static constexpr bool made = true, coded = false;
  using B = f32;
  static constexpr int depth = 256;
  static constexpr int kAhead = 2048;
  const StoredPanels<Spec> stored;
  alignas(64) f32 wide[depth * Spec::panel];

  TFCC_FN explicit WidePanels(const StoredPanels<Spec>& b) : stored(b) {}
  TFCC_FN const f32* rows(idx p, int k, int count) {
    const auto* from = stored.b + (p * Spec::k + k) * Spec::panel;
    for (int at = 0; at < count * Spec::panel; at += kLanes) {
      __builtin_prefetch(from + at + kAhead, 0, 2);
      store_vector(wide + at, load_vector(from + at));
    }
    return wide;
  }
};

/// A weight of codes, bytes [n / panel, k / per_code, panel]: weight.value(..) of each value in a
/// code. All but the code is shared by `chunk` neighbours along k (codegen/matmul/matmul.h). A part
/// of a panel is computed before many rows are multiplied by it; few rows meet each value at once.
template <class Spec, class Weight> struct PackedPanels {
  static constexpr bool made = true, coded = true;
  using B = f32;
  static constexpr int depth = 256, bytes = 16, chunk = bytes * Spec::per_code;
  static_assert(Spec::k % chunk == 0 && depth % chunk == 0, "k is whole chunks");
  const typename Spec::Code* b;
  Weight weight;
  alignas(64) f32 wide[depth * Spec::panel];

  TFCC_FN PackedPanels(const typename Spec::Code* codes, const Weight& w) : b(codes), weight(w) {}
  TFCC_FN const f32* rows(idx p, int k, int count) {
    Chunk<Spec::panel> of;
    for (int c = 0; c < count / chunk; ++c) {
      of.begin(*this, p, 0, k / chunk + c);
      for (int byte = 0; byte < bytes; ++byte) {
        for (int v = 0; v < Spec::per_code; ++v)
          of.decode(wide + (c * chunk + byte * Spec::per_code + v) * Spec::panel, *this, byte, v);
      }
    }
    return wide;
  }

  /// Some columns of a chunk.
  template <int columns> struct Chunk {
    typename Weight::Shared shared[columns];
    const typename Spec::Code* codes;

    /// Chunk c of panel p from column j on.
    TFCC_FN void begin(const PackedPanels& of, idx p, int j, int c) {
      for (int i = 0; i < columns; ++i) shared[i] = of.weight.shared(p * Spec::panel + j + i, c);
      codes = of.b + (p * (Spec::k / Spec::per_code) + c * bytes) * Spec::panel + j;
    }
    /// Value v of a byte of each.
    TFCC_FN void decode(f32* to, const PackedPanels& of, int byte, int v) const {
      const auto* from = codes + byte * Spec::panel;
      if (v == 0) __builtin_prefetch(from + kAhead, 0, 2);
#pragma clang loop vectorize(assume_safety)
      for (int i = 0; i < columns; ++i)
        to[i] = of.weight.value(shared[i], byte * Spec::per_code + v, code(from[i]));
    }
  };

 private:
  static constexpr int kAhead = 4096;  // bytes of codes
  static TFCC_FN int code(u8 c) { return c; }
  static TFCC_FN int code(i8 c) { return c + 128; }
};

namespace matmul_panel_detail {

inline constexpr int kBlockRows = 128;
inline constexpr int kLine = 64;      // bytes of a line of the cache
inline constexpr int kManyTiles = 8;  // of rows, for which 16 bits are widened once

/// Registers: 32 vectors with AVX-512, else 16; sums take most of them.
template <class Spec> struct Tile {
  static constexpr int columns = kLanes == 16 ? Spec::panel : 2 * kLanes;
  static constexpr int vectors = columns / kLanes;
  static constexpr int rows = kLanes < 16    ? 6
                              : vectors == 4 ? 6
                              : vectors == 3 ? 8
                              : vectors == 2 ? 12
                                             : 14;
  static_assert(Spec::n % Spec::panel == 0 && Spec::panel % 16 == 0 && Spec::panel <= 64);
  static_assert(Spec::panel % columns == 0);
};

/// Rows of a and of out, one behind the other.
template <class Spec> struct RowsInOrder {
  f32* to;
  const f32* from;
  TFCC_FN f32* out(int r) const { return to + (idx)r * Spec::n; }
  TFCC_FN const f32* a(int r) const { return from + (idx)r * Spec::k; }
  TFCC_FN RowsInOrder after(int r) const { return {out(r), a(r)}; }
};

/// What tiles multiply rows by: rows k, .., k + depth - 1 of some columns of a panel, which begin at
/// `column` of out. `ahead` is memory that will be read soon.
template <class B> struct PanelPart {
  const B* b;
  int k, depth;
  idx column;
  const char* ahead;
};

/// out += a b for kRows rows and the columns of a tile; where k is 0: out = a b.
template <class Spec, int kRows, class Rows, class B>
TFCC_FN void tile(const Rows& rows, const PanelPart<B>& part) {
  constexpr int vectors = Tile<Spec>::vectors;
  Vector sum[kRows][vectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < vectors; ++v)
      sum[r][v] = part.k == 0 ? Vector{} : load_vector(rows.out(r) + part.column + v * kLanes);
  }
#pragma clang loop unroll_count(4)
  for (int k = 0; k < part.depth; ++k) {
    Vector y[vectors];
    for (int v = 0; v < vectors; ++v) y[v] = load_vector(part.b + k * Spec::panel + v * kLanes);
    __builtin_prefetch(part.ahead + k * kLine, 0, 2);
    for (int r = 0; r < kRows; ++r) {
      const f32 x = rows.a(r)[part.k + k];
      for (int v = 0; v < vectors; ++v) sum[r][v] += y[v] * x;
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < vectors; ++v)
      store_vector(rows.out(r) + part.column + v * kLanes, sum[r][v]);
  }
}

/// The same for any number of rows up to Tile::rows.
template <class Spec, class Rows, class B>
TFCC_FN void tile_of(int count, Rows rows, const PanelPart<B>& part) {
  constexpr int most = Tile<Spec>::rows;
  if (count == most) return tile<Spec, most>(rows, part);
  if (count == most - 1) return tile<Spec, most - 1>(rows, part);
  for (; count >= 4; count -= 4, rows = rows.after(4)) tile<Spec, 4>(rows, part);
  for (; count >= 2; count -= 2, rows = rows.after(2)) tile<Spec, 2>(rows, part);
  if (count == 1) tile<Spec, 1>(rows, part);
}

/// kRows rows by all of k in columns of panel p, which are decoded once. Each sum waits for the one
/// before it: few rows need more columns than a tile has, where vectors are short.
template <class Spec, int kRows, class Panels, class Rows, class Finish>
TFCC_FN void few_rows(const Rows& rows, const Panels& b, idx matrix, idx p, const Finish& finish) {
  constexpr int least = Tile<Spec>::columns;
  constexpr int columns = kRows <= 2 && Spec::panel % (2 * least) == 0 ? 2 * least : least;
  constexpr int vectors = columns / kLanes;
  for (int j = 0; j < Spec::panel; j += columns) {
    Vector sum[kRows][vectors] = {};
    for (int c = 0; c < Spec::k / Panels::chunk; ++c) {
      typename Panels::template Chunk<columns> of;
      of.begin(b, matrix + p, j, c);
      for (int byte = 0; byte < Panels::bytes; ++byte) {
#pragma clang loop unroll(full)
        for (int v = 0; v < Spec::per_code; ++v) {
          alignas(64) f32 y[columns];
          of.decode(y, b, byte, v);
          for (int r = 0; r < kRows; ++r) {
            const f32 x = rows.a(r)[c * Panels::chunk + byte * Spec::per_code + v];
            for (int i = 0; i < vectors; ++i) sum[r][i] += load_vector(y + i * kLanes) * x;
          }
        }
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int i = 0; i < vectors; ++i)
        store_vector(rows.out(r) + p * Spec::panel + j + i * kLanes, sum[r][i]);
    }
    for (int i = 0; i < columns; i += least) finish(0, kRows, p * Spec::panel + j + i);
  }
}

/// `count` rows by panels first, .., last - 1 of a matrix whose panels begin at number `matrix` of b.
/// finish(r, count, column) is called of rows r, .. whose sums are complete in the columns of a tile.
template <class Spec, class Panels, class Rows, class Finish>
TFCC_FN void multiply_panels(const Rows& rows, int count, Panels& b, idx matrix, idx first,
                             idx last, const Finish& finish) {
  using T = Tile<Spec>;
  if constexpr (!kSame<typename Panels::B, f32>) {
    if (count > kManyTiles * T::rows) {
      WidePanels<Spec> wide(b);
      return multiply_panels<Spec>(rows, count, wide, matrix, first, last, finish);
    }
  }
  if constexpr (Panels::coded) {
    if (count <= 4) {
      for (idx p = first; p < last; ++p) {
        if (count == 1) few_rows<Spec, 1>(rows, b, matrix, p, finish);
        else if (count == 2) few_rows<Spec, 2>(rows, b, matrix, p, finish);
        else if (count == 3) few_rows<Spec, 3>(rows, b, matrix, p, finish);
        else few_rows<Spec, 4>(rows, b, matrix, p, finish);
      }
      return;
    }
  }
  const int tiles = (count + T::rows - 1) / T::rows;
  for (int k = 0; k < Spec::k; k += Panels::depth) {
    const int depth = Spec::k - k < Panels::depth ? Spec::k - k : Panels::depth;
    const bool ends = k + depth == Spec::k;
    for (idx p = first; p < last; ++p) {
      const auto* panel = b.rows(matrix + p, k, depth);
      const idx back = (p - first) * Spec::k - depth;  // to the next rows of the first panel
      const auto* next = Panels::made   ? panel
                         : p + 1 < last ? panel + Spec::k * Spec::panel
                         : ends         ? panel
                                        : panel - back * Spec::panel;
      for (int c = 0; c < Spec::panel; c += T::columns) {
        const idx column = p * Spec::panel + c;
        for (int t = 0; t < tiles; ++t) {
          const int r = count * t / tiles, of_tile = count * (t + 1) / tiles - r;
          // The first tiles fetch the next panel between them, a line for each k.
          const bool fetches = c == 0 && t * kLine < Spec::panel * (int)sizeof(typename Panels::B);
          const char* ahead = fetches ? (const char*)next + t * depth * kLine : (const char*)panel;
          tile_of<Spec>(of_tile, rows.after(r),
                        PanelPart<typename Panels::B>{panel + c, k, depth, column, ahead});
          if (ends) finish(r, of_tile, column);
        }
      }
    }
  }
}

}  // namespace matmul_panel_detail

/// Spec: n, k, panel, of codes also Code and per_code. epilogue(sum, i, j) is the element to store in
/// row i, column j.
template <class Spec, class Panels, class Epilogue>
TFCC_FN void matmul_panel(f32* __restrict out, const f32* __restrict a, Panels b, idx m,
                          const Epilogue& epilogue, i64 begin, i64 end) {
  using namespace matmul_panel_detail;
  constexpr idx panels = Spec::n / Spec::panel;
  const idx blocks = (m + kBlockRows - 1) / kBlockRows;
  while (begin < end) {
    const idx block = begin / panels, first = begin % panels;
    const idx last = imin(panels, end - block * panels), row = m * block / blocks;
    const RowsInOrder<Spec> rows{out + row * Spec::n, a + row * Spec::k};
    multiply_panels<Spec>(rows, (int)(m * (block + 1) / blocks - row), b, 0, first, last,
                          [&](int r, int count, idx column) {
                            for (int i = r; i < r + count; ++i) {
                              f32* at = rows.out(i) + column;
#pragma clang loop vectorize(assume_safety)
                              for (int j = 0; j < Tile<Spec>::columns; ++j)
                                at[j] = epilogue(at[j], row + i, column + j);
                            }
                          });
    begin = block * panels + last;
  }
}
