// SPDX-License-Identifier: Apache-2.0
// attention_decode: attention over pages of a cache for few queries of each sequence: f16 and bf16, the same bits as attention.
//
// The query heads that share a key head stand beside each other in the 16 rows of one mma: row r of a sequence is query r / group of head
// kv_head * group + r % group, with group = heads / kv_heads. A block owns 16 rows of one key head of one sequence; its warps take spans
// of Spec::span keys in turn, each with a ring of `stages` tiles of its own, and after every round the spans are merged in their order,
// as attention merges them (SpanSum).
// With Spec::cluster > 1 as many blocks share the spans of long sequences: block r of a cluster takes spans r, r + cluster, .., and merges
// a part of the columns of all. Where one block's warps are enough for the spans, the others leave.
// Grid {row tiles, kv_heads, cluster}; row tiles of all sequences together, ceil(queries * group / 16) + sequences at least: a block looks for its
// sequence in `cu`. Where sequences have at most Rows::most_queries there are as many row tiles for each. Spec: as for attention, without block_m; warps, stages, span, cluster. Threads and dynamic shared memory: DecodeShape<Spec>.
// Bound: bytes of the keys and values that are seen, each read once.
#pragma once
#include "cuda/attention_mma.cuh"
#include "cuda/sm90.cuh"

template <class Spec>
struct DecodeShape {
  using T = typename Spec::T;
  using QkRows = TileRows<T, Spec::head_dim>;
  using VRows = TileRows<T, Spec::v_dim>;
  static constexpr int rows = 16, threads = Spec::warps * kWarp;
  static constexpr int q_elements = rows * QkRows::stride;
  static constexpr int k_elements = Spec::block_n * QkRows::stride, v_elements = Spec::block_n * VRows::stride;
  static constexpr int part_stride = round_up(Spec::v_dim, 32) + 8;                // threads of four rows meet no bank twice
  static constexpr int part_floats = rows * (part_stride + 5);                     // results, a top and four sums of each row
  static constexpr int shared_bytes = 2 * (q_elements + Spec::warps * Spec::stages * (k_elements + v_elements)) + 4 * Spec::warps * part_floats;

  static_assert(sizeof(T) == 2, "T: f16 or bf16");
  static_assert(is_power_of_two(Spec::warps) && Spec::warps <= 8, "warps: 1, 2, 4 or 8");
  static_assert(Spec::span % Spec::block_n == 0, "the keys of a tile are of one span");
};

/// What a block works on, in rows as above.
template <class Spec, class Rows>
struct DecodeBlock {
  static constexpr bool packed = true;
  static constexpr int group = Spec::heads / Spec::kv_heads;
  static constexpr int right = Spec::causal ? 0 : Spec::window_right, left = Spec::window_left;  // -1: no end
  static_assert(Rows::page_size % Spec::block_n == 0, "the keys of a tile lie in one page");
  Rows rows;
  idx b = -1, kv_head, first, queries, keys;
  idx limit, first_tile, tiles;
  idx lowest, highest;  // positions of the first and the last row
  idx upper, lower;     // and of the two rows of a lane's accumulators

  /// `place`: among the row tiles of all sequences. `b` stays -1 where there is none.
  TFCC_FN DecodeBlock(const Rows& rows_, idx place, idx sequences) : rows(rows_) {
    kv_head = (idx)blockIdx.y;
    const int lane = threadIdx.x % kWarp;
    if constexpr (Rows::most_queries != 0) {
      constexpr int of_each = ceil_div(Rows::most_queries * group, 16);
      first = place % of_each * 16;
      const idx own = place / of_each;
      if (own < sequences && first < rows.query_count(own) * group) b = own;
    } else {
      const TilePlace at = tile_place(place, sequences, [&](idx s) { return (rows.query_count(s) * group + 15) / 16; });
      b = at.sequence;
      first = at.tile * 16;
    }
    if (b < 0) return;
    queries = rows.query_count(b);
    keys = rows.key_count(b);
    const auto position = [&](idx row) { return rows.position(b, imin(row, queries * group - 1) / group); };
    lowest = position(first), highest = position(first + 15);
    upper = position(first + lane / 4), lower = position(first + lane / 4 + 8);
    limit = right < 0 ? keys : imax(0, imin(keys, highest + 1 + right));
    first_tile = left < 0 ? 0 : imax(0, lowest - left) / Spec::block_n;
    tiles = (limit + Spec::block_n - 1) / Spec::block_n;
    if (first_tile >= tiles) tiles = 0;  // a window behind all keys
  }

  template <class Score, class Visible>
  TFCC_FN f32 masked(f32 s, idx r, idx j, bool bit, bool cut, const Score& score, const Visible& visible) const {
    const idx h = kv_head * group + imin(r, queries * group - 1) % group, row = r < first + 8 ? upper : lower, col = imin(j, keys - 1);
    if constexpr (!Spec::scaled) s = score(s, b, h, row, col);
    if constexpr (!kSame<Visible, AllVisible>) s = visible(b, h, row, col) ? s : -kInf;
    if (cut) {
      if (right >= 0) bit = bit && col <= row + right;
      if (left >= 0) bit = bit && col >= row - left;
      s = bit ? s : -kInf;
    }
    return s;
  }
  /// Some key of the tile is hidden from some row.
  template <class Bits>
  TFCC_FN bool cuts(const Bits& bits, idx tile) const {
    return !bits.all() || (right >= 0 && (tile + 1) * Spec::block_n - 1 > lowest + right) || (left >= 0 && tile * Spec::block_n < highest - left);
  }
};

/// The tiles of one warp: those of spans first, first + apart, ..
template <class Spec>
struct WarpTiles {
  static constexpr idx of_span = Spec::span / Spec::block_n;
  idx tile, tiles, apart;
  TFCC_FN WarpTiles(idx first_tile, idx tiles_, idx first, idx apart_) : tiles(tiles_), apart(apart_) {
    const idx span = first_tile / of_span + first;
    tile = imax(span * of_span, first_tile);
  }
  TFCC_FN bool more() const { return tile < tiles; }
  TFCC_FN bool last_of_span() const { return tile + 1 >= tiles || (tile + 1) % of_span == 0; }
  TFCC_FN void next() { tile = (tile + 1) % of_span == 0 ? tile + 1 + (apart - 1) * of_span : tile + 1; }
};

template <class Spec, class Score, class Visible, class Live, class Rows>
TFCC_FN void attention_decode(typename Spec::T* out, const typename Spec::T* q, const typename Spec::T* k, const typename Spec::T* v,
                              idx sequences, const Score& score, const Visible& visible, const Live&, const Rows& rows) {
  static_assert(kSame<Live, AllLive>, "the keys of a cache are those of its sequence");
  using T = typename Spec::T;
  using Shape = DecodeShape<Spec>;
  using Warp = AttentionWarp<Spec>;
  using Aligned = AttentionChunks<Spec>;
  constexpr int block_n = Spec::block_n, group = Spec::heads / Spec::kv_heads, stages = Spec::stages, warps = Spec::warps, cluster = Spec::cluster;
  extern __shared__ uint4 tfcc_shared[];
  T* const tile_q = (T*)tfcc_shared;
  T* const rings = tile_q + Shape::q_elements;
  f32* const parts = (f32*)(rings + warps * stages * (Shape::k_elements + Shape::v_elements));

  const DecodeBlock<Spec, Rows> block(rows, (idx)blockIdx.x, sequences);
  if (block.b < 0) return;
  const idx first_span = block.first_tile / WarpTiles<Spec>::of_span, spans = (block.tiles + WarpTiles<Spec>::of_span - 1) / WarpTiles<Spec>::of_span;
  const int rank = cluster > 1 ? blockIdx.z : 0;
  const bool spread = cluster > 1 && spans - first_span > warps;  // the same in all blocks of a cluster
  if (!spread && rank > 0) return;
  const int at_once = spread ? warps * cluster : warps;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  T* const ring = rings + warp * stages * (Shape::k_elements + Shape::v_elements);
  const auto tile_k = [&](int stage) { return ring + stage * (Shape::k_elements + Shape::v_elements); };
  const auto copy_keys = [&](idx tile, int stage, const KeyBits<block_n>& bits) {
    const auto row = [&](int stride, int width) { return block.rows.key_row(block.b, block.kv_head, tile * block_n, stride, width); };
    copy_tile<typename Shape::QkRows, block_n, Spec::head_dim, Aligned::chunked(Spec::head_dim, Spec::k_stride), kWarp>(
        tile_k(stage), k + row(Spec::k_stride, Spec::head_dim), Spec::k_stride, bits, lane);
    copy_tile<typename Shape::VRows, block_n, Spec::v_dim, Aligned::chunked(Spec::v_dim, Spec::v_stride), kWarp>(
        tile_k(stage) + Shape::k_elements, v + row(Spec::v_stride, Spec::v_dim), Spec::v_stride, bits, lane);
  };
  const auto bits_of = [&](idx tile) {
    KeyBits<block_n> bits;
    next_tile<block_n>(tile, block.tiles, block.limit, block.b, AllLive{}, bits);
    return bits;
  };

  const i64 first_query = block.rows.first_query(block.b);
  const int count = imin(16, block.queries * group - block.first);
  constexpr int per_row = Shape::QkRows::width / 8;
  for (int e = threadIdx.x; e < 16 * per_row; e += Shape::threads) {
    const int r = e / per_row, c = e % per_row, at = block.first + r;
    union { uint4 word; T e[8]; } u;
    u.word = make_uint4(0, 0, 0, 0);
    const T* from = q + (first_query + at / group) * Spec::q_stride + (block.kv_head * group + at % group) * Spec::head_dim + c * 8;
    if (r < count && c * 8 < Spec::head_dim) {
      if constexpr (Aligned::chunked(Spec::head_dim, Spec::q_stride)) {
        u.word = *(const uint4*)from;
      } else {
#pragma unroll
        for (int x = 0; x < 8; ++x) {
          if (c * 8 + x < Spec::head_dim) u.e[x] = from[x];
        }
      }
    }
    *(uint4*)(tile_q + Shape::QkRows::at(r, c)) = u.word;
  }

  WarpTiles<Spec> ahead(block.first_tile, block.tiles, spread ? warp * cluster + rank : warp, at_once), own = ahead;
  const auto copy_next = [&](int stage) {
    if (ahead.more()) copy_keys(ahead.tile, stage, bits_of(ahead.tile)), ahead.next();
    commit_copies();
  };
#pragma unroll
  for (int s = 0; s < stages; ++s) copy_next(s);
  __syncthreads();

  // A thread merges every eighth column of one row, or of this block's part of it, of those that the warps bring to `parts`.
  constexpr int row_threads = Shape::threads / 16, columns = ceil_div(Spec::v_dim, row_threads), slice = ceil_div(Spec::v_dim, cluster);
  const int row = threadIdx.x / row_threads, column = threadIdx.x % row_threads + (spread ? rank * slice : 0);
  const int end = spread ? imin(Spec::v_dim, (rank + 1) * slice) : Spec::v_dim;
  SpanSum<Spec, columns, 4> sum;
  int stage = 0;
  const auto meet = [&] {
#if __CUDA_ARCH__ >= 900
    if (spread) return sm90::meet_cluster();
#endif
    __syncthreads();
  };
  // What the warp that had the p-th span of a round left.
  const auto part_of = [&](int p) -> const f32* {
#if __CUDA_ARCH__ >= 900
    if (spread) return sm90::of_block(parts + p / cluster * Shape::part_floats, p % cluster);
#endif
    return parts + p * Shape::part_floats;
  };
  for (idx from = first_span; from < spans; from += at_once) {
    if (own.more()) {
      Warp w(tile_q);
      w.load_queries();
      for (bool last = false; !last; own.next()) {
        last = own.last_of_span();
        wait_copies<stages - 1>();
        __syncwarp();
        const KeyBits<block_n> bits = bits_of(own.tile);
        f32 s[block_n / 8][4];
        w.multiply_keys(s, tile_k(stage));
        const bool cut = block.cuts(bits, own.tile);
        constexpr int reads = Warp::reads > 8 ? 8 : Warp::reads;
        if (!Spec::scaled || !kSame<Visible, AllVisible> || cut) mask_scores<reads>(s, block, lane, block.first + lane / 4, own.tile, bits, cut, score, visible);
        w.softmax.update(s, w.o);
        w.multiply_values(s, tile_k(stage) + Shape::k_elements);
        __syncwarp();
        copy_next(stage);
        stage = stage + 1 == stages ? 0 : stage + 1;
      }
      f32* const part = parts + warp * Shape::part_floats;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int r = lane / 4 + 8 * half;
        if (r >= count) continue;
#pragma unroll
        for (int t = 0; t < Warp::v_tiles; ++t) {
#pragma unroll
          for (int c = 0; c < 2; ++c) {
            const int at = t * 8 + lane % 4 * 2 + c;
            if (at < Spec::v_dim) part[r * Shape::part_stride + at] = w.o[t][2 * half + c];
          }
        }
        f32* const of_row = part + 16 * Shape::part_stride + r * 5;
        of_row[lane % 4] = w.softmax.sum[half];
        if (lane % 4 == 0) of_row[4] = w.softmax.top[half];
      }
    }
    meet();
    if (row < count) {
      for (int p = 0; p < at_once && from + p < spans; ++p) {
        const f32* const part = part_of(p);
        const f32* const of_row = part + 16 * Shape::part_stride + row * 5;
        sum.add(of_row[4], [&](int x) { return of_row[x]; },
                [&](int x) { return column + x * row_threads < end ? part[row * Shape::part_stride + column + x * row_threads] : 0.0f; });
      }
    }
    if (spread || from + at_once < spans) meet();  // a block that ends takes its shared memory along
  }
  if (row >= count) return;
  const f32 scale = row_scale((sum.sum[0] + sum.sum[1]) + (sum.sum[2] + sum.sum[3]));
  const int at = block.first + row;
  T* const to = out + (first_query + at / group) * Spec::out_stride + (block.kv_head * group + at % group) * Spec::v_dim;
#pragma unroll
  for (int x = 0; x < columns; ++x) {
    const int c = column + x * row_threads;
    if (c < end) store(to, c, sum.o[x] * scale);
  }
}
