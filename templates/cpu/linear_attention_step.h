// SPDX-License-Identifier: Apache-2.0
// linear_attention_step: rows [first[n], first[n + 1]) of q [rows, heads*d], k [rows, kv_heads*d]
// and v [rows, kv_heads*dv] go on with the sums in slot from[n] of state [slots, kv_heads, dv (+
// 1), d] (outside of the slots: with none) and leave theirs in slot to[n] (outside: nowhere). Row m
// of a head is the sum of k' v[m], row dv that of k'. At token t: S = exp(decay(t)) S + k' v^T, out
// = epilogue(q' S, q' z) (ir/ops.md). Tokens follow each other one by one, so that a sequence has
// the same bits in runs of any sizes.
//
// A work item is (n, head of keys, block of `columns` channels of v). No slot of `to` is one of
// `from`.
#pragma once

#include "cpu/linear_attention.h"

/// Spec: T, Out, heads, kv_heads, head_dim, v_dim, the four strides, columns, decays, normalises,
/// q_softmax, k_softmax.
template <class Spec> struct LinearStep {
  static constexpr int d = Spec::head_dim, width = (d + kLanes - 1) / kLanes * kLanes,
                       columns = Spec::columns, rows = columns + Spec::normalises;
  static constexpr idx state_rows = Spec::v_dim + Spec::normalises;
  alignas(64) f32 s[rows * width] = {};
  alignas(64) f32 q[width] = {};
  alignas(64) f32 k[width] = {};
  idx first;  // channel of v
  int most;   // channels of the block

  /// Where row r of the block lies in a slot, from the head's first number on.
  TFCC_FN idx place(int r) const { return (r < columns ? first + r : Spec::v_dim) * d; }
  template <class F> TFCC_FN void for_each_row(const F& f) const {
    for (int r = 0; r < rows; ++r) {
      if (r < most || r == columns) f(r);
    }
  }
  TFCC_FN void take(const f32* slot) {
    for_each_row([&](int r) {
      for (int e = 0; e < d; ++e) s[r * width + e] = slot[place(r) + e];
    });
  }
  /// The sum of keys is left by the first block.
  TFCC_FN void leave(f32* slot) const {
    for_each_row([&](int r) {
      if (r == columns && first != 0) return;
      for (int e = 0; e < d; ++e) slot[place(r) + e] = s[r * width + e];
    });
  }
  /// Features of a token: a row of q or k under softmax and map(element, place).
  template <bool softmax, class T, class Map>
  TFCC_FN void take_row(f32* to, const T* from, const Map& map) {
    for (int e = 0; e < d; ++e) to[e] = load(from, e);
    if constexpr (softmax) soften<d>(to);
    for (int e = 0; e < d; ++e) to[e] = map(to[e], e);
  }
  TFCC_FN void add(int r, f32 keep, f32 x) {
    for (int e = 0; e < width; e += kLanes) {
      Lanes* const to = (Lanes*)(s + r * width + e);
      if constexpr (Spec::decays) *to *= keep;
      *to += *(const Lanes*)(k + e) * x;
    }
  }
  TFCC_FN f32 seen(int r) const {
    Lanes sum = {};
    for (int e = 0; e < width; e += kLanes)
      sum += *(const Lanes*)(s + r * width + e) * *(const Lanes*)(q + e);
    f32 all = 0.0f;
    for (int l = 0; l < kLanes; ++l) all += sum[l];
    return all;
  }
};

template <class Spec, class QMap, class KMap, class Decay, class Epilogue>
TFCC_FN void linear_attention_step(typename Spec::Out* out, f32* state, const typename Spec::T* q,
                                   const typename Spec::T* k, const typename Spec::T* v,
                                   const i32* first, const i32* from, const i32* to, idx slots,
                                   const QMap& q_map, const KMap& k_map, const Decay& decay,
                                   const Epilogue& epilogue, i64 begin, i64 end) {
  using Step = LinearStep<Spec>;
  constexpr idx blocks = (Spec::v_dim + Spec::columns - 1) / Spec::columns,
                group = Spec::heads / Spec::kv_heads, of_head = Step::state_rows * Spec::head_dim;
  const auto slot = [&](idx at, idx g) { return state + (at * Spec::kv_heads + g) * of_head; };
  for (i64 item = begin; item < end; ++item) {
    const idx n = item / blocks / Spec::kv_heads, g = item / blocks % Spec::kv_heads;
    Step step;
    step.first = item % blocks * Spec::columns;
    step.most = (int)imin(Spec::columns, Spec::v_dim - step.first);
    if (from[n] >= 0 && from[n] < slots) step.take(slot(from[n], g));
    for (idx t = first[n]; t < first[n + 1]; ++t) {
      step.template take_row<Spec::k_softmax>(step.k, k + t * Spec::k_stride + g * Spec::head_dim,
                                              [&](f32 x, int e) { return k_map(x, 0, g, t, e); });
      f32 keep = 1.0f;
      if constexpr (Spec::decays) keep = fexp(decay(0, g * group, t));
      step.for_each_row([&](int r) {
        step.add(r, keep,
                 r < Spec::columns ? load(v + t * Spec::v_stride + g * Spec::v_dim + step.first, r)
                                   : 1.0f);
      });
      for (idx h = g * group; h < (g + 1) * group; ++h) {
        step.template take_row<Spec::q_softmax>(step.q, q + t * Spec::q_stride + h * Spec::head_dim,
                                                [&](f32 x, int e) { return q_map(x, 0, h, t, e); });
        f32 z = 0.0f;
        if constexpr (Spec::normalises) z = step.seen(Spec::columns);
        typename Spec::Out* const row = out + t * Spec::out_stride + h * Spec::v_dim + step.first;
        for (int r = 0; r < step.most; ++r)
          store(row, r, epilogue(step.seen(r), z, 0, h, t, step.first + r));
      }
    }
    if (to[n] >= 0 && to[n] < slots) step.leave(slot(to[n], g));
  }
}
