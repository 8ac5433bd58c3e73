// SPDX-License-Identifier: Apache-2.0
// reduce: out[i...] = Op over r... of value(i..., r...), reduction indices r over extents e0 ...
// e(reduce_rank-1). Spec::across = false: a work item is one output; lanes of partial results along
// the last reduction index. Spec::across = true: a work item is a row of outputs; lanes are
// neighbouring outputs, reductions run outside. Partial results are kept in a fixed number of
// lanes, so a result does not depend on the split into work items.
#pragma once

#include "expr.h"

template <class T> inline constexpr T kLowest = (T)(-__builtin_inf());
template <> inline constexpr i64 kLowest<i64> = -0x7fffffffffffffff - 1;
template <> inline constexpr bool kLowest<bool> = false;
template <class T> inline constexpr T kHighest = (T)__builtin_inf();
template <> inline constexpr i64 kHighest<i64> = 0x7fffffffffffffff;
template <> inline constexpr bool kHighest<bool> = true;

template <class T> TFCC_FN T larger(T a, T b) {
  if constexpr (kIsReal<T>) return fmax_(a, b);
  return a > b ? a : b;
}
template <class T> TFCC_FN T smaller(T a, T b) {
  if constexpr (kIsReal<T>) return fmin_(a, b);
  return a < b ? a : b;
}

// The operations: an identity, a step, and what is done at the end.
struct Sum {
  template <class T> static constexpr T start = (T)0;
  template <class T> static TFCC_FN T step(T a, T b) { return (T)(a + b); }
  template <class T> static TFCC_FN T finish(T a, idx) { return a; }
};
struct Mean : Sum {
  template <class T> static TFCC_FN T finish(T a, idx count) {
    if constexpr (kIsReal<T>) return a / (T)count;
    return count ? a / (T)count : 0;
  }
};
struct Prod {
  template <class T> static constexpr T start = (T)1;
  template <class T> static TFCC_FN T step(T a, T b) { return (T)(a * b); }
  template <class T> static TFCC_FN T finish(T a, idx) { return a; }
};
struct Max {
  template <class T> static constexpr T start = kLowest<T>;
  template <class T> static TFCC_FN T step(T a, T b) { return larger(a, b); }
  template <class T> static TFCC_FN T finish(T a, idx) { return a; }
};
struct Min {
  template <class T> static constexpr T start = kHighest<T>;
  template <class T> static TFCC_FN T step(T a, T b) { return smaller(a, b); }
  template <class T> static TFCC_FN T finish(T a, idx) { return a; }
};

/// Op over f(0) ... f(count-1), in a fixed order: lanes by position, then the lanes.
template <class Op, class T, class F> TFCC_FN T reduce_lanes(idx count, const F& f) {
  constexpr int kWidth = 32;
  T whole[kWidth];  // stays in registers, which what a variable indexes does not
  for (int k = 0; k < kWidth; ++k) whole[k] = Op::template start<T>;
  idx j = 0;
  for (; j + kWidth <= count; j += kWidth) {
    for (int k = 0; k < kWidth; ++k) whole[k] = Op::step(whole[k], (T)f(j + k));
  }
  T lane[kWidth];
  for (int k = 0; k < kWidth; ++k) lane[k] = whole[k];
  for (int k = 0; j + k < count; ++k) lane[k] = Op::step(lane[k], (T)f(j + k));
  for (int half = kWidth / 2; half > 0; half /= 2) {
    for (int k = 0; k < half; ++k) lane[k] = Op::step(lane[k], lane[k + half]);
  }
  return lane[0];
}

/// Calls f(at) with at[rank .. rank+N-1] running over all combinations of the first N extents.
template <int N, int rank, class Extents, class F>
TFCC_FN void for_each_outer(const Extents& extents, idx* at, const F& f) {
  idx total = 1;
  for (int k = 0; k < N; ++k) total *= extents[k];
  for (int k = 0; k < N; ++k) at[rank + k] = 0;
  for (idx t = 0; t < total; ++t) {
    f();
    for (int k = N - 1; k >= 0 && ++at[rank + k] == extents[k]; --k) at[rank + k] = 0;
  }
}

/// Spec: Out, Op, rank, reduce_rank, across. Value: rank + reduce_rank indices -> Compute<Out>.
template <class Spec, class Value>
TFCC_FN void reduce(typename Spec::Out* __restrict out, const Dims<Spec::rank>& dims,
                    const Dims<Spec::reduce_rank>& extents, const Value& value, i64 begin,
                    i64 end) {
  using Op = typename Spec::Op;
  using T = Compute<typename Spec::Out>;
  constexpr int rank = Spec::rank, inner = Spec::reduce_rank, all = rank + inner;
  static_assert(inner >= 1, "a reduction has at least one reduction index");
  static_assert(!Spec::across || rank >= 1, "reducing across needs an output index to run along");
  idx count = 1;
  for (int k = 0; k < inner; ++k) count *= extents[k];
  idx at[all] = {};
  if constexpr (!Spec::across) {
    for (i64 o = begin; o < end; ++o) {
      unravel<rank>(o, dims, at);
      T total = Op::template start<T>;
      for_each_outer<inner - 1, rank>(extents, at, [&] {
        total = Op::step(total, reduce_lanes<Op, T>(extents[inner - 1], [&](idx r) {
                           idx here[all];
                           for (int k = 0; k < all - 1; ++k) here[k] = at[k];
                           here[all - 1] = r;
                           return apply<all>(value, here);
                         }));
      });
      store(out, o, Op::finish(total, count));
    }
  } else {
    constexpr int kWidth = 64;
    const idx cols = dims[rank - 1];
    for (i64 row = begin; row < end; ++row) {
      unravel<rank - 1>(row, dims, at);
      for (idx j = 0; j < cols; j += kWidth) {
        T lane[kWidth];
        const idx width = cols - j < kWidth ? cols - j : kWidth;
        for (int k = 0; k < kWidth; ++k) lane[k] = Op::template start<T>;
        auto sweep = [&](idx limit) {
          for_each_outer<inner, rank>(extents, at, [&] {
#pragma clang loop vectorize(assume_safety)
            for (idx k = 0; k < limit; ++k) {
              idx here[all];
              for (int m = 0; m < all; ++m) here[m] = at[m];
              here[rank - 1] = j + k;
              lane[k] = Op::step(lane[k], (T)apply<all>(value, here));
            }
          });
        };
        if (width == kWidth) sweep(kWidth);
        else sweep(width);
        for (idx k = 0; k < width; ++k) store(out, row * cols + j + k, Op::finish(lane[k], count));
      }
    }
  }
}
