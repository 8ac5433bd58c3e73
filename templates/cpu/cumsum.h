// SPDX-License-Identifier: Apache-2.0
// cumsum: out[o, t, i] = sum of x[o, s, i] over s <= t (exclusive: s < t; reverse: from the other
// end). x and out are [outer, len, inner]; a work item is one of outer. Neighbouring i run in
// lanes.
#pragma once

#include "expr.h"

/// Spec: In, Out, exclusive, reverse.
template <class Spec>
TFCC_FN void cumsum(typename Spec::Out* out, const typename Spec::In* x, idx len, idx inner,
                    i64 begin, i64 end) {
  using T = Compute<typename Spec::Out>;
  constexpr int kWidth = 64;
  for (i64 o = begin; o < end; ++o) {
    for (idx i = 0; i < inner; i += kWidth) {
      const idx width = inner - i < kWidth ? inner - i : kWidth;
      T sum[kWidth] = {};
      for (idx step = 0; step < len; ++step) {
        const idx t = Spec::reverse ? len - 1 - step : step;
        const idx at = (o * len + t) * inner + i;
        for (idx k = 0; k < width; ++k) {
          T before = sum[k];
          sum[k] = before + (T)load(x, at + k);
          store(out, at + k, Spec::exclusive ? before : sum[k]);
        }
      }
    }
  }
}
