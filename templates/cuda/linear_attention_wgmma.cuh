// SPDX-License-Identifier: Apache-2.0
// linear_attention for f16 and bf16 by warpgroups, on capability 9.0a.
//
// Four warpgroups, which pass chunks of 64 tokens on through a ring of slots. One has TMA bring
// them, sets tokens that are no keys to zero, and applies the maps. One, or two where heads are
// wide, keep the state: its sum over the span in registers, where wgmma adds k'^T v to it, and
// beside it the state before the span. They write a 16-bit copy of the state to shared memory,
// before each chunk if it is causal, else once. The others answer the queries: o = q' copy, then o
// += (q' k'^T, where j <= i) v; two of them take turns.
//
// The sum of a span starts from zero, for tensor cores cut off what they add to a large
// accumulator. Where heads do not fill the GPU, blocks of a team take spans of one sequence at the
// same time. Each sums the keys of its own, all together turn the sums into the states before each
// span, a part of the numbers each, in the order of the spans; then each answers its queries. So
// the bits do not depend on how many blocks share a sequence. They meet by a counter.
// f16 has no range for sums over many tokens: copies are scaled by a power of two. The copy of the
// sum of keys, which gives z, is two numbers, high and low.
//
// Measured on an H200 (docs/performance.md), bf16: 8192 tokens of 132 heads of 64 140 us, 93% of
// the time that the bytes take; of 8 heads, by teams, 20 us, 39%. A chunk of heads of 64 takes
// 1,340 cycles where memory does not bound it: all warps of a scheduler together.
#pragma once
#include "cuda/linear_attention_loader.cuh"
#include "cuda/linear_attention_results.cuh"
#include "cuda/linear_attention_state.cuh"

#if __CUDA_ARCH__ >= 900

namespace linear_wgmma_detail {

/// The way of the work of a block's sequence, which all its warpgroups go. Tokens [first, last) are
/// those of a pass.
template <class Spec, class Head> struct Block {
  using S = LinearWgmmaShape<Spec>;
  static constexpr int sharers = S::threads - 128;  // threads: all but the loader's
  const Head& head;
  const RowMaps& source;
  idx team;          // number of the team
  int most;          // blocks of a team
  int blocks, rank;  // that share the sequence

  TFCC_FN idx keys() const { return Spec::causal ? head.queries : head.keys; }
  /// Worked out again, for registers are few.
  TFCC_FN idx span() const {
    idx tokens = keys();
    if constexpr (Spec::spread > 0) asm volatile("" : "+r"(tokens));
    return S::span(tokens);
  }
  /// By rank: the sum of its span, which becomes the state before it; then the state behind the
  /// round.
  TFCC_FN f32* slot(int r) const {
    return source.states + ((i64)team * (most + 1) + r) * S::slot_numbers;
  }
  TFCC_FN u32* counter() const { return source.counters + 1 + team; }

  template <class Role> TFCC_FN void run(Role& role) {
    const idx all = keys();
    // Who meets goes all rounds, also those in which the block has no tokens.
    for (idx from = rank * span(); from < (Role::adds ? all + rank * span() : all);
         from += blocks * span()) {
      const idx first = imin(from, all), last = imin(first + span(), all);
      if (!Spec::causal || blocks > 1)
        role.add(first,
                 Spec::causal && last == all ? first : last);  // nothing comes after the last span
      if constexpr (Spec::sharing > 0 && Role::adds) {
        if (blocks > 1) share(role, from / (blocks * span()));
      }
      if constexpr (Spec::causal) role.answer(first, last);
      role.end_span();
    }
    if constexpr (Spec::sharing > 0 && Role::adds) {
      if (blocks > 1 && threadIdx.x == 128)
        sm90::leave_blocks(counter(), blocks, 2 * ceil_div(all, blocks * span()));
      if (blocks > 1 && !Spec::causal) role.take(slot(blocks));
    }
    if constexpr (Spec::causal) return;
    const idx part = (head.queries + blocks * S::chunk - 1) / (blocks * S::chunk) * S::chunk,
              first = imin(rank * part, head.queries);
    role.answer(first, imin(first + part, head.queries));
  }

  TFCC_FN void meet(int times) const {
    __syncwarp();
    sm90::meet<4>(sharers);
    if (threadIdx.x == 128) sm90::meet_blocks(counter(), blocks, times);
    __syncwarp();  // the warp of that thread comes whole
    sm90::meet<4>(sharers);
  }
  /// The sums of the team's spans become the states before them.
  template <class Role> TFCC_FN void share(Role& role, int round) const {
    role.show(slot(rank));
    meet(2 * round + 1);
    sum_slices(round > 0);
    meet(2 * round + 2);
    role.take(slot(rank));
  }
  /// This block's part of the numbers, of all spans. A team of sixteen has pieces for two thirds of
  /// its threads.
  TFCC_FN void sum_slices(bool goes_on) const {
    constexpr int width = S::numbers < 8192    ? 1
                          : S::numbers < 16384 ? 2
                                               : 4,
                  at_once = Spec::decays ? 8 : 16;  // as registers allow
    using Piece =
        typename Conditional<width == 1, float,
                             typename Conditional<width == 2, float2, float4>::type>::type;
    int thread = threadIdx.x;
    asm volatile("" : "+r"(thread));  // worked out again, as in State::refresh()
    const int part = (S::numbers / width + blocks - 1) / blocks,
              last = (int)imin((rank + 1) * part, S::numbers / width);
    for (int e = rank * part + thread - 128; e < last; e += sharers) {
      const auto piece = [&](int r) { return (Piece*)slot(r) + e; };
      alignas(Piece) f32 state[width] = {};
      if (goes_on) *(Piece*)state = __ldcg(piece(blocks));
#pragma unroll 1
      for (int r0 = 0; r0 < blocks; r0 += at_once) {
        alignas(Piece) f32 sum[at_once][width];
#pragma unroll
        for (int r = 0; r < at_once; ++r)
          *(Piece*)sum[r] = __ldcg(piece((int)imin(r0 + r, blocks - 1)));
#pragma unroll
        for (int r = 0; r < at_once; ++r) {
          if (r0 + r >= blocks) break;
          const f32 f = Spec::decays ? __ldcg(slot(r0 + r) + S::numbers) : 1.0f;
          *piece(r0 + r) = *(Piece*)state;
#pragma unroll
          for (int x = 0; x < width; ++x) state[x] = state[x] * f + sum[r][x];
        }
      }
      *piece(blocks) = *(Piece*)state;
    }
  }
};

}  // namespace linear_wgmma_detail

/// By block `rank` of team number `team`, which are `most` blocks: those that the sequence has no
/// span for end at once.
template <class Spec, class Head>
TFCC_FN void linear_attention_wgmma(typename Spec::Out* out, const RowMaps& source,
                                    const Head& head, idx team, int most, int rank) {
  using namespace linear_wgmma_detail;
  using S = LinearWgmmaShape<Spec>;
  int blocks = 1;
  const idx tokens = Spec::causal ? head.queries : head.keys, span = S::span(tokens);
  if (Spec::sharing > 0 && most > 1) {
    const idx spans = (tokens + span - 1) / span, rounds = (spans + most - 1) / most;
    if (tokens > S::alone) blocks = (int)((spans + rounds - 1) / rounds);
    if (rank >= blocks) return;
  }
  TFCC_DYNAMIC_SHARED(memory);
  __shared__ typename Memory<Spec>::Barriers barriers;
  const Memory<Spec> at = {memory + (1024 - sm90::shared_address(memory) % 1024) % 1024, &barriers};
  Block<Spec, Head> block = {head, source, team, most, blocks, rank};
  if (threadIdx.x == 0) at.init();
  if constexpr (Spec::pairs) sm90::meet_cluster();
  else __syncthreads();
  const int group = (int)sm90::uniform(threadIdx.x / 128);
  if (group == 0) {
    sm90::give_registers<S::loader_registers>();
    Loader<Spec, Head> loader{at, head, source};
    block.run(loader);
  } else if (group <= S::result_groups) {
    if constexpr (S::result_registers > 128) sm90::take_registers<S::result_registers>();
    if constexpr (S::result_registers < 128) sm90::give_registers<S::result_registers>();
    Results<Spec, Head> results(at, head, group - 1, out);
    block.run(results);
  } else {
    sm90::take_registers<S::state_registers>();
    State<Spec> state(at, group - 1 - S::result_groups);
    block.run(state);
  }
  if constexpr (Spec::pairs) sm90::meet_cluster();  // the other block may still write to this one
}

#endif
