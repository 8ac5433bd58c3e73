// SPDX-License-Identifier: Apache-2.0
// rope: rotary embedding of the first `rotary` channels of each head; the others are copied. If
// Spec::normalises, a head is x / sqrt(mean(x^2) + eps) * gamma first, as an rms norm has it. Rows
// are tokens, one per work item; row r reads table r % tables, of rotary / 2 values or, if wide,
// rotary.
#pragma once

#include "cpu/reduce.h"

/// What stands where a gamma does, if heads are not normalised.
struct NoGamma {};

/// One head of a token. Spec: dim, rotary, interleaved, wide, normalises, and then eps; c and s are
/// the token's tables.
template <class Spec, class T, class Table, class Gamma>
TFCC_FN void rotate_head(T* __restrict to, const T* from, const Table* c, const Table* s,
                         [[maybe_unused]] const Gamma& gamma) {
  f32 scale = 1;
  if constexpr (Spec::normalises) {
    const f32 squares = reduce_lanes<Sum, f32>(Spec::dim, [&](idx e) {
      const f32 x = load(from, e);
      return x * x;
    });
    scale = 1 / fsqrt(squares / (f32)Spec::dim + Spec::eps);
  }
  const auto element = [&](idx e) {
    if constexpr (Spec::normalises) return load(from, e) * scale * (f32)load(gamma, e);
    else return load(from, e);
  };
  constexpr idx half = Spec::rotary / 2;
  constexpr idx step = Spec::interleaved ? 1 : half, stride = Spec::interleaved ? 2 : 1;
#pragma clang loop vectorize(assume_safety)
  for (idx e = 0; e < half; ++e) {
    const idx first = e * stride, second = first + step;
    const f32 u = element(first), v = element(second);
    const idx t = Spec::wide ? first : e, t2 = Spec::wide ? second : e;
    store(to, first, u * (f32)load(c, t) - v * (f32)load(s, t));
    store(to, second, v * (f32)load(c, t2) + u * (f32)load(s, t2));
  }
  for (idx k = Spec::rotary; k < Spec::dim; ++k) store(to, k, element(k));
}

/// Values of a table for one token.
template <class Spec>
inline constexpr idx kTableWidth = Spec::wide ? Spec::rotary : Spec::rotary / 2;

/// Spec: T, Table, heads, dim, rotary, x_stride, interleaved, wide, normalises, and then eps.
template <class Spec, class Gamma>
TFCC_FN void rope(typename Spec::T* __restrict out, const typename Spec::T* x,
                  const typename Spec::Table* cos, const typename Spec::Table* sin,
                  const Gamma& gamma, idx tables, i64 begin, i64 end) {
  for (i64 row = begin; row < end; ++row) {
    const auto* c = cos + row % tables * kTableWidth<Spec>;
    const auto* s = sin + row % tables * kTableWidth<Spec>;
    for (idx h = 0; h < Spec::heads; ++h)
      rotate_head<Spec>(out + (row * Spec::heads + h) * Spec::dim,
                        x + row * Spec::x_stride + h * Spec::dim, c, s, gamma);
  }
}
