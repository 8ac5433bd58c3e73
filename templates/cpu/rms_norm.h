// SPDX-License-Identifier: Apache-2.0
// rms_norm: out[r, j] = x[r, j] / sqrt(mean of squares + eps) * gamma[j] over rows of `hidden`
// elements, one per work item. rms_norm_of reads its row through value(row, j), twice for each
// element.
#pragma once

#include "cpu/layer_norm.h"

/// Spec: Weight, Out, hidden, eps. value(row, j) is the element to normalise.
template <class Spec, class Value>
TFCC_FN void rms_norm_of(typename Spec::Out* out, const Value& value,
                         const typename Spec::Weight* gamma, i64 begin, i64 end) {
  using T = decltype(value(idx{}, idx{}));
  for (i64 row = begin; row < end; ++row) {
    auto* to = out + row * Spec::hidden;
    normalize_row<T, true>(
        Spec::hidden, (T)Spec::eps, [&](idx j) { return value(row, j); },
        [&](idx j, T y) { return y * (T)load(gamma, j); }, [&](idx j, T y) { store(to, j, y); });
  }
}

/// Spec: In, Weight, Out, hidden, eps.
template <class Spec>
TFCC_FN void rms_norm(typename Spec::Out* out, const typename Spec::In* x,
                      const typename Spec::Weight* gamma, i64 begin, i64 end) {
  auto value = [&](idx row, idx j) { return load(x, row * Spec::hidden + j); };
  rms_norm_of<Spec>(out, value, gamma, begin, end);
}
