// SPDX-License-Identifier: Apache-2.0
// reduce: out[i...] = Op over r... of value(i..., r...), out dense in row-major order.
//
// across = false: threads_per_row threads (a warp or the block) share one output, lanes run along
// the reduction. Or one thread has it: neighbours have neighbouring outputs, sums are short.
// across = true:  a block has 32 neighbouring outputs, one per lane; its warps share the reduction
// domain.
// Spec: Out; Op Sum, Mean, Max, Min, Prod; rank, reduce_rank 0..8; threads; threads_per_row 1, 32 or
// threads (1 if across). Grid: ceil(outputs, threads / threads_per_row), across: ceil(outputs, 32).
// Spec fixes the order.
// Accumulates in Compute<Out>. Bound: the bytes that value reads. Static shared memory only.
#pragma once
#include "cuda/prelude.cuh"

template <class V> struct Ends {
  static TFCC_FN V lowest() { return (V)-kInf; }
  static TFCC_FN V highest() { return (V)kInf; }
};
template <> struct Ends<i64> {
  static TFCC_FN i64 lowest() { return -0x7fffffffffffffffll - 1; }
  static TFCC_FN i64 highest() { return 0x7fffffffffffffffll; }
};

struct Sum {
  template <class V> static TFCC_FN V empty() { return V(0); }
  template <class V> TFCC_FN V operator()(V a, V b) const { return a + b; }
  template <class V> static TFCC_FN V finish(V v, idx) { return v; }
};
struct Mean : Sum {
  template <class V> static TFCC_FN V finish(V v, idx count) {
    if constexpr (kSame<V, i64>) return count > 0 ? v / count : 0;
    else return v / (V)count;
  }
};
struct Prod : Sum {
  template <class V> static TFCC_FN V empty() { return V(1); }
  template <class V> TFCC_FN V operator()(V a, V b) const { return a * b; }
};
struct Max : Sum {
  template <class V> static TFCC_FN V empty() { return Ends<V>::lowest(); }
  template <class V> TFCC_FN V operator()(V a, V b) const { return fmax_(a, b); }
};
struct Min : Sum {
  template <class V> static TFCC_FN V empty() { return Ends<V>::highest(); }
  template <class V> TFCC_FN V operator()(V a, V b) const { return fmin_(a, b); }
};

/// value at reduction index `r`, for the output indices already in i[0 .. rank-1].
template <class Spec, class Value>
TFCC_FN Compute<typename Spec::Out> value_at(const Value& value,
                                             const Dims<Spec::reduce_rank>& domain, idx* i, idx r) {
  unravel<Spec::reduce_rank>(r, domain, i + Spec::rank);
  return apply<Spec::rank + Spec::reduce_rank>(value, i);
}

template <class Spec, class Value>
TFCC_FN void reduce_rows(typename Spec::Out* out, const Dims<Spec::rank>& dims,
                         const Dims<Spec::reduce_rank>& domain, const Value& value) {
  using V = Compute<typename Spec::Out>;
  using Op = typename Spec::Op;
  const idx row = row_of_thread<Spec>();
  if (row >= dims.count()) return;
  const idx count = domain.count();
  idx i[Spec::rank + Spec::reduce_rank + 1];
  unravel<Spec::rank>(row, dims, i);
  V v = Op::template empty<V>();
#pragma unroll 4
  for (idx r = lane_of_row<Spec>(); r < count; r += Spec::threads_per_row) {
    v = Op()(v, value_at<Spec>(value, domain, i, r));
  }
  if constexpr (Spec::threads_per_row != 1) v = reduce_row<Spec>(v, Op());
  if (lane_of_row<Spec>() == 0) store(out, row, Op::finish(v, count));
}

template <class Spec, class Value>
TFCC_FN void reduce_across(typename Spec::Out* out, const Dims<Spec::rank>& dims,
                           const Dims<Spec::reduce_rank>& domain, const Value& value) {
  using V = Compute<typename Spec::Out>;
  using Op = typename Spec::Op;
  constexpr int kSlices = Spec::threads / kWarp;
  __shared__ V partial[kSlices][kWarp];
  const int lane = threadIdx.x % kWarp, slice = threadIdx.x / kWarp;
  const idx o = (idx)blockIdx.x * kWarp + lane;
  const idx outputs = dims.count(), count = domain.count();
  if ((idx)blockIdx.x * kWarp >= outputs) return;
  V v = Op::template empty<V>();
  if (o < outputs) {
    idx i[Spec::rank + Spec::reduce_rank + 1];
    unravel<Spec::rank>(o, dims, i);
#pragma unroll 4
    for (idx r = slice; r < count; r += kSlices) v = Op()(v, value_at<Spec>(value, domain, i, r));
  }
  partial[slice][lane] = v;
  __syncthreads();
  if (slice != 0 || o >= outputs) return;
#pragma unroll
  for (int s = 1; s < kSlices; ++s) v = Op()(v, partial[s][lane]);
  store(out, o, Op::finish(v, count));
}

template <class Spec, class Value>
TFCC_FN void reduce(typename Spec::Out* out, const Dims<Spec::rank>& dims,
                    const Dims<Spec::reduce_rank>& domain, const Value& value) {
  static_assert(
      Spec::rank >= 0 && Spec::rank <= 8 && Spec::reduce_rank >= 0 && Spec::reduce_rank <= 8,
      "ranks: 0..8");
  static_assert(Spec::threads % kWarp == 0 && Spec::threads <= 1024,
                "threads: a multiple of 32 up to 1024");
  if constexpr (Spec::across) {
    static_assert(Spec::threads_per_row == 1, "across: threads_per_row is 1");
    reduce_across<Spec>(out, dims, domain, value);
  } else {
    reduce_rows<Spec>(out, dims, domain, value);
  }
}
