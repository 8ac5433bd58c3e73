// SPDX-License-Identifier: Apache-2.0
// linear_attention: out[b,i,h*dv+m] = epilogue(s, z, ..) with s = sum_j w(i,j) v[b,j,g*dv+m], z = sum_j w(i,j) and
// w(i,j) = q'[b,i,h] . k'[b,j,g] exp(decay(j+1) + .. + decay(i)) over visible j, j <= i if causal (ir/ops.md); g = h / (heads / kv_heads).
//
// q [batch, queries, heads*head_dim], k [batch, keys, kv_heads*head_dim], v [batch, keys, kv_heads*v_dim], out like q with v_dim; rows are
// q_stride, k_stride, v_stride, out_stride elements apart. A block owns `columns` channels of v of one head of one sequence: grid
// {ceil(v_dim, columns), heads, batch}. With cluster > 1 a cluster of so many blocks shares a sequence where there are at most `shared` heads of
// sequences; grid {ceil(v_dim, columns), ceil(z, kClusteredRow), min(z, kClusteredRow)}, z the blocks of all heads of sequences in whole clusters. A block walks through the tokens in
// chunks and keeps the state, sum of k' v^T [head_dim, columns], in f32: a query sees earlier chunks by q' S, its own by a triangle of weights.
// Nothing of tokens x tokens or tokens x features is ever in memory. Tokens that are not visible are read as zeros.
// Spec: T (f16, bf16, f32), Out; heads, kv_heads, head_dim, v_dim, the four strides; columns; aligned, out_aligned (rows of q, k and v, of out begin at 16 bytes); causal;
// decays (there is a decay), normalises (the epilogue asks for z); warpgroups (16 bits, 9.0a, by RowMaps) with stages, cluster,
// shared, and q_offset, k_offset, v_offset, the columns where heads begin; or tensor_cores
// (16 bits) with stages, or chunk. Threads and dynamic shared memory: LinearShape<Spec>.
// Bound: the bytes of q, k, v and out; 4 head_dim v_dim + 2 chunk (head_dim + v_dim) FLOP a token and head.
#pragma once
#include "cuda/linear_attention_fma.cuh"
#include "cuda/linear_attention_mma.cuh"
#include "cuda/linear_attention_wgmma.cuh"

template <class Spec>
struct LinearShape : Conditional<Spec::warpgroups, LinearWgmmaShape<Spec>, typename Conditional<Spec::tensor_cores, LinearMmaShape<Spec>, LinearFmaShape<Spec>>::type>::type {};

/// Blocks along z of a grid of clusters, at most.
inline constexpr idx kClusteredRow = 65528;

template <class Spec, class Source, class QMap, class KMap, class Shown, class Decay, class Epilogue, class Rows>
TFCC_FN void linear_attention(typename Spec::Out* out, const Source& from, idx batch,
                              const QMap& q_map, const KMap& k_map, const Shown& shown, const Decay& decay, const Epilogue& epilogue, const Rows& rows) {
  using Head = LinearHead<Spec, Rows, QMap, KMap, Shown, Decay, Epilogue>;
  if constexpr (Spec::warpgroups) {
#if __CUDA_ARCH__ >= 900
    const int blocks = Spec::cluster > 1 && batch * Spec::heads <= Spec::shared ? Spec::cluster : 1;
    const idx block = Spec::cluster > 1 ? (idx)blockIdx.y * kClusteredRow + (idx)blockIdx.z : (idx)blockIdx.z;
    const idx place = blocks > 1 ? block / Spec::cluster : block, sequence = Spec::cluster > 1 ? place / Spec::heads : block;
    if (sequence >= batch) return;
    const Head head(sequence, Spec::cluster > 1 ? place % Spec::heads : (idx)blockIdx.y, rows, q_map, k_map, shown, decay, epilogue);
    linear_attention_wgmma<Spec>(out, from, head, blocks);
#endif
  } else {
    if ((idx)blockIdx.z >= batch) return;
    const Head head((idx)blockIdx.z, (idx)blockIdx.y, rows, q_map, k_map, shown, decay, epilogue);
    if constexpr (Spec::tensor_cores) linear_attention_mma<Spec>(out, from.q, from.k, from.v, head);
    else linear_attention_fma<Spec>(out, from.q, from.k, from.v, head);
  }
}
