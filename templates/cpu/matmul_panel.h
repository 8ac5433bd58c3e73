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

#include "expr.h"

/// A weight of Spec::B, [n / panel, k, panel].
template <class Spec> struct StoredPanels {
  static constexpr bool made = false;
  using B = typename Spec::B;
  static constexpr int parts = (Spec::k + 1535) / 1536;  // by which out is visited
  static constexpr int depth = (Spec::k + parts - 1) / parts;
  const B* b;
  /// Rows k, k + 1, .. of panel p, [.., panel].
  TFCC_FN const B* rows(idx p, int k, int) { return b + (p * Spec::k + k) * Spec::panel; }
};

/// A weight of codes, bytes [n / panel, k / per_code, panel]: weight.value(..) of each value in a
/// code. All but the code is shared by `chunk` neighbours along k (codegen/matmul/matmul.h). A part
/// of a panel is computed before rows are multiplied by it.
template <class Spec, class Weight> struct PackedPanels {
  static constexpr bool made = true;
  using B = f32;
  static constexpr int depth = 256, bytes = 16, chunk = bytes * Spec::per_code;
  static_assert(Spec::k % chunk == 0 && depth % chunk == 0, "k is whole chunks");
  const typename Spec::Code* b;
  Weight weight;
  alignas(64) f32 wide[depth * Spec::panel];

  TFCC_FN PackedPanels(const typename Spec::Code* codes, const Weight& w) : b(codes), weight(w) {}
  TFCC_FN const f32* rows(idx p, int k, int count) {
    for (int c = 0; c < count / chunk; ++c) {
      typename Weight::Shared shared[Spec::panel];
      for (int j = 0; j < Spec::panel; ++j)
        shared[j] = weight.shared(p * Spec::panel + j, k / chunk + c);
      const auto* codes = b + (p * Spec::k + k + c * chunk) / Spec::per_code * Spec::panel;
      for (int byte = 0; byte < bytes; ++byte) {
        for (int v = 0; v < Spec::per_code; ++v) {
          const int place = byte * Spec::per_code + v;
          f32* to = wide + (c * chunk + place) * Spec::panel;
#pragma clang loop vectorize(assume_safety)
          for (int j = 0; j < Spec::panel; ++j)
            to[j] = weight.value(shared[j], place, code(codes[byte * Spec::panel + j]));
        }
      }
    }
    return wide;
  }

 private:
  static TFCC_FN int code(u8 c) { return c; }
  static TFCC_FN int code(i8 c) { return c + 128; }
};

namespace matmul_panel_detail {

inline constexpr int kBlockRows = 128;
inline constexpr int kLine = 64;  // bytes of a line of the cache

typedef f32 Vector __attribute__((vector_size(kLanes * 4)));
typedef f32 Unaligned __attribute__((vector_size(kLanes * 4), aligned(4)));
typedef u32 Words __attribute__((vector_size(kLanes * 4)));
typedef u16 Halves __attribute__((vector_size(kLanes * 2)));

TFCC_FN Vector vector_of(const f32* b) { return *(const Vector*)b; }
TFCC_FN Vector vector_of(const bf16* b) {
  return (Vector)(__builtin_convertvector(*(const Halves*)b, Words) << 16);
}
TFCC_FN Vector vector_of(const f16* b) {
#if defined(__F16C__)
  typedef _Float16 Reals __attribute__((vector_size(kLanes * 2)));
  return __builtin_convertvector(*(const Reals*)b, Vector);
#else  // as f16_to_f32
  const Words bits = __builtin_convertvector(*(const Halves*)b, Words);
  const Words magnitude = (Words)((Vector)((bits & 0x7fff) << 13) * 0x1p112f),
              special = (Words)((bits & 0x7c00) == 0x7c00) & 0x7f800000u;
  return (Vector)(magnitude | special | (bits & 0x8000) << 16);
#endif
}

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

/// out += a b for kRows rows and the columns of a tile; `first`: out = a b. `ahead` is memory that
/// will be read soon.
template <class Spec, int kRows, class B>
TFCC_FN void tile(f32* out, const f32* a, const B* b, int depth, bool first, const char* ahead) {
  constexpr int vectors = Tile<Spec>::vectors;
  Vector sum[kRows][vectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < vectors; ++v)
      sum[r][v] = first ? Vector{} : *(const Unaligned*)(out + r * Spec::n + v * kLanes);
  }
#pragma clang loop unroll_count(4)
  for (int k = 0; k < depth; ++k) {
    Vector y[vectors];
    for (int v = 0; v < vectors; ++v) y[v] = vector_of(b + k * Spec::panel + v * kLanes);
    __builtin_prefetch(ahead + k * kLine, 0, 2);
    for (int r = 0; r < kRows; ++r) {
      const f32 x = a[r * Spec::k + k];
      for (int v = 0; v < vectors; ++v) sum[r][v] += y[v] * x;
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < vectors; ++v) *(Unaligned*)(out + r * Spec::n + v * kLanes) = sum[r][v];
  }
}

/// The same for any number of rows up to Tile::rows.
template <class Spec, class B>
TFCC_FN void tile_of(int rows, f32* out, const f32* a, const B* b, int depth, bool first,
                     const char* ahead) {
  constexpr int most = Tile<Spec>::rows;
  if (rows == most) return tile<Spec, most>(out, a, b, depth, first, ahead);
  if (rows == most - 1) return tile<Spec, most - 1>(out, a, b, depth, first, ahead);
  for (; rows >= 4; rows -= 4, out += 4 * Spec::n, a += 4 * Spec::k)
    tile<Spec, 4>(out, a, b, depth, first, ahead);
  for (; rows >= 1; --rows, out += Spec::n, a += Spec::k)
    tile<Spec, 1>(out, a, b, depth, first, ahead);
}

template <class Spec, class Epilogue>
TFCC_FN void finish_tile(int rows, f32* out, idx row, idx column, const Epilogue& epilogue) {
  for (int r = 0; r < rows; ++r) {
    f32* at = out + r * Spec::n;
#pragma clang loop vectorize(assume_safety)
    for (int j = 0; j < Tile<Spec>::columns; ++j) at[j] = epilogue(at[j], row + r, column + j);
  }
}

}  // namespace matmul_panel_detail

/// Spec: n, k, panel, of codes also Code and per_code. epilogue(sum, i, j) is the element to store in
/// row i, column j.
template <class Spec, class Panels, class Epilogue>
TFCC_FN void matmul_panel(f32* __restrict out, const f32* __restrict a, Panels b, idx m,
                          const Epilogue& epilogue, i64 begin, i64 end) {
  using T = matmul_panel_detail::Tile<Spec>;
  using matmul_panel_detail::kLine;
  constexpr idx panels = Spec::n / Spec::panel;
  const idx blocks = (m + matmul_panel_detail::kBlockRows - 1) / matmul_panel_detail::kBlockRows;
  while (begin < end) {
    const idx block = begin / panels, first_panel = begin % panels;
    const idx last_panel = imin(panels, end - block * panels);
    const idx row = m * block / blocks;
    const int rows = (int)(m * (block + 1) / blocks - row);
    const int tiles = (rows + T::rows - 1) / T::rows;
    for (int k = 0; k < Spec::k; k += Panels::depth) {
      const int depth = Spec::k - k < Panels::depth ? Spec::k - k : Panels::depth;
      const bool first = k == 0, last = k + depth == Spec::k;
      for (idx p = first_panel; p < last_panel; ++p) {
        const auto* panel = b.rows(p, k, depth);
        const idx back =
            (p - first_panel) * Spec::k - depth;  // to the next rows of the first panel
        const auto* next = Panels::made         ? panel
                           : p + 1 < last_panel ? panel + Spec::k * Spec::panel
                           : last               ? panel
                                                : panel - back * Spec::panel;
        for (int c = 0; c < Spec::panel; c += T::columns) {
          const idx column = p * Spec::panel + c;
          for (int t = 0; t < tiles; ++t) {
            const int r = rows * t / tiles, count = rows * (t + 1) / tiles - r;
            f32* to = out + (row + r) * Spec::n + column;
            // The first tiles fetch the next panel between them, a line for each k.
            const bool fetches =
                c == 0 && t * kLine < Spec::panel * (int)sizeof(typename Panels::B);
            const char* ahead =
                fetches ? (const char*)next + t * depth * kLine : (const char*)panel;
            matmul_panel_detail::tile_of<Spec>(count, to, a + (row + r) * Spec::k + k, panel + c,
                                               depth, first, ahead);
            if (last) matmul_panel_detail::finish_tile<Spec>(count, to, row + r, column, epilogue);
          }
        }
      }
    }
    begin = block * panels + last_panel;
  }
}
