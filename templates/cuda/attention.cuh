// SPDX-License-Identifier: Apache-2.0
// attention: out[b, i, h] = sum over visible j of w_j v[b, j, g], w = softmax over j of score(q[b,
// i, h] . k[b, j, g], b, h, i, j), with g = h / (heads / kv_heads). Online softmax in f32; a row
// without a visible key is 0.
//
// q [batch, queries, heads*head_dim], k [batch, keys, kv_heads*head_dim], v [batch, keys,
// kv_heads*v_dim], out like q with v_dim; tokens are q_stride, k_stride, v_stride, out_stride
// elements apart.
// With PackedRows the rows of a sequence are those that a pack left, sequences with most rows
// first; b, i and j are still those of the padded tensors. Their grid is that of the padded
// queries.
// With PagedRows keys and values are pages of a cache; the grid is that of all queries for each
// sequence, and 16-bit keys are summed in spans of Spec::span, so that attention_decode.cuh, which
// shares them out, has the same bits.
// A block owns block_m queries of one head of one sequence: grid {ceil(queries, block_m), heads,
// batch}. Key tiles without a live key, past the causal limit or outside of the window, are neither
// read nor computed; dead keys are read as zeros.
// Spec: T (f16, bf16, f32); heads, kv_heads, head_dim, v_dim, the four strides; block_m, block_n;
// early (batch and, of EarlyPackedRows, what says which rows a sequence has, were there before the
// launch before this one had ended: the template waits itself, behind them);
// aligned (the pointers are 16-byte aligned; rows that are not are copied by elements); causal;
// window_left, window_right (-1: none); scaled, score_scale.
// Threads and dynamic shared memory: AttentionShape<Spec>; formulas and recommended tiles in
// templates/README.md.
// Bound: 4 * queries * keys * head_dim FLOP a head, or the bytes of q, k, v and out where sequences
// are short.
#pragma once
#include "cuda/attention_fma.cuh"
#include "cuda/attention_mma.cuh"

template <class Spec, class Score, class Visible, class Live, class Sink, class Rows>
TFCC_FN void attention(typename Spec::T* out, const typename Spec::T* q, const typename Spec::T* k,
                       const typename Spec::T* v, idx batch, idx, idx, const Score& score,
                       const Visible& visible, const Live& live, const Sink& sink,
                       const Rows& rows) {
  if (!Spec::early && (idx)blockIdx.z >= batch) return;
  const AttentionBlock<Spec, Rows> block(rows, (idx)blockIdx.x, batch);
  if constexpr (Spec::early) wait_for_predecessor();
  if (block.first >= block.queries) return;
  if constexpr (AttentionShape<Spec>::tensor_cores) {
    attention_mma<Spec>(out, q, k, v, block, score, visible, live, sink);
  } else {
    attention_fma<Spec>(out, q, k, v, block, score, visible, live, sink);
  }
}

template <class Spec, class Score, class Visible, class Live, class Sink>
TFCC_FN void attention(typename Spec::T* out, const typename Spec::T* q, const typename Spec::T* k,
                       const typename Spec::T* v, idx batch, idx queries, idx keys,
                       const Score& score, const Visible& visible, const Live& live,
                       const Sink& sink) {
  attention<Spec>(out, q, k, v, batch, queries, keys, score, visible, live, sink,
                  PaddedRows{queries, keys});
}
