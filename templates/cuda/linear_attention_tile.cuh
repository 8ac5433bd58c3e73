// SPDX-License-Identifier: Apache-2.0
// Building blocks of linear_attention: what a block works on, and tiles of tokens in shared memory
// under their maps.
#pragma once
#include "cuda/attention_tile.cuh"
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

/// By one warp: to[j] becomes the sum of the decays of tokens up to j, of the 64 from `from` on.
template <class Head> TFCC_FN void sum_decays(const Head& head, idx from, f32* to) {
  const int lane = threadIdx.x % kWarp;
  const f32 a = head.decay(from + 2 * lane), b = head.decay(from + 2 * lane + 1);
  f32 sum = a + b;
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const f32 before = __shfl_up_sync(kAllLanes, sum, step);
    if (lane >= step) sum += before;
  }
  to[2 * lane] = sum - b;
  to[2 * lane + 1] = sum;
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
