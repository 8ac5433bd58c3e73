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
// early: what says where rows and pages are was there before the run, so that it is read before the
// launches before this one have ended.
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
      round_up(Spec::v_dim, 32) + 8;    // rows that are read at once begin in other banks
  static constexpr int row_floats = 8;  // four sums and a top, aligned
  static constexpr int part_floats = rows * (part_stride + row_floats);
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
  i64 first_query;  // row of q
  idx limit = 0, first_tile = 0, tiles = 0;
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
      if (own >= sequences) return;
      look_up(own);
      if (first < queries * group) b = own;
    } else {
      const TilePlace at = tile_place(
          place, sequences, [&](idx s) { return (rows.query_count(s) * group + 15) / 16; });
      first = at.tile * 16;
      if (at.sequence < 0) return;
      look_up(at.sequence);
      b = at.sequence;
    }
    if (b < 0) return;
    const auto position = [&](idx row) {
      return rows.position_of(first_query + imin(row, queries * group - 1) / group);
    };
    lowest = position(first), highest = position(first + 15);
    upper = position(first + lane / 4), lower = position(first + lane / 4 + 8);
    limit = right < 0 ? keys : imax(0, imin(keys, highest + 1 + right));
    first_tile = left < 0 ? 0 : imax(0, lowest - left) / Spec::block_n;
    tiles = (limit + Spec::block_n - 1) / Spec::block_n;
    if (first_tile >= tiles) tiles = 0;  // a window behind all keys
  }

  /// What one read of each says of a sequence; all of them are on their way at once.
  TFCC_FN void look_up(idx sequence) {
    first_query = rows.first_query(sequence), queries = rows.query_count(sequence),
    keys = rows.key_count(sequence);
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

/// The block's `count` rows of q, and zeros; by all threads.
template <class Spec, class Rows>
TFCC_FN void load_decode_queries(typename Spec::T* tile_q, const typename Spec::T* q,
                                 const DecodeBlock<Spec, Rows>& block, int count) {
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
    const T* from = q + (block.first_query + at / group) * Spec::q_stride +
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
  using Bits = KeyBits<Spec::block_n>;
  /// A tile that is to be copied, and where its rows begin.
  struct Next {
    idx tile;
    Bits bits;
    i64 k_row, v_row;
  };
  const DecodeBlock<Spec, Rows>& block;
  T* ring;
  WarpTiles<Spec> own, ahead;
  Next first[Spec::stages];
  int stage = 0, lane = threadIdx.x % kWarp;

  /// Looks up where the first tiles are, in what is there before the run.
  TFCC_FN DecodeWarp(const DecodeBlock<Spec, Rows>& block_, const SharedSpans<Spec>& spans,
                     T* ring_)
      : block(block_),
        ring(ring_),
        own(block_.first_tile, block_.tiles, spans.number_of(threadIdx.x / kWarp), spans.at_once),
        ahead(own) {
#pragma unroll
    for (int s = 0; s < Spec::stages; ++s) first[s] = look_up();
  }
  TFCC_FN void start(const T* k, const T* v) const {
#pragma unroll
    for (int s = 0; s < Spec::stages; ++s) copy(first[s], s, k, v);
  }
  TFCC_FN T* tile_k(int s) const { return ring + s * (Shape::k_elements + Shape::v_elements); }
  TFCC_FN T* tile_v(int s) const { return tile_k(s) + Shape::k_elements; }
  TFCC_FN Bits bits_of(idx tile) const {
    Bits bits;
    next_tile<Spec::block_n>(tile, block.tiles, block.limit, block.b, AllLive{}, bits);
    return bits;
  }
  /// Of the tile that is ahead; the next one is then. Its tile is -1 where there is none.
  TFCC_FN Next look_up() {
    Next next{-1, {}, 0, 0};
    if (!ahead.more()) return next;
    const auto row = [&](int stride, int width) {
      return block.rows.key_row(block.b, block.kv_head, ahead.tile * Spec::block_n, stride, width);
    };
    next = {ahead.tile, bits_of(ahead.tile), row(Spec::k_stride, Spec::head_dim),
            row(Spec::v_stride, Spec::v_dim)};
    ahead.next();
    return next;
  }
  template <class Valid>
  TFCC_FN void copy_rows(const Next& next, int s, const T* k, const T* v,
                         const Valid& valid) const {
    using Chunks = AttentionChunks<Spec>;
    copy_tile<typename Shape::QkRows, Spec::block_n, Spec::head_dim,
              Chunks::chunked(Spec::head_dim, Spec::k_stride), kWarp>(tile_k(s), k + next.k_row,
                                                                      Spec::k_stride, valid, lane);
    copy_tile<typename Shape::VRows, Spec::block_n, Spec::v_dim,
              Chunks::chunked(Spec::v_dim, Spec::v_stride), kWarp>(tile_v(s), v + next.v_row,
                                                                   Spec::v_stride, valid, lane);
  }
  TFCC_FN void copy(const Next& next, int s, const T* k, const T* v) const {
    if (next.tile >= 0) {
      if (Spec::early && next.bits.all()) copy_rows(next, s, k, v, AllRows{});
      else copy_rows(next, s, k, v, next.bits);
    }
    commit_copies();
  }
  /// The tiles of a span join `w`.
  template <class Score, class Visible>
  TFCC_FN void see_span(Warp& w, const T* k, const T* v, const Score& score,
                        const Visible& visible) {
    for (bool last = false; !last; own.next()) {
      last = own.last_of_span();
      wait_copies<Spec::stages - 1>();
      __syncwarp();
      const KeyBits<Spec::block_n> bits = bits_of(own.tile);
      w.see_tile(
          tile_k(stage), tile_v(stage), block, block.first + lane / 4, own.tile, bits,
          [&] { return block.cuts(bits, own.tile); }, score, visible);
      __syncwarp();
      copy(look_up(), stage, k, v);
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
      f32* const of_row = part + Shape::rows * Shape::part_stride + r * Shape::row_floats;
      of_row[lane % 4] = w.softmax.sum[half];
      if (lane % 4 == 0) of_row[4] = w.softmax.top[half];
    }
  }
};

/// One thread: merges every `threads`th pair of columns of one row, or of this block's part of it,
/// of what the warps left.
template <class Spec> struct DecodeColumns {
  using Shape = DecodeShape<Spec>;
  static constexpr int threads = Shape::threads / 16, pairs = ceil_div(Spec::v_dim, 2 * threads),
                       slice = round_up(ceil_div(Spec::v_dim, Spec::cluster), 2);
  int row, first, end;
  SpanSum<Spec, 2 * pairs, 4> sum;

  TFCC_FN DecodeColumns(const SharedSpans<Spec>& spans) {
    row = threadIdx.x / threads,
    first = threadIdx.x % threads * 2 + (spans.spread ? spans.rank * slice : 0);
    end = spans.spread ? imin(Spec::v_dim, (spans.rank + 1) * slice) : Spec::v_dim;
  }
  TFCC_FN int column(int x) const { return first + x / 2 * 2 * threads + x % 2; }
  /// The spans of a round, `count` of them, in their order; several are read at once.
  TFCC_FN void add(const SharedSpans<Spec>& spans, int count) {
    constexpr int at_once = !Spec::early ? 1 : pairs > 4 ? 2 : 4;  // for registers
    for (int p = 0; p < count; p += at_once) {
      f32 tops[at_once];
      float4 sums[at_once];
      float2 values[at_once][pairs];
#pragma unroll
      for (int q = 0; q < at_once; ++q) {
        if (p + q >= count) break;
        const f32* const part = spans.part_of(p + q);
        const f32* const of_row = part + Shape::rows * Shape::part_stride + row * Shape::row_floats;
        sums[q] = *(const float4*)of_row, tops[q] = of_row[4];
#pragma unroll
        for (int x = 0; x < pairs; ++x) {
          if (column(2 * x) < end)
            values[q][x] = *(const float2*)(part + row * Shape::part_stride + column(2 * x));
        }
      }
#pragma unroll
      for (int q = 0; q < at_once; ++q) {
        if (p + q >= count) break;
        const f32 of_sums[4] = {sums[q].x, sums[q].y, sums[q].z, sums[q].w};
        sum.add(
            tops[q], [&](int x) { return of_sums[x]; },
            [&](int x) { return x % 2 == 0 ? values[q][x / 2].x : values[q][x / 2].y; });
      }
    }
  }
  template <class Sink> TFCC_FN void write(typename Spec::T* to, f32 sink) const {
    const f32 scale =
        row_scale<Spec, Sink>((sum.sum[0] + sum.sum[1]) + (sum.sum[2] + sum.sum[3]), sum.top, sink);
#pragma unroll
    for (int x = 0; x < 2 * pairs; ++x) {
      if (column(x) < end) store(to, column(x), sum.o[x] * scale);
    }
  }
};

/// Called when the launches before this one have ended; if Spec::early before that, and it waits
/// itself: what sequences() and rows_of() say was there before the run. Its copies and sums are laid
/// out for one or two sequences then; 16 sequences were 2% slower with that.
template <class Spec, class Sequences, class Score, class Visible, class Live, class Sink,
          class RowsOf>
TFCC_FN void attention_decode(typename Spec::T* out, const typename Spec::T* q,
                              const typename Spec::T* k, const typename Spec::T* v,
                              const Sequences& sequences, const Score& score,
                              const Visible& visible, const Live&, const Sink& sink,
                              const RowsOf& rows_of) {
  static_assert(kSame<Live, AllLive>, "the keys of a cache are those of its sequence");
  using T = typename Spec::T;
  using Shape = DecodeShape<Spec>;
  constexpr int ring_elements = Spec::stages * (Shape::k_elements + Shape::v_elements);
  extern __shared__ uint4 tfcc_shared[];
  T* const tile_q = (T*)tfcc_shared;
  T* const rings = tile_q + Shape::q_elements;

  const auto rows = rows_of();
  const DecodeBlock<Spec, decltype(rows_of())> block(rows, (idx)blockIdx.x, sequences());
  const SharedSpans<Spec> spans(block, (f32*)(rings + Spec::warps * ring_elements));
  if (block.b < 0 || (!spans.spread && spans.rank > 0)) {
    if constexpr (Spec::early) wait_for_predecessor();
    return;
  }
  const int warp = threadIdx.x / kWarp;
  const int count = imin(16, block.queries * block.group - block.first);
  DecodeWarp<Spec, decltype(rows_of())> mine(block, spans, rings + warp * ring_elements);
  if constexpr (Spec::early) wait_for_predecessor();
  if constexpr (Spec::early) mine.start(k, v);
  load_decode_queries<Spec>(tile_q, q, block, count);
  if constexpr (!Spec::early) mine.start(k, v);
  __syncthreads();

  DecodeColumns<Spec> merged(spans);
  const int at = block.first + merged.row, head = block.kv_head * block.group + at % block.group;
  const f32 beside = sink(block.b, head);  // on its way beside the keys
  for (idx from = spans.first; from < spans.end; from += spans.at_once) {
    if (mine.own.more()) {
      AttentionWarp<Spec> w(tile_q);
      w.load_queries();
      mine.see_span(w, k, v, score, visible);
      mine.leave(w, spans.parts + warp * Shape::part_floats, count);
    }
    spans.meet();
    if (merged.row < count) merged.add(spans, (int)imin(spans.at_once, spans.end - from));
    if (spans.spread || from + spans.at_once < spans.end)
      spans.meet();  // a block that ends takes its shared memory along
  }
  if (merged.row >= count) return;
  merged.template write<Sink>(
      out + (block.first_query + at / block.group) * Spec::out_stride + head * Spec::v_dim, beside);
}
