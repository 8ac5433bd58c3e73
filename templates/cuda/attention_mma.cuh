// SPDX-License-Identifier: Apache-2.0
// attention for f16 and bf16 on tensor cores: mma.sync.m16n8k16 with f32 accumulators, P stays in
// registers. For f32 in TF32 it is mma.sync.m16n8k8, whose operands are rounded to nearest where
// they are read (tf32 = 1), or are two numbers each (3, as in cuda/matmul_ordered.cuh; results of a
// tile of keys are summed by themselves). V is read element by element, for ldmatrix transposes 16
// bits alone.
//
// A warp owns 16 queries; the block shares K and V tiles in two stages filled by cp.async, one
// barrier a tile.
#pragma once
#include "cuda/attention_softmax.cuh"

/// One warp: 16 queries against tiles of block_n keys. Accumulator c[k] of a lane is row lane / 4 +
/// 8 * (k / 2), column 2 * (lane % 4) + k % 2 of its 16x8 tile.
template <class Spec> struct AttentionWarp {
  using T = typename Spec::T;
  using QkRows = TileRows<T, Spec::head_dim>;
  using VRows = TileRows<T, Spec::v_dim>;
  static constexpr int block_n = Spec::block_n;
  static constexpr int k_steps = QkRows::width / (2 * QkRows::chunk), v_tiles = VRows::width / 8;
  static constexpr bool q_in_registers = k_steps <= 4;
  static constexpr bool splits = splits_f32<Spec>();
  static constexpr int reads =
      k_steps <= 4 ? 16 : 4;  // elements whose functors may read at the same time

  /// A fragment of a product: for f32 in TF32 as nearest numbers, or as those and what is left.
  struct Operand {
    u32 of[4], low[splits ? 4 : 1];
    TFCC_FN void prepare() {
      if constexpr (splits) split_to_tf32(of, low);
      else if constexpr (kSame<T, f32>) round_to_tf32(of);
    }
  };

  const T* q;  // shared memory: this warp's 16 rows
  int lane = threadIdx.x % kWarp;
  u32 fragments[q_in_registers ? k_steps : 1][4];
  f32 o[v_tiles][4];
  OnlineSoftmax<Spec> softmax;

  TFCC_FN AttentionWarp(const T* q_) : q(q_) { begin(); }

  /// As if no key had been seen.
  TFCC_FN void begin() {
    softmax = {};
#pragma unroll
    for (int t = 0; t < v_tiles; ++t) {
#pragma unroll
      for (int k = 0; k < 4; ++k) o[t][k] = 0.0f;
    }
  }
  /// What a lane has of spans that have ended: of each of its two rows.
  using Spans = SpanSum<Spec, 2 * v_tiles, 1>[2];
  /// Adds the span that ends here, and begins the next.
  TFCC_FN void end_span(Spans& spans) {
#pragma unroll
    for (int r = 0; r < 2; ++r)
      spans[r].add(
          softmax.top[r], [&](int) { return softmax.sum[r]; },
          [&](int x) { return o[x / 2][2 * r + x % 2]; });
    begin();
  }
  TFCC_FN void take(const Spans& spans) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      softmax.sum[r] = spans[r].sum[0], softmax.top[r] = spans[r].top;
#pragma unroll
      for (int x = 0; x < 2 * v_tiles; ++x) o[x / 2][2 * r + x % 2] = spans[r].o[x];
    }
  }

  TFCC_FN void load_query(u32 (&a)[4], int step) const {
    load_matrices(a, q + QkRows::at(lane % 16, step * 2 + lane / 16));
  }
  /// sum += a b and next += a b', with the fragments of b and b' side by side.
  TFCC_FN static void add_products(f32 (&sum)[4], f32 (&next)[4], const Operand& a,
                                   const Operand& b) {
    if constexpr (splits) {
      multiply_add<T>(sum, a.low, b.of[0], b.of[1]);
      multiply_add<T>(next, a.low, b.of[2], b.of[3]);
      multiply_add<T>(sum, a.of, b.low[0], b.low[1]);
      multiply_add<T>(next, a.of, b.low[2], b.low[3]);
    }
    multiply_add<T>(sum, a.of, b.of[0], b.of[1]);
    multiply_add<T>(next, a.of, b.of[2], b.of[3]);
  }
  TFCC_FN void load_queries() {
    if constexpr (q_in_registers) {
#pragma unroll
      for (int step = 0; step < k_steps; ++step) load_query(fragments[step], step);
    }
  }

  TFCC_FN void multiply_keys(f32 (&s)[block_n / 8][4], const T* k) const {
#pragma unroll
    for (int t = 0; t < block_n / 8; ++t) {
#pragma unroll
      for (int c = 0; c < 4; ++c) s[t][c] = 0.0f;
    }
    const int row = lane % 8 + lane / 16 * 8, half = lane / 8 % 2;
#pragma unroll
    for (int step = 0; step < k_steps; ++step) {
      Operand a;
      if constexpr (q_in_registers) {
#pragma unroll
        for (int r = 0; r < 4; ++r) a.of[r] = fragments[step][r];
      } else {
        load_query(a.of, step);
      }
      a.prepare();
#pragma unroll
      for (int t = 0; t < block_n / 16; ++t) {
        Operand b;
        load_matrices(b.of, k + QkRows::at(t * 16 + row, step * 2 + half));
        b.prepare();
        add_products(s[2 * t], s[2 * t + 1], a, b);
      }
    }
  }

  TFCC_FN void multiply_values(const f32 (&p)[block_n / 8][4], const T* v) {
    if constexpr (kSame<T, f32>) return multiply_values_in_tf32(p, v);
    else multiply_values_of_16_bits(p, v);
  }
  /// The keys of a product are in the order 0, 2, 4, 6, 1, 3, 5, 7: a lane has its own weights and
  /// needs no other's.
  TFCC_FN void multiply_values_in_tf32(const f32 (&p)[block_n / 8][4], const f32* v) {
    const auto add = [&](int t, int c, f32(&sum)[4], f32(&next)[4]) {
      Operand a{__float_as_uint(p[t][0]), __float_as_uint(p[t][2]), __float_as_uint(p[t][1]),
                __float_as_uint(p[t][3])},
          b;
      const int row = t * 8 + lane % 4 * 2, column = lane / 4;
#pragma unroll
      for (int x = 0; x < 4; ++x)
        b.of[x] =
            __float_as_uint(v[VRows::at(row + x % 2, (c + x / 2) * 2 + column / 4) + column % 4]);
      a.prepare();
      b.prepare();
      add_products(sum, next, a, b);
    };
    if constexpr (splits) {
#pragma unroll
      for (int c = 0; c < v_tiles; c += 2) {
        f32 sums[2][4] = {};
#pragma unroll
        for (int t = 0; t < block_n / 8; ++t) add(t, c, sums[0], sums[1]);
#pragma unroll
        for (int x = 0; x < 8; ++x) o[c + x / 4][x % 4] += sums[x / 4][x % 4];
      }
    } else {
#pragma unroll
      for (int t = 0; t < block_n / 8; ++t) {
#pragma unroll
        for (int c = 0; c < v_tiles; c += 2) add(t, c, o[c], o[c + 1]);
      }
    }
  }
  TFCC_FN void multiply_values_of_16_bits(const f32 (&p)[block_n / 8][4], const T* v) {
    const int row = lane % 16, half = lane / 16;
#pragma unroll
    for (int t = 0; t < block_n / 16; ++t) {
      const u32 a[4] = {pack2<T>(p[2 * t][0], p[2 * t][1]), pack2<T>(p[2 * t][2], p[2 * t][3]),
                        pack2<T>(p[2 * t + 1][0], p[2 * t + 1][1]),
                        pack2<T>(p[2 * t + 1][2], p[2 * t + 1][3])};
#pragma unroll
      for (int c = 0; c < v_tiles / 2; ++c) {
        u32 b[4];
        load_matrices_transposed(b, v + VRows::at(t * 16 + row, c * 2 + half));
        multiply_add<T>(o[2 * c], a, b[0], b[1]);
        multiply_add<T>(o[2 * c + 1], a, b[2], b[3]);
      }
    }
  }

  /// For attention_decode; of attention_mma, which says the same, one form in TF32 spills with it.
  /// The keys of a tile join. `row`: of the lane's first accumulators, as the block counts rows;
  /// cuts(): some key is hidden from some row; asked behind the scores, which need its registers.
  template <class Block, class Cuts, class Score, class Visible>
  TFCC_FN void see_tile(const T* k, const T* v, const Block& block, idx row, idx tile,
                        const KeyBits<block_n>& bits, const Cuts& cuts, const Score& score,
                        const Visible& visible) {
    f32 s[block_n / 8][4];
    multiply_keys(s, k);
    const bool cut = cuts();
    constexpr int at_once = Block::packed && reads > 8 ? 8 : reads;  // positions are read too
    if (!Spec::scaled || !kSame<Visible, AllVisible> || cut)
      mask_scores<at_once>(s, block, lane, row, tile, bits, cut, score, visible);
    softmax.update(s, o);
    multiply_values(s, v);
  }

  /// o / sum to shared memory; rows without a visible key are 0.
  template <class Sink> TFCC_FN void finish(T* rows, f32 sink) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const f32 scale = softmax.template scale<Sink>(r, sink);
#pragma unroll
      for (int t = 0; t < v_tiles; ++t) {
        const int row = lane / 4 + 8 * r, column = t * 8 + lane % 4 * 2;
        const f32 pair[2] = {o[t][2 * r] * scale, o[t][2 * r + 1] * scale};
        T* const place = rows + VRows::at(row, column / VRows::chunk) + column % VRows::chunk;
        if constexpr (kSame<T, f32>) *(float2*)place = make_float2(pair[0], pair[1]);
        else *(u32*)place = pack2<T>(pair[0], pair[1]);
      }
    }
  }
};

/// The first `count` of a warp's 16 rows to `out`, by way of `rows` in shared memory.
template <class Sink, class Spec>
TFCC_FN void write_rows(typename Spec::T* out, AttentionWarp<Spec>& w, typename Spec::T* rows,
                        int count, f32 sink) {
  w.template finish<Sink>(rows, sink);
  __syncwarp();
  using T = typename Spec::T;
  using VRows = TileRows<T, Spec::v_dim>;
  constexpr int chunk = VRows::chunk, per_row = ceil_div(Spec::v_dim, chunk);
  for (int e = threadIdx.x % kWarp; e < 16 * per_row; e += kWarp) {
    const int row = e / per_row, c = e % per_row;
    if (row >= count) break;
    T* to = out + (i64)row * Spec::out_stride + c * chunk;
    const T* from = rows + VRows::at(row, c);
    if constexpr (AttentionShape<Spec>::chunked(Spec::v_dim, Spec::out_stride)) {
      *(uint4*)to = *(const uint4*)from;
    } else {
#pragma unroll
      for (int k = 0; k < chunk; ++k) {
        if (c * chunk + k < Spec::v_dim) to[k] = from[k];
      }
    }
  }
}

template <class Spec, class T, class Block, class Score, class Visible, class Live, class Sink>
TFCC_FN void attention_mma(T* out, const T* q, const T* k, const T* v, const Block& block,
                           const Score& score, const Visible& visible, const Live& live,
                           const Sink& sink) {
  using Shape = AttentionShape<Spec>;
  using Warp = AttentionWarp<Spec>;
  constexpr int block_n = Spec::block_n, threads = Shape::threads;
  extern __shared__ uint4 tfcc_shared[];
  T *const tile_q = (T*)tfcc_shared, *const tiles_k = tile_q + Shape::q_elements,
           *const tiles_v = tiles_k + 2 * Shape::k_elements;

  const auto copy_keys = [&](idx tile, int stage, const KeyBits<block_n>& bits) {
    copy_key_tile<Spec, typename Warp::QkRows, Spec::head_dim, Spec::k_stride, threads>(
        tiles_k + stage * Shape::k_elements, k, block, tile, bits);
    copy_key_tile<Spec, typename Warp::VRows, Spec::v_dim, Spec::v_stride, threads>(
        tiles_v + stage * Shape::v_elements, v, block, tile, bits);
  };
  const i64 first_row = block.first_query() + block.first;
  const int left = block.queries - block.first;
  copy_query_tile<Spec, typename Warp::QkRows, threads>(tile_q, q, block, first_row);
  KeyBits<block_n> bits;
  idx tile = next_tile<block_n>(block.first_tile, block.tiles, block.limit, block.b, live, bits);
  if (tile < block.tiles) copy_keys(tile, 0, bits);
  commit_copies();
  wait_copies<0>();
  __syncthreads();
  const int warp = threadIdx.x / kWarp;
  Warp w(tile_q + warp * 16 * Warp::QkRows::stride);
  w.load_queries();
  const idx warp_row = block.first + warp * 16, row = warp_row + w.lane / 4;
  constexpr idx of_span = SpanKeys<Spec, Block::paged>::value / block_n;  // tiles
  typename Warp::Spans spans;
  for (int stage = 0; tile < block.tiles; stage ^= 1) {
    // Behind this barrier the tile is complete and nobody reads the other stage any more.
    wait_copies<0>();
    __syncthreads();
    KeyBits<block_n> next_bits;
    const idx next =
        next_tile<block_n>(tile + 1, block.tiles, block.limit, block.b, live, next_bits);
    if (next < block.tiles) copy_keys(next, stage ^ 1, next_bits);
    commit_copies();
    f32 s[block_n / 8][4];
    w.multiply_keys(s, tiles_k + stage * Shape::k_elements);
    const bool cut = block.cuts(bits, tile, warp_row, 16);
    constexpr int reads = Block::packed && Warp::reads > 8 ? 8 : Warp::reads;
    if (!Spec::scaled || !kSame<Visible, AllVisible> || cut)
      mask_scores<reads>(s, block, w.lane, row, tile, bits, cut, score, visible);
    w.softmax.update(s, w.o);
    w.multiply_values(s, tiles_v + stage * Shape::v_elements);
    if constexpr (of_span > 0) {
      if (next >= block.tiles || next / of_span != tile / of_span) w.end_span(spans);
    }
    tile = next, bits = next_bits;
  }
  if constexpr (of_span > 0) w.take(spans);
  __syncthreads();  // rows of the result may be longer than those of q and reach into a neighbour's
  write_rows<Sink>(out + (first_row + warp * 16) * Spec::out_stride + block.h * Spec::v_dim, w,
                   tile_q + warp * 16 * Warp::VRows::stride, left - warp * 16,
                   sink(block.b, block.h));
}
