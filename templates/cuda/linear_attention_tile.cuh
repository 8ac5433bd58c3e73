// SPDX-License-Identifier: Apache-2.0
// Building blocks of linear_attention: what a block works on, and tiles of tokens in shared memory
// under their maps.
#pragma once
#include "cuda/attention_softmax.cuh"
#include "cuda/running_sums.cuh"
#include "cuda/sm90.cuh"

/// Where q, k and v lie: their first elements, or their tensor maps in boxes of 64 rows and 64
/// columns. With these is memory for the states of blocks that share a sequence, and the number of
/// multiprocessors with the counters by which they meet; null where none do.
template <class T> struct RowPointers { const T *q, *k, *v; };
struct RowMaps {
  const TensorMap &q, &k, &v;
  f32* states;
  u32* counters;
};

/// No map, all tokens visible, nothing decays, the result is the sum.
struct SameElement {
  TFCC_FN f32 operator()(f32 s, idx, idx, idx, idx) const { return s; }
};
struct AllTokens {
  TFCC_FN bool operator()(idx, idx, idx) const { return true; }
};
struct NoDecay {
  TFCC_FN f32 operator()(idx, idx, idx) const { return 0.0f; }
};
struct NoDelta {
  TFCC_FN f32 operator()(idx, idx, idx) const { return 1.0f; }
};
struct SumAlone {
  TFCC_FN f32 operator()(f32 s, f32, idx, idx, idx, idx) const { return s; }
};

template <bool condition, class A, class B> struct Conditional { using type = A; };
template <class A, class B> struct Conditional<false, A, B> { using type = B; };

/// The head, sequence and channels of a block, and the expressions of the op at their tokens. Rows
/// are counted in their sequence.
template <class Spec, class Rows, class QMap, class KMap, class Shown, class Decay, class Epilogue>
struct LinearHead {
  static constexpr bool maps_q = !kSame<QMap, SameElement>, maps_k = !kSame<KMap, SameElement>;
  Rows rows;
  const QMap& q_map;
  const KMap& k_map;
  const Shown& shown;
  const Decay& decay_of;
  const Epilogue& epilogue_of;
  idx b, h, g, first;  // first: channel of v
  idx queries, keys;

  /// `place` of the sequence among those of the batch, `part` of its channels.
  TFCC_FN LinearHead(idx place, idx h_, idx part, const Rows& rows_, const QMap& q, const KMap& k,
                     const Shown& s, const Decay& d, const Epilogue& e)
      : rows(rows_), q_map(q), k_map(k), shown(s), decay_of(d), epilogue_of(e) {
    b = rows.sequence(place);
    h = h_;
    g = h / (Spec::heads / Spec::kv_heads);
    first = part * Spec::columns;
    queries = rows.query_count(b);
    keys = rows.key_count(b);
  }
  TFCC_FN bool live(idx j) const {
    return j < keys && (kSame<Shown, AllTokens> || shown(b, g, rows.key_position(b, j)));
  }
  TFCC_FN f32 query(f32 x, idx i, idx e) const { return q_map(x, b, h, rows.position(b, i), e); }
  TFCC_FN f32 key(f32 x, idx j, idx e) const { return k_map(x, b, g, rows.key_position(b, j), e); }
  TFCC_FN f32 decay(idx j) const {
    return j < keys ? decay_of(b, h, rows.key_position(b, j)) : 0.0f;
  }
  /// Of a channel of the block.
  TFCC_FN f32 result(f32 s, f32 z, idx i, idx m) const {
    return epilogue_of(s, z, b, h, rows.position(b, i), first + m);
  }
  TFCC_FN int columns() const { return (int)imin(Spec::columns, Spec::v_dim - first); }
};

/// e to x <= 0, as exact as what T holds.
template <class T> TFCC_FN f32 exp_of(f32 x) { return sizeof(T) == 4 ? expf(x) : __expf(x); }

/// What `lanes` neighbours need to make a row the softmax of itself: its largest element, and 1 /
/// the sum of e to each less that. each(f) calls f for the elements of a lane, in order. All lanes
/// of the warp call.
struct RowSoftmax {
  f32 top = -kInf, scale = 0.0f;
};
template <class T, int lanes, class Each> TFCC_FN RowSoftmax row_softmax(const Each& each) {
  RowSoftmax r;
  each([&](f32 x) { r.top = fmaxf(r.top, x); });
  r.top = reduce_lanes<lanes>(r.top, [](f32 a, f32 b) { return fmaxf(a, b); });
  each([&](f32 x) { r.scale += exp_of<T>(x - r.top); });
  r.scale = 1.0f / reduce_lanes<lanes>(r.scale, Add{});
  return r;
}

/// Keys as an operand of mma.sync or wgmma, features by 16 tokens of which this lane has j, j + 1,
/// j + 8 and j + 9, times fade(token).
template <class T, class Fade> TFCC_FN void fade_keys(u32 (&a)[4], int j, const Fade& fade) {
#pragma unroll
  for (int x = 0; x < 4; ++x) {
    f32 low, high;
    unpack2<T>(a[x], low, high);
    a[x] = pack2<T>(low * fade(j + x / 2 * 8), high * fade(j + x / 2 * 8 + 1));
  }
}

/// Rows [from, from + rows) of a tensor to shared memory by all threads: `columns` elements of
/// each, zeros behind them and for rows that `live` denies. Complete after commit_copies,
/// wait_copies and a barrier.
template <class Tile, int rows, int threads, bool chunked, class T, class Live>
TFCC_FN void copy_tokens(T* to, const T* from, i64 stride, int columns, const Live& live) {
  constexpr int per_row = Tile::width / Tile::chunk, total = rows * per_row,
                steps = ceil_div(total, threads);
#pragma unroll(steps > 8 ? 4 : steps)
  for (int first = 0; first < total; first += threads) {
    const int e = first + (int)threadIdx.x;
    if (total % threads != 0 && e >= total) break;
    const int row = e / per_row, c = e % per_row;
    const bool there = live(row);
    T* const place = to + Tile::at(row, c);
    const T* const source = from + row * stride + c * Tile::chunk;
    if constexpr (chunked) {
      const bool inside = there && c * Tile::chunk < columns;
      copy_async(place, inside ? source : from, inside);
    } else {
      union {
        uint4 word;
        T e[Tile::chunk];
      } u;
      u.word = make_uint4(0, 0, 0, 0);
#pragma unroll
      for (int x = 0; x < Tile::chunk; ++x) {
        if (there && c * Tile::chunk + x < columns) u.e[x] = source[x];
      }
      *(uint4*)place = u.word;
    }
  }
}

/// The larger of two pairs of 16 bits each.
template <class T> TFCC_FN u32 larger2(u32 a, u32 b) {
  u32 r;
  if constexpr (kSame<T, f16>) asm("max.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  else asm("max.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}

/// `count` rows of 16 bits at a time under softmax. Eight neighbouring lanes have a row: 8 elements
/// of each 64 of the first `columns`, from place(n, number of the 64) on. All lanes of the warp go
/// through all steps. Powers are `held` in registers, or computed again.
template <class T, int count, int parts, int columns, bool held, class Place> struct SoftenedRows {
  static constexpr bool whole = columns == parts * 64;
  static constexpr u32 none = kSame<T, f16> ? 0xfc00 : 0xff80;  // -inf
  const Place& place;
  int lane = threadIdx.x % 8;
  u32 words[count][4], top[count];  // top: a pair
  f32 largest[count], sum[count];   // of elements, times log2 e for f16; 1 / the sum of powers
  f32 powers[held ? count : 1][held ? parts : 1][8];

  TFCC_FN SoftenedRows(const Place& place_) : place(place_) {}
  TFCC_FN bool inside(int part, int e) const { return whole || part * 64 + lane * 8 + e < columns; }
  TFCC_FN void load_pieces(int part) {
#pragma unroll
    for (int n = 0; n < count; ++n) {
      const uint4 piece = *(const uint4*)place(n, part);
      words[n][0] = piece.x, words[n][1] = piece.y, words[n][2] = piece.z, words[n][3] = piece.w;
    }
  }
  TFCC_FN void find_top() {
#pragma unroll
    for (int n = 0; n < count; ++n) top[n] = none | none << 16;
#pragma unroll(held ? parts : 1)
    for (int part = 0; part < parts; ++part) {
      load_pieces(part);
#pragma unroll
      for (int n = 0; n < count; ++n) {
#pragma unroll
        for (int e = 0; e < 8; e += 2) {
          u32 pair = words[n][e / 2];
          if (!inside(part, e + 1)) pair = (pair & 0xffff) | none << 16;
          if (inside(part, e)) top[n] = larger2<T>(top[n], pair);
        }
      }
    }
#pragma unroll
    for (int step = 4; step > 0; step /= 2) {
#pragma unroll
      for (int n = 0; n < count; ++n)
        top[n] = larger2<T>(top[n], __shfl_xor_sync(kAllLanes, top[n], step));
    }
#pragma unroll
    for (int n = 0; n < count; ++n) {
      f32 low, high;
      unpack2<T>(top[n], low, high);
      largest[n] = fmaxf(low, high) * (kSame<T, f16> ? kLog2E : 1.0f);
    }
  }
  /// Elements of bf16 may be so large that a rounded product would be off by more than 1.
  static TFCC_FN f32 power(f32 x, f32 largest) {
    return exp2_fast(kSame<T, f16> ? fmaf(x, kLog2E, -largest) : (x - largest) * kLog2E);
  }
  TFCC_FN void compute(int n, int pair, f32& low, f32& high) const {
    unpack2<T>(words[n][pair], low, high);
    low = power(low, largest[n]), high = power(high, largest[n]);
  }
  TFCC_FN void sum_powers() {
#pragma unroll
    for (int n = 0; n < count; ++n) sum[n] = 0.0f;
#pragma unroll(held ? parts : 1)
    for (int part = 0; part < parts; ++part) {
      if constexpr (parts > 1) load_pieces(part);
#pragma unroll
      for (int n = 0; n < count; ++n) {
#pragma unroll
        for (int e = 0; e < 8; e += 2) {
          f32 low, high;
          compute(n, e / 2, low, high);
          if constexpr (held) powers[n][part][e] = low, powers[n][part][e + 1] = high;
          sum[n] += (inside(part, e) ? low : 0.0f) + (inside(part, e + 1) ? high : 0.0f);
        }
      }
    }
#pragma unroll
    for (int step = 4; step > 0; step /= 2) {
#pragma unroll
      for (int n = 0; n < count; ++n) sum[n] += __shfl_xor_sync(kAllLanes, sum[n], step);
    }
#pragma unroll
    for (int n = 0; n < count; ++n) sum[n] = 1.0f / sum[n];
  }
  /// Rows become map(n, element of the softmax of row n, column) where there(n).
  template <class There, class Map> TFCC_FN void write(const There& there, const Map& map) {
#pragma unroll(held ? parts : 1)
    for (int part = 0; part < parts; ++part) {
      if constexpr (!held) load_pieces(part);
#pragma unroll
      for (int n = 0; n < count; ++n) {
        u32 y[4];
#pragma unroll
        for (int e = 0; e < 8; e += 2) {
          f32 low, high;
          if constexpr (held) low = powers[n][part][e], high = powers[n][part][e + 1];
          else compute(n, e / 2, low, high);
          const int column = part * 64 + lane * 8 + e;
          low = map(n, low * sum[n], whole ? column : min(column, columns - 1));
          high = map(n, high * sum[n], whole ? column + 1 : min(column + 1, columns - 1));
          y[e / 2] = pack2<T>(inside(part, e) ? low : 0.0f, inside(part, e + 1) ? high : 0.0f);
        }
        if (there(n)) *(uint4*)place(n, part) = make_uint4(y[0], y[1], y[2], y[3]);
      }
    }
  }
};
template <class T, int count, int parts, int columns, bool held, class Place, class There,
          class Map>
TFCC_FN void soften_pieces(const Place& place, const There& there, const Map& map) {
  SoftenedRows<T, count, parts, columns, held, Place> rows(place);
  rows.find_top();
  rows.sum_powers();
  rows.write(there, map);
}

/// Rows of the tile where `live` become map(element of their softmax over the first `columns`, row,
/// column); what the map makes of others is dropped: it is asked at rows up to `last` alone. All
/// threads call, when the tile is complete and all have seen that it is.
template <class Tile, int rows, int threads, int columns, class T, class Live, class Map>
TFCC_FN void soften_tokens(T* tile, int last, const Live& live, const Map& map) {
  constexpr int lanes = sizeof(T) == 2 ? 8 : 4, at_once = threads / lanes;
  static_assert(rows % (kWarp / lanes) == 0, "a warp has whole rows");
  const int lane = threadIdx.x % lanes;
#pragma unroll 1
  for (int row = threadIdx.x / lanes; row < rows; row += at_once) {
    const int mapped = min(row, last);
    if constexpr (sizeof(T) == 2) {
      soften_pieces<T, 1, Tile::width / 64, columns, Tile::width == 64>(
          [&](int, int part) { return tile + Tile::at(row, part * 8 + lane); },
          [&](int) { return live(row); }, [&](int, f32 x, int e) { return map(x, mapped, e); });
    } else {
      const RowSoftmax of = row_softmax<T, lanes>([&](const auto& f) {
#pragma unroll 4
        for (int e = lane; e < columns; e += lanes) f(tile[Tile::at(row, e / 4) + e % 4]);
      });
      if (!live(row)) continue;
#pragma unroll 4
      for (int e = lane; e < columns; e += lanes) {
        f32& x = tile[Tile::at(row, e / 4) + e % 4];
        x = map(exp_of<T>(x - of.top) * of.scale, row, e);
      }
    }
  }
}

/// What this thread copied by copy_tokens becomes map(element, row, column) where `live`.
template <class Tile, int rows, int threads, class T, class Live, class Map>
TFCC_FN void map_tokens(T* tile, int columns, const Live& live, const Map& map) {
  constexpr int per_row = Tile::width / Tile::chunk, total = rows * per_row;
#pragma unroll 2
  for (int e = threadIdx.x; e < total; e += threads) {
    const int row = e / per_row, c = e % per_row;
    if (!live(row) || c * Tile::chunk >= columns) continue;
    T* const place = tile + Tile::at(row, c);
    f32 x[Tile::chunk];
    load_pack<Tile::chunk>(place, x);
#pragma unroll
    for (int k = 0; k < Tile::chunk; ++k) {
      const f32 y = map(x[k], row, c * Tile::chunk + k);
      x[k] = c * Tile::chunk + k < columns ? y : 0.0f;
    }
    store_pack<Tile::chunk>(place, x);
  }
}
