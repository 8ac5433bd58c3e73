// SPDX-License-Identifier: Apache-2.0
// linear_attention: out[b,i,h*dv+m] = epilogue(s, z, ..) with s = sum_j w(i,j) v[b,j,g*dv+m], z = sum_j w(i,j) and
// w(i,j) = q'[b,i,h] . k'[b,j,g] exp(decay(j+1) + .. + decay(i)) over visible j, j <= i if causal (ir/ops.md); g = h / (heads / kv_heads).
//
// q [batch, queries, heads*head_dim], k [batch, keys, kv_heads*head_dim], v [batch, keys, kv_heads*v_dim], out like q with v_dim; rows are
// q_stride, k_stride, v_stride, out_stride elements apart. A block owns `columns` channels of v of one head of one sequence: grid
// {ceil(v_dim, columns), heads, batch}. It walks through the tokens in chunks and keeps the state, sum of k' v^T [head_dim, columns], in f32:
// a query sees earlier chunks by q' S, its own by a triangle of weights. Nothing of tokens x tokens or tokens x features is ever in memory.
// Tokens that are not visible are read as zeros.
// Spec: T (f16, bf16, f32), Out; heads, kv_heads, head_dim, v_dim, the four strides; columns; aligned (rows begin at 16 bytes); causal;
// decays (there is a decay), normalises (the epilogue asks for z); tensor_cores (16 bits alone), with them stages, without them chunk. Threads and dynamic shared memory: LinearShape<Spec>.
// Bound: the bytes of q, k, v and out; 4 head_dim v_dim + 2 chunk (head_dim + v_dim) FLOP a token and head.
#pragma once
#include "cuda/linear_attention_fma.cuh"
#include "cuda/linear_attention_mma.cuh"

template <class Spec> struct LinearShape : Conditional<Spec::tensor_cores, LinearMmaShape<Spec>, LinearFmaShape<Spec>>::type {};

template <class Spec, class QMap, class KMap, class Shown, class Decay, class Epilogue, class Rows>
TFCC_FN void linear_attention(typename Spec::Out* out, const typename Spec::T* q, const typename Spec::T* k, const typename Spec::T* v, idx batch,
                              const QMap& q_map, const KMap& k_map, const Shown& shown, const Decay& decay, const Epilogue& epilogue, const Rows& rows) {
  if ((idx)blockIdx.z >= batch) return;
  const LinearHead<Spec, Rows, QMap, KMap, Shown, Decay, Epilogue> head(rows, q_map, k_map, shown, decay, epilogue);
  if constexpr (Spec::tensor_cores) linear_attention_mma<Spec>(out, q, k, v, head);
  else linear_attention_fma<Spec>(out, q, k, v, head);
}
