// SPDX-License-Identifier: Apache-2.0
// linear_attention: out[b,i,h*dv+m] = epilogue(s, z, ..) with s = sum_j w(i,j) v[b,j,h'*dv+m], z =
// sum_j w(i,j) and w(i,j) = q'[b,i,h] . k'[b,j,h'] exp(decay(j+1) + .. + decay(i)) over visible j,
// j <= i if causal (ir/ops.md); h' = h / (heads / kv_heads). q [batch, queries, heads*d], k [batch,
// keys, kv_heads*d], v [batch, keys, kv_heads*dv], out like q with dv; rows are q_stride (..)
// apart.
//
// A work item is (b, h, block of `columns` channels of v). Tokens are taken kChunk at a time: what
// a chunk's queries see of earlier tokens is q' S with the state S [d, columns], what they see of
// their own chunk a triangle of kChunk x kChunk. All products run with channels of v, or keys of
// the chunk, in the lanes. S and the sum of keys are f32 with a compensation each (Kahan), so that
// the error does not grow with the number of tokens. Tokens that are not visible are not read.
#pragma once

#include "cpu/attention.h"

struct SameElement {
  TFCC_FN f32 operator()(f32 s, idx, idx, idx, idx) const { return s; }
};
struct AllTokens {
  TFCC_FN bool operator()(idx, idx, idx) const { return true; }
};
struct NoDecay {
  TFCC_FN f32 operator()(idx, idx, idx) const { return 0.0f; }
};
struct NoDelta {
  TFCC_FN f32 operator()(idx, idx, idx) const { return 1.0f; }
};
struct SumAlone {
  TFCC_FN f32 operator()(f32 s, f32, idx, idx, idx, idx) const { return s; }
};

/// c[r][u] += sum over x < count of a[r * a_row + x] b[x * b_row + u * kLanes ..].
template <int kRows, int kVectors>
TFCC_FN void add_product(Lanes (&c)[kRows][kVectors], const f32* a, int a_row, const f32* b,
                         int b_row, int count) {
  for (int x = 0; x < count; ++x) {
    Lanes y[kVectors];
    for (int u = 0; u < kVectors; ++u) y[u] = *(const Lanes*)(b + x * b_row + u * kLanes);
    for (int r = 0; r < kRows; ++r) {
      for (int u = 0; u < kVectors; ++u) c[r][u] += y[u] * a[r * a_row + x];
    }
  }
}

/// A row of a head becomes its softmax.
template <int n> TFCC_FN void soften(f32* x) {
  f32 top = x[0], sum = 0.0f;
  for (int e = 1; e < n; ++e) top = x[e] > top ? x[e] : top;
#pragma clang loop vectorize(assume_safety)
  for (int e = 0; e < n; ++e) x[e] = fexp(x[e] - top);
  for (int e = 0; e < n; ++e) sum += x[e];
  for (int e = 0; e < n; ++e) x[e] /= sum;
}

/// sum += x with a compensation: what the last sums lost.
template <class V> TFCC_FN void add_compensated(V& sum, V& lost, V x) {
  const V y = x - lost, t = sum + y;
  lost = (t - sum) - y;
  sum = t;
}

template <class Spec> struct LinearState {
  static constexpr int kChunk = 16, kRows = 4;
  static constexpr int d = (Spec::head_dim + kRows - 1) / kRows * kRows, columns = Spec::columns;
  static constexpr int kVectors = columns % (2 * kLanes) == 0 ? 2 : 1, kWidth = kVectors * kLanes;
  static_assert(columns % kLanes == 0 && kChunk % kLanes == 0, "columns are whole vectors");
  static constexpr bool decays = Spec::decays;

  alignas(64) f32 s[d * columns] = {};
  alignas(64) f32 s_lost[d * columns] = {};
  alignas(64) f32 q[kChunk * d];
  alignas(64) f32 k[d * kChunk];  // transposed
  alignas(64) f32 v[kChunk * columns];
  alignas(64) f32 w[kChunk * kChunk];  // w(i,j) of the chunk
  f32 z[d] = {}, z_lost[d] = {};       // sum of k'
  f32 grown[kChunk];                   // sum of decays from the chunk's first token to this one

  /// The weights of the chunk's own keys: w[i][j].
  TFCC_FN void weigh() {
    constexpr int n = kChunk / kLanes;
    for (int i = 0; i < kChunk; i += kRows) {
      Lanes c[kRows][n] = {};
      add_product(c, q + i * d, d, k, kChunk, d);
      for (int r = 0; r < kRows; ++r) {
        for (int u = 0; u < n; ++u) *(Lanes*)(w + (i + r) * kChunk + u * kLanes) = c[r][u];
      }
    }
    for (int i = 0; i < kChunk; ++i) {
      for (int j = 0; j < kChunk; ++j) {
        if (j > i) w[i * kChunk + j] = 0.0f;
        else if constexpr (decays) w[i * kChunk + j] *= fexp(grown[i] - grown[j]);
      }
    }
  }

  /// What query i sees of earlier chunks is multiplied by.
  TFCC_FN f32 faded(int i) const {
    if constexpr (decays) return fexp(grown[i]);
    return 1.0f;
  }

  /// y[i][m] of the chunk, in the place of nothing else.
  TFCC_FN void read(f32* y, bool own_chunk) const {
    for (int m = 0; m < columns; m += kWidth) {
      for (int i = 0; i < kChunk; i += kRows) {
        Lanes c[kRows][kVectors] = {};
        add_product(c, q + i * d, d, s + m, columns, d);
        for (int r = 0; r < kRows; ++r) {
          for (int u = 0; u < kVectors; ++u) c[r][u] *= faded(i + r);
        }
        if (own_chunk) add_product(c, w + i * kChunk, kChunk, v + m, columns, i + kRows);
        for (int r = 0; r < kRows; ++r) {
          for (int u = 0; u < kVectors; ++u)
            *(Lanes*)(y + (i + r) * columns + m + u * kLanes) = c[r][u];
        }
      }
    }
  }

  TFCC_FN f32 weight_sum(int i, bool own_chunk) const {
    f32 sum = 0.0f, own = 0.0f;
    for (int e = 0; e < d; ++e) sum += q[i * d + e] * z[e];
    for (int j = 0; own_chunk && j <= i; ++j) own += w[i * kChunk + j];
    return sum * faded(i) + own;
  }

  /// The chunk's keys and values become part of the state. k is overwritten.
  TFCC_FN void advance() {
    f32 keep = 1.0f;
    if constexpr (decays) {
      keep = faded(kChunk - 1);
      for (int j = 0; j < kChunk; ++j) {
        const f32 fade = fexp(grown[kChunk - 1] - grown[j]);
        for (int e = 0; e < d; ++e) k[e * kChunk + j] *= fade;
      }
    }
    for (int m = 0; m < columns; m += kWidth) {
      for (int e = 0; e < d; e += kRows) {
        Lanes c[kRows][kVectors] = {};
        add_product(c, k + e * kChunk, kChunk, v + m, columns, kChunk);
        for (int r = 0; r < kRows; ++r) {
          for (int u = 0; u < kVectors; ++u) {
            Lanes* const sum = (Lanes*)(s + (e + r) * columns + m + u * kLanes);
            Lanes* const lost = (Lanes*)(s_lost + (e + r) * columns + m + u * kLanes);
            if constexpr (decays) *sum *= keep, *lost *= keep;
            add_compensated(*sum, *lost, c[r][u]);
          }
        }
      }
    }
    for (int e = 0; e < d; ++e) {
      f32 x = 0.0f;
      for (int j = 0; j < kChunk; ++j) x += k[e * kChunk + j];
      if constexpr (decays) z[e] *= keep, z_lost[e] *= keep;
      add_compensated(z[e], z_lost[e], x);
    }
  }
};

/// One head of one sequence, channels [first, first + columns) of v.
template <class Spec, class QMap, class KMap, class Shown, class Decay, class Epilogue, class Rows>
struct LinearHead {
  using State = LinearState<Spec>;
  static constexpr int n = State::kChunk, d = State::d, columns = Spec::columns;
  typename Spec::Out* out;
  const typename Spec::T *q, *k, *v;
  const QMap& q_map;
  const KMap& k_map;
  const Shown& shown;
  const Decay& decay;
  const Epilogue& epilogue;
  const Rows& place;
  idx b, h, g, first;
  State s;

  /// Whether there are keys among them.
  TFCC_FN bool load_keys(idx j0, idx keys) {
    bool any = false;
    for (int t = 0; t < n; ++t) {
      const idx j = j0 + t;
      const bool there = j < keys;
      if constexpr (State::decays)
        s.grown[t] =
            (t ? s.grown[t - 1] : 0.0f) + (there ? decay(b, h, place.key_position(b, j)) : 0.0f);
      const idx token = there ? place.key_position(b, j) : 0;
      if (!there || !shown(b, g, token)) {
        for (int e = 0; e < d; ++e) s.k[e * n + t] = 0.0f;
        for (int m = 0; m < columns; ++m) s.v[t * columns + m] = 0.0f;
        continue;
      }
      any = true;
      const typename Spec::T* const key =
          k + place.key_row(b, g, j, Spec::k_stride, Spec::head_dim);
      alignas(64) f32 row[d];
#pragma clang loop vectorize(assume_safety)
      for (int e = 0; e < Spec::head_dim; ++e) row[e] = load(key, e);
      if constexpr (Spec::k_softmax) soften<Spec::head_dim>(row);
#pragma clang loop vectorize(assume_safety)
      for (int e = 0; e < Spec::head_dim; ++e) row[e] = k_map(row[e], b, g, token, e);
      for (int e = 0; e < d; ++e) s.k[e * n + t] = e < Spec::head_dim ? row[e] : 0.0f;
      const typename Spec::T* const value =
          v + place.key_row(b, g, j, Spec::v_stride, Spec::v_dim) + first;
      const int most = (int)imin(columns, Spec::v_dim - first);
      for (int m = 0; m < columns; ++m) s.v[t * columns + m] = m < most ? load(value, m) : 0.0f;
    }
    return any;
  }

  TFCC_FN void load_queries(idx i0, idx queries) {
    for (int t = 0; t < n; ++t) {
      for (int e = 0; e < d; ++e) s.q[t * d + e] = 0.0f;
      if (i0 + t >= queries) continue;
      const idx token = place.position(b, i0 + t);
      const typename Spec::T* const query =
          q + (place.first_query(b) + i0 + t) * Spec::q_stride + h * Spec::head_dim;
      f32* const row = s.q + t * d;
#pragma clang loop vectorize(assume_safety)
      for (int e = 0; e < Spec::head_dim; ++e) row[e] = load(query, e);
      if constexpr (Spec::q_softmax) soften<Spec::head_dim>(row);
#pragma clang loop vectorize(assume_safety)
      for (int e = 0; e < Spec::head_dim; ++e) row[e] = q_map(row[e], b, h, token, e);
    }
  }

  TFCC_FN void write(idx i0, idx queries, bool own_chunk) {
    alignas(64) f32 y[n * columns];
    s.read(y, own_chunk);
    const int most = (int)imin(columns, Spec::v_dim - first);
    for (int t = 0; t < n && i0 + t < queries; ++t) {
      const idx token = place.position(b, i0 + t);
      f32 z = 0.0f;
      if constexpr (Spec::normalises) z = s.weight_sum(t, own_chunk);
      typename Spec::Out* const to =
          out + (place.first_query(b) + i0 + t) * Spec::out_stride + h * Spec::v_dim + first;
#pragma clang loop vectorize(assume_safety)
      for (int m = 0; m < most; ++m)
        store(to, m, epilogue(y[t * columns + m], z, b, h, token, first + m));
    }
  }

  TFCC_FN void run() {
    const idx queries = place.query_count(b), keys = place.key_count(b);
    if constexpr (Spec::causal) {
      for (idx i = 0; i < queries; i += n) {
        load_keys(i, keys);
        load_queries(i, queries);
        s.weigh();
        write(i, queries, true);
        if (i + n < queries) s.advance();
      }
    } else {
      for (idx j = 0; j < keys; j += n) {
        // Sums with what is lost of them change when zeros are added: padding has no part in them.
        if (load_keys(j, keys)) s.advance();
      }
      for (idx i = 0; i < queries; i += n) {
        load_queries(i, queries);
        write(i, queries, false);
      }
    }
  }
};

/// Spec: T, Out, heads, kv_heads, head_dim, v_dim, the four strides, columns, causal, decays,
/// normalises, q_softmax, k_softmax. Work items are those of all blocks of channels.
template <class Spec, class QMap, class KMap, class Shown, class Decay, class Epilogue, class Rows>
TFCC_FN void linear_attention(typename Spec::Out* __restrict out, const typename Spec::T* q,
                              const typename Spec::T* k, const typename Spec::T* v,
                              [[maybe_unused]] idx batch, const QMap& q_map, const KMap& k_map,
                              const Shown& shown, const Decay& decay, const Epilogue& epilogue,
                              const Rows& place, i64 begin, i64 end) {
  constexpr idx blocks = (Spec::v_dim + Spec::columns - 1) / Spec::columns;
  for (i64 item = begin; item < end; ++item) {
    const idx h = item / blocks % Spec::heads;
    LinearHead<Spec, QMap, KMap, Shown, Decay, Epilogue, Rows> head{
        out,
        q,
        k,
        v,
        q_map,
        k_map,
        shown,
        decay,
        epilogue,
        place,
        place.sequence(item / blocks / Spec::heads),
        h,
        h / (Spec::heads / Spec::kv_heads),
        item % blocks * Spec::columns,
        {}};
    head.run();
  }
}
