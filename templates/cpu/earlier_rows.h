// SPDX-License-Identifier: Apache-2.0
// earlier_rows: out[t, l] is row l + 1 before row t of x [rows, width], of the same sequence. Rows
// [first[n], first[n + 1]) are those of sequence n. Before them are the rows in slot from[n] of
// state [slots, kept, width], the last one first (outside of the slots: zeros). Its last `kept`
// rows go to slot to[n] (outside: nowhere).
//
// A work item is a row of x, and a sequence, if there is one of this number, that leaves its rows.
// No slot of `to` is one of `from`.
#pragma once

#include "expr.h"

/// Spec: T, kept, width.
template <class Spec> struct EarlierRows {
  using T = typename Spec::T;
  const T* x;
  const T* state;
  const i32 *first, *from;
  idx rows, slots;

  /// Where a sequence begins, inside of x whatever `first` says.
  TFCC_FN idx begin(idx n) const {
    const idx at = first[n];
    return at < 0 ? 0 : at < rows ? at : rows;
  }
  /// How many rows of sequence n stand before row `end`.
  TFCC_FN idx count(idx n, idx end) const { return end > begin(n) ? end - begin(n) : 0; }

  /// The `kept` rows before row i of sequence n, the last one first.
  TFCC_FN void take(T* out, idx n, idx i) const {
    for (idx l = 0; l < Spec::kept; ++l, out += Spec::width) {
      const idx slot = from[n];
      if (l >= i && (slot < 0 || slot >= slots)) {
        for (idx c = 0; c < Spec::width; ++c) out[c] = T{};
        continue;
      }
      const T* row = l < i ? x + (begin(n) + i - l - 1) * Spec::width
                           : state + (slot * Spec::kept + l - i) * Spec::width;
      for (idx c = 0; c < Spec::width; ++c) out[c] = row[c];
    }
  }
  /// The sequence of row t.
  TFCC_FN idx sequence(idx t, idx sequences) const {
    idx low = 0, high = sequences - 1;  // the last n with first[n] <= t
    while (low < high) {
      const idx n = (low + high + 1) / 2;
      if (first[n] <= t) low = n;
      else high = n - 1;
    }
    return low;
  }
};

template <class Spec>
TFCC_FN void earlier_rows(typename Spec::T* out, typename Spec::T* state, const typename Spec::T* x,
                          const i32* first, const i32* from, const i32* to, idx rows, idx sequences,
                          idx slots, i64 begin, i64 end) {
  const EarlierRows<Spec> all{x, state, first, from, rows, slots};
  for (idx at = begin; at < end; ++at) {
    if (at < rows) {
      const idx n = all.sequence(at, sequences);
      all.take(out + at * Spec::kept * Spec::width, n, all.count(n, at));
    }
    if (at < sequences && to[at] >= 0 && to[at] < slots)
      all.take(state + to[at] * Spec::kept * Spec::width, at, all.count(at, all.begin(at + 1)));
  }
}
