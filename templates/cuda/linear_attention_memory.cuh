// SPDX-License-Identifier: Apache-2.0
// linear_attention_wgmma: the sizes of a block, and its shared memory.
#pragma once
#include "cuda/linear_attention_tile.cuh"
#include "cuda/sm90.cuh"

/// Rows of 64 elements in the 128-byte swizzle; parts of 64 columns lie one behind the other.
template <int columns, int rows> struct SwizzledRows {
  static constexpr int chunk = 8, width = columns, elements = rows * columns,
                       part_bytes = rows * 128;
  static TFCC_FN int at(int row, int c) {
    return c / 8 * rows * 64 + row * 64 + (c % 8 ^ (row & 7)) * 8;
  }
};

template <class Spec> struct LinearWgmmaShape {
  using T = typename Spec::T;
  static constexpr int chunk = 64, threads = 512, copies = 2;
  /// Tokens of a sequence that is faster with one block.
  static constexpr int alone = 512;
  /// Of a sequence of so many tokens, those whose keys are summed by themselves: the fewest with
  /// which `spread` blocks have a span each. Bits depend on it, so it depends on no other sequence.
  static TFCC_FN idx span(idx tokens) {
    return tokens <= alone                ? Spec::span
           : tokens <= 128 * Spec::spread ? 128
           : tokens <= 256 * Spec::spread ? 256
                                          : Spec::span;
  }
  /// A block has all features of a head, or, with pairs, half of them: the two halves of a result
  /// are added.
  static constexpr int halves = Spec::pairs ? 2 : 1, d = Spec::head_dim / halves,
                       columns = Spec::columns, stages = Spec::stages;
  static constexpr int state_groups = d > 64 ? 2 : 1, result_groups = 3 - state_groups,
                       m_tiles = d / 64 / state_groups;
  /// Registers of a thread. Four threads, one of each warpgroup, have 512 together.
  static constexpr int loader_registers = state_groups == 1 ? 80
                                          : columns == 64   ? 40
                                                            : 64,
                       result_registers = state_groups == 1 || columns == 64 ? 136 : 128;
  static constexpr int state_registers =
      (512 - loader_registers - result_groups * result_registers) / state_groups;
  using QkTile = SwizzledRows<d, chunk>;
  using VTile = SwizzledRows<columns, chunk>;
  using Copy = SwizzledRows<columns, d>;
  using ZCopy = SwizzledRows<d, 8>;  // rows: z to 16 bits, what is left of it, zeros
  static constexpr int slot_bytes = 2 * (2 * QkTile::elements + VTile::elements),
                       copy_bytes = 2 * Copy::elements, z_bytes = 2 * ZCopy::elements;
  /// The numbers of a state: those of S as threads hold them, then those of z. Beside them is what
  /// the span leaves of those before it.
  static constexpr int numbers = d * columns + (Spec::normalises ? d : 0),
                       slot_numbers = numbers + 4;
  static constexpr int floats = stages * chunk + 4 * state_groups + copies + 2 * d;
  static constexpr int shared_bytes = 1024 + stages * slot_bytes + copies * (copy_bytes + z_bytes) +
                                      4 * floats;  // the tiles are aligned within it
  static_assert(kSame<T, f16> || kSame<T, bf16>, "T: f16 or bf16");
  static_assert(
      (d == 64 || d == 128 || d == 256) && Spec::v_dim % 64 == 0,
      "head_dim: 64, 128, 256 or, by pairs, 512, as boxes of 64 columns; v_dim: a multiple of 64");
  static_assert(d < 256 || !Spec::decays, "head_dim 256 leaves no registers for decays");
  static_assert(
      !Spec::pairs || (result_groups == 1 && columns == 64 && !Spec::sharing),
      "pairs: what they give each other has place beside 64 results of a token, one chunk at a time");
  static_assert((columns == 64 || columns == 128) && m_tiles * columns <= 128,
                "columns: 64 or 128; a thread has at most 64 numbers of the state");
  static_assert(stages >= 2, "stages: at least 2");
};

#if __CUDA_ARCH__ >= 900

namespace linear_wgmma_detail {

/// Shared memory of a block. A slot's barriers: TMA has brought a chunk, it is ready (warps), it
/// has been read (warps).
template <class Spec> struct Memory {
  using S = LinearWgmmaShape<Spec>;
  using T = typename Spec::T;
  struct Barriers {
    u64 landed[S::stages], full[S::stages], empty[S::stages], copy_full[S::copies],
        copy_empty[S::copies], room, given;
  };
  unsigned char* base;
  Barriers* barriers;

  TFCC_FN T* q(int slot) const { return (T*)(base + slot * S::slot_bytes); }
  TFCC_FN T* k(int slot) const { return q(slot) + S::QkTile::elements; }
  TFCC_FN T* v(int slot) const { return k(slot) + S::QkTile::elements; }
  TFCC_FN T* copy(int slot) const {
    return (T*)(base + S::stages * S::slot_bytes + slot * S::copy_bytes);
  }
  TFCC_FN T* z_copy(int slot) const {
    return (T*)(base + S::stages * S::slot_bytes + S::copies * S::copy_bytes + slot * S::z_bytes);
  }
  /// By slot: sums of the chunk's decays up to a token.
  TFCC_FN f32* grown(int slot) const { return (f32*)z_copy(S::copies) + slot * S::chunk; }
  /// By warp: the largest number of its part of the state.
  TFCC_FN f32* tops() const { return grown(S::stages); }
  /// By copy: what it is to be multiplied by.
  TFCC_FN f32* unscale() const { return tops() + 4 * S::state_groups; }
  /// By feature: the sum of the span's keys, and of those before it.
  TFCC_FN f32* z_now() const { return unscale() + S::copies; }
  TFCC_FN f32* z_before() const { return z_now() + S::d; }

  TFCC_FN void init() const {
    for (int s = 0; s < S::stages; ++s) {
      sm90::init_barrier(&barriers->landed[s], 1);
      sm90::init_barrier(&barriers->full[s], 4);
      sm90::init_barrier(&barriers->empty[s], 4 * (S::state_groups + 1));
    }
    for (int s = 0; s < S::copies; ++s) {
      sm90::init_barrier(&barriers->copy_full[s], 4 * S::state_groups);
      sm90::init_barrier(&barriers->copy_empty[s], 4);
    }
    sm90::init_barrier(&barriers->room, 4);
    sm90::init_barrier(&barriers->given, 4);
    sm90::publish_barriers();
  }
};

/// A warp has done with something, or has written it.
TFCC_FN void arrive_as_warp(u64* barrier) {
  __syncwarp();
  if (threadIdx.x % kWarp == 0) sm90::arrive(barrier);
}
/// Of the features of its head, and so of the results, those behind this: a block of a pair.
template <class Spec> TFCC_FN int half() { return Spec::pairs ? (int)(blockIdx.z % 2) : 0; }
template <class Spec> TFCC_FN int first_feature() {
  return half<Spec>() * LinearWgmmaShape<Spec>::d;
}
/// What a decay leaves.
template <class Spec> TFCC_FN f32 left(f32 decay) { return Spec::decays ? __expf(decay) : 1.0f; }
/// Which parts of a chunk a pass over tokens needs.
enum class Part { keys, queries, both };

}  // namespace linear_wgmma_detail

#endif
