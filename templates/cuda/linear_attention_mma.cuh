// SPDX-License-Identifier: Apache-2.0
// linear_attention for f16 and bf16 on tensor cores: mma.sync.m16n8k16 with f32 accumulators.
//
// Eight warps: warp w owns 16 queries of a chunk of 64 (those of its row group) and half of the
// block's channels. In the registers of all warps together is the state S in f32, a quarter of its
// features and half of its channels each; a 16-bit copy of it, which the queries of the next chunk
// are multiplied by, is in shared memory. What a chunk adds to S is summed by itself first: tensor
// cores cut what they add to a large accumulator off, which of thousands of chunks would be seen.
// f16 has no range for sums over many tokens, so the copy of S is scaled by a power of two. The sum
// of weights z is one more channel whose values are 1; its copy is two numbers, high and low.
#pragma once
#include "cuda/attention_mma.cuh"
#include "cuda/linear_attention_tile.cuh"

template <class Spec> struct LinearMmaShape {
  using T = typename Spec::T;
  static constexpr int chunk = 64, threads = 256, groups = 4;
  static constexpr int d = round_up(Spec::head_dim, 64), columns = Spec::columns,
                       half = columns / 2, stages = Spec::stages;
  using QkTile = TileRows<T, d>;
  using VTile = TileRows<T, columns>;  // of v, and of the copy of S
  static constexpr int qk_elements = chunk * QkTile::stride, v_elements = chunk * VTile::stride;
  static constexpr int stage_elements = 2 * qk_elements + v_elements,
                       s_elements = d * VTile::stride, z_elements = d * 8;
  static constexpr int shared_bytes =
      2 * (stages * stage_elements + s_elements + z_elements) + 4 * (stages * chunk + 8);
  static_assert(kSame<T, f16> || kSame<T, bf16>, "T: f16 or bf16");
  static_assert(columns % 32 == 0 && d * columns <= 16384,
                "columns: a multiple of 32; a thread has at most 64 numbers of the state");
};

/// One warp's share of the state and of a chunk's results.
template <class Spec> struct LinearWarp {
  using T = typename Spec::T;
  using Shape = LinearMmaShape<Spec>;
  using QkTile = typename Shape::QkTile;
  using VTile = typename Shape::VTile;
  static constexpr int d = Shape::d, m_tiles = d / 64, n_tiles = Shape::half / 8,
                       k_steps = Shape::chunk / 16;
  static constexpr bool scaled = kSame<T, f16>;

  int lane = threadIdx.x % kWarp, half = threadIdx.x / (4 * kWarp);
  /// Warps of one scheduler have a short and a long triangle.
  int group = half ? 3 - threadIdx.x / kWarp % 4 : threadIdx.x / kWarp % 4;
  f32 s[m_tiles][n_tiles][4];  // features (group * m_tiles + m) * 16 ..
  f32 z[m_tiles][4];           // sum of keys in column 0
  f32 o[n_tiles][4], weights[4];
  f32 unscale = 1.0f;
  const u32 one = lane / 4 == 0 ? pack2<T>(1.0f, 1.0f) : 0;  // of a column of ones among zeros

  TFCC_FN LinearWarp() {
#pragma unroll
    for (int m = 0; m < m_tiles; ++m) {
#pragma unroll
      for (int c = 0; c < 4; ++c) z[m][c] = 0.0f;
#pragma unroll
      for (int t = 0; t < n_tiles; ++t) {
#pragma unroll
        for (int c = 0; c < 4; ++c) s[m][t][c] = 0.0f;
      }
    }
  }

  TFCC_FN int row(int r) const { return group * 16 + lane / 4 + 8 * r; }  // of a query of the chunk
  TFCC_FN int channel(int t, int c) const { return half * Shape::half + t * 8 + lane % 4 * 2 + c; }

  TFCC_FN void begin_results() {
#pragma unroll
    for (int c = 0; c < 4; ++c) weights[c] = 0.0f;
#pragma unroll
    for (int t = 0; t < n_tiles; ++t) {
#pragma unroll
      for (int c = 0; c < 4; ++c) o[t][c] = 0.0f;
    }
  }

  /// What this warp's queries see of earlier chunks. `faded`: by row, what it has become.
  template <class Faded>
  TFCC_FN void read_state(const T* q, const T* copy, const T* z_copy, const Faded& faded) {
#pragma unroll(d <= 128 ? d / 16 : 4)
    for (int step = 0; step < d / 16; ++step) {
      u32 a[4], b[4];
      load_matrices(a, q + QkTile::at(group * 16 + lane % 16, step * 2 + lane / 16));
#pragma unroll
      for (int t = 0; t < n_tiles / 2; ++t) {
        load_matrices_transposed(
            b, copy + VTile::at(step * 16 + lane % 16, half * n_tiles + t * 2 + lane / 16));
        multiply_add<T>(o[2 * t], a, b[0], b[1]);
        multiply_add<T>(o[2 * t + 1], a, b[2], b[3]);
      }
      if constexpr (Spec::normalises) {
        load_matrices_transposed(b, z_copy + (step * 16 + lane % 16) * 8);
        multiply_add<T>(weights, a, b[0], b[1]);
      }
    }
    if constexpr (!scaled && !Spec::decays) return;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const f32 f = unscale * faded(row(r));
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        weights[2 * r + c] *= f;
#pragma unroll
        for (int t = 0; t < n_tiles; ++t) o[t][2 * r + c] *= f;
      }
    }
  }

  /// And of their own chunk, up to themselves. `fade(i, j)`: what is left of key j at query i.
  template <class Fade>
  TFCC_FN void read_chunk(const T* q, const T* k, const T* v, const Fade& fade) {
#pragma unroll
    for (int keys = 0; keys < k_steps; ++keys) {
      if (keys > group) break;
      f32 w[2][4] = {};
#pragma unroll(d <= 128 ? d / 16 : 4)
      for (int step = 0; step < d / 16; ++step) {
        u32 a[4], b[4];
        load_matrices(a, q + QkTile::at(group * 16 + lane % 16, step * 2 + lane / 16));
        load_matrices(
            b, k + QkTile::at(keys * 16 + lane % 8 + lane / 16 * 8, step * 2 + lane / 8 % 2));
        multiply_add<T>(w[0], a, b[0], b[1]);
        multiply_add<T>(w[1], a, b[2], b[3]);
      }
      if (Spec::decays || keys == group) {
#pragma unroll
        for (int t = 0; t < 2; ++t) {
#pragma unroll
          for (int c = 0; c < 4; ++c) {
            const int i = row(c / 2), j = keys * 16 + t * 8 + lane % 4 * 2 + c % 2;
            w[t][c] = j > i ? 0.0f : w[t][c] * fade(i, j);
          }
        }
      }
      const u32 a[4] = {pack2<T>(w[0][0], w[0][1]), pack2<T>(w[0][2], w[0][3]),
                        pack2<T>(w[1][0], w[1][1]), pack2<T>(w[1][2], w[1][3])};
      if constexpr (Spec::normalises) multiply_add<T>(weights, a, one, one);
#pragma unroll
      for (int t = 0; t < n_tiles / 2; ++t) {
        u32 b[4];
        load_matrices_transposed(
            b, v + VTile::at(keys * 16 + lane % 16, half * n_tiles + t * 2 + lane / 16));
        multiply_add<T>(o[2 * t], a, b[0], b[1]);
        multiply_add<T>(o[2 * t + 1], a, b[2], b[3]);
      }
    }
  }

  /// The sum of weights of this lane's row r.
  TFCC_FN f32 weight_sum(int r) const {
    return __shfl_sync(kAllLanes, weights[2 * r] + weights[2 * r + 1], lane & ~3);
  }

  /// 16 features (tile m) of 16 tokens, faded.
  template <class Fade>
  TFCC_FN void load_keys(u32 (&a)[4], const T* k, int m, int step, const Fade& fade) const {
    load_matrices_transposed(a, k + QkTile::at(step * 16 + lane % 8 + lane / 16 * 8,
                                               (group * m_tiles + m) * 2 + lane / 8 % 2));
    if constexpr (Spec::decays) fade_keys<T>(a, step * 16 + lane % 4 * 2, fade);
  }

  /// The chunk becomes part of the state. `fade(j)`: what is left of token j at the end of the
  /// chunk; `keep`: of what was before.
  template <class Fade> TFCC_FN void add_chunk(const T* k, const T* v, f32 keep, const Fade& fade) {
    constexpr bool hold = m_tiles <= 2;
    u32 held[hold ? m_tiles : 1][k_steps][4];
    if constexpr (hold) {
#pragma unroll
      for (int m = 0; m < m_tiles; ++m) {
#pragma unroll
        for (int step = 0; step < k_steps; ++step) load_keys(held[m][step], k, m, step, fade);
      }
    }
#pragma unroll
    for (int t = 0; t < n_tiles / 2; ++t) {
      u32 b[k_steps][4];
#pragma unroll
      for (int step = 0; step < k_steps; ++step) {
        load_matrices_transposed(
            b[step], v + VTile::at(step * 16 + lane % 16, half * n_tiles + t * 2 + lane / 16));
      }
#pragma unroll
      for (int m = 0; m < m_tiles; ++m) {
        f32 sum[2][4] = {}, ones[4] = {};
#pragma unroll
        for (int step = 0; step < k_steps; ++step) {
          u32 a[4];
          if constexpr (hold) {
#pragma unroll
            for (int x = 0; x < 4; ++x) a[x] = held[m][step][x];
          } else {
            load_keys(a, k, m, step, fade);
          }
          multiply_add<T>(sum[0], a, b[step][0], b[step][1]);
          multiply_add<T>(sum[1], a, b[step][2], b[step][3]);
          if (Spec::normalises && t == 0) multiply_add<T>(ones, a, one, one);
        }
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          s[m][2 * t][c] = s[m][2 * t][c] * keep + sum[0][c];
          s[m][2 * t + 1][c] = s[m][2 * t + 1][c] * keep + sum[1][c];
          if (Spec::normalises && t == 0) z[m][c] = z[m][c] * keep + ones[c];
        }
      }
    }
  }

  /// The largest number of this warp's part of the state.
  TFCC_FN f32 largest() const {
    f32 top = 0.0f;
#pragma unroll
    for (int m = 0; m < m_tiles; ++m) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        top = fmaxf(top, fabsf(z[m][c]));
#pragma unroll
        for (int t = 0; t < n_tiles; ++t) top = fmaxf(top, fabsf(s[m][t][c]));
      }
    }
    return __uint_as_float(__reduce_max_sync(
        kAllLanes, __float_as_uint(top)));  // in the order of numbers that are not negative
  }

  /// The copy of the state, whose largest number is about `top`.
  TFCC_FN void write_state(T* copy, T* z_copy, f32 top) {
    f32 scale = 1.0f;
    if constexpr (scaled) {
      const int exponent = (int)(__float_as_uint(top) >> 23);      // 127 for 1
      const int shift = min(max(127 + 13 - exponent, -100), 100);  // to about 2^13
      scale = __uint_as_float((u32)(127 + shift) << 23);
      unscale = __uint_as_float((u32)(127 - shift) << 23);
    }
#pragma unroll
    for (int m = 0; m < m_tiles; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int feature = (group * m_tiles + m) * 16 + lane / 4 + 8 * r;
#pragma unroll
        for (int t = 0; t < n_tiles; ++t) {
          *(u32*)(copy + VTile::at(feature, half * n_tiles + t) + lane % 4 * 2) =
              pack2<T>(s[m][t][2 * r] * scale, s[m][t][2 * r + 1] * scale);
        }
        if (!Spec::normalises || half) continue;
        f32 high, none;
        unpack2<T>(pack2<T>(z[m][2 * r] * scale, 0.0f), high, none);
        *(u32*)(z_copy + feature * 8 + lane % 4 * 2) =
            lane % 4 == 0 ? pack2<T>(high, z[m][2 * r] * scale - high) : 0;
      }
    }
  }
};

/// Shared memory of a block, and the way of a chunk into it and out of it.
template <class Spec, class Head> struct LinearChunks {
  using T = typename Spec::T;
  using Shape = LinearMmaShape<Spec>;
  using Warp = LinearWarp<Spec>;
  static constexpr int chunk = Shape::chunk, threads = Shape::threads;
  static constexpr bool chunked_qk = Spec::aligned && Spec::head_dim % 8 == 0,
                        chunked_v = Spec::aligned && Spec::v_dim % 8 == 0;
  const Head& head;
  const T *q, *k, *v;
  T *tiles, *copy, *z_copy;
  f32 *grown, *tops;

  TFCC_FN LinearChunks(const Head& head_, const T* q_, const T* k_, const T* v_) : head(head_) {
    extern __shared__ uint4 tfcc_shared[];
    tiles = (T*)tfcc_shared;
    copy = tiles + Shape::stages * Shape::stage_elements;
    z_copy = copy + Shape::s_elements;
    grown = (f32*)(z_copy + Shape::z_elements);
    tops = grown + Shape::stages * chunk;
    q = q_ + head.rows.first_query(head.b) * Spec::q_stride + head.h * Spec::head_dim;
    k = k_ + head.rows.key_row(head.b, head.g, 0, Spec::k_stride, Spec::head_dim);
    v = v_ + head.rows.key_row(head.b, head.g, 0, Spec::v_stride, Spec::v_dim) + head.first;
  }
  TFCC_FN T* tile_q(int stage) const { return tiles + stage * Shape::stage_elements; }
  TFCC_FN T* tile_k(int stage) const { return tile_q(stage) + Shape::qk_elements; }
  TFCC_FN T* tile_v(int stage) const { return tile_k(stage) + Shape::qk_elements; }

  /// Which tokens of a chunk are keys: bits, the same in all lanes.
  TFCC_FN u64 live(idx from) const {
    const int lane = threadIdx.x % kWarp;
    const u32 low = __ballot_sync(kAllLanes, head.live(from + lane)),
              high = __ballot_sync(kAllLanes, head.live(from + kWarp + lane));
    return low | (u64)high << 32;
  }

  TFCC_FN void fetch_queries(idx from, int stage) const {
    copy_tokens<typename Shape::QkTile, chunk, threads, chunked_qk>(
        tile_q(stage), q + (i64)from * Spec::q_stride, Spec::q_stride, Spec::head_dim,
        [&](int row) { return from + row < head.queries; });
  }
  TFCC_FN void fetch_keys(idx from, int stage) const {
    const u64 bits = live(from);
    const auto there = [&](int row) { return (bool)(bits >> row & 1); };
    copy_tokens<typename Shape::QkTile, chunk, threads, chunked_qk>(
        tile_k(stage), k + (i64)from * Spec::k_stride, Spec::k_stride, Spec::head_dim, there);
    copy_tokens<typename Shape::VTile, chunk, threads, chunked_v>(
        tile_v(stage), v + (i64)from * Spec::v_stride, Spec::v_stride, head.columns(), there);
  }
  /// Rows of a tile under softmax and map.
  template <bool softmax, bool maps, class Live, class Map>
  static TFCC_FN void map_rows(T* tile, [[maybe_unused]] idx last, const Live& live,
                               const Map& map) {
    using Tile = typename Shape::QkTile;
    if constexpr (softmax) {
      __syncthreads();  // others have copied parts of a row
      soften_tokens<Tile, chunk, threads, Spec::head_dim>(tile, (int)imin(last, chunk), live, map);
    } else if constexpr (maps) {
      map_tokens<Tile, chunk, threads>(tile, Spec::head_dim, live, map);
    }
  }
  /// After what this thread copied has arrived, and before all meet.
  TFCC_FN void map_queries(idx from, int stage) const {
    map_rows<Spec::q_softmax, Head::maps_q>(
        tile_q(stage), head.queries - 1 - from, [&](int row) { return from + row < head.queries; },
        [&](f32 x, int row, int e) { return head.query(x, from + row, e); });
  }
  TFCC_FN void map_keys(idx from, int stage) const {
    if constexpr (Spec::decays) grow(from, stage);
    if constexpr (!Head::maps_k && !Spec::k_softmax) return;
    const u64 bits = live(from);
    if (bits == 0) return;  // the same for all threads
    map_rows<Spec::k_softmax, Head::maps_k>(
        tile_k(stage), head.keys - 1 - from, [&](int row) { return (bool)(bits >> row & 1); },
        [&](f32 x, int row, int e) { return head.key(x, from + row, e); });
  }
  /// grown[j]: the sum of the decays of tokens up to j of the chunk.
  TFCC_FN void grow(idx from, int stage) const {
    if (threadIdx.x < kWarp)
      running_sums([&](int j) { return head.decay(from + j); }, grown + stage * chunk);
  }

  TFCC_FN void store(typename Spec::Out* out, const Warp& w, idx from) const {
    const int columns = head.columns();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const f32 z = Spec::normalises ? w.weight_sum(r) : 0.0f;
      const idx i = from + w.row(r);
      if (i >= head.queries) continue;
      typename Spec::Out* const to = out + (head.rows.first_query(head.b) + i) * Spec::out_stride +
                                     head.h * Spec::v_dim + head.first;
#pragma unroll
      for (int t = 0; t < Warp::n_tiles; ++t) {
        const int m = w.channel(t, 0);
        const f32 y[2] = {head.result(w.o[t][2 * r], z, i, m),
                          head.result(w.o[t][2 * r + 1], z, i, m + 1)};
        if (Spec::out_aligned && Spec::v_dim % 2 == 0) {
          if (m < columns) store_pack<2>(to + m, y);
        } else {
          if (m < columns) ::store(to, m, y[0]);
          if (m + 1 < columns) ::store(to, m + 1, y[1]);
        }
      }
    }
  }

  /// All warps: the copy of the state for what comes next. Nobody may read the copy any more.
  TFCC_FN void publish(Warp& w) {
    if constexpr (Warp::scaled) {
      const f32 top = w.largest();
      if (w.lane == 0) tops[threadIdx.x / kWarp] = top;
    }
    __syncthreads();
    f32 top = 0.0f;
    if constexpr (Warp::scaled) {
#pragma unroll
      for (int x = 0; x < threads / kWarp; ++x) top = fmaxf(top, tops[x]);
    }
    w.write_state(copy, z_copy, top);
  }
};

template <class Spec, class Head>
TFCC_FN void linear_attention_causal(typename Spec::Out* out, LinearChunks<Spec, Head>& chunks,
                                     const Head& head) {
  constexpr int chunk = LinearMmaShape<Spec>::chunk, stages = Spec::stages;
  LinearWarp<Spec> w;
  const auto fetch = [&](idx from, int stage) {
    chunks.fetch_queries(from, stage);
    chunks.fetch_keys(from, stage);
  };
  fetch(0, 0);
  commit_copies();
  int stage = 0;
  for (idx from = 0; from < head.queries; from += chunk) {
    wait_copies<0>();
    chunks.map_queries(from, stage);
    chunks.map_keys(from, stage);
    __syncthreads();  // the chunk is complete, and so is the copy of the state; nobody reads the
                      // other stage any more
    const idx next = from + chunk;
    if constexpr (stages > 1) {
      if (next < head.queries) fetch(next, stage ^ 1);
      commit_copies();
    }
    const f32* const grown = chunks.grown + stage * chunk;
    const auto left = [&](f32 from_here) { return Spec::decays ? __expf(from_here) : 1.0f; };
    const f32 last = Spec::decays ? grown[chunk - 1] : 0.0f;
    w.begin_results();
    if (from > 0)
      w.read_state(chunks.tile_q(stage), chunks.copy, chunks.z_copy,
                   [&](int i) { return left(Spec::decays ? grown[i] : 0.0f); });
    w.read_chunk(chunks.tile_q(stage), chunks.tile_k(stage), chunks.tile_v(stage),
                 [&](int i, int j) { return Spec::decays ? left(grown[i] - grown[j]) : 1.0f; });
    chunks.store(out, w, from);
    if (next >= head.queries) break;
    w.add_chunk(chunks.tile_k(stage), chunks.tile_v(stage), left(last),
                [&](int j) { return Spec::decays ? left(last - grown[j]) : 1.0f; });
    chunks.publish(w);
    if constexpr (stages > 1) {
      stage ^= 1;
    } else {
      fetch(next, 0);
      commit_copies();
    }
  }
}

/// Calls work(from, stage) for the chunks of `count` tokens that fetch(from, stage) brings and
/// prepare(from, stage) maps.
template <class Spec, class Fetch, class Prepare, class Work>
TFCC_FN void for_each_chunk(idx count, const Fetch& fetch, const Prepare& prepare,
                            const Work& work) {
  constexpr int chunk = LinearMmaShape<Spec>::chunk, stages = Spec::stages;
  if (count > 0) fetch(0, 0);
  commit_copies();
  int stage = 0;
  for (idx from = 0; from < count; from += chunk) {
    wait_copies<0>();
    prepare(from, stage);
    __syncthreads();
    const int next = stages > 1 ? stage ^ 1 : 0;
    if (stages > 1 && from + chunk < count) fetch(from + chunk, next);
    if (stages > 1) commit_copies();
    work(from, stage);
    if (stages == 1) {
      __syncthreads();
      if (from + chunk < count) fetch(from + chunk, 0);
      commit_copies();
    }
    stage = next;
  }
  __syncthreads();
}

/// Nothing fades.
struct Unfaded {
  TFCC_FN f32 operator()(int) const { return 1.0f; }
};

template <class Spec, class Head>
TFCC_FN void linear_attention_whole(typename Spec::Out* out, LinearChunks<Spec, Head>& chunks,
                                    const Head& head) {
  LinearWarp<Spec> w;
  for_each_chunk<Spec>(
      head.keys, [&](idx from, int stage) { chunks.fetch_keys(from, stage); },
      [&](idx from, int stage) { chunks.map_keys(from, stage); },
      [&](idx, int stage) {
        w.add_chunk(chunks.tile_k(stage), chunks.tile_v(stage), 1.0f, Unfaded{});
      });
  chunks.publish(w);
  __syncthreads();
  for_each_chunk<Spec>(
      head.queries, [&](idx from, int stage) { chunks.fetch_queries(from, stage); },
      [&](idx from, int stage) { chunks.map_queries(from, stage); },
      [&](idx from, int stage) {
        w.begin_results();
        w.read_state(chunks.tile_q(stage), chunks.copy, chunks.z_copy, Unfaded{});
        chunks.store(out, w, from);
      });
}

template <class Spec, class Head>
TFCC_FN void linear_attention_mma(typename Spec::Out* out, const typename Spec::T* q,
                                  const typename Spec::T* k, const typename Spec::T* v,
                                  const Head& head) {
  LinearChunks<Spec, Head> chunks(head, q, k, v);
  if constexpr (Spec::causal) linear_attention_causal<Spec>(out, chunks, head);
  else linear_attention_whole<Spec>(out, chunks, head);
}
