// SPDX-License-Identifier: Apache-2.0
// gelu: x/2 (1 + erf(x / sqrt 2)), or with Spec::tanh x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715
// x^3))). Rows of `cols` elements, one per work item.
#pragma once

#include "expr.h"

template <bool tanh, class T> TFCC_FN T gelu_value(T x) {
  if constexpr (tanh) {
    T u = (T)0x1.9884533d43651p-1 * (x + (T)0.044715 * x * x * x);
    return (T)0.5 * x * ((T)1 + ftanh(u));
  } else {
    return (T)0.5 * x * ((T)1 + ferf(x * (T)0x1.6a09e667f3bcdp-1));
  }
}

/// Spec: In, Out, tanh.
template <class Spec>
TFCC_FN void gelu(typename Spec::Out* out, const typename Spec::In* x, idx cols, i64 begin,
                  i64 end) {
#pragma clang loop vectorize(assume_safety)
  for (idx i = begin * cols; i < end * cols; ++i) store(out, i, gelu_value<Spec::tanh>(load(x, i)));
}
