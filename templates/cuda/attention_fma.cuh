// SPDX-License-Identifier: Apache-2.0
// attention for f32 on the FMA units, every product and sum in float; where TF32 is allowed,
// attention_mma.cuh takes it.
//
// 16 lanes share 4 queries: a thread computes 4 x block_n / 16 scores and 4 x v_dim / 16 outputs. P
// passes through shared memory within its 16 lanes. K and V have one tile each; the copy of one
// overlaps the work on the other.
#pragma once
#include "cuda/attention_tile.cuh"

template <class Spec> struct AttentionRows {
  using QkRows = TileRows<f32, Spec::head_dim>;
  using VRows = PlainRows<f32, Spec::v_dim>;
  static constexpr int block_n = Spec::block_n, columns = block_n / 16,
                       groups = ceil_div(VRows::width, 64);
  static constexpr int p_stride = block_n + 4;

  int x = threadIdx.x % 16,
      y = threadIdx.x / 16 * 4;  // x: place among the lanes of a row; y: the first row
  f32 o[4][groups][4];
  f32 top[4], sum[4];

  TFCC_FN AttentionRows() {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      top[r] = -kInf;
      sum[r] = 0.0f;
#pragma unroll
      for (int g = 0; g < groups; ++g) {
#pragma unroll
        for (int c = 0; c < 4; ++c) o[r][g][c] = 0.0f;
      }
    }
  }

  static TFCC_FN f32 dot(float4 a, float4 b, f32 s) {
    return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, s))));
  }

  /// s[r][c]: query y + r, key x + 16 c.
  TFCC_FN void multiply_keys(f32 (&s)[4][columns], const f32* q, const f32* k) const {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
#pragma unroll
      for (int c = 0; c < columns; ++c) s[r][c] = 0.0f;
    }
#pragma unroll 1
    for (int d = 0; d < QkRows::width / 4; ++d) {
      float4 a[4];
#pragma unroll
      for (int r = 0; r < 4; ++r) a[r] = *(const float4*)(q + QkRows::at(y + r, d));
#pragma unroll
      for (int c = 0; c < columns; ++c) {
        const float4 b = *(const float4*)(k + QkRows::at(x + 16 * c, d));
#pragma unroll
        for (int r = 0; r < 4; ++r) s[r][c] = dot(a[r], b, s[r][c]);
      }
    }
  }

  /// p = exp(s - top) to shared memory; o and sum are rescaled to the new top.
  TFCC_FN void update(const f32 (&s)[4][columns], f32* p) {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      f32 larger = top[r];
#pragma unroll
      for (int c = 0; c < columns; ++c) larger = fmaxf(larger, s[r][c]);
#pragma unroll
      for (int step = 8; step > 0; step /= 2)
        larger = fmaxf(larger, __shfl_xor_sync(kAllLanes, larger, step));
      const f32 base = larger == -kInf ? 0.0f : larger;  // no visible key yet: all weights are 0
      const f32 rescale = weight(top[r], base);
      top[r] = larger;
      f32 added = 0.0f;
#pragma unroll
      for (int c = 0; c < columns; ++c) {
        const f32 e = weight(s[r][c], base);
        added += e;
        p[(y + r) * p_stride + x + 16 * c] = e;
      }
      sum[r] = sum[r] * rescale + added;
#pragma unroll
      for (int g = 0; g < groups; ++g) {
#pragma unroll
        for (int c = 0; c < 4; ++c) o[r][g][c] *= rescale;
      }
    }
  }

  static TFCC_FN f32 weight(f32 s, f32 base) {
    return expf((s - base) * (Spec::scaled ? Spec::score_scale : 1.0f));
  }

  /// Scores as they are weighed: -inf where a key is hidden.
  template <class Block, class Score, class Visible>
  TFCC_FN void mask(f32 (&s)[4][columns], const Block& block, idx tile,
                    const KeyBits<block_n>& bits, const Score& score,
                    const Visible& visible) const {
    const bool cut = block.cuts(bits, tile, block.first, Spec::block_m);
#pragma unroll
    for (int r = 0; r < 4; ++r) {
#pragma unroll
      for (int c = 0; c < columns; ++c) {
        const int key = x + 16 * c;
        const bool bit = (bits.word[c / 2] >> (key % kWarp)) & 1;
        s[r][c] = block.masked(s[r][c], block.first + y + r, tile * block_n + key, bit, cut, score,
                               visible);
      }
    }
  }

  static TFCC_FN bool owns(int column) { return VRows::width % 64 == 0 || column < VRows::width; }

  /// o[r][g][c] += p v: query y + r, column 64 g + 4 x + c.
  TFCC_FN void multiply_values(const f32* p, const f32* v) {
#pragma unroll 1
    for (int j = 0; j < block_n; j += 4) {
      f32 w[4][4];
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const float4 a = *(const float4*)(p + (y + r) * p_stride + j);
        w[r][0] = a.x, w[r][1] = a.y, w[r][2] = a.z, w[r][3] = a.w;
      }
#pragma unroll
      for (int g = 0; g < groups; ++g) {
        if (!owns(64 * g + 4 * x)) continue;
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const float4 b = *(const float4*)(v + VRows::at(j + k, 16 * g + x));
#pragma unroll
          for (int r = 0; r < 4; ++r) {
            o[r][g][0] = fmaf(w[r][k], b.x, o[r][g][0]);
            o[r][g][1] = fmaf(w[r][k], b.y, o[r][g][1]);
            o[r][g][2] = fmaf(w[r][k], b.z, o[r][g][2]);
            o[r][g][3] = fmaf(w[r][k], b.w, o[r][g][3]);
          }
        }
      }
    }
  }

  /// o / sum of the first `count` rows of the block; rows without a visible key are 0.
  template <class Sink> TFCC_FN void finish(f32* out, int count, f32 sink) const {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      f32 total = sum[r];
#pragma unroll
      for (int step = 8; step > 0; step /= 2) total += __shfl_xor_sync(kAllLanes, total, step);
      const f32 scale = row_scale<Spec, Sink>(total, top[r], sink);
      if (y + r >= count) continue;
      f32* const row = out + (i64)(y + r) * Spec::out_stride;
#pragma unroll
      for (int g = 0; g < groups; ++g) {
        const int c = 64 * g + 4 * x;
        const f32 value[4] = {o[r][g][0] * scale, o[r][g][1] * scale, o[r][g][2] * scale,
                              o[r][g][3] * scale};
        if constexpr (AttentionShape<Spec>::chunked(Spec::v_dim, Spec::out_stride)) {
          if (c < Spec::v_dim) store_pack(row + c, value);
        } else {
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            if (c + k < Spec::v_dim) row[c + k] = value[k];
          }
        }
      }
    }
  }
};

template <class Spec, class Block, class Score, class Visible, class Live, class Sink>
TFCC_FN void attention_fma(f32* out, const f32* q, const f32* k, const f32* v, const Block& block,
                           const Score& score, const Visible& visible, const Live& live,
                           const Sink& sink) {
  using Shape = AttentionShape<Spec>;
  using Rows = AttentionRows<Spec>;
  constexpr int block_n = Spec::block_n, threads = Shape::threads;
  extern __shared__ uint4 tfcc_shared[];
  f32* const tile_q = (f32*)tfcc_shared;
  f32* const tile_k = tile_q + Shape::q_elements;
  f32* const tile_v = tile_k + Shape::k_elements;
  f32* const tile_p = tile_v + Shape::v_elements;

  const auto copy_k = [&](idx tile, const KeyBits<block_n>& bits) {
    copy_key_tile<Spec, typename Rows::QkRows, Spec::head_dim, Spec::k_stride, threads>(
        tile_k, k, block, tile, bits);
  };
  const auto copy_v = [&](idx tile, const KeyBits<block_n>& bits) {
    copy_key_tile<Spec, typename Rows::VRows, Spec::v_dim, Spec::v_stride, threads>(
        tile_v, v, block, tile, bits);
  };

  const i64 first_row = block.first_query() + block.first;
  copy_query_tile<Spec, typename Rows::QkRows, threads>(tile_q, q, block, first_row);
  KeyBits<block_n> bits;
  idx tile = next_tile<block_n>(block.first_tile, block.tiles, block.limit, block.b, live, bits);
  if (tile < block.tiles) copy_k(tile, bits);
  commit_copies();

  Rows w;
  while (tile < block.tiles) {
    copy_v(tile, bits);
    commit_copies();
    wait_copies<1>();
    __syncthreads();  // q and k are complete
    f32 s[4][Rows::columns];
    w.multiply_keys(s, tile_q, tile_k);
    __syncthreads();  // k is free
    KeyBits<block_n> next_bits;
    const idx next =
        next_tile<block_n>(tile + 1, block.tiles, block.limit, block.b, live, next_bits);
    if (next < block.tiles) copy_k(next, next_bits);
    commit_copies();

    w.mask(s, block, tile, bits, score, visible);
    w.update(s, tile_p);
    wait_copies<1>();
    __syncthreads();  // v and p are complete
    w.multiply_values(tile_p, tile_v);
    __syncthreads();  // v and p are free
    tile = next;
    bits = next_bits;
  }
  w.template finish<Sink>(out + first_row * Spec::out_stride + block.h * Spec::v_dim,
                          block.queries - block.first, sink(block.b, block.h));
}
