// SPDX-License-Identifier: Apache-2.0
// linear_attention on the FMA units: every product and sum in float, the state with a compensation
// (Kahan), so that the error does not grow with the number of tokens. For f32, and for heads of 16
// bits that are too wide for the tiles of the other form.
//
// 256 threads, chunks of `chunk` tokens; queries, keys, values, the chunk's weights and the state
// are in shared memory. A thread owns the same elements of the state throughout and keeps what
// their sums lost in registers.
#pragma once
#include "cuda/linear_attention_tile.cuh"

template <class Spec> struct LinearFmaShape {
  static constexpr int chunk = Spec::chunk, threads = 256, d = round_up(Spec::head_dim, 16),
                       columns = Spec::columns;
  using QkTile = TileRows<f32, d>;  // rows of d and 4 more
  static constexpr int w_stride = chunk + 1;
  static constexpr int shared_bytes = 4 * (2 * chunk * QkTile::stride + chunk * columns +
                                           d * columns + chunk * w_stride + 2 * d + 2 * chunk);
  static_assert(columns % 4 == 0 && chunk % 16 == 0, "columns: a multiple of 4; chunk: of 16");
};

template <class Spec, class Head> struct LinearFma {
  using Shape = LinearFmaShape<Spec>;
  static constexpr int chunk = Shape::chunk, threads = Shape::threads, d = Shape::d,
                       columns = Shape::columns;
  static constexpr int quads = columns / 4, owned = ceil_div(d * quads, threads);
  using T = typename Spec::T;
  using QkTile = typename Shape::QkTile;
  const Head& head;
  const T *q, *k, *v;
  f32 *tile_q, *tile_k, *tile_v, *state, *weights, *z, *z_lost, *grown, *sums;
  float4 lost[owned];

  TFCC_FN LinearFma(const Head& head_, const T* q_, const T* k_, const T* v_) : head(head_) {
    extern __shared__ uint4 tfcc_shared[];
    tile_q = (f32*)tfcc_shared;
    tile_k = tile_q + chunk * Shape::QkTile::stride;
    tile_v = tile_k + chunk * Shape::QkTile::stride;
    state = tile_v + chunk * columns;
    weights = state + d * columns;
    z = weights + chunk * Shape::w_stride;
    z_lost = z + d;
    grown = z_lost + d;
    sums = grown + chunk;
    q = q_ + head.rows.first_query(head.b) * Spec::q_stride + head.h * Spec::head_dim;
    k = k_ + head.rows.key_row(head.b, head.g, 0, Spec::k_stride, Spec::head_dim);
    v = v_ + head.rows.key_row(head.b, head.g, 0, Spec::v_stride, Spec::v_dim) + head.first;
#pragma unroll
    for (int x = 0; x < owned; ++x) {
      lost[x] = make_float4(0, 0, 0, 0);
      const int e = threadIdx.x + x * threads;
      if (e < d * quads) *(float4*)(state + e * 4) = lost[x];
    }
    for (int e = threadIdx.x; e < 2 * d; e += threads) z[e] = 0.0f;
  }

  /// place(row, c) of the tile becomes map(element, row, c), or 0 where there is none.
  template <class Live, class Map, class Place>
  static TFCC_FN void fetch(const T* from, i64 stride, int width, int there, const Live& live,
                            const Map& map, const Place& place) {
    for (int x = threadIdx.x; x < chunk * width; x += threads) {
      const int row = x / width, c = x % width;
      *place(row, c) = c < there && live(row) ? map(load(from + row * stride, c), row, c) : 0.0f;
    }
  }
  /// Rows of q or k under softmax and map; all threads call.
  template <bool softmax, class Live, class Map>
  static TFCC_FN void fetch_features(const T* from, i64 stride, const Live& live, const Map& map,
                                     f32* tile) {
    const auto element = [&](f32 x, int row, int e) {
      if constexpr (softmax) return x;
      else return map(x, row, e);
    };
    fetch(from, stride, d, Spec::head_dim, live, element,
          [&](int row, int e) { return tile + QkTile::at(row, e / 4) + e % 4; });
    if constexpr (softmax) {
      __syncthreads();
      soften_tokens<QkTile, chunk, threads, Spec::head_dim>(tile, chunk, live, map);
    }
  }
  TFCC_FN void fetch_queries(idx from) const {
    fetch_features<Spec::q_softmax>(
        q + (i64)from * Spec::q_stride, Spec::q_stride,
        [&](int row) { return from + row < head.queries; },
        [&](f32 x, int row, int e) { return head.query(x, from + row, e); }, tile_q);
  }
  TFCC_FN void fetch_keys(idx from) const {
    const auto there = [&](int row) { return head.live(from + row); };
    fetch_features<Spec::k_softmax>(
        k + (i64)from * Spec::k_stride, Spec::k_stride, there,
        [&](f32 x, int row, int e) { return head.key(x, from + row, e); }, tile_k);
    fetch(
        v + (i64)from * Spec::v_stride, Spec::v_stride, columns, head.columns(), there,
        [&](f32 x, int, int) { return x; },
        [&](int row, int m) { return tile_v + row * columns + m; });
    if (Spec::decays && threadIdx.x == 0) {
      f32 sum = 0.0f;
      for (int j = 0; j < chunk; ++j) grown[j] = sum += head.decay(from + j);
    }
  }

  static TFCC_FN f32 left(f32 decay) { return Spec::decays ? expf(decay) : 1.0f; }
  TFCC_FN f32 at_end(int j) const {
    return Spec::decays ? expf(grown[chunk - 1] - grown[j]) : 1.0f;
  }

  /// The weights of the chunk's own keys, and of each row the sum of weights of all.
  TFCC_FN void weigh(bool own) const {
    for (int x = threadIdx.x; own && x < chunk * chunk; x += threads) {
      const int i = x / chunk, j = x % chunk;
      f32 w = 0.0f;
      if (j <= i) {
        for (int e = 0; e < d / 4; ++e) {
          const float4 a = *(const float4*)(tile_q + QkTile::at(i, e)),
                       b = *(const float4*)(tile_k + QkTile::at(j, e));
          w = fmaf(a.x, b.x, fmaf(a.y, b.y, fmaf(a.z, b.z, fmaf(a.w, b.w, w))));
        }
        if constexpr (Spec::decays) w *= expf(grown[i] - grown[j]);
      }
      weights[i * Shape::w_stride + j] = w;
    }
    if constexpr (Spec::normalises) {
      __syncthreads();
      // A warp for a row: the sum does not depend on how many threads a block has.
      for (int i = threadIdx.x / kWarp; i < chunk; i += threads / kWarp) {
        const int lane = threadIdx.x % kWarp;
        f32 sum = 0.0f, near = 0.0f;
        for (int e = lane; e < d; e += kWarp)
          sum = fmaf(tile_q[QkTile::at(i, e / 4) + e % 4], z[e], sum);
        for (int j = lane; own && j <= i; j += kWarp) near += weights[i * Shape::w_stride + j];
        sum = reduce_lanes<kWarp>(sum * (own ? left(grown_at(i)) : 1.0f) + near, Add{});
        if (lane == 0) sums[i] = sum;
      }
    }
  }
  TFCC_FN f32 grown_at(int i) const { return Spec::decays ? grown[i] : 0.0f; }

  TFCC_FN void write(typename Spec::Out* out, idx from, bool own) const {
    for (int x = threadIdx.x; x < chunk * quads; x += threads) {
      const int row = x / quads, m = x % quads * 4;
      const idx i = from + row;
      if (i >= head.queries) continue;
      f32 y[4] = {};
      for (int e = 0; e < d; ++e) {
        const f32 a = tile_q[QkTile::at(row, e / 4) + e % 4];
        const float4 s = *(const float4*)(state + e * columns + m);
        y[0] = fmaf(a, s.x, y[0]), y[1] = fmaf(a, s.y, y[1]), y[2] = fmaf(a, s.z, y[2]),
        y[3] = fmaf(a, s.w, y[3]);
      }
      if (own) {
        const f32 faded = left(grown_at(row));
#pragma unroll
        for (int c = 0; c < 4; ++c) y[c] *= faded;
        for (int j = 0; j <= row; ++j) {
          const f32 w = weights[row * Shape::w_stride + j];
          const float4 s = *(const float4*)(tile_v + j * columns + m);
          y[0] = fmaf(w, s.x, y[0]), y[1] = fmaf(w, s.y, y[1]), y[2] = fmaf(w, s.z, y[2]),
          y[3] = fmaf(w, s.w, y[3]);
        }
      }
      const f32 z_row = Spec::normalises ? sums[row] : 0.0f;
      typename Spec::Out* const to = out + (head.rows.first_query(head.b) + i) * Spec::out_stride +
                                     head.h * Spec::v_dim + head.first;
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        if (m + c < head.columns()) store(to, m + c, head.result(y[c], z_row, i, m + c));
      }
    }
  }

  static TFCC_FN void add_compensated(f32& sum, f32& lost, f32 x) {
    const f32 y = __fsub_rn(x, lost), t = __fadd_rn(sum, y);
    lost = __fsub_rn(__fsub_rn(t, sum), y);
    sum = t;
  }

  TFCC_FN void add_chunk() {
    const f32 keep = Spec::decays ? expf(grown[chunk - 1]) : 1.0f;
#pragma unroll
    for (int x = 0; x < owned; ++x) {
      const int e = threadIdx.x + x * threads;
      if (e >= d * quads) break;
      const int feature = e / quads, m = e % quads * 4;
      float4 y = make_float4(0, 0, 0, 0);
      for (int j = 0; j < chunk; ++j) {
        const f32 a = tile_k[QkTile::at(j, feature / 4) + feature % 4] * at_end(j);
        const float4 b = *(const float4*)(tile_v + j * columns + m);
        y.x = fmaf(a, b.x, y.x), y.y = fmaf(a, b.y, y.y), y.z = fmaf(a, b.z, y.z),
        y.w = fmaf(a, b.w, y.w);
      }
      float4 s = *(const float4*)(state + e * 4);
      s.x *= keep, s.y *= keep, s.z *= keep, s.w *= keep;
      lost[x].x *= keep, lost[x].y *= keep, lost[x].z *= keep, lost[x].w *= keep;
      add_compensated(s.x, lost[x].x, y.x);
      add_compensated(s.y, lost[x].y, y.y);
      add_compensated(s.z, lost[x].z, y.z);
      add_compensated(s.w, lost[x].w, y.w);
      *(float4*)(state + e * 4) = s;
    }
    for (int e = threadIdx.x; Spec::normalises && e < d; e += threads) {
      f32 y = 0.0f;
      for (int j = 0; j < chunk; ++j) y = fmaf(tile_k[QkTile::at(j, e / 4) + e % 4], at_end(j), y);
      f32 sum = z[e] * keep, rest = z_lost[e] * keep;
      add_compensated(sum, rest, y);
      z[e] = sum;
      z_lost[e] = rest;
    }
  }
};

template <class Spec, class Head>
TFCC_FN void linear_attention_fma(typename Spec::Out* out, const typename Spec::T* q,
                                  const typename Spec::T* k, const typename Spec::T* v,
                                  const Head& head) {
  LinearFma<Spec, Head> block(head, q, k, v);
  constexpr int chunk = LinearFmaShape<Spec>::chunk;
  if constexpr (!Spec::causal) {
    for (idx from = 0; from < head.keys; from += chunk) {
      // Sums with what is lost of them change when zeros are added: padding has no part in them.
      const bool any = __syncthreads_or(threadIdx.x < chunk && head.live(from + (idx)threadIdx.x));
      if (!any) continue;
      block.fetch_keys(from);
      __syncthreads();
      block.add_chunk();
    }
  }
  for (idx from = 0; from < head.queries; from += chunk) {
    __syncthreads();
    block.fetch_queries(from);
    if constexpr (Spec::causal) block.fetch_keys(from);
    __syncthreads();
    block.weigh(Spec::causal);
    __syncthreads();
    block.write(out, from, Spec::causal);
    if constexpr (Spec::causal) {
      __syncthreads();
      if (from + chunk < head.queries) block.add_chunk();
    }
  }
}
