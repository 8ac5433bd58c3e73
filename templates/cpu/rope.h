// SPDX-License-Identifier: Apache-2.0
// rope: rotary embedding of the first `rotary` channels of each head; the others are copied. Rows
// are tokens, one per work item; row r reads table r % tables, of rotary / 2 values or, if wide,
// rotary.
#pragma once

#include "expr.h"

/// One head of a token. Spec: dim, rotary, interleaved, wide; c and s are the token's tables.
template <class Spec, class T, class Table>
TFCC_FN void rotate_head(T* __restrict to, const T* from, const Table* c, const Table* s) {
  constexpr idx half = Spec::rotary / 2;
  constexpr idx step = Spec::interleaved ? 1 : half, stride = Spec::interleaved ? 2 : 1;
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

/// Values of a table for one token.
template <class Spec>
inline constexpr idx kTableWidth = Spec::wide ? Spec::rotary : Spec::rotary / 2;

/// Spec: T, Table, heads, dim, rotary, x_stride, interleaved, wide.
template <class Spec>
TFCC_FN void rope(typename Spec::T* __restrict out, const typename Spec::T* x,
                  const typename Spec::Table* cos, const typename Spec::Table* sin, idx tables,
                  i64 begin, i64 end) {
  for (i64 row = begin; row < end; ++row) {
    const auto* c = cos + row % tables * kTableWidth<Spec>;
    const auto* s = sin + row % tables * kTableWidth<Spec>;
    for (idx h = 0; h < Spec::heads; ++h)
      rotate_head<Spec>(out + (row * Spec::heads + h) * Spec::dim,
                        x + row * Spec::x_stride + h * Spec::dim, c, s);
  }
}
