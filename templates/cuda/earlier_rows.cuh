// SPDX-License-Identifier: Apache-2.0
// earlier_rows: out[t, l] is row l + 1 before row t of x [rows, width], of the same sequence. Rows
// [first[n], first[n + 1]) are those of sequence n. Before them are the rows in slot from[n] of
// state [slots, kept, width], the last one first (outside of the slots: zeros). Its last `kept`
// rows go to slot to[n] (outside: nowhere). No slot of `to` is one of `from`.
//
// A thread copies vec elements of the `kept` rows before a row of x, and of those that a sequence
// leaves, if there is one of this number. It finds the sequence of a row by bisection. The states may be larger than 32 bits count.
// No shared memory. Spec: T; kept, width, vec (it divides width).
// Grid: ceil(max(rows, sequences) * width / vec, threads). Bound: the bytes of x and of out, and
// those of a state twice for each sequence. Not measured on its own yet.
#pragma once
#include "cuda/prelude.cuh"
#include "sequences.h"

template <class Spec>
TFCC_FN void earlier_rows(typename Spec::T* out, typename Spec::T* state, const typename Spec::T* x,
                          const i32* first, const i32* from, const i32* to, idx rows, idx sequences,
                          idx slots) {
  constexpr int vec = Spec::vec, kept = Spec::kept, width = Spec::width;
  static_assert(width % vec == 0, "vec divides width");
  constexpr u32 units = width / vec;
  const u32 at = blockIdx.x * blockDim.x + threadIdx.x;
  const idx item = (idx)(at / units);
  const u32 c = at % units * vec;
  // The rows before row `end` of all, for sequence n.
  const auto take = [&](typename Spec::T* to_row, idx n, idx end) {
    const idx begin = begin_of(first, n, rows), i = rows_before(first, n, end, rows),
              slot = from[n];
    const bool has = slot >= 0 && slot < slots;
#pragma unroll
    for (int l = 0; l < kept; ++l) {
      f32 row[vec] = {};
      if (l < i) load_pack(x + (i64)(begin + i - l - 1) * width + c, row);
      else if (has) load_pack(state + ((i64)slot * kept + (l - i)) * width + c, row);
      store_pack(to_row + l * width + c, row);
    }
  };
  if (item < rows) {
    const idx n = sequence_of(first, sequences, item);
    take(out + (i64)item * (kept * width), n, item);
  }
  if (item < sequences && to[item] >= 0 && to[item] < slots)
    take(state + (i64)to[item] * (kept * width), item, begin_of(first, item + 1, rows));
}
