// SPDX-License-Identifier: Apache-2.0
// Building block of matmul_wgmma: what a warpgroup does with the sums of its rows of a tile.
//
//   v[i, j] = epilogue(sum, mean[i], rstd[i], beside[i, j], c0[j], .., c3[j], i, j)
//   out[i, j] = scaled(v, c0[j], .., c3[j], i, j)
//
// Gated, with nothing else: out[i, j] = epilogue(s, t, i, j) with the sums of columns 16 (j / 8) +
// j % 8 and eight behind it, which a thread has side by side. out is [rows, columns / 2].
//
// A norm between two products is a part of both. The product before it stores v times gamma, and
// the moments of v: of every 32 columns their mean, and the sum of the squares of what they differ
// from it by. The product after it has the moments of its rows, and so, for layer norm with c = sum
// over k of gamma[k] b[k, j], the epilogue rstd (s - mean c[j]) + ..: the norm's own product by
// linearity. Moments of eight columns, of 32 and of rows are merged as Chan, Golub and LeVeque do
// (1983), so a mean of 1000 costs the variance no digits; always in one order, so the bits do not
// depend on the tile.
//
// What comes from memory takes a microsecond, behind all that TMA has asked for, and warpgroups
// have no time to wait or to compute anything while their products run. So two warps beside them
// prepare the end of each tile in shared memory: what stands beside the sums, the vectors along the
// columns, mean and rstd of the rows.
// Four lanes have two rows of a part of 32 columns. A warp turns its 16 rows of a part around in
// shared memory (stmatrix), so that each lane stores 16 bytes.
// Spec: T, Out; Tiles, of which `whole` says what all widths are multiples of (32 with moments, 16
// if gated); gated; norm (0 none, 1 layer, 2 RMS), norm_groups, of 32 columns, in the moments of a
// row; eps; costly, of the epilogue; moments; sum, whether v is stored too; beside, whether the epilogue is given a matrix
// of T [rows, columns]; Columns, a ColumnValues<T..> of the vectors along the columns that it is
// given, at most four.
// Shared memory: if there is something beside, end_bytes(block_m, block_n) of the dynamic memory;
// and EndMemory.
#pragma once
#include "cuda/sm90.cuh"

/// Threads that prepare the ends of tiles.
inline constexpr int kPreparing = 64;
/// Columns that there is room for: whole parts, as the end of a tile takes them.
TFCC_FN constexpr int end_room(int block_n) {
  return block_n <= 32 ? 32 : (block_n + 63) / 64 * 64;
}
/// Bytes of a row of what stands beside the sums, of whole groups of columns: four lanes of eight
/// rows meet no bank twice.
TFCC_FN constexpr int end_pitch(int block_n) { return (block_n + 31) / 32 * 64 + 16; }
/// Of the dynamic shared memory.
template <class Spec> TFCC_FN constexpr int end_bytes(int block_m, int block_n) {
  return Spec::beside ? block_m * end_pitch(block_n) : 0;
}

/// Bytes of a row of what a warp turns around, of 32 columns: eight rows meet no bank twice.
inline constexpr int kTurnPitch = 80;

#if __CUDA_ARCH__ >= 900

/// v is stored as it is.
struct AsItIs {
  TFCC_FN f32 operator()(f32 v, f32, f32, f32, f32, idx, idx) const { return v; }
};

/// Vectors along the columns, of which a tile's are copied to shared memory. `bytes` of a column.
template <class... Ts> struct ColumnValues {
  static constexpr int bytes = 0;
  template <int room> TFCC_FN void copy(unsigned char*, idx, idx, int, int) const {}
  template <int room> static TFCC_FN void load(const unsigned char*, idx, f32 (*)[2]) {}
};
template <class First, class... Rest> struct ColumnValues<First, Rest...> {
  static_assert(sizeof...(Rest) < 4, "Columns: at most four");
  static constexpr int bytes = sizeof(First) + ColumnValues<Rest...>::bytes;
  const First* vector;
  ColumnValues<Rest...> rest;
  /// By kPreparing threads: `width` columns from the first on, as far as there are, to where each
  /// vector has room for `room`.
  template <int room>
  TFCC_FN void copy(unsigned char* to, idx first, idx columns, int width, int thread) const {
    constexpr int chunk = 16 / sizeof(First);
    for (idx c = thread * chunk; c < width; c += kPreparing * chunk) {
      if (first + c < columns) sm90::copy_16_bytes(to + c * sizeof(First), vector + first + c);
    }
    rest.template copy<room>(to + room * sizeof(First), first, columns, width, thread);
  }
  /// Two of them, from column `at` of the tile on.
  template <int room> static TFCC_FN void load(const unsigned char* from, idx at, f32 (*to)[2]) {
    load_pack((const First*)from + at, *to);
    ColumnValues<Rest...>::template load<room>(from + room * sizeof(First), at, to + 1);
  }
};

/// The result of a product and what it is made of beside the sums.
template <class Spec, class Epilogue, class Scaled = AsItIs> struct MatmulEnd {
  typename Spec::Out* out;
  Epilogue epilogue;
  typename Spec::Columns columns = {};
  Scaled scaled = {};
  f32* moments = nullptr;             // of v, [columns / 32, rows, 2]
  typename Spec::Out* sum = nullptr;  // v itself
  const f32* of_rows = nullptr;       // moments of the rows of a, [norm_groups, rows, 2]
  const typename Spec::T* beside = nullptr;
};

/// What is prepared for the end of a tile beside that, where warps turn their rows around, and
/// barriers: `full` when what is prepared is there, `empty` when it has been used.
template <class Spec, int block_m, int block_n> struct alignas(16) EndMemory {
  static constexpr int rows = block_m, width = block_n;
  unsigned char columns[block_n * Spec::Columns::bytes + 16];
  f32 mean[block_m], rstd[block_m];
  alignas(16) unsigned char turned[sizeof(typename Spec::Out) == 2 ? block_m * kTurnPitch : 16];
  u64 full, empty;
};

namespace matmul_end_detail {

inline constexpr int kGroup = 32;

/// The mean of some numbers, and the sum of the squares of what they differ from it by.
struct Moments {
  f32 mean, squares;
};

/// Of the eight numbers of one row, 0 or 1, that a thread has of 32 columns.
TFCC_FN Moments moments_of_eight(const f32 (&v)[16], int half) {
  f32 of[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) of[i] = v[i / 2 * 4 + half * 2 + i % 2];
  Moments m;
  m.mean = (((of[0] + of[1]) + (of[2] + of[3])) + ((of[4] + of[5]) + (of[6] + of[7]))) * 0.125f;
  f32 squares[2] = {};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const f32 apart = of[i] - m.mean;
    squares[i / 4] += apart * apart;
  }
  m.squares = squares[0] + squares[1];
  return m;
}

/// Of `each` numbers of this lane and as many that lane ^ `other` gives, while this one gives `give`:
/// the same in both.
TFCC_FN Moments merge(Moments here, Moments give, int other, f32 each) {
  const f32 mean = __shfl_xor_sync(kAllLanes, give.mean, other),
            squares = __shfl_xor_sync(kAllLanes, give.squares, other), apart = mean - here.mean;
  return {(here.mean + mean) * 0.5f, (here.squares + squares) + each * 0.5f * (apart * apart)};
}

/// Of each four lanes the first two get the moments of row 0 of 32 columns, the others of row 1.
TFCC_FN Moments moments_in_fours(const f32 (&v)[16]) {
  const bool high = threadIdx.x & 2;
  const Moments first = moments_of_eight(v, 0), second = moments_of_eight(v, 1);
  const Moments here = {high ? second.mean : first.mean, high ? second.squares : first.squares},
                give = {high ? first.mean : second.mean, high ? first.squares : second.squares};
  const Moments two = merge(here, give, 2, 8);
  return merge(two, two, 1, 16);
}

/// Mean and rstd of `count` rows.
template <class Spec, int count>
TFCC_FN void row_statistics(const f32* moments, idx rows, const idx (&of)[count],
                            f32 (&mean)[count], f32 (&rstd)[count]) {
  constexpr int groups = Spec::norm_groups;
  constexpr bool held = groups * count <= 64;  // in registers; else they are read twice
  f32 asked[held ? groups : 1][count][2];
  if constexpr (held) {
#pragma unroll
    for (int g = 0; g < groups; ++g) {
#pragma unroll
      for (int r = 0; r < count; ++r) load_pack(moments + ((i64)g * rows + of[r]) * 2, asked[g][r]);
    }
  }
  const auto number = [&](int g, int r, int which) {
    if constexpr (held) return asked[g][r][which];
    else return moments[((i64)g * rows + of[r]) * 2 + which];
  };
#pragma unroll
  for (int r = 0; r < count; ++r) {
    f32 all = 0, squares = 0;
#pragma unroll(held ? groups : 8)
    for (int g = 0; g < groups; ++g) all += number(g, r, 0);
    mean[r] = Spec::norm == 1 ? all * (1.0f / groups) : 0.0f;
#pragma unroll(held ? groups : 8)
    for (int g = 0; g < groups; ++g) {
      const f32 apart = number(g, r, 0) - mean[r];
      squares += number(g, r, 1) + kGroup * apart * apart;
    }
    rstd[r] = rsqrtf(squares * (1.0f / (groups * kGroup)) +
                     Spec::eps);  // within 2 units of the last place
  }
}

}  // namespace matmul_end_detail

/// By thread `thread` of kPreparing: what the end of the tile from this row and column on needs,
/// beside the vectors along its columns. What lies behind the last row is that of the last. The
/// launches before this one have ended.
template <class Spec, class End, class Memory>
TFCC_FN void prepare_end(const End& end, unsigned char* tile, Memory& memory, idx rows, idx columns,
                         idx first_row, idx first_column, int block_m, int block_n, int thread) {
  if constexpr (Spec::beside) {
    const int pitch = end_pitch(block_n);
    const int lanes = block_n < 64 ? 4 : 8;  // of a row's part of so many chunks
    for (int c = thread % lanes * 8; c < block_n; c += lanes * 8) {
      if (first_column + c >= columns) break;
#pragma unroll 4
      for (int r = thread / lanes; r < block_m; r += kPreparing / lanes) {
        const idx row = first_row + r < rows ? first_row + r : rows - 1;
        sm90::copy_16_bytes(tile + r * pitch + c * 2,
                            end.beside + (i64)row * columns + first_column + c);
      }
    }
  }
  if constexpr (Spec::norm != 0) {
    constexpr int count = Memory::rows / kPreparing;  // all at once, also where a tile has fewer
    idx of[count];
    f32 mean[count], rstd[count];
#pragma unroll
    for (int i = 0; i < count; ++i) {
      const idx row = first_row + thread + i * kPreparing;
      of[i] = row < rows ? row : rows - 1;
    }
    matmul_end_detail::row_statistics<Spec, count>(end.of_rows, rows, of, mean, rstd);
#pragma unroll
    for (int i = 0; i < count; ++i)
      memory.mean[thread + i * kPreparing] = mean[i],
                               memory.rstd[thread + i * kPreparing] = rstd[i];
  }
  sm90::wait_for_copies();
}

/// The end of one tile for a thread of a warpgroup, when its sums are there and what prepare_end()
/// does. It goes through parts of the columns, one after the other. Where the epilogue is costly that
/// is a loop, for which the sums move down: code for all parts would be longer than what the
/// instruction caches hold. Else it is unrolled. Beyond the last column it computes something, of
/// whatever shared memory holds there, which is not stored; a row and a column are those of the edge.
template <class Spec, class End, class Memory> struct EndOfTile {
  static constexpr int most = Memory::width,
                       kGroup = matmul_end_detail::kGroup;  // columns of the largest of the tiles
  static constexpr int part = most < 64 ? most : 64;
  using Out = typename Spec::Out;
  using T = typename Spec::T;
  const End& end;
  const unsigned char* tile;  // what stands beside the sums, of the group's rows
  Memory& memory;
  int group;
  idx rows, columns, first_row, first, lane,
      local;  // local: the first of the two rows of a thread, in the group
  int block_n, pitch;

  TFCC_FN EndOfTile(const End& e, const unsigned char* beside, Memory& m, int group_, idx rows_,
                    idx columns_, idx row, idx column, int width)
      : end(e),
        tile(beside + group_ * 64 * end_pitch(width)),
        memory(m),
        group(group_),
        rows(rows_),
        columns(columns_),
        first_row(row + group_ * 64),
        first(column),
        lane(threadIdx.x % kWarp),
        local(threadIdx.x / kWarp % 4 * 16 + threadIdx.x % kWarp / 4),
        block_n(width),
        pitch(end_pitch(width)) {}

  TFCC_FN idx inside(idx row) const { return row < rows ? row : rows - 1; }

  // In a group of columns v[q * 4 + half * 2 + e] is the value in row local + half * 8 and column q
  // * 8 + lane % 4 * 2 + e.

  /// The pair q of a row of what stands beside the sums.
  TFCC_FN u32 pair(int half, int q, idx from) const {
    return *(const u32*)(tile + (local + half * 8) * pitch +
                         (from - first + q * 8 + lane % 4 * 2) * 2);
  }

  TFCC_FN void store_moments(const matmul_end_detail::Moments& of, idx from) const {
    const f32 m[2] = {of.mean, of.squares};
    const idx r = first_row + local + (lane % 4 < 2 ? 0 : 8);
    if (r < rows && from < columns && lane % 2 == 0)
      store_pack(end.moments + ((i64)((u32)from / kGroup) * rows + r) * 2, m);
  }

  /// As many of the columns as lie before `limit`, in rows of `width`.
  TFCC_FN void store_group(Out* to, const f32 (&v)[16], idx from, idx width, idx limit) const {
    unsigned char* const turned =
        memory.turned + (group * 4 + threadIdx.x / kWarp % 4) * 16 * kTurnPitch;
    if constexpr (sizeof(Out) == 2) {
      __syncwarp();  // all lanes have read what was there
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        u32 p[4];
#pragma unroll
        for (int q = 0; q < 4; ++q) p[q] = pack2<Out>(v[q * 4 + half * 2], v[q * 4 + half * 2 + 1]);
        sm90::store_matrices(turned + (half * 8 + lane % 8) * kTurnPitch + lane / 8 * 16, p);
      }
      __syncwarp();
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const idx r = first_row + local + half * 8;
      if constexpr (sizeof(Out) == 2) {
        const uint4 eight =
            sm90::load_16_bytes(turned + (half * 8 + lane / 4) * kTurnPitch + lane % 4 * 16);
        const idx c = from + lane % 4 * 8;
        if (r < rows && c < limit) *(uint4*)(to + r * width + c) = eight;
      } else {
#pragma unroll
        for (int q = 0; q < 4; ++q) {
          const f32 two[2] = {v[q * 4 + half * 2], v[q * 4 + half * 2 + 1]};
          const idx c = from + lane % 4 * 2 + q * 8;
          if (r < rows && c < limit) store_pack(to + r * width + c, two);
        }
      }
    }
  }

  /// v[i] = f(i, row 0 or 1, values of its column, row, column).
  template <class F> TFCC_FN void each(f32 (&v)[16], idx from, const F& f) const {
    const idx of_half[2] = {inside(first_row + local), inside(first_row + local + 8)};
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      const idx c = from + q * 8, column = (c < columns ? c : columns - 8) + lane % 4 * 2;
      f32 of_columns[4][2] = {};
      Spec::Columns::template load<most>(memory.columns, c - first + lane % 4 * 2, of_columns);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const f32 of_column[4] = {of_columns[0][i % 2], of_columns[1][i % 2], of_columns[2][i % 2],
                                  of_columns[3][i % 2]};
        v[q * 4 + i] = f(q * 4 + i, i / 2, of_column, of_half[i / 2], column + i % 2);
      }
    }
  }

  /// One or two groups of columns side by side: what waits in one is computed beside the other.
  template <int groups>
  TFCC_FN void finish(f32 (&v)[groups][16], idx from, const f32 (&mean)[2],
                      const f32 (&rstd)[2]) const {
    const idx limit =
        Spec::Tiles::whole >= kGroup || first + block_n > columns ? columns : first + block_n;
#pragma unroll
    for (int g = 0; g < groups; ++g) {
      f32 beside[Spec::beside ? 16 : 1] = {};
      if constexpr (Spec::beside) {
#pragma unroll
        for (int i = 0; i < 16; i += 2)
          unpack2<T>(pair(i / 2 % 2, i / 4, from + g * kGroup), beside[i], beside[i + 1]);
      }
      each(v[g], from + g * kGroup, [&](int i, int half, const f32(&of)[4], idx r, idx c) {
        return end.epilogue(v[g][i], mean[half], rstd[half], beside[Spec::beside ? i : 0], of[0],
                            of[1], of[2], of[3], r, c);
      });
    }
    if constexpr (Spec::moments) {
      static_assert(Spec::Tiles::whole >= kGroup,
                    "block_n: a multiple of 32, which moments are of");
      matmul_end_detail::Moments of[groups];
#pragma unroll
      for (int g = 0; g < groups; ++g) of[g] = matmul_end_detail::moments_in_fours(v[g]);
#pragma unroll
      for (int g = 0; g < groups; ++g) store_moments(of[g], from + g * kGroup);
    }
#pragma unroll
    for (int g = 0; g < groups; ++g) {
      if constexpr (Spec::sum) store_group(end.sum, v[g], from + g * kGroup, columns, limit);
      if constexpr (Spec::moments)
        each(v[g], from + g * kGroup, [&](int i, int, const f32(&of)[4], idx r, idx c) {
          return end.scaled(v[g][i], of[0], of[1], of[2], of[3], r, c);
        });
      store_group(end.out, v[g], from + g * kGroup, columns, limit);
    }
  }

  /// Of 64 columns 32 values.
  TFCC_FN void finish_gated(f32 (&sums)[most / 2]) const {
    static_assert(Spec::Tiles::whole >= 16 && most >= 64,
                  "block_n: a multiple of 16 where columns are pairs of eights, and one beyond 32");
    const idx width = columns / 2, last = (first + block_n) / 2,
              limit = Spec::Tiles::whole == 64 || last > width ? width : last;
#pragma unroll 1
    for (idx from = first / 2; from < last; from += kGroup) {
      f32 v[16];
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        const idx r = inside(first_row + local + i / 2 % 2 * 8), eight = from + i / 4 * 8;
        const idx c = (eight < width ? eight : width - 8) + lane % 4 * 2 + i % 2;
        v[i] = end.epilogue(sums[i / 4 * 8 + i % 4], sums[i / 4 * 8 + 4 + i % 4], r, c);
      }
      store_group(end.out, v, from, width, limit);
#pragma unroll
      for (int i = kGroup; i < most / 2; ++i) sums[i - kGroup] = sums[i];
    }
  }

  TFCC_FN void finish(f32 (&sums)[most / 2]) const {
    if constexpr (Spec::gated) return finish_gated(sums);
    else finish_plain(sums);
  }

  TFCC_FN void finish_plain(f32 (&sums)[most / 2]) const {
    f32 mean[2] = {}, rstd[2] = {};
    if constexpr (Spec::norm != 0) {
#pragma unroll
      for (int half = 0; half < 2; ++half)
        mean[half] = memory.mean[group * 64 + local + half * 8],
        rstd[half] = memory.rstd[group * 64 + local + half * 8];
    }
    constexpr int together = Spec::moments && Spec::Tiles::whole >= 2 * kGroup ? 2 : 1;
    constexpr int unrolled = Spec::costly ? 1 : most / part;
#pragma unroll unrolled
    for (int p = 0; p < most / part; ++p) {
      const idx from = first + p * part;
      const int at = Spec::costly ? 0 : p * part / 2;
#pragma unroll
      for (int g = 0; g < part / kGroup; g += together) {
        if (Spec::Tiles::whole < part && g > 0 && from + g * kGroup >= first + block_n) break;
        f32 v[together][16];
#pragma unroll
        for (int i = 0; i < together * 16; ++i) v[i / 16][i % 16] = sums[at + g * 16 + i];
        finish(v, from + g * kGroup, mean, rstd);
      }
      if (from + part >= first + block_n) break;
      if constexpr (Spec::costly) {
#pragma unroll
        for (int i = part / 2; i < most / 2; ++i) sums[i - part / 2] = sums[i];
      }
    }
  }
};

#endif
