// SPDX-License-Identifier: Apache-2.0
// linear_attention_step: rows [first[n], first[n + 1]) of q [rows, heads*d], k [rows, kv_heads*d]
// and v [rows, kv_heads*dv] go on with the sums in slot from[n] of state [slots, kv_heads, dv (+
// 1), d] (outside of the slots: with none) and leave theirs in slot to[n] (outside: nowhere). Row m
// of a head is the sum of k' v[m], row dv that of k'. At token t: S = exp(decay(t)) S + k' u^T, out
// = epilogue(q' S, q' z), where u = v, or by the delta rule beta(t) (v - k' exp(decay(t)) S)
// (ir/ops.md). Tokens follow each other one by one, so that a sequence has the same bits in runs of
// any sizes. A linear_attention with a state or a beta is the same with BatchStates: sequence n has
// rows [n tokens, (n + 1) tokens), and sums of its own before and after them.
//
// A work item is (n, head of keys, block of `columns` channels of v). No slot of `to` is one of
// `from`.
#pragma once

#include "cpu/linear_attention.h"

/// Rows of sequences and slots of their sums, as tables say them. -1: no slot.
struct SlotStates {
  static constexpr bool batched = false;
  f32* sums;
  const i32 *first, *from, *to;
  idx slots;
  TFCC_FN idx begin(idx n) const { return first[n]; }
  TFCC_FN idx end(idx n) const { return first[n + 1]; }
  TFCC_FN const f32* before() const { return sums; }
  TFCC_FN f32* after() const { return sums; }
  TFCC_FN idx slot_before(idx n) const { return from[n] < slots ? from[n] : -1; }
  TFCC_FN idx slot_after(idx n) const { return to[n] < slots ? to[n] : -1; }
};
/// Sequences of `tokens` rows each; sums before and after them [n], null: none.
struct BatchStates {
  static constexpr bool batched = true;
  const f32* sums_before;
  f32* sums_after;
  idx tokens;
  TFCC_FN idx begin(idx n) const { return n * tokens; }
  TFCC_FN idx end(idx n) const { return (n + 1) * tokens; }
  TFCC_FN const f32* before() const { return sums_before; }
  TFCC_FN f32* after() const { return sums_after; }
  TFCC_FN idx slot_before(idx n) const { return sums_before ? n : -1; }
  TFCC_FN idx slot_after(idx n) const { return sums_after ? n : -1; }
};

/// Spec: T, Out, heads, kv_heads, head_dim, v_dim, the four strides, columns, decays, delta,
/// normalises, q_softmax, k_softmax.
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
  TFCC_FN void add(int r, f32 keep, f32 rate, f32 x) {
    Lanes* const row = (Lanes*)(s + r * width);
    const Lanes* const key = (const Lanes*)k;
    if constexpr (Spec::delta) {
      if constexpr (Spec::decays) {
        for (int e = 0; e < width / kLanes; ++e) row[e] *= keep;
      }
      x = rate * (x - read(r, k));
      for (int e = 0; e < width / kLanes; ++e) row[e] += key[e] * x;
    } else {
      for (int e = 0; e < width / kLanes; ++e) {
        if constexpr (Spec::decays) row[e] *= keep;
        row[e] += key[e] * x;
      }
    }
  }
  /// What a key or a query reads in row r.
  TFCC_FN f32 read(int r, const f32* by) const {
    Lanes sum = {};
    for (int e = 0; e < width; e += kLanes)
      sum += *(const Lanes*)(s + r * width + e) * *(const Lanes*)(by + e);
      // By halves: one addition after the other would take longer than the products.
#pragma clang loop unroll(full)
    for (int n = kLanes / 2; n > 0; n /= 2) {
      for (int l = 0; l < n; ++l) sum[l] += sum[l + n];
    }
    return sum[0];
  }
};

template <class Spec, class States, class QMap, class KMap, class Decay, class Beta, class Epilogue>
TFCC_FN void linear_attention_step(typename Spec::Out* out, const typename Spec::T* q,
                                   const typename Spec::T* k, const typename Spec::T* v,
                                   const States& states, const QMap& q_map, const KMap& k_map,
                                   const Decay& decay, const Beta& beta, const Epilogue& epilogue,
                                   i64 begin, i64 end) {
  using Step = LinearStep<Spec>;
  constexpr idx blocks = (Spec::v_dim + Spec::columns - 1) / Spec::columns,
                group = Spec::heads / Spec::kv_heads, of_head = Step::state_rows * Spec::head_dim;
  const auto place = [&](idx slot, idx g) { return ((i64)slot * Spec::kv_heads + g) * of_head; };
  for (i64 item = begin; item < end; ++item) {
    const idx n = item / blocks / Spec::kv_heads, g = item / blocks % Spec::kv_heads;
    Step step;
    step.first = item % blocks * Spec::columns;
    step.most = (int)imin(Spec::columns, Spec::v_dim - step.first);
    if (const idx from = states.slot_before(n); from >= 0)
      step.take(states.before() + place(from, g));
    // What expressions are told: rows, or sequences and their tokens.
    const idx b = States::batched ? n : 0, t0 = States::batched ? states.begin(n) : 0;
    for (idx row = states.begin(n); row < states.end(n); ++row) {
      const idx t = row - t0;
      step.template take_row<Spec::k_softmax>(step.k, k + row * Spec::k_stride + g * Spec::head_dim,
                                              [&](f32 x, int e) { return k_map(x, b, g, t, e); });
      f32 keep = 1.0f, rate = 1.0f;
      if constexpr (Spec::decays) keep = fexp(decay(b, g * group, t));
      if constexpr (Spec::delta) rate = beta(b, g, t);
      const typename Spec::T* const value = v + row * Spec::v_stride + g * Spec::v_dim + step.first;
      step.for_each_row(
          [&](int r) { step.add(r, keep, rate, r < Spec::columns ? load(value, r) : 1.0f); });
      for (idx h = g * group; h < (g + 1) * group; ++h) {
        step.template take_row<Spec::q_softmax>(step.q,
                                                q + row * Spec::q_stride + h * Spec::head_dim,
                                                [&](f32 x, int e) { return q_map(x, b, h, t, e); });
        f32 z = 0.0f;
        if constexpr (Spec::normalises) z = step.read(Spec::columns, step.q);
        typename Spec::Out* const to = out + row * Spec::out_stride + h * Spec::v_dim + step.first;
        for (int r = 0; r < step.most; ++r)
          store(to, r, epilogue(step.read(r, step.q), z, b, h, t, step.first + r));
      }
    }
    if (const idx to = states.slot_after(n); to >= 0) step.leave(states.after() + place(to, g));
  }
}
