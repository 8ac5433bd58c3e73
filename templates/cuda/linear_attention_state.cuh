// SPDX-License-Identifier: Apache-2.0
// linear_attention_wgmma: the warpgroups that keep the state.
#pragma once
#include "cuda/attention_mma.cuh"
#include "cuda/linear_attention_memory.cuh"

#if __CUDA_ARCH__ >= 900

namespace linear_wgmma_detail {

/// A warpgroup that keeps a part of the features of the state.
template <class Spec> struct State {
  using S = LinearWgmmaShape<Spec>;
  using T = typename Spec::T;
  static constexpr int m_tiles = S::m_tiles, n = S::columns, steps = S::chunk / 16;
  static constexpr bool adds = true, scaled = kSame<T, f16>;
  const Memory<Spec>& at;
  int lane, first;  // first feature of the warp; those of tile m are 64 m behind
  f32 now[m_tiles][n / 2], before[m_tiles][n / 2];
  f32 decays = 0.0f;  // of the span up to now
  sm90::RingPlace<S::stages> ring;
  sm90::RingPlace<S::copies> copies;

  TFCC_FN State(const Memory<Spec>& at_, int group) : at(at_) {
    lane = threadIdx.x % kWarp;
    first = group * m_tiles * 64 + threadIdx.x / kWarp % 4 * 16;
    for_each([](f32& b, f32& now, int) { b = now = 0.0f; });
    if constexpr (Spec::normalises) {
      for (int c = 0; c < S::copies; ++c) {
        for (int x = lane % 4; x < 6 * 2; x += 4) {  // rows 2 .. 7 of this warp's features
#pragma unroll
          for (int m = 0; m < m_tiles; ++m)
            *(uint4*)(at.z_copy(c) + S::ZCopy::at(2 + x / 2, (first + m * 64) / 8 + x % 2)) =
                make_uint4(0, 0, 0, 0);
        }
      }
    }
  }
  /// Of this thread: before, now, and its place among those of the block.
  template <class F> TFCC_FN void for_each(const F& f) {
#pragma unroll
    for (int m = 0; m < m_tiles; ++m) {
#pragma unroll
      for (int x = 0; x < n / 2; ++x) f(before[m][x], now[m][x], place(m * n / 2 + x));
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        if (!Spec::normalises || lane % 4 > 0) continue;
        const int feature = first + m * 64 + lane / 4 + 8 * h;
        f(at.z_before()[feature], at.z_now()[feature], S::d * n + feature);
      }
    }
  }
  TFCC_FN int place(int x) const {
    return (x * S::state_groups + first / (m_tiles * 64)) * 128 + first % 64 * 2 + lane;
  }

  /// Addresses made of the lane are worked out again: held from chunk to chunk they would take more
  /// registers than there are.
  TFCC_FN void refresh() { asm volatile("" : "+r"(lane), "+r"(first)); }

  /// 16 features of tile m and 16 tokens, faded.
  template <class Fade>
  TFCC_FN void load_keys(u32 (&a)[4], const T* k, int m, int step, const Fade& fade) const {
    load_matrices_transposed(a, k + S::QkTile::at(step * 16 + lane % 8 + lane / 16 * 8,
                                                  (first + m * 64) / 8 + lane / 8 % 2));
    if constexpr (Spec::decays) fade_keys<T>(a, step * 16 + lane % 4 * 2, fade);
  }
  /// The chunk at the ring's place becomes part of the sum.
  TFCC_FN void add_chunk() {
    const int slot = ring.slot;
    sm90::wait(&at.barriers->full[slot], ring.parity);
    refresh();
    const f32* const grown = at.grown(slot);
    const f32 end = Spec::decays ? grown[S::chunk - 1] : 0.0f;
    if constexpr (Spec::decays) {
      const f32 keep = left<Spec>(end);
      for_each([&](f32&, f32& now, int) { now *= keep; });
      decays += end;
    }
    const u64 v =
        sm90::rows_of_n(sm90::uniform(sm90::shared_address(at.v(slot))), S::VTile::part_bytes);
    const u32 one = lane / 4 == 0 ? pack2<T>(1.0f, 1.0f) : 0;
#pragma unroll
    for (int m = 0; m < m_tiles; ++m) {
      u32 a[steps][4];
#pragma unroll
      for (int step = 0; step < steps; ++step)
        load_keys(a[step], at.k(slot), m, step, [&](int j) { return left<Spec>(end - grown[j]); });
      sm90::hold(now[m]);
#pragma unroll
      for (int step = 0; step < steps; ++step) sm90::hold(a[step]);
      sm90::begin_products();
#pragma unroll
      for (int step = 0; step < steps; ++step)
        sm90::multiply<T, n, true>(now[m], a[step], sm90::advance(v, step * 2048));
      sm90::end_products();
      if constexpr (Spec::normalises) {
        f32 keys[4] = {};  // sums, in column 0
#pragma unroll
        for (int step = 0; step < steps; ++step) multiply_add<T>(keys, a[step], one, one);
        if (lane % 4 == 0) {
          at.z_now()[first + m * 64 + lane / 4] += keys[0];
          at.z_now()[first + m * 64 + lane / 4 + 8] += keys[2];
        }
      }
      sm90::wait_for_products<0>();
      sm90::hold(now[m]);
#pragma unroll
      for (int step = 0; step < steps; ++step) sm90::hold(a[step]);
    }
    arrive_as_warp(&at.barriers->empty[slot]);
    ring.next();
  }
  TFCC_FN void skip_chunk() {
    sm90::wait(&at.barriers->full[ring.slot], ring.parity);
    arrive_as_warp(&at.barriers->empty[ring.slot]);
    ring.next();
  }

  /// The copy's factor: a power of two that brings what no number of the state is larger than to
  /// about 2^13.
  TFCC_FN f32 scale(f32 faded) {
    if constexpr (!scaled) return 1.0f;
    f32 most_before = 0.0f, most_now = 0.0f;
    for_each([&](f32 b, f32 now, int) {
      most_before = fmaxf(most_before, fabsf(b)), most_now = fmaxf(most_now, fabsf(now));
    });
    f32 top = most_before * faded + most_now;
    top = __uint_as_float(__reduce_max_sync(
        kAllLanes, __float_as_uint(top)));  // in the order of numbers that are not negative
    constexpr int warps = 4 * S::state_groups;
    sm90::meet<1>(warps * kWarp);
    if (lane == 0) at.tops()[threadIdx.x / kWarp % warps] = top;
    sm90::meet<1>(warps * kWarp);
#pragma unroll
    for (int w = 0; w < warps; ++w) top = fmaxf(top, at.tops()[w]);
    const int exponent = (int)(__float_as_uint(top) >> 23);  // 127 for 1
    const int shift = min(max(127 + 13 - exponent, -100), 100);
    if (threadIdx.x / kWarp % warps == 0 && lane == 0)
      at.unscale()[copies.slot] = __uint_as_float((u32)(127 - shift) << 23);
    return __uint_as_float((u32)(127 + shift) << 23);
  }
  /// A copy of the state up to now.
  TFCC_FN void publish() {
    const f32 faded = left<Spec>(decays);
    sm90::wait(&at.barriers->copy_empty[copies.slot], copies.parity ^ 1);
    refresh();
    const f32 by = scale(faded);
    T *const copy = at.copy(copies.slot), *const z_copy = at.z_copy(copies.slot);
#pragma unroll
    for (int m = 0; m < m_tiles; ++m) {
      const auto pair = [&](int x) {
        return pack2<T>((before[m][x] * faded + now[m][x]) * by,
                        (before[m][x + 1] * faded + now[m][x + 1]) * by);
      };
      const int row = first + m * 64 + lane % 16;
#pragma unroll
      for (int t = 0; t < n / 8; t += 2) {
        const u32 tiles[4] = {pair(4 * t), pair(4 * t + 2), pair(4 * t + 4), pair(4 * t + 6)};
        sm90::store_matrices(copy + S::Copy::at(row, t + lane / 16), tiles);
      }
      if constexpr (Spec::normalises) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int feature = first + m * 64 + lane / 4 + 8 * h;
          // Lanes with column 0 alone have written these.
          const f32 z =
              lane % 4 > 0 ? 0.0f : (at.z_before()[feature] * faded + at.z_now()[feature]) * by;
          f32 high, none;
          unpack2<T>(pack2<T>(z, 0.0f), high, none);
          if (lane % 4 > 0) continue;
#pragma unroll
          for (int part = 0; part < 2; ++part)
            ::store(z_copy, S::ZCopy::at(part, feature / 8) + feature % 8,
                    part == 0 ? high : z - high);
        }
      }
    }
    sm90::publish_writes();
    arrive_as_warp(&at.barriers->copy_full[copies.slot]);
    copies.next();
  }

  TFCC_FN void add(idx from, idx last) {
#pragma unroll 1
    for (; from < last; from += S::chunk) add_chunk();
  }
  TFCC_FN void answer(idx from, idx last) {
    if (!Spec::causal && from < last) publish();
#pragma unroll 1
    for (; from < last; from += S::chunk) {
      if constexpr (Spec::causal) {
        publish();
        add_chunk();
      } else {
        skip_chunk();
      }
    }
  }
  TFCC_FN void end_span() {
    refresh();
    const f32 faded = left<Spec>(decays);
    for_each([&](f32& b, f32& now, int) {
      b = b * faded + now;
      now = 0.0f;
    });
    decays = 0.0f;
  }
  /// The sum of the span, to memory of the GPU, and what the span leaves of the state before it.
  TFCC_FN void show(f32* slot) {
    refresh();
    for_each([&](f32, f32 now, int e) { slot[e] = now; });
    if (Spec::decays && threadIdx.x % 128 == 0) slot[S::numbers] = left<Spec>(decays);
  }
  /// A state, as other blocks wrote it.
  TFCC_FN void take(const f32* slot) {
    refresh();
    for_each([&](f32& b, f32& now, int e) {
      b = __ldcg(slot + e);
      now = 0.0f;
    });
    decays = 0.0f;
  }
};

}  // namespace linear_wgmma_detail

#endif
