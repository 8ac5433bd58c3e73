// SPDX-License-Identifier: Apache-2.0
// bias_gelu: out[r, j] = gelu(x[r, j] + bias[j]), see gelu.h; rows of `hidden` elements, one per
// work item.
#pragma once

#include "cpu/gelu.h"

/// Spec: In, Weight, Out, hidden, tanh.
template <class Spec>
TFCC_FN void bias_gelu(typename Spec::Out* out, const typename Spec::In* x,
                       const typename Spec::Weight* bias, i64 begin, i64 end) {
  using T = Compute<typename Spec::In>;
  for (i64 row = begin; row < end; ++row) {
    const auto* from = x + row * Spec::hidden;
    auto* to = out + row * Spec::hidden;
#pragma clang loop vectorize(assume_safety)
    for (idx j = 0; j < Spec::hidden; ++j)
      store(to, j, gelu_value<Spec::tanh>(load(from, j) + (T)load(bias, j)));
  }
}
