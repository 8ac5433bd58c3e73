// SPDX-License-Identifier: Apache-2.0
// pack: numbers the rows (b, s) of a padded tensor that are left, sequence by sequence: those of which live(b, s) holds, in order, then
// those of which kept(b, s) alone holds (ir/ops.md). Their number goes to *rows, the size that later launches read.
//
// row [batch, length], cu [batch + 1], keys and order [batch]; seq and pos have room for batch * length and get *rows elements.
// One block; a warp counts the rows of a sequence by ballots, the first warp adds them up, and each warp numbers those of its sequences.
// Spec: keeps (there is a kept), threads. Grid: 1. No shared memory. Bound: latency of two passes over batch * length elements by one block.
#pragma once
#include "cuda/prelude.cuh"

struct NoneKept { TFCC_FN bool operator()(idx, idx) const { return false; } };

/// The live rows of 32 places of a sequence, and those that are kept though not live, as bits.
struct PackedBits { u32 live, kept; };

/// Chunks of 32 places whose elements are read at once: what follows needs all of them, and a read takes longer than all else.
constexpr int kAtOnce = 8;

/// Those of place s, s + 32, ... of a sequence, s being the lane's.
template <class Spec, class Live, class Kept>
TFCC_FN void packed_bits(PackedBits (&bits)[kAtOnce], idx b, idx s, idx length, const Live& live, const Kept& kept) {
  bool lives[kAtOnce];
#pragma unroll
  for (int k = 0; k < kAtOnce; ++k) lives[k] = s + k * kWarp < length && live(b, s + k * kWarp);
#pragma unroll
  for (int k = 0; k < kAtOnce; ++k) {
    const idx at = s + k * kWarp;
    bits[k] = {__ballot_sync(kAllLanes, lives[k]), 0};
    if constexpr (Spec::keeps) bits[k].kept = __ballot_sync(kAllLanes, at < length && !lives[k] && kept(b, at));
  }
}

template <class Spec, class Live, class Kept>
TFCC_FN void pack(i32* row, i32* cu, i32* keys, i32* order, i32* seq, i32* pos, i64* rows, idx batch, idx length,
                  const Live& live, const Kept& kept) {
  constexpr int warps = Spec::threads / kWarp;
  static_assert(Spec::threads % kWarp == 0, "threads: whole warps");
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const u32 before = (1u << lane) - 1;
  for (idx b = warp; b < batch; b += warps) {
    int lives = 0, stays = 0;
    for (idx first = 0; first < length; first += kAtOnce * kWarp) {
      PackedBits bits[kAtOnce];
      packed_bits<Spec>(bits, b, first + lane, length, live, kept);
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        lives += __popc(bits[k].live);
        stays += __popc(bits[k].kept);
      }
    }
    if (lane == 0) {
      keys[b] = lives;
      cu[b + 1] = lives + stays;
    }
  }
  __syncthreads();
  if (warp == 0) {  // running sums, 32 sequences at a time
    i32 sum = 0;
    for (idx b = lane; b - lane < batch; b += kWarp) {
      i32 own = b < batch ? cu[b + 1] : 0;
#pragma unroll
      for (int step = 1; step < kWarp; step *= 2) {
        const i32 other = __shfl_up_sync(kAllLanes, own, step);
        if (lane >= step) own += other;
      }
      if (b < batch) cu[b + 1] = sum + own;
      sum += __shfl_sync(kAllLanes, own, kWarp - 1);
    }
    if (lane == 0) {
      cu[0] = 0;
      *rows = sum;
    }
  }
  __syncthreads();
  for (idx b = warp; b < batch; b += warps) {
    i32 next_live = cu[b], next_kept = cu[b] + keys[b];
    for (idx first = 0; first < length; first += kAtOnce * kWarp) {
      PackedBits bits[kAtOnce];
      packed_bits<Spec>(bits, b, first + lane, length, live, kept);
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        const idx s = first + k * kWarp + lane;
        const bool lives = bits[k].live >> lane & 1, stays = bits[k].kept >> lane & 1;
        const i32 at = lives ? next_live + __popc(bits[k].live & before) : stays ? next_kept + __popc(bits[k].kept & before) : -1;
        if (s < length) row[b * length + s] = at;
        if (at >= 0) {
          seq[at] = b;
          pos[at] = s;
        }
        next_live += __popc(bits[k].live);
        next_kept += __popc(bits[k].kept);
      }
    }
  }
  for (idx b = threadIdx.x; b < batch; b += Spec::threads) {  // its place is the number of sequences before it
    const i32 own = cu[b + 1] - cu[b];
    idx place = 0;
    for (idx other = 0; other < batch; ++other) {
      const i32 count = cu[other + 1] - cu[other];
      place += count > own || (count == own && other < b);
    }
    order[place] = (i32)b;
  }
}
