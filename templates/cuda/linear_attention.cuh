// SPDX-License-Identifier: Apache-2.0
// linear_attention: out[b,i,h*dv+m] = epilogue(s, z, ..) with s = sum_j w(i,j) v[b,j,g*dv+m], z =
// sum_j w(i,j) and w(i,j) = q'[b,i,h] . k'[b,j,g] exp(decay(j+1) + .. + decay(i)) over visible j, j
// <= i if causal (ir/ops.md); g = h / (heads / kv_heads).
//
// q [batch, queries, heads*head_dim], k [batch, keys, kv_heads*head_dim], v [batch, keys,
// kv_heads*v_dim], out like q with v_dim; rows are q_stride, k_stride, v_stride, out_stride
// elements apart. A block owns `columns` channels of v of one head of one sequence: grid
// {ceil(v_dim, columns), heads, batch}; by warpgroups all of these along x. With sharing > 0 at
// most so many blocks share sequences where these are few:
// grid {max(blocks, sharing)}. A block walks through the tokens in chunks and keeps the state, sum
// of k' v^T [head_dim, columns], in f32: a query sees earlier chunks by q' S, its own by a triangle
// of weights.
// Nothing of tokens x tokens or tokens x features is ever in memory. Tokens that are not visible
// are read as zeros.
// Spec: T (f16, bf16, f32), Out; heads, kv_heads, head_dim, v_dim, the four strides; columns;
// aligned, out_aligned (rows of q, k and v, of out begin at 16 bytes); causal;
// decays (there is a decay), normalises (the epilogue asks for z), q_softmax and k_softmax (maps are
// given elements of the softmax over a head); warpgroups (16 bits, 9.0a, by
// RowMaps) with stages, span (tokens whose keys are summed by themselves), spread (blocks for which
// spans of sequences that are not long become shorter; 0: none do), sharing, and q_offset,
// k_offset, v_offset, the columns where heads begin;
// or tensor_cores (16 bits) with stages, or chunk. Threads and dynamic shared memory:
// LinearShape<Spec>.
// Bound: the bytes of q, k, v and out; 4 head_dim v_dim + 2 chunk (head_dim + v_dim) FLOP a token
// and head.
#pragma once
#include "cuda/linear_attention_fma.cuh"
#include "cuda/linear_attention_mma.cuh"
#include "cuda/linear_attention_wgmma.cuh"

template <class Spec>
struct LinearShape : Conditional<Spec::warpgroups, LinearWgmmaShape<Spec>,
                                 typename Conditional<Spec::tensor_cores, LinearMmaShape<Spec>,
                                                      LinearFmaShape<Spec>>::type>::type {};

template <class Spec, class Source, class QMap, class KMap, class Shown, class Decay,
          class Epilogue, class Rows>
TFCC_FN void linear_attention(typename Spec::Out* out, const Source& from, idx batch,
                              const QMap& q_map, const KMap& k_map, const Shown& shown,
                              const Decay& decay, const Epilogue& epilogue, const Rows& rows) {
  using Head = LinearHead<Spec, Rows, QMap, KMap, Shown, Decay, Epilogue>;
  if constexpr (Spec::warpgroups) {
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x < 3)
      sm90::prefetch_map(threadIdx.x == 0 ? from.k : threadIdx.x == 1 ? from.v : from.q);
    constexpr int parts = ceil_div(Spec::v_dim, Spec::columns);
    const idx all = batch * Spec::heads * parts;
    idx block = (idx)blockIdx.x;
    int most = 1, rank = 0;
    if constexpr (Spec::sharing > 0) {
      const int processors = (int)imin(Spec::sharing, (idx)*from.counters);
      most = (int)imax(
          1, imin(processors / imax(1, all), processors / 8));  // as meet_blocks() asks for
      rank = (int)(block % most);
      block /= most;
    }
    if (block >= all) return;
    const Head head(block / (Spec::heads * parts), block / parts % Spec::heads, block % parts, rows,
                    q_map, k_map, shown, decay, epilogue);
    linear_attention_wgmma<Spec>(out, from, head, block, most, rank);
#endif
  } else {
    if ((idx)blockIdx.z >= batch) return;
    const Head head((idx)blockIdx.z, (idx)blockIdx.y, (idx)blockIdx.x, rows, q_map, k_map, shown,
                    decay, epilogue);
    if constexpr (Spec::tensor_cores) linear_attention_mma<Spec>(out, from.q, from.k, from.v, head);
    else linear_attention_fma<Spec>(out, from.q, from.k, from.v, head);
  }
}
