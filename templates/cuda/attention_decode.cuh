// SPDX-License-Identifier: Apache-2.0
// attention_decode: attention over pages of a cache for few queries of each sequence: f16 and bf16,
// the same bits as attention.
//
// The query heads that share a key head stand beside each other in the 16 rows of one mma: row r of
// a sequence is query r / group of head kv_head * group + r % group, with group = heads / kv_heads.
// A block owns 16 rows of one key head of one sequence; its warps take spans of Spec::span keys in
// turn, each with a ring of `stages` tiles of its own, and after every round the spans are merged
// in their order, as attention merges them (SpanSum).
// With Spec::cluster > 1 as many blocks share the spans of long sequences: block r of a cluster
// takes spans r, r + cluster, .., and merges a part of the columns of all. Where one block's warps
// are enough for the spans, the others leave.
// Grid {row tiles, kv_heads, cluster}; row tiles of all sequences together, ceil(queries * group /
// 16) + sequences at least: a block looks for its sequence in `cu`. Where sequences have at most
// Rows::most_queries there are as many row tiles for each. Spec: as for attention, without block_m;
// warps, stages, span, cluster. Threads and dynamic shared memory: DecodeShape<Spec>.
// Bound: bytes of the keys and values that are seen, each read once.
#pragma once
#include "cuda/attention_mma.cuh"
#include "cuda/sm90.cuh"

template <class Spec> struct DecodeShape {
  using T = typename Spec::T;
  using QkRows = TileRows<T, Spec::head_dim>;
  using VRows = TileRows<T, Spec::v_dim>;
  static constexpr int rows = 16, threads = Spec::warps * kWarp;
  static constexpr int q_elements = rows * QkRows::stride;
  static constexpr int k_elements = Spec::block_n * QkRows::stride,
                       v_elements = Spec::block_n * VRows::stride;
  static constexpr int part_stride =
      round_up(Spec::v_dim, 32) + 8;  // threads of four rows meet no bank twice
  static constexpr int part_floats =
      rows * (part_stride + 5);  // results, a top and four sums of each row
  static constexpr int shared_bytes =
      2 * (q_elements + Spec::warps * Spec::stages * (k_elements + v_elements)) +
      4 * Spec::warps * part_floats;

  static_assert(sizeof(T) == 2, "T: f16 or bf16");
  static_assert(is_power_of_two(Spec::warps) && Spec::warps <= 8, "warps: 1, 2, 4 or 8");
  static_assert(Spec::span % Spec::block_n == 0, "the keys of a tile are of one span");
};

/// What a block works on, in rows as above.
template <class Spec, class Rows> struct DecodeBlock {
  static constexpr bool packed = true;
  static constexpr int group = Spec::heads / Spec::kv_heads;
  static constexpr int right = Spec::causal ? 0 : Spec::window_right,
                       left = Spec::window_left;  // -1: no end
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
      const TilePlace at = tile_place(
          place, sequences, [&](idx s) { return (rows.query_count(s) * group + 15) / 16; });
      b = at.sequence;
      first = at.tile * 16;
    }
    if (b < 0) return;
    queries = rows.query_count(b);
    keys = rows.key_count(b);
    const auto position = [&](idx row) {
      return rows.position(b, imin(row, queries * group - 1) / group);
    };
    lowest = position(first), highest = position(first + 15);
    upper = position(first + lane / 4), lower = position(first + lane / 4 + 8);
    limit = right < 0 ? keys : imax(0, imin(keys, highest + 1 + right));
    first_tile = left < 0 ? 0 : imax(0, lowest - left) / Spec::block_n;
    tiles = (limit + Spec::block_n - 1) / Spec::block_n;
    if (first_tile >= tiles) tiles = 0;  // a window behind all keys
  }

  template <class Score, class Visible>
  TFCC_FN f32 masked(f32 s, idx r, idx j, bool bit, bool cut, const Score& score,
                     const Visible& visible) const {
    const idx h = kv_head * group + imin(r, queries * group - 1) % group,
              row = r < first + 8 ? upper : lower, col = imin(j, keys - 1);
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
  template <class Bits> TFCC_FN bool cuts(const Bits& bits, idx tile) const {
    return !bits.all() || (right >= 0 && (tile + 1) * Spec::block_n - 1 > lowest + right) ||
           (left >= 0 && tile * Spec::block_n < highest - left);
  }
};

/// The tiles of one warp: those of spans first, first + apart, ..
template <class Spec> struct WarpTiles {
  static constexpr idx of_span = Spec::span / Spec::block_n;
  idx tile, tiles, apart;
  TFCC_FN WarpTiles(idx first_tile, idx tiles_, idx first, idx apart_)
      : tiles(tiles_), apart(apart_) {
    const idx span = first_tile / of_span + first;
    tile = imax(span * of_span, first_tile);
  }
  TFCC_FN bool more() const { return tile < tiles; }
  TFCC_FN bool last_of_span() const { return tile + 1 >= tiles || (tile + 1) % of_span == 0; }
  TFCC_FN void next() {
    tile = (tile + 1) % of_span == 0 ? tile + 1 + (apart - 1) * of_span : tile + 1;
  }
};

/// How the spans of a block's keys are shared: by its warps, or by those of all blocks of its
/// cluster.
template <class Spec> struct SharedSpans {
  using Shape = DecodeShape<Spec>;
  idx first, end;
  bool spread;  // the same in all blocks of a cluster
  int rank, at_once;
  f32* parts;  // of each warp: what the span that it had last left

  template <class Rows>
  TFCC_FN SharedSpans(const DecodeBlock<Spec, Rows>& block, f32* parts_)
      : first(block.first_tile / WarpTiles<Spec>::of_span),
        end((block.tiles + WarpTiles<Spec>::of_span - 1) / WarpTiles<Spec>::of_span),
        parts(parts_) {
    rank = Spec::cluster > 1 ? blockIdx.z : 0;
    spread = Spec::cluster > 1 && end - first > Spec::warps;
    at_once = spread ? Spec::warps * Spec::cluster : Spec::warps;
  }
  TFCC_FN int number_of(int warp) const { return spread ? warp * Spec::cluster + rank : warp; }
  TFCC_FN void meet() const {
#if __CUDA_ARCH__ >= 900
    if (spread) return sm90::meet_cluster();
#endif
    __syncthreads();
  }
  /// What the warp that had the p-th span of a round left.
  TFCC_FN const f32* part_of(int p) const {
#if __CUDA_ARCH__ >= 900
    if (spread)
      return sm90::of_block(parts + p / Spec::cluster * Shape::part_floats, p % Spec::cluster);
#endif
    return parts + p * Shape::part_floats;
  }
};

/// The block's `count` rows of q, of a sequence whose first is `first_query`, and zeros; by all
/// threads.
template <class Spec, class Rows>
TFCC_FN void load_decode_queries(typename Spec::T* tile_q, const typename Spec::T* q,
                                 const DecodeBlock<Spec, Rows>& block, i64 first_query, int count) {
  using T = typename Spec::T;
  using Shape = DecodeShape<Spec>;
  constexpr int per_row = Shape::QkRows::width / 8, group = DecodeBlock<Spec, Rows>::group;
  for (int e = threadIdx.x; e < 16 * per_row; e += Shape::threads) {
    const int r = e / per_row, c = e % per_row, at = block.first + r;
    union {
      uint4 word;
      T e[8];
    } u;
    u.word = make_uint4(0, 0, 0, 0);
    const T* from = q + (first_query + at / group) * Spec::q_stride +
                    (block.kv_head * group + at % group) * Spec::head_dim + c * 8;
    if (r < count && c * 8 < Spec::head_dim) {
      if constexpr (AttentionChunks<Spec>::chunked(Spec::head_dim, Spec::q_stride)) {
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
}

/// One warp: the tiles of its spans, and the ring that they come to.
template <class Spec, class Rows> struct DecodeWarp {
  using T = typename Spec::T;
  using Shape = DecodeShape<Spec>;
  using Warp = AttentionWarp<Spec>;
  const DecodeBlock<Spec, Rows>& block;
  T* ring;
  const T *k, *v;
  WarpTiles<Spec> own, ahead;
  int stage = 0, lane = threadIdx.x % kWarp;

  TFCC_FN DecodeWarp(const DecodeBlock<Spec, Rows>& block_, const SharedSpans<Spec>& spans,
                     T* ring_, const T* k_, const T* v_)
      : block(block_),
        ring(ring_),
        k(k_),
        v(v_),
        own(block_.first_tile, block_.tiles, spans.number_of(threadIdx.x / kWarp), spans.at_once),
        ahead(own) {
#pragma unroll
    for (int s = 0; s < Spec::stages; ++s) copy_next(s);
  }
  TFCC_FN T* tile_k(int s) const { return ring + s * (Shape::k_elements + Shape::v_elements); }
  TFCC_FN T* tile_v(int s) const { return tile_k(s) + Shape::k_elements; }
  TFCC_FN KeyBits<Spec::block_n> bits_of(idx tile) const {
    KeyBits<Spec::block_n> bits;
    next_tile<Spec::block_n>(tile, block.tiles, block.limit, block.b, AllLive{}, bits);
    return bits;
  }
  TFCC_FN void copy_next(int s) {
    if (ahead.more()) {
      const auto bits = bits_of(ahead.tile);
      copy_key_tile<Spec, typename Shape::QkRows, Spec::head_dim, Spec::k_stride, kWarp>(
          tile_k(s), k, block, ahead.tile, bits, lane);
      copy_key_tile<Spec, typename Shape::VRows, Spec::v_dim, Spec::v_stride, kWarp>(
          tile_v(s), v, block, ahead.tile, bits, lane);
      ahead.next();
    }
    commit_copies();
  }
  /// The tiles of a span join `w`.
  template <class Score, class Visible>
  TFCC_FN void see_span(Warp& w, const Score& score, const Visible& visible) {
    for (bool last = false; !last; own.next()) {
      last = own.last_of_span();
      wait_copies<Spec::stages - 1>();
      __syncwarp();
      const KeyBits<Spec::block_n> bits = bits_of(own.tile);
      w.see_tile(tile_k(stage), tile_v(stage), block, block.first + lane / 4, own.tile, bits,
                 block.cuts(bits, own.tile), score, visible);
      __syncwarp();
      copy_next(stage);
      stage = stage + 1 == Spec::stages ? 0 : stage + 1;
    }
  }
  /// Leaves the first `count` rows of what `w` has seen: results, four sums and a top of each.
  TFCC_FN void leave(const Warp& w, f32* part, int count) const {
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
};

/// One thread: merges every `threads`th column of one row, or of this block's part of it, of what
/// the warps left.
template <class Spec> struct DecodeColumns {
  using Shape = DecodeShape<Spec>;
  static constexpr int threads = Shape::threads / 16, count = ceil_div(Spec::v_dim, threads),
                       slice = ceil_div(Spec::v_dim, Spec::cluster);
  int row, first, end;
  SpanSum<Spec, count, 4> sum;

  TFCC_FN DecodeColumns(const SharedSpans<Spec>& spans) {
    row = threadIdx.x / threads,
    first = threadIdx.x % threads + (spans.spread ? spans.rank * slice : 0);
    end = spans.spread ? imin(Spec::v_dim, (spans.rank + 1) * slice) : Spec::v_dim;
  }
  TFCC_FN void add(const f32* part) {
    const f32* const of_row = part + 16 * Shape::part_stride + row * 5;
    sum.add(
        of_row[4], [&](int x) { return of_row[x]; },
        [&](int x) {
          return first + x * threads < end ? part[row * Shape::part_stride + first + x * threads]
                                           : 0.0f;
        });
  }
  TFCC_FN void write(typename Spec::T* to) const {
    const f32 scale = row_scale((sum.sum[0] + sum.sum[1]) + (sum.sum[2] + sum.sum[3]));
#pragma unroll
    for (int x = 0; x < count; ++x) {
      const int c = first + x * threads;
      if (c < end) store(to, c, sum.o[x] * scale);
    }
  }
};

template <class Spec, class Score, class Visible, class Live, class Rows>
TFCC_FN void attention_decode(typename Spec::T* out, const typename Spec::T* q,
                              const typename Spec::T* k, const typename Spec::T* v, idx sequences,
                              const Score& score, const Visible& visible, const Live&,
                              const Rows& rows) {
  static_assert(kSame<Live, AllLive>, "the keys of a cache are those of its sequence");
  using T = typename Spec::T;
  using Shape = DecodeShape<Spec>;
  constexpr int ring_elements = Spec::stages * (Shape::k_elements + Shape::v_elements);
  extern __shared__ uint4 tfcc_shared[];
  T* const tile_q = (T*)tfcc_shared;
  T* const rings = tile_q + Shape::q_elements;

  const DecodeBlock<Spec, Rows> block(rows, (idx)blockIdx.x, sequences);
  if (block.b < 0) return;
  const SharedSpans<Spec> spans(block, (f32*)(rings + Spec::warps * ring_elements));
  if (!spans.spread && spans.rank > 0) return;
  const int warp = threadIdx.x / kWarp;
  const i64 first_query = block.rows.first_query(block.b);
  const int count = imin(16, block.queries * block.group - block.first);
  load_decode_queries<Spec>(tile_q, q, block, first_query, count);
  DecodeWarp<Spec, Rows> mine(block, spans, rings + warp * ring_elements, k, v);
  __syncthreads();

  DecodeColumns<Spec> merged(spans);
  for (idx from = spans.first; from < spans.end; from += spans.at_once) {
    if (mine.own.more()) {
      AttentionWarp<Spec> w(tile_q);
      w.load_queries();
      mine.see_span(w, score, visible);
      mine.leave(w, spans.parts + warp * Shape::part_floats, count);
    }
    spans.meet();
    if (merged.row < count) {
      for (int p = 0; p < spans.at_once && from + p < spans.end; ++p) merged.add(spans.part_of(p));
    }
    if (spans.spread || from + spans.at_once < spans.end)
      spans.meet();  // a block that ends takes its shared memory along
  }
  if (merged.row >= count) return;
  const int at = block.first + merged.row;
  merged.write(out + (first_query + at / block.group) * Spec::out_stride +
               (block.kv_head * block.group + at % block.group) * Spec::v_dim);
}
