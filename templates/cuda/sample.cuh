// SPDX-License-Identifier: Apache-2.0
// sample: tokens[r] and logs[r] of row r of logits [rows, width]; the order of choice is in
// ir/ops.md, its steps in sampling.h.
//
// A block is the team of one row. It walks the row once where the likeliest token is taken. Else it
// writes a key for each element, and walks these up to a dozen times, from L2.
// Sums are of integers, so that their order does not matter. Shared memory: 8 KiB of bins.
// Spec: In (f32, f16, bf16, f64), Id (i64, i32); threads = 1024, a thread for each bin. Grid: rows.
// Bound: the bytes of logits; a row of 32,000 halves is 64 KB through one multiprocessor.
#pragma once
#include "cuda/prelude.cuh"
#include "sampling.h"

/// Floats as integers that rise with them; -0 and 0 are one.
TFCC_FN u32 rising_bits(f32 x) {
  const u32 bits = __float_as_uint(x + 0.0f);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}
TFCC_FN f32 of_rising_bits(u32 x) { return __uint_as_float(x >> 31 ? x & 0x7fffffffu : ~x); }

// A step runs this kernel once, so that its instructions are in no cache: loops are short and not
// unrolled further than loads in flight ask for.
template <int threads> struct BlockTeam {
  static_assert(threads == kBins && threads == kWarp * kWarp,
                "a thread for each bin, a lane for each warp");
  u32 *low, *high;  // shared, [kBins]: halves of sums
  u64* partial;     // shared, [kWarp + 1]
  idx* index;       // shared, one
  u32* scratch;     // a key for each element of the row

  // f(i, value(i)) for i = first, first + step, .. below end; `ways` are asked for before the first
  // is looked at.
  template <int ways = 4, class V, class F>
  static TFCC_FN void each(const V& value, idx first, idx step, idx end, const F& f) {
#pragma unroll 1
    for (idx i = first; i < end; i += ways * step) {
      decltype(value(i)) v[ways];
#pragma unroll
      for (int k = 0; k < ways; ++k) v[k] = value(min(i + k * step, end - 1));
#pragma unroll
      for (int k = 0; k < ways; ++k) {
        if (i + k * step < end) f(i + k * step, v[k]);
      }
    }
  }

  // Of each thread's largest and the first place that it has it: the largest of all and its first
  // place.
  TFCC_FN Best best_of_block(f32 most, idx at) {
    const auto of_lanes = [](u32 key, u32 place, u32& top) {
      top = __reduce_max_sync(kAllLanes, key);
      return __reduce_min_sync(kAllLanes, key == top ? place : ~0u);
    };
    u32 top, first = of_lanes(at < 0 ? 0 : rising_bits(most), (u32)at, top);
    __syncthreads();  // readers of the call before this one are done
    if (threadIdx.x % kWarp == 0) partial[threadIdx.x / kWarp] = (u64)top << 32 | first;
    __syncthreads();
    const u64 of_warp = partial[threadIdx.x % kWarp];
    first = of_lanes((u32)(of_warp >> 32), (u32)of_warp, top);
    return top == 0 ? Best{-kInf, -1} : Best{of_rising_bits(top), (idx)first};
  }
  template <class Row> TFCC_FN Best best(const Row& row) {
    f32 most = -kInf;
    idx at = -1;
    each(row.raw, threadIdx.x, threads, row.n, [&](idx i, f32 raw) {
      const f32 y = row.of(i, raw);
      if (y > most) most = y, at = i;
    });
    return best_of_block(most, at);
  }
  // The same without a penalty, by packs where they are aligned: a thread keeps the first pack with
  // its largest.
  template <class Raw> TFCC_FN Best best(const PlainRow<Raw>& row) {
    using In = typename Raw::In;
    constexpr int kPack = 16 / (int)sizeof(In);
    if (row.n % kPack != 0 || !pack_aligned<kPack>(row.raw.from)) return best<PlainRow<Raw>>(row);
    f32 most = -kInf;
    idx at = -1;
#pragma unroll 2
    for (idx i = threadIdx.x * kPack; i < row.n; i += threads * kPack) {
      const auto v = read_pack<kPack>(row.raw.from + i);
      f32 largest = (f32)v[0];
#pragma unroll
      for (int k = 1; k < kPack; ++k) largest = fmaxf(largest, (f32)v[k]);  // NaN is none
      if (largest > most) most = largest, at = i;
    }
    if (at >= 0) {
      while (!(row.raw(at) == most)) ++at;
    }
    return best_of_block(most, at);
  }
  TFCC_FN u64 sum_of_lanes(u64 v) {
#pragma unroll 1
    for (int step = kWarp / 2; step > 0; step /= 2) v += __shfl_xor_sync(kAllLanes, v, step);
    return v;
  }
  TFCC_FN u64 sum_of_block(u64 v) {
    v = sum_of_lanes(v);
    __syncthreads();
    if (threadIdx.x % kWarp == 0) partial[threadIdx.x / kWarp] = v;
    __syncthreads();
    return sum_of_lanes(partial[threadIdx.x % kWarp]);
  }
  struct Keys {
    idx n;
    const u32* all;
    TFCC_FN u32 operator()(idx i) const { return all[i]; }
  };
  template <class Row, class F> TFCC_FN Keys keys(const Row& row, const F& key) {
    each(row.raw, threadIdx.x, threads, row.n,
         [&](idx i, f32 raw) { scratch[i] = key(row.of(i, raw)); });
    __syncthreads();
    return {row.n, scratch};
  }
  template <class F> TFCC_FN u64 sum(const Keys& keys, const F& units) {
    u64 own = 0;
    each(keys, threadIdx.x, threads, keys.n, [&](idx i, u32 k) { own += units(i, k); });
    return sum_of_block(own);
  }
  // A warp has neighbouring elements; the one within which the sum is passed looks for the place.
  template <class F> TFCC_FN idx first_past(const Keys& keys, const F& units, u64 limit) {
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    const idx part = round_up(ceil_div(keys.n, kWarp), kWarp), first = warp * part,
              end = first + part < keys.n ? first + part : keys.n;
    u64 own = 0;
    each(keys, first + lane, kWarp, end, [&](idx i, u32 k) { own += units(i, k); });
    own = sum_of_lanes(own);
    __syncthreads();  // readers of the call before this one are done
    if (lane == 0) partial[warp] = own;
    if (threadIdx.x == 0) *index = -1;
    __syncthreads();
    u64 before = 0;
    int found = 0;
    while (found < kWarp && before + partial[found] <= limit) before += partial[found++];
    if (warp == found) look_past(keys, units, first, end, before, limit);
    __syncthreads();
    return *index;
  }
  template <class F>
  TFCC_FN void look_past(const Keys& keys, const F& units, idx first, idx end, u64 before,
                         u64 limit) {
    const int lane = threadIdx.x % kWarp;
    u32 ahead = first + lane < end ? keys(first + lane) : 0;
#pragma unroll 1
    for (idx at = first + lane; at - lane < end; at += kWarp) {
      const u32 key = ahead;
      ahead = at + kWarp < end ? keys(at + kWarp) : 0;
      u64 running = at < end ? units(at, key) : 0;
#pragma unroll 1
      for (int step = 1; step < kWarp; step *= 2) {
        const u64 other = __shfl_up_sync(kAllLanes, running, step);
        if (lane >= step) running += other;
      }
      const u32 past = __ballot_sync(kAllLanes, before + running > limit);
      if (past != 0) {
        if (lane == 0) *index = at + __ffs(past) - 1;
        return;
      }
      before += __shfl_sync(kAllLanes, running, kWarp - 1);
    }
  }
  TFCC_FN void clear() {
    __syncthreads();
    low[threadIdx.x] = high[threadIdx.x] = 0;
    __syncthreads();
  }
  TFCC_FN void add(int bin, u64 x) {
    const u32 before = atomicAdd(low + bin, (u32)x), carried = before + (u32)x < before;
    if (const u32 upper = (u32)(x >> 32) + carried) atomicAdd(high + bin, upper);
  }
  // A thread has the bin that many before the last; running sums tell which of them it is.
  TFCC_FN Bin find(u64 left) {
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp,
              bin = kBins - 1 - (int)threadIdx.x;
    __syncthreads();
    const u64 own = (u64)high[bin] << 32 | low[bin];
    u64 running = own;
#pragma unroll 1
    for (int step = 1; step < kWarp; step *= 2) {
      const u64 other = __shfl_up_sync(kAllLanes, running, step);
      if (lane >= step) running += other;
    }
    if (lane == kWarp - 1) partial[warp] = running;
    __syncthreads();
    for (int w = 0; w < warp; ++w) running += partial[w];
    if (running >= left && running - own < left) {
      *index = bin;
      partial[kWarp] = running - own;
    }
    __syncthreads();
    return {*index, partial[kWarp]};
  }
  template <class F> TFCC_FN void walk(const Keys& keys, const F& f) {
    each(keys, threadIdx.x, threads, keys.n, f);
  }
};

template <class T> struct RawLogits {
  using In = T;
  const T* from;
  TFCC_FN f32 operator()(idx i) const { return (f32)load(from, i); }
};

template <class Spec>
TFCC_FN void sample(typename Spec::Id* tokens, f32* logs, const typename Spec::In* logits,
                    const typename Spec::Id* ids, const i32* wanted, const i32* positions,
                    const f32* sampling, const i32* draw, const i32* seen, idx width, idx count,
                    idx words, u32* keys, idx rows) {
  __shared__ u32 low[kBins], high[kBins];
  __shared__ u64 partial[kWarp + 1];
  __shared__ idx index;
  const idx r = blockIdx.x;
  if (r >= rows) return;
  const idx at = wanted[r] < 0 ? 0 : wanted[r] < count ? wanted[r] : count - 1;  // -1: no token
  const RawLogits<typename Spec::In> raw{logits + (i64)r * width};
  const Sampling options =
      sampling_of(sampling + 4 * (i64)r, draw + 4 * (i64)r, at < 0 ? 0 : (u64)positions[at] + 1);
  const PenalisedRow<RawLogits<typename Spec::In>> row{width,
                                                       raw,
                                                       options.penalty,
                                                       1.0f / options.penalty,
                                                       seen + (i64)r * words,
                                                       words,
                                                       at < 0 ? -1 : (i64)ids[at]};
  BlockTeam<Spec::threads> team{low, high, partial, &index, keys + (i64)r * width};
  const idx token = choose_token(team, row, options);
  f32 share = 0.0f;
  if (draw[4 * r + 3] != 0) share = token < 0 ? kNan : log_share(team, plain(width, raw), token);
  if (threadIdx.x == 0) {
    tokens[r] = (typename Spec::Id)token;
    logs[r] = share;
  }
}
