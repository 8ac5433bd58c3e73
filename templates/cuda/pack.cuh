// SPDX-License-Identifier: Apache-2.0
// pack: numbers the rows (b, s) of a padded tensor that are left, sequence by sequence: those of
// which live(b, s) holds, in order, then those of which kept(b, s) alone holds (ir/ops.md). Their
// number goes to *rows, the size that later launches read.
//
// row [batch, length], cu [batch + 1], keys and order [batch]; seq and pos have room for batch *
// length and get *rows elements.
// One block. Warps count the rows of pieces of sequences by ballots, the first warp adds the counts
// up, and each warp numbers the rows of its pieces. Ballots and counts stay in shared memory where
// there is room for them: 4096 pieces of 32 places, 512 sequences. A larger batch asks live and
// kept again, a warp for each sequence.
// Spec: keeps (there is a kept), threads. Grid: 1. Shared memory: 20 KB, with kept 36 KB. Bound:
// latency of one pass over batch * length elements by one block.
#pragma once
#include "cuda/prelude.cuh"

struct NoneKept {
  TFCC_FN bool operator()(idx, idx) const { return false; }
};

/// The live rows of 32 places of a sequence, and those that are kept though not live, as bits.
struct PackedBits {
  u32 live, kept;
};

/// Pieces of 32 places whose elements are read at once: what follows needs all of them, and a read
/// takes longer than all else.
constexpr int kAtOnce = 8;
constexpr int kGroup = kAtOnce * kWarp;
/// Room in shared memory: ballots of so many pieces, counts of so many sequences.
constexpr int kHeldPieces = 4096, kHeldSequences = 512;

template <class Spec> struct PackRoom {
  u32 live[kHeldPieces], kept[Spec::keeps ? kHeldPieces : 1];
  i32 lives[kHeldSequences], ends[kHeldSequences];
};

/// Those of place s, s + 32, ... of a sequence, s being the lane's.
template <class Spec, class Live, class Kept>
TFCC_FN void packed_bits(PackedBits (&bits)[kAtOnce], idx b, idx s, idx length, const Live& live,
                         const Kept& kept) {
  bool lives[kAtOnce];
#pragma unroll
  for (int k = 0; k < kAtOnce; ++k) lives[k] = s + k * kWarp < length && live(b, s + k * kWarp);
#pragma unroll
  for (int k = 0; k < kAtOnce; ++k) {
    const idx at = s + k * kWarp;
    bits[k] = {__ballot_sync(kAllLanes, lives[k]), 0};
    if constexpr (Spec::keeps)
      bits[k].kept = __ballot_sync(kAllLanes, at < length && !lives[k] && kept(b, at));
  }
}

/// Keeps the ballots of a group for the second pass, and gives them back; `piece` is the first of
/// them, of `pieces` that there are.
template <class Spec>
TFCC_FN void hold(PackRoom<Spec>& room, const PackedBits (&bits)[kAtOnce], idx piece, idx pieces) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int k = 0; k < kAtOnce; ++k) {
    if (lane != k || k >= pieces) continue;
    room.live[piece + k] = bits[k].live;
    if constexpr (Spec::keeps) room.kept[piece + k] = bits[k].kept;
  }
}
template <class Spec>
TFCC_FN void held_bits(const PackRoom<Spec>& room, PackedBits (&bits)[kAtOnce], idx piece,
                       idx pieces) {
#pragma unroll
  for (int k = 0; k < kAtOnce; ++k) {
    bits[k] = {k < pieces ? room.live[piece + k] : 0, 0};
    if constexpr (Spec::keeps) bits[k].kept = k < pieces ? room.kept[piece + k] : 0;
  }
}

/// How many rows the pieces before `piece` have, of a sequence whose first is `from`; each lane
/// gets the sums.
template <class Spec>
TFCC_FN PackedBits rows_before(const PackRoom<Spec>& room, idx from, idx piece) {
  int live = 0, kept = 0;
  for (idx at = from + threadIdx.x % kWarp; at < piece; at += kWarp) {
    live += __popc(room.live[at]);
    if constexpr (Spec::keeps) kept += __popc(room.kept[at]);
  }
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    live += __shfl_xor_sync(kAllLanes, live, step);
    if constexpr (Spec::keeps) kept += __shfl_xor_sync(kAllLanes, kept, step);
  }
  return {(u32)live, (u32)kept};
}

/// Running sums of `ends`, 32 sequences at a time, by one warp; returns the last.
TFCC_FN i32 add_up(i32* ends, idx batch) {
  const int lane = threadIdx.x % kWarp;
  i32 sum = 0;
  for (idx b = lane; b - lane < batch; b += kWarp) {
    i32 own = b < batch ? ends[b] : 0;
#pragma unroll
    for (int step = 1; step < kWarp; step *= 2) {
      const i32 other = __shfl_up_sync(kAllLanes, own, step);
      if (lane >= step) own += other;
    }
    if (b < batch) ends[b] = sum + own;
    sum += __shfl_sync(kAllLanes, own, kWarp - 1);
  }
  return sum;
}

/// The passes of the block. A warp takes groups of a sequence in turn, or all groups of one where
/// nothing of them is held.
template <class Spec, class Live, class Kept> struct Packing {
  PackRoom<Spec>& room;
  i32 *lives, *ends;  // of each sequence: its live rows; all its rows, and when they are added up
                      // where they end
  idx batch, length, pieces;  // of a sequence
  bool held;
  const Live& live;
  const Kept& kept;

  /// body(sequence, first place, end) of what is this warp's.
  template <class Body> TFCC_FN void each_part(const Body& body) const {
    const idx parts = held ? (length + kGroup - 1) / kGroup : 1;
    for (idx unit = threadIdx.x / kWarp; unit < batch * parts; unit += Spec::threads / kWarp) {
      const idx b = unit / parts, from = (unit - b * parts) * kGroup;
      body(b, from, held && from + kGroup < length ? from + kGroup : length);
    }
  }
  TFCC_FN void count() const {
    const int lane = threadIdx.x % kWarp;
    for (idx b = threadIdx.x; b < batch; b += Spec::threads) lives[b] = ends[b] = 0;
    __syncthreads();
    each_part([&](idx b, idx from, idx to) {
      int alive = 0, stays = 0;
      for (idx first = from; first < to; first += kGroup) {
        PackedBits bits[kAtOnce];
        packed_bits<Spec>(bits, b, first + lane, length, live, kept);
        if (held) hold(room, bits, b * pieces + first / kWarp, pieces - first / kWarp);
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k) {
          alive += __popc(bits[k].live);
          stays += __popc(bits[k].kept);
        }
      }
      if (lane == 0) {
        atomicAdd(lives + b, alive);
        atomicAdd(ends + b, alive + stays);
      }
    });
  }
  TFCC_FN void number(i32* row, i32* seq, i32* pos) const {
    const int lane = threadIdx.x % kWarp;
    const u32 before = (1u << lane) - 1;
    each_part([&](idx b, idx from, idx to) {
      i32 next_live = b > 0 ? ends[b - 1] : 0, next_kept = next_live + lives[b];
      if (from > 0) {
        const PackedBits sum = rows_before(room, b * pieces, b * pieces + from / kWarp);
        next_live += (i32)sum.live;
        next_kept += (i32)sum.kept;
      }
      for (idx first = from; first < to; first += kGroup) {
        PackedBits bits[kAtOnce];
        if (held) held_bits(room, bits, b * pieces + first / kWarp, pieces - first / kWarp);
        else packed_bits<Spec>(bits, b, first + lane, length, live, kept);
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k) {
          const idx s = first + k * kWarp + lane;
          const bool is_live = bits[k].live >> lane & 1, is_kept = bits[k].kept >> lane & 1;
          const i32 at = is_live   ? next_live + __popc(bits[k].live & before)
                         : is_kept ? next_kept + __popc(bits[k].kept & before)
                                   : -1;
          if (s < length) row[b * length + s] = at;
          if (at >= 0) {
            seq[at] = b;
            pos[at] = s;
          }
          next_live += __popc(bits[k].live);
          next_kept += __popc(bits[k].kept);
        }
      }
    });
  }
  /// Sequences by their rows, most first; the place of one is the number of those before it.
  TFCC_FN void sort(i32* order) const {
    const auto rows_of = [&](idx b) { return ends[b] - (b > 0 ? ends[b - 1] : 0); };
    for (idx b = threadIdx.x; b < batch; b += Spec::threads) {
      const i32 own = rows_of(b);
      idx place = 0;
      for (idx other = 0; other < batch; ++other) {
        const i32 count = rows_of(other);
        place += count > own || (count == own && other < b);
      }
      order[place] = (i32)b;
    }
  }
};

template <class Spec, class Live, class Kept>
TFCC_FN void pack(i32* row, i32* cu, i32* keys, i32* order, i32* seq, i32* pos, i64* rows,
                  idx batch, idx length, const Live& live, const Kept& kept) {
  static_assert(Spec::threads % kWarp == 0, "threads: whole warps");
  __shared__ PackRoom<Spec> room;
  const idx pieces = (length + kWarp - 1) / kWarp;
  const bool held = batch <= kHeldSequences && batch * pieces <= kHeldPieces;
  const Packing<Spec, Live, Kept> all{
      room, held ? room.lives : keys, held ? room.ends : cu + 1, batch, length, pieces, held, live,
      kept};
  all.count();
  __syncthreads();
  if (threadIdx.x < kWarp) {
    const i32 sum = add_up(all.ends, batch);
    if (threadIdx.x == 0) {
      cu[0] = 0;
      *rows = sum;
    }
  }
  __syncthreads();
  all.number(row, seq, pos);
  all.sort(order);
  if (!held) return;
  for (idx b = threadIdx.x; b < batch; b += Spec::threads) {
    keys[b] = all.lives[b];
    cu[b + 1] = all.ends[b];
  }
}
