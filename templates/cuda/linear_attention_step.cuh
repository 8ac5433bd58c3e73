// SPDX-License-Identifier: Apache-2.0
// linear_attention_step: rows [first[n], first[n + 1]) of q [rows, heads*d], k [rows, kv_heads*d] and v [rows, kv_heads*dv] go on with the
// sums in slot from[n] of state [slots, kv_heads, dv (+ 1), d] (outside of the slots: with none) and leave theirs in slot to[n] (outside:
// nowhere). Row m of a head is the sum of k' v[m], row dv that of k'. At token t: S = exp(decay(t)) S + k' v^T, out = epilogue(q' S, q' z)
// (ir/ops.md). Tokens follow each other one by one, so that a sequence has the same bits in runs of any sizes.
//
// A block owns `columns` channels of v of one head of keys of one sequence: grid {ceil(dv, columns), kv_heads, sequences}; with ahead any number
// of blocks take these one after the other, the next one's state on its way. `parts` threads
// hold kRows rows of the state, of each the quads part, part + parts, ..; the first warp holds the sum of keys too, which the first block
// leaves. What kTokens tokens see is summed over the parts at once. q', k' and v of `tokens` tokens are in shared memory, and what they
// see, before the epilogue. No slot of `to` is one of `from`.
// Spec: T (f16, bf16, f32), Out; heads, kv_heads, head_dim, v_dim, the four strides; columns, parts, rows (kRows), together (kTokens, 1
// where heads share keys), tokens; ahead; aligned (rows of q, k and v begin at 16 bytes, heads are multiples of them); decays, normalises (the
// epilogue asks for z). Threads and dynamic shared memory: LinearStepShape<Spec>.
// Bound, for a token of each sequence: the bytes of its state, read and written; for more tokens the FMA units, 4 d dv FLOP a head.
#pragma once
#include "cuda/linear_attention_tile.cuh"

template <class Spec>
struct LinearStepShape {
  static constexpr int d = Spec::head_dim, parts = Spec::parts, quads = ceil_div(d, 4 * parts), width = 4 * parts * quads, columns = Spec::columns;
  static constexpr int group = Spec::heads / Spec::kv_heads, kRows = Spec::rows, kTokens = group == 1 ? Spec::together : 1;
  static constexpr int threads = round_up(columns / kRows * parts, kWarp), tokens = Spec::tokens, seen_stride = columns + 4;
  static constexpr int pieces = quads * (kRows + Spec::normalises);  // of 16 bytes, that a thread holds of a state
  static constexpr int shared_bytes = 4 * tokens * (width * (1 + group) + columns + 4 + group * seen_stride) + (Spec::ahead ? 2 * pieces * 16 * threads : 0);
  static constexpr int vec = Spec::aligned ? 16 / (int)sizeof(typename Spec::T) : 1;  // elements of q, k and v that are read at a time
  static constexpr i64 state_rows = Spec::v_dim + Spec::normalises;
  static_assert(!Spec::ahead || d % 4 == 0, "ahead: rows of a state are copied in pieces of 16 bytes");
  static_assert(is_power_of_two(parts) && parts <= kWarp && columns % kRows == 0 && kRows % 4 == 0, "parts: a power of two; columns: a multiple of rows");
};

/// `lanes` neighbouring lanes have `count` values each, and exchange halves until each has the sum over all of its own: x[i] becomes that of value
/// lane * count / lanes + i, rounded down. Of fewer values than lanes, lanes / count neighbours have the same one.
template <int count, int lanes>
TFCC_FN void sum_over_lanes(f32* x, int lane) {
  if constexpr (lanes > 1 && count > 1) {
    constexpr int half = count / 2, step = lanes / 2;
    const bool upper = lane & step;
#pragma unroll
    for (int i = 0; i < half; ++i) x[i] = (upper ? x[half + i] : x[i]) + __shfl_xor_sync(kAllLanes, upper ? x[i] : x[half + i], step);
    sum_over_lanes<half, step>(x, lane);
  } else if constexpr (lanes > 1) {
#pragma unroll
    for (int step = lanes / 2; step > 0; step /= 2) x[0] += __shfl_xor_sync(kAllLanes, x[0], step);
  }
}

/// What a thread holds: kRows rows of the state, and of the sum of keys, at its quads.
template <class Spec>
struct LinearStepRows {
  using Shape = LinearStepShape<Spec>;
  static constexpr int n = 4 * Shape::quads, d = Shape::d, kRows = Shape::kRows, kTokens = Shape::kTokens;
  f32 s[kRows][n], z[n];
  int row, part;   // row: the first of its own in the block
  idx first;       // channel of v of the block
  bool sums;       // in the first warp, where there is a sum of keys

  TFCC_FN LinearStepRows(idx first_) : first(first_) {
    row = (int)threadIdx.x / Shape::parts * kRows, part = (int)threadIdx.x % Shape::parts;
    sums = Spec::normalises && threadIdx.x < kWarp;
#pragma unroll
    for (int x = 0; x < n; ++x) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) s[r][x] = 0.0f;
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
  /// Calls f(place in a row, row of the state, number of this thread's piece) for what it holds of a state, the sum of keys last.
  template <class F> TFCC_FN void for_each_piece(const F& f) const {
#pragma unroll
    for (int r = 0; r < kRows + Spec::normalises; ++r) {
      if (r < kRows ? !has(r) : !sums) continue;
#pragma unroll
      for (int u = 0; u < Shape::quads; ++u) {
        if (d == Shape::width || place(u) < d) f(place(u), r < kRows ? (i64)(first + row + r) : (i64)Spec::v_dim, r * Shape::quads + u);
      }
    }
  }
  /// The same as take(), through this thread's pieces of shared memory.
  TFCC_FN void fetch(const f32* slot, float4* to) const {
    for_each_piece([&](int e, i64 r, int x) { copy_async(to + x * Shape::threads + threadIdx.x, slot + r * d + e, true); });
  }
  TFCC_FN void take_fetched(const float4* from) {
    for_each_piece([&](int, i64, int x) {
      const float4 y = from[x * Shape::threads + threadIdx.x];
      f32* const to = (x < kRows * Shape::quads ? s[x / Shape::quads] : z) + 4 * (x % Shape::quads);
      to[0] = y.x, to[1] = y.y, to[2] = y.z, to[3] = y.w;
    });
  }
  /// `slot`: of this head.
  TFCC_FN void take(const f32* slot) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (has(r)) take_row(slot + (i64)(first + row + r) * d, s[r]);
    }
    if (sums) take_row(slot + (i64)Spec::v_dim * d, z);
  }
  TFCC_FN void leave(f32* slot) const {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
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
    f32 k[n], v[kRows];
    load_quads(key, k);
    load_pack(values + (row < Shape::columns ? row : 0), v);
#pragma unroll
    for (int x = 0; x < n; ++x) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) s[r][x] = fmaf(k[x], v[r], Spec::decays ? s[r][x] * keep : s[r][x]);
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
  /// `there` tokens join, kTokens at most; to[row] of each becomes what its query sees, and to[columns] the sum of weights.
  TFCC_FN void step(int there, const f32* keys, const f32* keeps, const f32* values, const f32* queries, f32* to) {
    constexpr int group = Shape::group;
    f32 a[kTokens * kRows], w[kTokens];
#pragma unroll (group <= 4 ? group : 1)
    for (int h = 0; h < group; ++h) {
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        if (h == 0 && t < there) add(keys + t * Shape::width, Spec::decays ? keeps[4 * t] : 1.0f, values + t * Shape::columns);
        f32 q[n];
        load_quads(queries + ((t < there ? t : 0) * group + h) * Shape::width, q);
#pragma unroll
        for (int r = 0; r < kRows; ++r) a[t * kRows + r] = dot(q, s[r]);
        w[t] = sums ? dot(q, z) : 0.0f;
      }
      put<kRows>(a, there, row < Shape::columns, to + h * Shape::seen_stride + row);
      if (sums) put<1>(w, there, row == 0, to + h * Shape::seen_stride + Shape::columns);
    }
  }
  /// x: of kTokens tokens `rows` values, whose sums over the parts go where they belong.
  template <int rows> static TFCC_FN void put(f32* x, int there, bool writes, f32* to) {
    constexpr int parts = Shape::parts, count = kTokens * rows, left = count > parts ? count / parts : 1, lanes = count > parts ? 1 : parts / count;
    const int part = (int)threadIdx.x % parts;
    sum_over_lanes<count, parts>(x, part);
#pragma unroll
    for (int i = 0; i < left; ++i) {
      const int v = part / lanes * left + i, t = v / rows;
      if (writes && part % lanes == 0 && t < there) to[t * Shape::group * Shape::seen_stride + v % rows] = x[i];
    }
  }
};

/// `most` rows of `width` elements on their way to shared memory: this thread's pieces, loaded all at once where they are few.
template <class Shape, class T, int width, int most>
struct StepTokens {
  static constexpr int vec = width % Shape::vec == 0 ? Shape::vec : 1, units = width / vec, steps = ceil_div(most * units, Shape::threads);
  static constexpr bool ahead = steps <= 12;
  union Piece {
    uint4 word;
    T e[vec];
    TFCC_FN Piece() {}
  };
  Piece pieces[ahead ? steps : 1];

  static TFCC_FN int row(int step) { return ((int)threadIdx.x + step * Shape::threads) / units; }
  static TFCC_FN int column(int step) { return ((int)threadIdx.x + step * Shape::threads) % units * vec; }
  static TFCC_FN void fetch(Piece& p, const T* from) {
    if constexpr (vec * sizeof(T) == 16) p.word = *(const uint4*)from;
    else p.e[0] = *from;
  }
  /// Row r begins at from(r); elements from `there` on are not read.
  template <class From> TFCC_FN void load_rows(int rows, int there, const From& from) {
#pragma unroll
    for (int step = 0; ahead && step < steps; ++step) {
      if (row(step) < rows && column(step) < there) fetch(pieces[step], from(row(step)) + column(step));
    }
  }
  /// to[r * width + c] becomes map(element, r, c), 0 from `there` on.
  template <class From, class Map> TFCC_FN void put(int rows, int there, const From& from, const Map& map, f32* to) {
#pragma unroll (ahead ? steps : 1)
    for (int step = 0; step < steps; ++step) {
      const int r = row(step), c = column(step);
      if (r >= rows) break;
      Piece& p = pieces[ahead ? step : 0];
      if (!ahead && c < there) fetch(p, from(r) + c);
#pragma unroll
      for (int k = 0; k < vec; ++k) to[r * width + c + k] = c + k < there ? map(load(p.e, k), r, c + k) : 0.0f;
    }
  }
};

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
  const auto slot = [&](idx at, idx g) { return state + ((i64)at * Spec::kv_heads + g) * Shape::state_rows * d; };
  const auto there_is = [&](idx at) { return at >= 0 && at < slots; };
  struct Sequence { idx begin, end, from, to; };  // its rows and slots
  const auto sequence = [&](idx n) { return Sequence{first_row[n], first_row[n + 1], from[n], to[n]}; };
  const auto go_on = [&](const Sequence& at, idx g, idx first, LinearStepRows<Spec>& held) {
    const int most = (int)imin(columns, Spec::v_dim - first);
#pragma unroll 1
    for (idx t0 = at.begin; t0 < at.end; t0 += tokens) {
      const int there = (int)imin(tokens, at.end - t0);
      const auto query = [&](int r) { return q + (i64)(t0 + r / group) * Spec::q_stride + (g * group + r % group) * d; };
      const auto key = [&](int r) { return k + (i64)(t0 + r) * Spec::k_stride + g * d; };
      const auto value = [&](int r) { return v + (i64)(t0 + r) * Spec::v_stride + g * Spec::v_dim + first; };
      StepTokens<Shape, typename Spec::T, width, tokens * group> of_q;
      StepTokens<Shape, typename Spec::T, width, tokens> of_k;
      StepTokens<Shape, typename Spec::T, columns, tokens> of_v;
      of_k.load_rows(there, d, key);
      of_v.load_rows(there, most, value);
      of_q.load_rows(there * group, d, query);
      of_k.put(there, d, key, [&](f32 x, int r, int e) { return k_map(x, 0, g, t0 + r, e); }, keys);
      of_v.put(there, most, value, [](f32 x, int, int) { return x; }, values);
      of_q.put(there * group, d, query, [&](f32 x, int r, int e) { return q_map(x, 0, g * group + r % group, t0 + r / group, e); }, queries);
      for (int j = threadIdx.x; Spec::decays && j < there; j += threads) keeps[4 * j] = expf(decay(0, g * group, t0 + j));
      __syncthreads();
#pragma unroll 1
      for (int j = 0; j < there; j += Shape::kTokens) {
        held.step((int)imin(Shape::kTokens, there - j), keys + j * width, keeps + 4 * j, values + j * columns, queries + j * group * width, seen + j * group * Shape::seen_stride);
      }
      __syncthreads();
#pragma unroll 4
      for (int x = threadIdx.x; x < there * group * columns; x += threads) {
        const int j = x / (group * columns), h = x / columns % group, m = x % columns;
        if (m >= most) continue;
        const f32* const of = seen + (j * group + h) * Shape::seen_stride;
        const idx t = t0 + j, head = g * group + h;
        store(out + (i64)t * Spec::out_stride + head * Spec::v_dim + first, m, epilogue(of[m], Spec::normalises ? of[columns] : 0.0f, 0, head, t, first + m));
      }
    }
    if (there_is(at.to)) held.leave(slot(at.to, g));
  };
  constexpr idx blocks = ceil_div(Spec::v_dim, columns), of_sequence = blocks * Spec::kv_heads;
  if constexpr (Spec::ahead) {
    float4* const fetched = (float4*)(seen + tokens * group * Shape::seen_stride);
    const idx tiles = sequences * of_sequence;
    const auto channel = [&](idx tile) { return tile % blocks * columns; };
    const auto head = [&](idx tile) { return tile / blocks % Spec::kv_heads; };
    const auto fetch = [&](idx tile, idx at, int buffer) {
      if (there_is(at)) LinearStepRows<Spec>(channel(tile)).fetch(slot(at, head(tile)), fetched + buffer * Shape::pieces * threads);
      commit_copies();
    };
    // Where the tile after the next one has its rows and its state is asked for before it is needed.
    const auto of_tile = [&](idx tile) { return tile < tiles ? sequence(tile / of_sequence) : Sequence{0, 0, -1, -1}; };
    const idx step = (idx)gridDim.x;
    idx tile = (idx)blockIdx.x;
    Sequence now = of_tile(tile), next = of_tile(tile + step);
    fetch(tile, now.from, 0);
#pragma unroll 1
    for (int buffer = 0; tile < tiles; tile += step, buffer ^= 1) {
      const Sequence later = of_tile(tile + 2 * step);
      fetch(tile + step, next.from, buffer ^ 1);
      LinearStepRows<Spec> held(channel(tile));
      wait_copies<1>();
      if (there_is(now.from)) held.take_fetched(fetched + buffer * Shape::pieces * threads);
      go_on(now, head(tile), channel(tile), held);
      now = next, next = later;
    }
  } else {
    const idx n = (idx)blockIdx.z, g = (idx)blockIdx.y, first = (idx)blockIdx.x * columns;
    if (n >= sequences) return;
    const Sequence at = sequence(n);
    LinearStepRows<Spec> held(first);
    if (there_is(at.from)) held.take(slot(at.from, g));
    go_on(at, g, first, held);
  }
}
