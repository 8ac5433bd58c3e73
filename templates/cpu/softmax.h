// SPDX-License-Identifier: Apache-2.0
// softmax: out[r, j] = e^(x - max) / sum over j, or with Spec::log its logarithm, x = value(r, j);
// rows of `cols` elements, one per work item. A row whose largest element is -inf gives NaN, as the
// formula does.
#pragma once

#include "cpu/reduce.h"

/// Spec: Out, log. The value is f32 or f64 and is called up to three times for each element.
template <class Spec, class Value>
TFCC_FN void softmax(typename Spec::Out* __restrict out, idx cols, const Value& value, i64 begin,
                     i64 end) {
  using T = decltype(value(idx{}, idx{}));
  for (i64 row = begin; row < end; ++row) {
    auto* __restrict to = out + row * cols;
    const T largest = reduce_lanes<Max, T>(cols, [&](idx j) { return value(row, j); });
    const T sum = reduce_lanes<Sum, T>(cols, [&](idx j) { return fexp(value(row, j) - largest); });
    if constexpr (Spec::log) {
      const T shift = largest + flog(sum);
      for (idx j = 0; j < cols; ++j) store(to, j, value(row, j) - shift);
    } else {
      const T scale = (T)1 / sum;
      for (idx j = 0; j < cols; ++j) store(to, j, fexp(value(row, j) - largest) * scale);
    }
  }
}
