// SPDX-License-Identifier: Apache-2.0
// linear_attention for f16 and bf16 by warpgroups, on capability 9.0a.
//
// Four warpgroups, which pass chunks of 64 tokens on through a ring of slots. One has TMA bring them, sets tokens that are no keys to zero, and
// applies the maps. One, or two where heads are wide, keep the state: its sum over the span in registers, where wgmma adds k'^T v to it, and
// beside it the state before the span. They write a 16-bit copy of the state to shared memory, before each chunk if it is causal, else once. The others answer the
// queries: o = q' copy, then o += (q' k'^T, where j <= i) v; two of them take turns.
//
// A span is 512 tokens: its sum starts from zero, for tensor cores cut off what they add to a large accumulator. With cluster > 1 the blocks
// of a cluster may take spans of one sequence at the same time. Each sums the keys of its own, all together turn the sums into the
// states before each span, a part of the numbers each, in the order of the spans; then each answers its queries. So the bits do not depend
// on how many blocks share a sequence.
// f16 has no range for sums over many tokens: copies are scaled by a power of two. The copy of the sum of keys, which gives z, is two
// numbers, high and low.
//
// Measured on an H200 (docs/performance.md), bf16: 8192 tokens of 132 heads of 64 141 us, 93% of the time that the bytes take; of 8 heads, by
// clusters, 29 us, 28%. A chunk of heads of 64 takes 1,340 cycles where memory does not bound it: all warps of a scheduler together.
#pragma once
#include "cuda/linear_attention_loader.cuh"
#include "cuda/linear_attention_results.cuh"
#include "cuda/linear_attention_state.cuh"

#if __CUDA_ARCH__ >= 900

namespace linear_wgmma_detail {

/// The way of the work of a block's sequence, which all its warpgroups go. Tokens [first, last) are those of a pass.
template <class Spec, class Head>
struct Block {
  using S = LinearWgmmaShape<Spec>;
  const Memory<Spec> at;
  const Head& head;
  int blocks, rank;  // that share the sequence: one, or the cluster

  TFCC_FN idx keys() const { return Spec::causal ? head.queries : head.keys; }

  template <class Role> TFCC_FN void run(Role& role) const {
    const idx all = keys();
    for (idx round = 0; round < all; round += blocks * S::span) {
      const idx first = imin(round + rank * S::span, all), last = imin(first + S::span, all);
      if (!Spec::causal || blocks > 1) role.add(first, last);
      if constexpr (Spec::cluster > 1) {
        if (blocks > 1) share(role, round);
      }
      if constexpr (Spec::causal) role.answer(first, last);
      role.end_span();
    }
    if constexpr (Spec::causal) return;
    if constexpr (Spec::cluster > 1) {
      if (blocks > 1) {
        role.gather();
        sm90::meet_cluster();
      }
    }
    const idx part = (head.queries + blocks * S::chunk - 1) / (blocks * S::chunk) * S::chunk, first = imin(rank * part, head.queries);
    role.answer(first, imin(first + part, head.queries));
  }

  /// The sums of the cluster's spans become the states before them.
  template <class Role> TFCC_FN void share(Role& role, idx round) const {
    __syncthreads();  // nobody reads chunks any more
    role.show();
    sm90::meet_cluster();
    int thread = threadIdx.x;
    asm volatile("" : "+r"(thread));  // worked out again, as in State::refresh()
    for (int e = (thread - 128) * 4; Role::adds && e < S::slice; e += (S::threads - 128) * 4) {  // the loader has few registers
      float4 state = round > 0 ? *(const float4*)(at.carry() + e) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
      for (int r0 = 0; r0 < Spec::cluster; r0 += 4) {
        float4 sum[4];
        f32 f[4];
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          sum[r] = *(const float4*)(sm90::of_block(at.sums(), r0 + r) + rank * S::slice + e);
          f[r] = Spec::decays ? *sm90::of_block(at.faded(), r0 + r) : 1.0f;
        }
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          *(float4*)const_cast<f32*>(sm90::of_block(at.sums(), r0 + r) + rank * S::slice + e) = state;
          state.x = state.x * f[r] + sum[r].x;
          state.y = state.y * f[r] + sum[r].y;
          state.z = state.z * f[r] + sum[r].z;
          state.w = state.w * f[r] + sum[r].w;
        }
      }
      *(float4*)(at.carry() + e) = state;
    }
    sm90::meet_cluster();
    role.take();
    sm90::publish_writes();  // chunks come where the sums were
    __syncthreads();
  }
};

}  // namespace linear_wgmma_detail

template <class Spec, class Head>
TFCC_FN void linear_attention_wgmma(typename Spec::Out* out, const RowMaps& source, const Head& head, int blocks) {
  using namespace linear_wgmma_detail;
  using S = LinearWgmmaShape<Spec>;
  if (blocks > 1 && (Spec::causal ? head.queries : head.keys) <= S::span) {  // one span has nothing to share
    if (blockIdx.z % Spec::cluster > 0) return;
    blocks = 1;
  }
  TFCC_DYNAMIC_SHARED(memory);
  __shared__ typename Memory<Spec>::Barriers barriers;
  const Memory<Spec> at = {memory + (1024 - sm90::shared_address(memory) % 1024) % 1024, &barriers};
  const Block<Spec, Head> block = {at, head, blocks, blocks > 1 ? (int)(blockIdx.z % Spec::cluster) : 0};
  if (threadIdx.x == 0) at.init();
  __syncthreads();
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
}

#endif
