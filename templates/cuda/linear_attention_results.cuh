// SPDX-License-Identifier: Apache-2.0
// linear_attention_wgmma: the warpgroups that answer the queries.
#pragma once
#include "cuda/attention_mma.cuh"
#include "cuda/linear_attention_memory.cuh"

#if __CUDA_ARCH__ >= 900

namespace linear_wgmma_detail {

/// A warpgroup that answers the queries of every result_groups-th chunk, from number `group` on.
template <class Spec, class Head> struct Results {
  using S = LinearWgmmaShape<Spec>;
  using T = typename Spec::T;
  using Out = typename Spec::Out;
  static constexpr int n = S::columns,
                       kept = n / S::halves;  // channels of v; those whose results the block stores
  static constexpr bool adds = true;
  const Memory<Spec>& at;
  const Head& head;
  Out* out;
  int group, lane, warp_row;
  f32 s[8][4], o[n / 8][4], weights[4], sums[kept / 8][4];  // sums: of both halves of a pair
  u32 p[4][4];
  u32 given = 0;  // parity of what the pair gives each other
  sm90::RingPlace<S::stages> ring;
  sm90::RingPlace<S::copies> copies;

  TFCC_FN Results(const Memory<Spec>& at_, const Head& head_, int group_, Out* out_)
      : at(at_), head(head_), group(group_) {
    out =
        out_ + head.rows.first_query(head.b) * Spec::out_stride + head.h * Spec::v_dim + head.first;
    lane = threadIdx.x % kWarp;
    warp_row = threadIdx.x / kWarp % 4 * 16;
  }
  /// For descriptors.
  static TFCC_FN u32 address(const void* p) { return sm90::uniform(sm90::shared_address(p)); }
  TFCC_FN f32 (&scores())[32] { return *(f32(*)[32]) & s[0][0]; }
  TFCC_FN f32 (&results())[n / 2] { return *(f32(*)[n / 2]) & o[0][0]; }
  TFCC_FN int row(int h) const { return warp_row + lane / 4 + 8 * h; }

  /// s = q' k'^T.
  TFCC_FN void begin_scores(int slot) {
    const u64 q = sm90::rows_of_k(address(at.q(slot))), k = sm90::rows_of_k(address(at.k(slot)));
    sm90::hold(scores());
    sm90::begin_products();
#pragma unroll
    for (int e = 0; e < S::d; e += 16) {
      const int bytes = e / 64 * S::QkTile::part_bytes + e % 64 * 2;
      sm90::multiply<T, 64, false>(scores(), sm90::advance(q, bytes), sm90::advance(k, bytes),
                                   e > 0);
    }
    sm90::end_products();
  }
  /// o = q' copy, and the weights of the same.
  TFCC_FN void begin_state(int slot, int copy_slot) {
    const u64 q = sm90::rows_of_k(address(at.q(slot))),
              copy = sm90::rows_of_n(address(at.copy(copy_slot)), S::Copy::part_bytes);
    const u64 z_copy = sm90::rows_of_k(address(at.z_copy(copy_slot)));
    sm90::hold(results());
    sm90::hold(weights);
    sm90::begin_products();
#pragma unroll
    for (int e = 0; e < S::d; e += 16) {
      const u64 a = sm90::advance(q, e / 64 * S::QkTile::part_bytes + e % 64 * 2);
      sm90::multiply<T, n, true>(results(), a, sm90::advance(copy, e * 128), e > 0);
      if constexpr (Spec::normalises)
        sm90::multiply<T, 8, false>(
            weights, a, sm90::advance(z_copy, e / 64 * S::ZCopy::part_bytes + e % 64 * 2), e > 0);
    }
    sm90::end_products();
  }
  TFCC_FN void finish_state(int slot, const f32* grown) {
    if constexpr (Spec::causal) sm90::hold(scores());
    sm90::hold(results());
    sm90::hold(weights);
    const f32 unscale = kSame<T, f16> ? at.unscale()[slot] : 1.0f;
    arrive_as_warp(&at.barriers->copy_empty[slot]);
    if constexpr (Spec::pairs) {
      if (lane == 0)
        sm90::arrive_at(&at.barriers->room, half<Spec>() ^ 1);  // this warp has done with q
    }
    if constexpr (!kSame<T, f16> && !Spec::decays) return;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const f32 f = unscale * (Spec::decays ? left<Spec>(grown[row(h)]) : 1.0f);
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        weights[2 * h + c] *= f;
#pragma unroll
        for (int t = 0; t < n / 8; ++t) o[t][2 * h + c] *= f;
      }
    }
  }
  /// p: the weights of keys up to the query, in 16 bits.
  TFCC_FN void weigh(const f32* grown) {
#pragma unroll
    for (int t = 0; t < 8; ++t) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int i = row(c / 2), j = t * 8 + lane % 4 * 2 + c % 2;
        s[t][c] = j > i ? 0.0f : Spec::decays ? s[t][c] * left<Spec>(grown[i] - grown[j]) : s[t][c];
      }
    }
#pragma unroll
    for (int t = 0; t < 4; ++t) {
#pragma unroll
      for (int c = 0; c < 4; ++c)
        p[t][c] = pack2<T>(s[2 * t + c / 2][c % 2 * 2], s[2 * t + c / 2][c % 2 * 2 + 1]);
    }
  }
  TFCC_FN void hold_products() {
    sm90::hold(results());
#pragma unroll
    for (int t = 0; t < 4; ++t) sm90::hold(p[t]);
  }
  /// o += p v.
  TFCC_FN void begin_values(int slot) {
    const u64 v = sm90::rows_of_n(address(at.v(slot)), S::VTile::part_bytes);
    hold_products();
    sm90::begin_products();
#pragma unroll
    for (int t = 0; t < 4; ++t)
      sm90::multiply<T, n, true>(results(), p[t], sm90::advance(v, t * 2048));
    sm90::end_products();
  }
  TFCC_FN void sum_weights() {
    const u32 one = lane / 4 == 0 ? pack2<T>(1.0f, 1.0f) : 0;
#pragma unroll
    for (int t = 0; t < 4; ++t) multiply_add<T>(weights, p[t], one, one);
  }

  TFCC_FN void answer_chunk(idx from) {
    const int slot = ring.slot;
    const f32* const grown = at.grown(slot);
    sm90::wait(&at.barriers->full[slot], ring.parity);
    if constexpr (Spec::causal) begin_scores(slot);
    sm90::wait(&at.barriers->copy_full[copies.slot], copies.parity);
    begin_state(slot, copies.slot);
    sm90::wait_for_products<0>();
    finish_state(copies.slot, grown);
    if constexpr (Spec::causal) {
      weigh(grown);
      begin_values(slot);
      if constexpr (Spec::normalises) sum_weights();
      sm90::wait_for_products<0>();
      hold_products();
    }
    if constexpr (Spec::pairs) add_halves(slot);
    constexpr bool rows = sizeof(Out) == 2 && Spec::out_aligned;
    if constexpr (rows) {
      if (group == 0) sm90::meet<2>(128);
      else sm90::meet<3>(128);  // all warps have done with q
      store_rows(from, at.q(slot));
    }
    if constexpr (rows || Spec::pairs) sm90::publish_writes();  // the next chunk comes there
    arrive_as_warp(&at.barriers->empty[slot]);
    if constexpr (!rows) store_elements(from);
  }
  /// Each half has weighed its keys in 16 bits, which in f16 have less range than the sum of both
  /// may need (docs/numerics.md).
  /// The results become those of all features: of the first 32 channels in the first block of the
  /// pair, of the others in the second. What one block gives the other lies where its queries were.
  TFCC_FN void add_halves(int slot) {
    constexpr int tiles = kept / 8;
    const int other = half<Spec>() ^ 1;
    f32* const here = (f32*)(at.q(slot) + S::QkTile::part_bytes / 2) +
                      threadIdx.x % 128;  // behind the place of store_rows()
    f32* const there = const_cast<f32*>(sm90::of_block(here, other));
    sm90::wait_for_cluster(&at.barriers->room, given);
#pragma unroll
    for (int t = 0; t < tiles; ++t) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        there[(t * 4 + c) * 128] = other ? o[tiles + t][c] : o[t][c];
        sums[t][c] = other ? o[t][c] : o[tiles + t][c];
      }
    }
    if constexpr (Spec::normalises) {
#pragma unroll
      for (int c = 0; c < 4; ++c) there[(tiles * 4 + c) * 128] = weights[c];
    }
    __syncwarp();
    if (lane == 0) sm90::arrive_at(&at.barriers->given, other);
    sm90::wait_for_cluster(&at.barriers->given, given);
#pragma unroll
    for (int t = 0; t < tiles; ++t) {
#pragma unroll
      for (int c = 0; c < 4; ++c) sums[t][c] += here[(t * 4 + c) * 128];
    }
    if constexpr (Spec::normalises) {
#pragma unroll
      for (int c = 0; c < 4; ++c) weights[c] += here[(tiles * 4 + c) * 128];
    }
    given ^= 1;
  }
  TFCC_FN f32 sum_of_weights(int h) const {
    return Spec::normalises ? __shfl_sync(kAllLanes, weights[2 * h] + weights[2 * h + 1], lane & ~3)
                            : 0.0f;
  }
  TFCC_FN f32 result(idx from, f32 z, int t, int h, int e) const {
    return head.result((Spec::pairs ? sums : o)[t][2 * h + e], z,
                       imin(from + row(h), head.queries - 1),
                       imin(first_kept() + t * 8 + lane % 4 * 2 + e, head.columns() - 1));
  }
  TFCC_FN int first_kept() const { return half<Spec>() * kept; }
  /// Whole rows: a warp's 16, 64 columns at a time, pass through its rows of q.
  TFCC_FN void store_rows(idx from, T* q) const {
    const f32 z[2] = {sum_of_weights(0), sum_of_weights(1)};
    Out* const rows = (Out*)q;
    constexpr int width = kept < 64 ? kept : 64, pieces = width / 8,
                  at_once = kWarp / pieces;  // of 16 bytes of a row; rows of a warp's access
#pragma unroll
    for (int part = 0; part < kept; part += 64) {
      if (part > 0) __syncwarp();
#pragma unroll
      for (int t = part / 8; t < part / 8 + pieces; t += 2) {
        const auto pair = [&](int x) {
          return pack2<Out>(result(from, z[x % 2], t + x / 2, x % 2, 0),
                            result(from, z[x % 2], t + x / 2, x % 2, 1));
        };
        const u32 tiles[4] = {pair(0), pair(1), pair(2), pair(3)};
        sm90::store_matrices(rows + S::QkTile::at(warp_row + lane % 16, t % 8 + lane / 16), tiles);
      }
      __syncwarp();
      const int m = first_kept() + part + lane % pieces * 8;
      uint4 v[16 / at_once];
#pragma unroll
      for (int x = 0; x < 16 / at_once; ++x)
        v[x] = sm90::load_16_bytes(
            rows + S::QkTile::at(warp_row + at_once * x + lane / pieces, lane % pieces));
#pragma unroll
      for (int x = 0; x < 16 / at_once; ++x) {
        const idx i = from + warp_row + at_once * x + lane / pieces;
        if (i < head.queries && m < head.columns())
          sm90::store_16_bytes(out + (i64)i * Spec::out_stride + m, v[x]);
      }
    }
  }
  TFCC_FN void store_elements(idx from) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const f32 z = sum_of_weights(h);
      const idx i = from + row(h);
#pragma unroll
      for (int t = 0; t < kept / 8; ++t) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int m = first_kept() + t * 8 + lane % 4 * 2 + e;
          if (i < head.queries && m < head.columns())
            ::store(out + (i64)i * Spec::out_stride, m, result(from, z, t, h, e));
        }
      }
    }
  }

  /// Calls work(from) for the chunks of this warpgroup, and next() behind every chunk.
  template <class Work, class Next>
  TFCC_FN void for_each_chunk(idx from, idx last, const Work& work, const Next& next) {
#pragma unroll 1
    for (int turn = 0; from < last;
         from += S::chunk, turn = turn + 1 < S::result_groups ? turn + 1 : 0) {
      if (S::result_groups == 1 || turn == group) work(from);
      next();
      ring.next();
    }
  }
  TFCC_FN void add(idx first, idx last) {
    for_each_chunk(
        first, last,
        [&](idx) {
          sm90::wait(&at.barriers->full[ring.slot], ring.parity);
          arrive_as_warp(&at.barriers->empty[ring.slot]);
        },
        [] {});
  }
  TFCC_FN void answer(idx first, idx last) {
    for_each_chunk(
        first, last, [&](idx from) { answer_chunk(from); },
        [&] {
          if (Spec::causal) copies.next();
        });
  }
  TFCC_FN void show(f32*) const {}
  TFCC_FN void take(const f32*) const {}
  TFCC_FN void end_span() const {}
};

}  // namespace linear_wgmma_detail

#endif
