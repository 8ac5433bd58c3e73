// SPDX-License-Identifier: Apache-2.0
// rope_append: rows of q [rows, heads*dim] are rotated as by rope into out; rows of k [rows,
// kv_heads*dim] are rotated too, and go with those of v [rows, kv_heads*dv] to slot slots[t] of a
// cache as by kv_append, in pages [pages, kv_heads, page, dim].
//
// Row t reads table t % tables. Rows are q_stride, k_stride, v_stride elements apart. A thread has
// one unit of a head of q or k (rope.cuh) or vec elements of v. No shared memory. Spec: T, Table;
// heads, kv_heads, page, dim, dv, rotary, the strides, vec (as for rope, and it divides dv and the
// strides); interleaved, wide. Grid: ceil(rows * kRopeAppendUnits, threads). Bound: the bytes of q,
// k and v, twice.
#pragma once
#include "cuda/rope.cuh"

template <class Spec>
inline constexpr u32 kRopeAppendUnits =
    (Spec::heads + Spec::kv_heads) * kRopeUnits<Spec> + Spec::kv_heads* Spec::dv / Spec::vec;

template <class Spec, class QGamma, class KGamma>
TFCC_FN void rope_append(typename Spec::T* keys, typename Spec::T* values, typename Spec::T* out,
                         const typename Spec::T* k, const typename Spec::T* v, const i32* slots,
                         const typename Spec::T* q, const typename Spec::Table* cos,
                         const typename Spec::Table* sin, const QGamma& q_gamma,
                         const KGamma& k_gamma, idx tables, idx pages, idx rows) {
  constexpr int vec = Spec::vec, dim = Spec::dim, dv = Spec::dv;
  static_assert(dv % vec == 0 && Spec::q_stride % vec == 0 && Spec::k_stride % vec == 0 &&
                    Spec::v_stride % vec == 0,
                "vec divides dv and the strides");
  constexpr u32 of_head = kRopeUnits<Spec>, of_row = kRopeAppendUnits<Spec>,
                of_heads = (Spec::heads + Spec::kv_heads) * of_head;
  const u32 at = blockIdx.x * blockDim.x + threadIdx.x;
  const u32 t = at / of_row, unit = at % of_row;
  if (t >= (u32)rows) return;
  const i64 table = (i64)(t % (u32)tables) * kTableWidth<Spec>;
  if (unit < Spec::heads * of_head) {
    const u32 head = unit / of_head;
    rotate_unit<Spec>(out + (i64)t * (Spec::heads * dim) + head * dim,
                      q + (i64)t * Spec::q_stride + head * dim, cos + table, sin + table, q_gamma,
                      unit % of_head);
    return;
  }
  const i64 slot = slots[t];
  if (slot < 0 || slot >= (i64)pages * Spec::page) return;
  const auto row = [&](u32 head) {
    return (slot / Spec::page * Spec::kv_heads + head) * Spec::page + slot % Spec::page;
  };
  if (unit < of_heads) {
    const u32 head = unit / of_head - Spec::heads;
    rotate_unit<Spec>(keys + row(head) * dim, k + (i64)t * Spec::k_stride + head * dim, cos + table,
                      sin + table, k_gamma, unit % of_head);
    return;
  }
  const u32 element = (unit - of_heads) * vec, head = element / dv;
  f32 x[vec];
  load_pack(v + (i64)t * Spec::v_stride + element, x);
  store_pack(values + row(head) * dv + element % dv, x);
}
