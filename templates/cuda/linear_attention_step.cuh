// SPDX-License-Identifier: Apache-2.0
// linear_attention_step: rows [first[n], first[n + 1]) of q [rows, heads*d], k [rows, kv_heads*d] and v [rows, kv_heads*dv] go on with the
// sums in slot from[n] of state [slots, kv_heads, dv (+ 1), d] (outside of the slots: with none) and leave theirs in slot to[n] (outside:
// nowhere). Row m of a head is the sum of k' v[m], row dv that of k'. At token t: S = exp(decay(t)) S + k' v^T, out = epilogue(q' S, q' z)
// (ir/ops.md). Tokens follow each other one by one, so that a sequence has the same bits in runs of any sizes.
//
// A block owns `columns` channels of v of one head of keys of one sequence: grid {ceil(dv, columns), kv_heads, sequences}. `parts` threads
// hold four rows of the state, of each the quads part, part + parts, ..; the first warp holds the sum of keys too, which the first block
// leaves. q', k' and v of `tokens` tokens are in shared memory, and what they see, before the epilogue. No slot of `to` is one of `from`.
// Spec: T (f16, bf16, f32), Out; heads, kv_heads, head_dim, v_dim, the four strides; columns, parts, tokens; aligned (rows of q, k and v
// begin at 16 bytes, heads are multiples of them); decays, normalises (the epilogue asks for z). Threads and dynamic shared memory:
// LinearStepShape<Spec>.
// Bound, for a token of each sequence: the bytes of its state, read and written; for more tokens the FMA units, 4 d dv FLOP a head.
#pragma once
#include "cuda/linear_attention_tile.cuh"

template <class Spec>
struct LinearStepShape {
  static constexpr int d = Spec::head_dim, parts = Spec::parts, quads = ceil_div(d, 4 * parts), width = 4 * parts * quads, columns = Spec::columns;
  static constexpr int group = Spec::heads / Spec::kv_heads, threads = round_up(columns / 4 * parts, kWarp), tokens = Spec::tokens, seen_stride = columns + 4;
  static constexpr int shared_bytes = 4 * tokens * (width * (1 + group) + columns + 4 + group * seen_stride);
  static constexpr int vec = Spec::aligned ? 16 / (int)sizeof(typename Spec::T) : 1;  // elements of q, k and v that are read at a time
  static constexpr i64 state_rows = Spec::v_dim + Spec::normalises;
  static_assert(is_power_of_two(parts) && parts <= kWarp && columns % 4 == 0, "parts: a power of two; columns: a multiple of 4");
};

/// What a thread holds: four rows of the state, and of the sum of keys, at its quads.
template <class Spec>
struct LinearStepRows {
  using Shape = LinearStepShape<Spec>;
  static constexpr int n = 4 * Shape::quads, d = Shape::d;
  f32 s[4][n], z[n];
  int row, part;   // row: the first of four in the block
  idx first;       // channel of v of the block
  bool sums;       // in the first warp, where there is a sum of keys

  TFCC_FN LinearStepRows(idx first_) : first(first_) {
    row = (int)threadIdx.x / Shape::parts * 4, part = (int)threadIdx.x % Shape::parts;
    sums = Spec::normalises && threadIdx.x < kWarp;
#pragma unroll
    for (int x = 0; x < n; ++x) {
#pragma unroll
      for (int r = 0; r < 4; ++r) s[r][x] = 0.0f;
      z[x] = 0.0f;
    }
  }
  TFCC_FN bool has(int r) const { return row + r < Shape::columns && first + row + r < Spec::v_dim; }
  TFCC_FN int place(int u) const { return 4 * (part + u * Shape::parts); }

  TFCC_FN void take_row(const f32* from, f32 (&to)[n]) const {
#pragma unroll
    for (int u = 0; u < Shape::quads; ++u) {
      const int e = place(u);
      if constexpr (d % 4 == 0) {
        if (d < Shape::width && e >= d) continue;
        const float4 x = *(const float4*)(from + e);
        to[4 * u] = x.x, to[4 * u + 1] = x.y, to[4 * u + 2] = x.z, to[4 * u + 3] = x.w;
      } else {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          if (e + c < d) to[4 * u + c] = from[e + c];
        }
      }
    }
  }
  TFCC_FN void leave_row(f32* to, const f32 (&from)[n]) const {
#pragma unroll
    for (int u = 0; u < Shape::quads; ++u) {
      const int e = place(u);
      if constexpr (d % 4 == 0) {
        if (d < Shape::width && e >= d) continue;
        *(float4*)(to + e) = make_float4(from[4 * u], from[4 * u + 1], from[4 * u + 2], from[4 * u + 3]);
      } else {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          if (e + c < d) to[e + c] = from[4 * u + c];
        }
      }
    }
  }
  /// `slot`: of this head.
  TFCC_FN void take(const f32* slot) {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      if (has(r)) take_row(slot + (i64)(first + row + r) * d, s[r]);
    }
    if (sums) take_row(slot + (i64)Spec::v_dim * d, z);
  }
  TFCC_FN void leave(f32* slot) const {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      if (has(r)) leave_row(slot + (i64)(first + row + r) * d, s[r]);
    }
    if (sums && row == 0 && first == 0) leave_row(slot + (i64)Spec::v_dim * d, z);
  }

  TFCC_FN void load_quads(const f32* from, f32 (&to)[n]) const {
#pragma unroll
    for (int u = 0; u < Shape::quads; ++u) {
      const float4 x = *(const float4*)(from + place(u));
      to[4 * u] = x.x, to[4 * u + 1] = x.y, to[4 * u + 2] = x.z, to[4 * u + 3] = x.w;
    }
  }
  /// s = keep s + v key^T, z = keep z + key
  TFCC_FN void add(const f32* key, f32 keep, const f32* values) {
    f32 k[n];
    load_quads(key, k);
    const float4 v4 = *(const float4*)(values + (row < Shape::columns ? row : 0));
    const f32 v[] = {v4.x, v4.y, v4.z, v4.w};
#pragma unroll
    for (int x = 0; x < n; ++x) {
#pragma unroll
      for (int r = 0; r < 4; ++r) s[r][x] = fmaf(k[x], v[r], Spec::decays ? s[r][x] * keep : s[r][x]);
    }
    if (!sums) return;
#pragma unroll
    for (int x = 0; x < n; ++x) z[x] = (Spec::decays ? z[x] * keep : z[x]) + k[x];
  }

  static TFCC_FN f32 dot(const f32 (&a)[n], const f32 (&b)[n]) {
    f32 sum = 0.0f;
#pragma unroll
    for (int x = 0; x < n; ++x) sum = fmaf(a[x], b[x], sum);
    return sum;
  }
  /// What a query sees: to[row] of the block, and to[columns] the sum of weights.
  TFCC_FN void see(const f32* query, f32* to) const {
    constexpr int parts = Shape::parts;
    f32 q[n];
    load_quads(query, q);
    f32 a[4];
#pragma unroll
    for (int r = 0; r < 4; ++r) a[r] = dot(q, s[r]);
    if constexpr (parts >= 4) {
      // Half of the threads go on with two of the rows, a quarter with one.
      const bool upper = part & (parts / 2), odd = part & (parts / 4);
      f32 x[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) x[r] = (upper ? a[2 + r] : a[r]) + __shfl_xor_sync(kAllLanes, upper ? a[r] : a[2 + r], parts / 2);
      f32 y = (odd ? x[1] : x[0]) + __shfl_xor_sync(kAllLanes, odd ? x[0] : x[1], parts / 4);
#pragma unroll
      for (int step = parts / 8; step > 0; step /= 2) y += __shfl_xor_sync(kAllLanes, y, step);
      if (part % (parts / 4) == 0 && row < Shape::columns) to[row + part / (parts / 4)] = y;
    } else {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const f32 y = reduce_lanes<parts>(a[r], Add{});
        if (part == 0 && row < Shape::columns) to[row + r] = y;
      }
    }
    if (!sums) return;
    const f32 y = reduce_lanes<parts>(dot(q, z), Add{});
    if (threadIdx.x == 0) to[Shape::columns] = y;
  }
};

/// to(row, c, map(element, row, c)) for each of `rows` x `width` elements, 0 in columns from `there` on; row r begins at from(r).
template <class Shape, int width, int most, class From, class Map, class To>
TFCC_FN void stage_tokens(int rows, int there, const From& from, const Map& map, const To& to) {
  constexpr int vec = width % Shape::vec == 0 ? Shape::vec : 1, units = width / vec, steps = ceil_div(most * units, Shape::threads);
#pragma unroll (steps > 8 ? 4 : steps)
  for (int step = 0; step < steps; ++step) {
    const int x = (int)threadIdx.x + step * Shape::threads, r = x / units, c = x % units * vec;
    if (r >= rows) break;
    f32 y[vec];
#pragma unroll
    for (int k = 0; k < vec; ++k) y[k] = 0.0f;
    if (c < there) load_pack<vec>(from(r) + c, y);
#pragma unroll
    for (int k = 0; k < vec; ++k) to(r, c + k, c + k < there ? map(y[k], r, c + k) : 0.0f);
  }
}

template <class Spec, class QMap, class KMap, class Decay, class Epilogue>
TFCC_FN void linear_attention_step(typename Spec::Out* out, f32* state, const typename Spec::T* q, const typename Spec::T* k, const typename Spec::T* v,
                                   const i32* first_row, const i32* from, const i32* to, idx sequences, idx slots, const QMap& q_map, const KMap& k_map, const Decay& decay,
                                   const Epilogue& epilogue) {
  using Shape = LinearStepShape<Spec>;
  constexpr int d = Shape::d, width = Shape::width, columns = Shape::columns, group = Shape::group, tokens = Shape::tokens, threads = Shape::threads;
  extern __shared__ uint4 tfcc_shared[];
  f32* const queries = (f32*)tfcc_shared;                 // [tokens, group, width]
  f32* const keys = queries + tokens * group * width;     // [tokens, width]
  f32* const values = keys + tokens * width;              // [tokens, columns]
  f32* const keeps = values + tokens * columns;           // [tokens, 4], the first of four
  f32* const seen = keeps + tokens * 4;                   // [tokens, group, seen_stride]
  const idx n = (idx)blockIdx.z, g = (idx)blockIdx.y, first = (idx)blockIdx.x * columns;
  if (n >= sequences) return;
  const int most = (int)imin(columns, Spec::v_dim - first);
  const auto slot = [&](idx at) { return state + ((i64)at * Spec::kv_heads + g) * Shape::state_rows * d; };
  LinearStepRows<Spec> held(first);
  if (const idx at = from[n]; at >= 0 && at < slots) held.take(slot(at));

  const idx end = first_row[n + 1];
#pragma unroll 1
  for (idx t0 = first_row[n]; t0 < end; t0 += tokens) {
    const int there = (int)imin(tokens, end - t0);
    stage_tokens<Shape, width, tokens * group>(there * group, d, [&](int r) { return q + (i64)(t0 + r / group) * Spec::q_stride + (g * group + r % group) * d; },
                                               [&](f32 x, int r, int e) { return q_map(x, 0, g * group + r % group, t0 + r / group, e); },
                                               [&](int r, int e, f32 y) { queries[r * width + e] = y; });
    stage_tokens<Shape, width, tokens>(there, d, [&](int r) { return k + (i64)(t0 + r) * Spec::k_stride + g * d; }, [&](f32 x, int r, int e) { return k_map(x, 0, g, t0 + r, e); },
                                       [&](int r, int e, f32 y) { keys[r * width + e] = y; });
    stage_tokens<Shape, columns, tokens>(there, most, [&](int r) { return v + (i64)(t0 + r) * Spec::v_stride + g * Spec::v_dim + first; }, [](f32 x, int, int) { return x; },
                                         [&](int r, int m, f32 y) { values[r * columns + m] = y; });
    for (int j = threadIdx.x; Spec::decays && j < there; j += threads) keeps[4 * j] = expf(decay(0, g * group, t0 + j));
    __syncthreads();
#pragma unroll 2
    for (int j = 0; j < there; ++j) {
      held.add(keys + j * width, Spec::decays ? keeps[4 * j] : 1.0f, values + j * columns);
#pragma unroll (group <= 4 ? group : 1)
      for (int h = 0; h < group; ++h) held.see(queries + (j * group + h) * width, seen + (j * group + h) * Shape::seen_stride);
    }
    __syncthreads();
#pragma unroll 1
    for (int x = threadIdx.x; x < there * group * columns; x += threads) {
      const int j = x / (group * columns), h = x / columns % group, m = x % columns;
      if (m >= most) continue;
      const f32* const of = seen + (j * group + h) * Shape::seen_stride;
      const idx t = t0 + j, head = g * group + h;
      store(out + (i64)t * Spec::out_stride + head * Spec::v_dim + first, m, epilogue(of[m], Spec::normalises ? of[columns] : 0.0f, 0, head, t, first + m));
    }
  }
  if (const idx at = to[n]; at >= 0 && at < slots) held.leave(slot(at));
}
