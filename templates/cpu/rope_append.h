// SPDX-License-Identifier: Apache-2.0
// rope_append: rows of q are rotated as by rope; those of k are, and go with v to a cache as by
// kv_append. A work item is a row.
#pragma once

#include "cpu/rope.h"

/// Spec: T, Table, heads (of q), kv_heads, page, dim, dv, rotary, q_stride, k_stride, v_stride,
/// interleaved, wide, normalises, and then eps.
template <class Spec, class QGamma, class KGamma>
TFCC_FN void rope_append(typename Spec::T* keys, typename Spec::T* values,
                         typename Spec::T* __restrict out, const typename Spec::T* k,
                         const typename Spec::T* v, const i32* slots, const typename Spec::T* q,
                         const typename Spec::Table* cos, const typename Spec::Table* sin,
                         const QGamma& q_gamma, const KGamma& k_gamma, idx tables, idx pages,
                         i64 begin, i64 end) {
  for (i64 t = begin; t < end; ++t) {
    const auto* c = cos + t % tables * kTableWidth<Spec>;
    const auto* s = sin + t % tables * kTableWidth<Spec>;
    for (idx h = 0; h < Spec::heads; ++h)
      rotate_head<Spec>(out + (t * Spec::heads + h) * Spec::dim,
                        q + t * Spec::q_stride + h * Spec::dim, c, s, q_gamma);
    const idx slot = slots[t];
    if (slot < 0 || slot >= pages * Spec::page) continue;
    for (idx h = 0; h < Spec::kv_heads; ++h) {
      const idx row = (slot / Spec::page * Spec::kv_heads + h) * Spec::page + slot % Spec::page;
      rotate_head<Spec>(keys + row * Spec::dim, k + t * Spec::k_stride + h * Spec::dim, c, s,
                        k_gamma);
      for (idx e = 0; e < Spec::dv; ++e)
        values[row * Spec::dv + e] = v[t * Spec::v_stride + h * Spec::dv + e];
    }
  }
}
