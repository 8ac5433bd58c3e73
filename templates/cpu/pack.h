// SPDX-License-Identifier: Apache-2.0
// pack: numbers the rows (b, s) of a padded tensor that are left, sequence by sequence: those of
// which live(b, s) holds, in order, then those of which kept(b, s) alone holds (ir/ops.md). Their
// number goes to *rows, the size that kernels and the executor read.
//
// row [batch, length], cu [batch + 1], keys and order [batch]; seq and pos have room for batch *
// length and get *rows elements. One work item. Bound: batch * length evaluations of live.
#pragma once

#include "expr.h"

struct NoneKept {
  TFCC_FN bool operator()(idx, idx) const { return false; }
};

/// The sequences with most rows first, equal ones in order: a heap sort, in place and without
/// memory of its own.
TFCC_FN void order_by_rows(i32* order, const i32* cu, idx batch) {
  const auto before = [&](i32 x, i32 y) {
    const i32 p = cu[x + 1] - cu[x], q = cu[y + 1] - cu[y];
    return p > q || (p == q && x < y);
  };
  const auto sink = [&](idx at, idx count) {
    for (idx child; (child = 2 * at + 1) < count; at = child) {
      if (child + 1 < count && before(order[child], order[child + 1])) ++child;
      if (!before(order[at], order[child])) return;
      const i32 held = order[at];
      order[at] = order[child];
      order[child] = held;
    }
  };
  for (idx b = 0; b < batch; ++b) order[b] = (i32)b;
  for (idx at = batch / 2; at-- > 0;) sink(at, batch);
  for (idx left = batch; left-- > 1;) {
    const i32 held = order[0];
    order[0] = order[left];
    order[left] = held;
    sink(0, left);
  }
}

template <class Spec, class Live, class Kept>
TFCC_FN void pack(i32* row, i32* cu, i32* keys, i32* order, i32* seq, i32* pos, i64* rows,
                  idx batch, idx length, const Live& live, const Kept& kept, i64, i64) {
  i32 next = 0;
  const auto take = [&](idx b, idx s) {
    row[b * length + s] = next;
    seq[next] = (i32)b;
    pos[next] = (i32)s;
    ++next;
  };
  for (idx b = 0; b < batch; ++b) {
    cu[b] = next;
    for (idx s = 0; s < length; ++s) {
      if (live(b, s)) take(b, s);
      else row[b * length + s] = -1;
    }
    keys[b] = next - cu[b];
    if constexpr (!Spec::keeps) continue;
    for (idx s = 0; s < length; ++s) {
      if (row[b * length + s] < 0 && kept(b, s)) take(b, s);
    }
  }
  cu[batch] = next;
  order_by_rows(order, cu, batch);
  *rows = next;
}
