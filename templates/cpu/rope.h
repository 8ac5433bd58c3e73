// SPDX-License-Identifier: Apache-2.0
// rope: rotary embedding of the first `rotary` channels of each head; the others are copied. Rows are tokens, one per work
// item; row r reads table r % tables, of rotary / 2 values or, if wide, rotary.
#pragma once

#include "expr.h"

/// Spec: T, Table, heads, dim, rotary, x_stride, interleaved, wide.
template <class Spec>
TFCC_FN void rope(typename Spec::T* __restrict out, const typename Spec::T* x, const typename Spec::Table* cos,
                  const typename Spec::Table* sin, idx tables, i64 begin, i64 end) {
  constexpr idx half = Spec::rotary / 2, width = Spec::wide ? Spec::rotary : half;
  constexpr idx step = Spec::interleaved ? 1 : half, stride = Spec::interleaved ? 2 : 1;
  for (i64 row = begin; row < end; ++row) {
    const auto* c = cos + row % tables * width;
    const auto* s = sin + row % tables * width;
    for (idx h = 0; h < Spec::heads; ++h) {
      const auto* from = x + row * Spec::x_stride + h * Spec::dim;
      auto* to = out + (row * Spec::heads + h) * Spec::dim;
#pragma clang loop vectorize(assume_safety)
      for (idx e = 0; e < half; ++e) {
        const idx first = e * stride, second = first + step;
        const f32 u = load(from, first), v = load(from, second);
        const idx t = Spec::wide ? first : e, t2 = Spec::wide ? second : e;
        store(to, first, u * (f32)load(c, t) - v * (f32)load(s, t));
        store(to, second, v * (f32)load(c, t2) + u * (f32)load(s, t2));
      }
      for (idx k = Spec::rotary; k < Spec::dim; ++k) store(to, k, load(from, k));
    }
  }
}
