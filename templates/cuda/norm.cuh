// SPDX-License-Identifier: Apache-2.0
// Building block of layer_norm, rms_norm, residual_norm and pointwise_norm: a row of compile-time length in registers.
//
// Lane l of the row's threads owns the packs l, l + threads_per_row, ... of vec elements; sums in f32; the variance
// takes a second pass over the registers, so a mean of 1000 costs no digits.
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

  f32 v[packs][vec];

  static TFCC_FN idx column(int pack) { return (lane_of_row<Spec>() + pack * per_row) * vec; }
  static TFCC_FN bool owns(int pack) {
    return (pack + 1) * per_row <= packs_of_row || lane_of_row<Spec>() + pack * per_row < packs_of_row;
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
    each([&](int p, idx c) { load_pack(row + c, v[p]); });
  }

  template <class T> TFCC_FN void add(const T* row) {
    each([&](int p, idx c) {
      f32 w[vec];
      load_pack(row + c, w);
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
      each([&](int p, idx c) { store_pack(row + c, v[p]); });
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
      for (int k = 0; k < vec; ++k) v[p][k] = 0.0f;
    }
  }

  TFCC_FN f32 mean() const {
    f32 sum = 0.0f;
#pragma unroll
    for (int p = 0; p < packs; ++p) {
#pragma unroll
      for (int k = 0; k < vec; ++k) sum += v[p][k];
    }
    return reduce_row<Spec>(sum, Add()) * (1.0f / hidden);
  }

  /// The mean of (x - center)^2.
  TFCC_FN f32 mean_square(f32 center) const {
    f32 sum = 0.0f;
    each([&](int p, idx) {
#pragma unroll
      for (int k = 0; k < vec; ++k) sum += (v[p][k] - center) * (v[p][k] - center);
    });
    return reduce_row<Spec>(sum, Add()) * (1.0f / hidden);
  }

  /// out = (x - center) * scale * gamma + beta; beta may be absent. All reads come before the first write, which the
  /// compiler could not move them across.
  template <bool has_beta, class Out, class Weight>
  TFCC_FN void finish(Out* out, f32 center, f32 scale, const Weight* gamma, const Weight* beta) {
    each([&](int p, idx c) {
      f32 g[vec], b[vec];
      load_pack(gamma + c, g);
      if constexpr (has_beta) load_pack(beta + c, b);
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
    const f32 center = rms ? 0.0f : mean();
    const f32 scale = 1.0f / sqrtf(mean_square(center) + Spec::eps);
    finish<has_beta>(out, center, scale, gamma, beta);
  }
};
