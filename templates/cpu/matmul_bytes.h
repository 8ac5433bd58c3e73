// SPDX-License-Identifier: Apache-2.0
// matmul_bytes: out[i, j] = epilogue(sum_k a[i, k] b[k, j], i, j) for bytes a, row-major, and a
// weight b of i8. The sum is an exact i32, modulo 2^32, by whatever instructions the CPU has: four
// products a lane (VNNI) or two (pmaddwd).
//
// b is packed when the model is compiled: panels of `panel` columns, [n / panel, k / 4, panel, 4],
// so that a vector holds four neighbours along k for each column. A work item is (block of
// kBlockRows rows, panel), panels first, as in matmul_panel: small blocks of rows are summed over
// all of k in registers, and the panel stays in the second cache from block to block.
//
// Bound: on CPUs with AVX-512 VNNI 64 products a cycle, four times those of f32.
#pragma once

#include "expr.h"

namespace matmul_bytes_detail {

inline constexpr int kBlockRows = 128;

typedef i32 Lanes __attribute__((vector_size(kLanes * 4)));
typedef i32 UnalignedLanes __attribute__((vector_size(kLanes * 4), aligned(4)));
typedef i16 Pairs __attribute__((vector_size(kLanes * 4)));

TFCC_FN i32 four_bytes(const void* p) {
  typedef i32 Unaligned __attribute__((aligned(1)));
  return *(const Unaligned*)p;
}

/// Each lane of sum plus the products of its two pairs of i16.
TFCC_FN Lanes add_pairs(Lanes sum, Pairs a, Pairs b) {
#if defined(__AVX512BW__)
  return sum + (Lanes)__builtin_ia32_pmaddwd512(a, b);
#elif defined(__AVX2__)
  return sum + (Lanes)__builtin_ia32_pmaddwd256(a, b);
#else
  return sum + (Lanes)__builtin_ia32_pmaddwd128(a, b);
#endif
}

/// Of four bytes in each lane the first and the third, and the second and the fourth, as i16.
template <class T> TFCC_FN Pairs even(Lanes x) {
  if constexpr (kSame<T, u8>) return (Pairs)(x & (Lanes{} + 0x00ff00ff));
  else return (Pairs)(x << 8) >> 8;
}
template <class T> TFCC_FN Pairs odd(Lanes x) {
  if constexpr (kSame<T, u8>) return (Pairs)(x >> 8 & (Lanes{} + 0x00ff00ff));
  else return (Pairs)x >> 8;
}

/// out[r, j] = sum_k a[r, k] b[k, j] for kRows rows of a and the columns of a panel; `out` has a
/// panel's columns.
template <class Spec, int kRows>
__attribute__((noinline)) void sums_by_pairs(i32* out, const typename Spec::A* a, const i8* b) {
  constexpr int columns = Spec::panel % (2 * kLanes) == 0 ? 2 * kLanes : kLanes,
                vectors = columns / kLanes;
  static_assert(Spec::panel % columns == 0);
  for (int c = 0; c < Spec::panel; c += columns) {
    Lanes sum[kRows][vectors] = {};
    for (int k = 0; k < Spec::k / 4; ++k) {
      Pairs y[vectors][2];
      for (int v = 0; v < vectors; ++v) {
        const Lanes four =
            *(const UnalignedLanes*)(b + ((i64)k * Spec::panel + c + v * kLanes) * 4);
        y[v][0] = even<i8>(four);
        y[v][1] = odd<i8>(four);
      }
      for (int r = 0; r < kRows; ++r) {
        const Lanes four = Lanes{} + four_bytes(a + r * (i64)Spec::k + k * 4);
        const Pairs x[2] = {even<typename Spec::A>(four), odd<typename Spec::A>(four)};
        for (int v = 0; v < vectors; ++v)
          sum[r][v] = add_pairs(add_pairs(sum[r][v], x[0], y[v][0]), x[1], y[v][1]);
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < vectors; ++v)
        *(UnalignedLanes*)(out + r * Spec::panel + c + v * kLanes) = sum[r][v];
    }
  }
}

#if defined(__AVX512F__)
/// The same by VNNI, which multiplies unsigned bytes of a: of signed ones 128 is added, and 128
/// times the sum of the column taken off again.
template <class Spec, int kRows>
__attribute__((noinline, target("avx512vnni"))) void sums_by_fours(i32* out,
                                                                   const typename Spec::A* a,
                                                                   const i8* b) {
  constexpr int vectors = Spec::panel / kLanes;
  constexpr bool is_signed = kSame<typename Spec::A, i8>;
  Lanes sum[kRows][vectors] = {}, shift[vectors] = {};
  const Lanes sign = Lanes{} + (i32)0x80808080;
  for (int k = 0; k < Spec::k / 4; ++k) {
    Lanes y[vectors];
    for (int v = 0; v < vectors; ++v) {
      y[v] = *(const UnalignedLanes*)(b + ((i64)k * Spec::panel + v * kLanes) * 4);
      if constexpr (is_signed) shift[v] = (Lanes)__builtin_ia32_vpdpbusd512(shift[v], sign, y[v]);
    }
    for (int r = 0; r < kRows; ++r) {
      Lanes x = Lanes{} + four_bytes(a + r * (i64)Spec::k + k * 4);
      if constexpr (is_signed) x ^= sign;
      for (int v = 0; v < vectors; ++v)
        sum[r][v] = (Lanes)__builtin_ia32_vpdpbusd512(sum[r][v], x, y[v]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < vectors; ++v)
      *(UnalignedLanes*)(out + r * Spec::panel + v * kLanes) = sum[r][v] - shift[v];
  }
}

/// Whether the CPU has AVX-512 VNNI: bit 11 of ECX of leaf 7, asked for once.
TFCC_FN bool has_vnni() {
  static int known = 0;  // 1: no, 2: yes
  int answer = __atomic_load_n(&known, __ATOMIC_RELAXED);
  if (answer == 0) {
    u32 a = 7, b, c = 0, d;
    asm volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
    answer = (c >> 11 & 1) + 1;
    __atomic_store_n(&known, answer, __ATOMIC_RELAXED);
  }
  return answer == 2;
}
#endif

/// Rows whose sums stay in registers: with 32 of them, of which signed bytes take a row.
template <class Spec>
inline constexpr int kTileRows = kLanes < 16                   ? 4
                                 : kSame<typename Spec::A, i8> ? 5
                                                               : 6;

template <class Spec, int kRows>
TFCC_FN void sums(bool vnni, i32* out, const typename Spec::A* a, const i8* b) {
#if defined(__AVX512F__)
  if (vnni) return sums_by_fours<Spec, kRows>(out, a, b);
#endif
  sums_by_pairs<Spec, kRows>(out, a, b);
}

template <class Spec>
TFCC_FN void sums_of(bool vnni, int rows, i32* out, const typename Spec::A* a, const i8* b) {
  if (rows == kTileRows<Spec>) return sums<Spec, kTileRows<Spec>>(vnni, out, a, b);
  if (rows == kTileRows<Spec> - 1) return sums<Spec, kTileRows<Spec> - 1>(vnni, out, a, b);
  for (; rows >= 2; rows -= 2, out += 2 * Spec::panel, a += 2 * (i64)Spec::k)
    sums<Spec, 2>(vnni, out, a, b);
  if (rows == 1) sums<Spec, 1>(vnni, out, a, b);
}

}  // namespace matmul_bytes_detail

/// Spec: A u8 or i8, Out; n, k, panel; 4 divides k. epilogue(sum, i, j) is the element to store in
/// row i, column j.
template <class Spec, class Epilogue>
TFCC_FN void matmul_bytes(typename Spec::Out* __restrict out, const typename Spec::A* __restrict a,
                          const i8* __restrict b, idx m, const Epilogue& epilogue, i64 begin,
                          i64 end) {
  using namespace matmul_bytes_detail;
  static_assert(Spec::n % Spec::panel == 0 && Spec::panel % 16 == 0 && Spec::panel <= 64 &&
                Spec::k % 4 == 0);
  constexpr idx panels = Spec::n / Spec::panel;
  bool vnni = false;
#if defined(__AVX512F__)
  vnni = has_vnni();
#endif
  const idx blocks = (m + kBlockRows - 1) / kBlockRows;
  constexpr int most = kTileRows<Spec>;
  i32 sum[most * Spec::panel];
  for (; begin < end; ++begin) {
    const idx block = begin / panels, column = begin % panels * Spec::panel;
    const idx row = m * block / blocks;
    const int rows = (int)(m * (block + 1) / blocks - row);
    const int tiles = (rows + most - 1) / most;
    for (int t = 0; t < tiles; ++t) {
      const int first = rows * t / tiles, count = rows * (t + 1) / tiles - first;
      sums_of<Spec>(vnni, count, sum, a + (row + first) * Spec::k, b + column * Spec::k);
      for (int r = 0; r < count; ++r) {
        const idx i = row + first + r;
#pragma clang loop vectorize(assume_safety)
        for (int j = 0; j < Spec::panel; ++j)
          store(out, i * Spec::n + column + j,
                epilogue((i64)sum[r * Spec::panel + j], i, column + j));
      }
    }
  }
}
