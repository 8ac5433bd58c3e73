// SPDX-License-Identifier: Apache-2.0
// norm: x[r, c] = value(i0, ...)(c); out[r, c] = (x[r, c] - mean_r) / sqrt(var_r + eps) * gamma[c]
// + beta[c], the variance over hidden; rms: x[r, c] / sqrt(mean of x[r, .]^2 + eps) * gamma[c]. x
// itself is stored as `sum` if asked for.
//
// out, sum [rows, hidden] with rows = outer[0] * ...; gamma, beta [hidden]. beta and sum may be
// nullptr_t. value takes the indices of a row, computes what is the same for all of it (the ids of
// its embeddings), and returns the function that fills a pack from a column on. One row per warp
// (threads_per_row 32) or per block, in registers: lane l of its threads owns the packs l, l +
// threads_per_row, ... of vec elements. Sums in Real; the variance takes a second pass over the
// registers, so a mean of 1000 costs no digits; the norm uses x before it is rounded for `sum`.
// Spec: Real f32 or f64, of x; rank, hidden, vec (a power of two that divides hidden),
// threads_per_row, threads; rms; eps; units (so many of the first outer sizes are 1, but not all);
// early (outer was there before the launch before this one had ended: the template waits itself).
// Bound: bytes that value loads, out and sum. Shared memory: static, 4 bytes a warp.
#pragma once
#include "cuda/prelude.cuh"

template <class Spec> struct NormRow {
  static constexpr int hidden = Spec::hidden, vec = Spec::vec, per_row = Spec::threads_per_row;
  static constexpr int packs_of_row = hidden / vec;
  static constexpr int packs = ceil_div(packs_of_row, per_row);  // of a lane
  static_assert(is_power_of_two(vec) && hidden % vec == 0,
                "vec: a power of two that divides hidden");
  static_assert(packs * vec <= 64, "threads_per_row: at most 64 values for a thread");

  using V = typename Spec::Real;
  V v[packs][vec] = {};

  /// f(pack, column) for the packs of this thread.
  template <class F> static TFCC_FN void each(const F& f) {
#pragma unroll
    for (int p = 0; p < packs; ++p) {
      const idx pack = lane_of_row<Spec>() + p * per_row;
      if ((p + 1) * per_row <= packs_of_row || pack < packs_of_row) f(p, pack * vec);
    }
  }

  /// The row may lie in the caller's memory, at any address.
  template <class T> TFCC_FN void write(T* row) const {
    each([&](int p, idx c) { write_pack(row + c, v[p]); });
  }

  /// The mean of f(x).
  template <class F> TFCC_FN V mean(const F& f) const {
    V sum = V(0);
    each([&](int p, idx) {
#pragma unroll
      for (int k = 0; k < vec; ++k) sum += f(v[p][k]);
    });
    return reduce_row<Spec>(sum, Add()) * (V(1) / hidden);
  }
};

template <class Spec, class Out, class Sum, class Value, class Gamma, class Beta>
TFCC_FN void norm(Out* out, Sum sum, const Dims<Spec::rank - 1>& outer, const Value& value,
                  const Gamma* gamma, Beta beta) {
  using V = typename Spec::Real;
  constexpr bool has_beta = !kSame<Beta, decltype(nullptr)>,
                 has_sum = !kSame<Sum, decltype(nullptr)>;
  const idx row = row_of_thread<Spec>();
  idx i[Spec::rank];
  unravel<Spec::rank - 1, Spec::units>(row, outer, i);
  if constexpr (Spec::early) {
#pragma unroll
    for (int k = 0; k < Spec::rank - 1; ++k) i[k] = held(i[k]);
    wait_for_predecessor();
  }
  if (row >= outer.count()) return;
  const i64 at = (i64)row * Spec::hidden;
  const auto fill = apply<Spec::rank - 1>(value, i);
  NormRow<Spec> r;
  r.each([&](int p, idx c) { fill(c, r.v[p]); });
  if constexpr (has_sum) r.write(sum + at);
  const V center = Spec::rms ? V(0) : r.mean([](V x) { return x; });
  const V square = r.mean([&](V x) { return (x - center) * (x - center); });
  const V scale = V(1) / fsqrt(square + V(Spec::eps));
  // All reads come before the first write, which the compiler could not move them across.
  r.each([&](int p, idx c) {
    const auto g = read_pack<Spec::vec>(gamma + c);
#pragma unroll
    for (int k = 0; k < Spec::vec; ++k) r.v[p][k] = (r.v[p][k] - center) * scale * (V)g[k];
    if constexpr (has_beta) {
      const auto b = read_pack<Spec::vec>(beta + c);
#pragma unroll
      for (int k = 0; k < Spec::vec; ++k) r.v[p][k] += (V)b[k];
    }
  });
  r.write(out + at);
}
