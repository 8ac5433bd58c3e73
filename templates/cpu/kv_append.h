// SPDX-License-Identifier: Apache-2.0
// kv_append: row t of k [rows, heads*d] and of v [rows, heads*dv] goes to slot slots[t] of a cache:
// row slot % page of page slot / page of keys [pages, heads, page, d] and of values, which has dv.
// A slot outside of the pages keeps nothing. A work item is a row.
#pragma once

#include "expr.h"

/// Spec: T, heads, page, d, dv, k_stride, v_stride.
template <class Spec>
TFCC_FN void kv_append(typename Spec::T* keys, typename Spec::T* values, const typename Spec::T* k,
                       const typename Spec::T* v, const i32* slots, idx pages, i64 begin, i64 end) {
  for (i64 t = begin; t < end; ++t) {
    const idx slot = slots[t];
    if (slot < 0 || slot >= pages * Spec::page) continue;
    for (idx h = 0; h < Spec::heads; ++h) {
      const idx row = (slot / Spec::page * Spec::heads + h) * Spec::page + slot % Spec::page;
      for (idx c = 0; c < Spec::d; ++c)
        keys[row * Spec::d + c] = k[t * Spec::k_stride + h * Spec::d + c];
      for (idx c = 0; c < Spec::dv; ++c)
        values[row * Spec::dv + c] = v[t * Spec::v_stride + h * Spec::dv + c];
    }
  }
}
