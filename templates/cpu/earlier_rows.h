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
#include "sequences.h"

/// Spec: T, kept, width.
template <class Spec> struct EarlierRows {
  using T = typename Spec::T;
  const T* x;
  const T* state;
  const i32 *first, *from;
  idx rows, slots;

  /// The `kept` rows before row i of sequence n, the last one first.
  TFCC_FN void take(T* out, idx n, idx i) const {
    for (idx l = 0; l < Spec::kept; ++l, out += Spec::width) {
      const idx slot = from[n];
      if (l >= i && (slot < 0 || slot >= slots)) {
        for (idx c = 0; c < Spec::width; ++c) out[c] = T{};
        continue;
      }
      const T* row = l < i ? x + (begin_of(first, n, rows) + i - l - 1) * Spec::width
                           : state + (slot * Spec::kept + l - i) * Spec::width;
      for (idx c = 0; c < Spec::width; ++c) out[c] = row[c];
    }
  }
};

template <class Spec>
TFCC_FN void earlier_rows(typename Spec::T* out, typename Spec::T* state, const typename Spec::T* x,
                          const i32* first, const i32* from, const i32* to, idx rows, idx sequences,
                          idx slots, i64 begin, i64 end) {
  const EarlierRows<Spec> all{x, state, first, from, rows, slots};
  for (idx at = begin; at < end; ++at) {
    if (at < rows) {
      const idx n = sequence_of(first, sequences, at);
      all.take(out + at * Spec::kept * Spec::width, n, rows_before(first, n, at, rows));
    }
    if (at < sequences && to[at] >= 0 && to[at] < slots)
      all.take(state + to[at] * Spec::kept * Spec::width, at,
               rows_before(first, at, begin_of(first, at + 1, rows), rows));
  }
}
