// SPDX-License-Identifier: Apache-2.0
// Where the rows of sequences begin, for kernels of CPUs and GPUs: rows [first[n], first[n + 1]) are
// those of sequence n. Behind expr.h.
#pragma once

/// The first row of sequence n, inside of the rows whatever `first` says.
TFCC_FN idx begin_of(const i32* first, idx n, idx rows) {
  const idx at = first[n];
  return at < 0 ? 0 : at < rows ? at : rows;
}

/// How many rows of sequence n stand before row `end`.
TFCC_FN idx rows_before(const i32* first, idx n, idx end, idx rows) {
  const idx begin = begin_of(first, n, rows);
  return end > begin ? end - begin : 0;
}

/// The sequence of row t, by bisection: the last n with first[n] <= t.
TFCC_FN idx sequence_of(const i32* first, idx sequences, idx t) {
  idx low = 0, high = sequences - 1;
  while (low < high) {
    const idx n = (low + high + 1) / 2;
    if (first[n] <= t) low = n;
    else high = n - 1;
  }
  return low;
}
