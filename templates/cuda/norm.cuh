// SPDX-License-Identifier: Apache-2.0
// Building block of layer_norm, rms_norm, residual_norm and pointwise_norm: a row of compile-time length in registers.
//
// Lane l of the row's threads owns the packs l, l + threads_per_row, ... of vec elements; sums in f32, those of doubles in
// f64; the variance takes a second pass over the registers, so a mean of 1000 costs no digits.
#pragma once
#include "cuda/prelude.cuh"

template <class Spec>
struct NormRow {
  static constexpr int hidden = Spec::hidden, vec = Spec::vec, per_row = Spec::threads_per_row;
  static constexpr int packs_of_row = hidden / vec;
  static constexpr int packs = ceil_div(packs_of_row, per_row);  // of a lane
  static_assert(is_power_of_two(vec) && hidden % vec == 0, "vec: a power of two that divides hidden");
  static_assert(vec * sizeof(typename Spec::In) <= 16, "vec: at most 16 bytes of In");
  static_assert(packs * vec <= 64, "threads_per_row: at most 64 values for a thread");

  using V = Compute<typename Spec::In>;
  V v[packs][vec];

  static TFCC_FN idx column(int pack) { return (lane_of_row<Spec>() + pack * per_row) * vec; }
  static TFCC_FN bool owns(int pack) {
    return (pack + 1) * per_row <= packs_of_row || lane_of_row<Spec>() + pack * per_row < packs_of_row;
  }

  /// A pack of T as V; the two differ only where doubles meet other reals.
  template <class T> static TFCC_FN void load_as(const T* p, V (&to)[vec]) {
    if constexpr (kSame<Compute<T>, V>) {
      load_pack(p, to);
    } else {
      Compute<T> w[vec];
      load_pack(p, w);
#pragma unroll
      for (int k = 0; k < vec; ++k) to[k] = (V)w[k];
    }
  }
  template <class T> static TFCC_FN void store_as(T* p, const V (&from)[vec]) {
    if constexpr (kSame<Compute<T>, V>) {
      store_pack(p, from);
    } else {
      Compute<T> w[vec];
#pragma unroll
      for (int k = 0; k < vec; ++k) w[k] = (Compute<T>)from[k];
      store_pack(p, w);
    }
  }

  /// f(pack, column) for the packs of this thread.
  template <class F>
  static TFCC_FN void each(const F& f) {
#pragma unroll
    for (int p = 0; p < packs; ++p) {
      if (owns(p)) f(p, column(p));
    }
  }

  template <class T> TFCC_FN void load(const T* row) {
    clear();
    each([&](int p, idx c) { load_as(row + c, v[p]); });
  }

  template <class T> TFCC_FN void add(const T* row) {
    each([&](int p, idx c) {
      V w[vec];
      load_as(row + c, w);
#pragma unroll
      for (int k = 0; k < vec; ++k) v[p][k] += w[k];
    });
  }

  /// value(column) for the columns of this thread.
  template <class Value> TFCC_FN void load_values(const Value& value) {
    clear();
    each([&](int p, idx c) {
#pragma unroll
      for (int k = 0; k < vec; ++k) v[p][k] = value(c + k);
    });
  }

  /// The row may lie in the caller's memory, at any address.
  template <class T> TFCC_FN void store(T* row) const {
    if (pack_aligned<vec>(row)) {
      each([&](int p, idx c) { store_as(row + c, v[p]); });
    } else {
      each([&](int p, idx c) {
#pragma unroll
        for (int k = 0; k < vec; ++k) ::store(row, c + k, v[p][k]);
      });
    }
  }

  TFCC_FN void clear() {
#pragma unroll
    for (int p = 0; p < packs; ++p) {
#pragma unroll
      for (int k = 0; k < vec; ++k) v[p][k] = V(0);
    }
  }

  TFCC_FN V mean() const {
    V sum = V(0);
#pragma unroll
    for (int p = 0; p < packs; ++p) {
#pragma unroll
      for (int k = 0; k < vec; ++k) sum += v[p][k];
    }
    return reduce_row<Spec>(sum, Add()) * (V(1) / hidden);
  }

  /// The mean of (x - center)^2.
  TFCC_FN V mean_square(V center) const {
    V sum = V(0);
    each([&](int p, idx) {
#pragma unroll
      for (int k = 0; k < vec; ++k) sum += (v[p][k] - center) * (v[p][k] - center);
    });
    return reduce_row<Spec>(sum, Add()) * (V(1) / hidden);
  }

  /// out = (x - center) * scale * gamma + beta; beta may be absent. All reads come before the first write, which the
  /// compiler could not move them across.
  template <bool has_beta, class Out, class Weight>
  TFCC_FN void finish(Out* out, V center, V scale, const Weight* gamma, const Weight* beta) {
    each([&](int p, idx c) {
      V g[vec], b[vec];
      load_as(gamma + c, g);
      if constexpr (has_beta) load_as(beta + c, b);
#pragma unroll
      for (int k = 0; k < vec; ++k) {
        v[p][k] = (v[p][k] - center) * scale * g[k];
        if constexpr (has_beta) v[p][k] += b[k];
      }
    });
    store(out);
  }

  template <bool rms, bool has_beta, class Out, class Weight>
  TFCC_FN void normalize(Out* out, const Weight* gamma, const Weight* beta) {
    const V center = rms ? V(0) : mean();
    const V scale = V(1) / fsqrt(mean_square(center) + V(Spec::eps));
    finish<has_beta>(out, center, scale, gamma, beta);
  }
};
