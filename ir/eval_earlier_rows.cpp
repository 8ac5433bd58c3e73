// SPDX-License-Identifier: Apache-2.0
// earlier_rows by its definition: row by row.
#include "ir/eval_ops.h"

namespace tfcc::ir {

void eval_earlier_rows(OpRun& run) {
  const HostTensor &x = *run.operands[0], &before = *run.operands[4];
  const std::vector<int64_t>&first = run.operands[1]->ints, &from = run.operands[2]->ints,
        &to = run.operands[3]->ints;
  const int64_t slots = before.dims[0], rows = before.dims[2], width = before.dims[3];
  std::vector<double>&y = run.results[0].reals, &after = run.results[1].reals;
  after = before.reals;
  for (size_t n = 0; n < from.size(); ++n) {
    // Element c of the sequence's row `back` rows before the new one i.
    const auto element = [&](int64_t i, int64_t back, int64_t c) {
      if (back <= i) return x.reals[static_cast<size_t>((first[n] + i - back) * width + c)];
      if (from[n] < 0 || from[n] >= slots || back - i > rows) return 0.0;
      return before.reals[static_cast<size_t>((from[n] * rows + back - i - 1) * width + c)];
    };
    const int64_t count = first[n + 1] - first[n];
    const auto take = [&](std::vector<double>& out, int64_t row, int64_t i) {
      for (int64_t l = 0; l < rows; ++l) {
        for (int64_t c = 0; c < width; ++c)
          out[static_cast<size_t>((row * rows + l) * width + c)] = element(i, l + 1, c);
      }
    };
    for (int64_t i = 0; i < count; ++i) take(y, first[n] + i, i);
    if (to[n] >= 0 && to[n] < slots) take(after, to[n], count);
  }
}

}  // namespace tfcc::ir
