// SPDX-License-Identifier: Apache-2.0
// linear_attention_step: rows [first[n], first[n + 1]) of q [rows, heads*d], k [rows, kv_heads*d]
// and v [rows, kv_heads*dv] go on with the sums in slot from[n] of state [slots, kv_heads, dv (+
// 1), d] (outside of the slots: with none) and leave theirs in slot to[n] (outside:
// nowhere). Row m of a head is the sum of k' v[m], row dv that of k'. At token t: S = exp(decay(t))
// S + k' u^T, out = epilogue(q' S, q' z), where u = v, or by the delta rule beta(t) (v - k'
// exp(decay(t)) S) (ir/ops.md). Tokens follow each other one by one, so that a sequence has the same
// bits in runs of any sizes. A linear_attention with a state or a beta is the same with BatchStates:
// sequence n has rows [n tokens, (n + 1) tokens), and sums of its own before and after them.
//
// A block owns `columns` channels of v of one head of keys of one sequence: grid {ceil(dv,
// columns), kv_heads, sequences}. `parts` threads hold kRows rows of the state, of each the quads
// part, part + parts, ..; the first warp holds the sum of keys too, which the first block leaves.
// What kTokens tokens see is summed over the parts at once; what a key reads for the delta rule,
// between two tokens. q', k' and v of `tokens` tokens are in
// shared memory, and what they see, before the epilogue. No slot of `to` is one of `from`.
// With ahead (sequences of few tokens) any number of blocks take these tiles one after the other.
// Of `places` - 1 tiles the state, and rows of q, k and v where they are aligned, are on their way
// to shared memory: by bulk copies from capability 9.0 on, else by cp.async.
// If early as well, a thread of each block asks for the states of its first tiles before the
// launches before this one have ended, and the block waits itself: states, and which rows and slots
// a sequence has, were there before the run.
// Sequences with fewer tokens than `least` or more than `most` are those of another launch. Where
// least is over 0 the grid's last size is at most rows / least, and blocks look for theirs.
// Spec: T (f16, bf16, f32), Out; heads, kv_heads, head_dim, v_dim, the four strides; columns,
// parts, rows (kRows), together (kTokens, 1 where heads share keys), tokens; ahead, places, early (all
// three not with BatchStates); least, most (0 and any number with these); delta; sums_aligned (slots begin at 16 bytes where d is a multiple
// of 4, as states do; else sums are read one by one); aligned (rows of q, k and v begin at 16 bytes, heads are multiples of them); decays, normalises
// (the epilogue asks for z), q_softmax, k_softmax. Threads and dynamic shared memory: LinearStepShape<Spec>.
// Bound, for a token of each sequence: the bytes of its state, read and written; for more tokens
// the FMA units, 4 d dv FLOP a head, 6 with the delta rule, whose tokens wait for each other.
#pragma once
#include "cuda/linear_attention_tile.cuh"
#include "cuda/sm90.cuh"

template <class Spec> struct LinearStepShape {
  static constexpr int d = Spec::head_dim, parts = Spec::parts, quads = ceil_div(d, 4 * parts),
                       width = 4 * parts * quads, columns = Spec::columns;
  static constexpr int group = Spec::heads / Spec::kv_heads, kRows = Spec::rows,
                       kTokens = group == 1 ? Spec::together : 1;
  static constexpr int threads = round_up(columns / kRows * parts, kWarp), tokens = Spec::tokens,
                       seen_stride = columns + 4;
  // With ahead a place for a state on its way holds rows [columns, d] and the sum of keys [d], then
  // of each token v [columns], k [d] and q [group, d] as they are stored. Behind the places are
  // their barriers.
  static constexpr int state_floats = (columns + Spec::normalises) * d,
                       row =
                           round_up(d * (1 + group) + columns, 16 / (int)sizeof(typename Spec::T));
  static constexpr int place_bytes =
      4 * state_floats + tokens * row * (int)sizeof(typename Spec::T);
  static constexpr int shared_bytes = 4 * tokens * (4 + group * seen_stride) +
                                      (Spec::ahead ? Spec::places * (place_bytes + 8)
                                                   : 4 * tokens * (width * (1 + group) + columns));
  static constexpr int vec = Spec::aligned ? 16 / (int)sizeof(typename Spec::T)
                                           : 1;  // elements of q, k and v that are read at a time
  static constexpr i64 state_rows = Spec::v_dim + Spec::normalises;
  static_assert(!Spec::ahead || d % 4 == 0,
                "ahead: rows of a state are copied in pieces of 16 bytes");
  static_assert(!Spec::early || Spec::ahead, "early: states are asked for ahead");
  static_assert(!Spec::ahead || Spec::sums_aligned, "ahead: copies of 16 bytes");
  static_assert(is_power_of_two(parts) && parts <= kWarp && columns % kRows == 0 && kRows % 4 == 0,
                "parts: a power of two; columns: a multiple of rows");
};

/// `lanes` neighbouring lanes have `count` values each, and exchange halves until each has the sum
/// over all of its own: x[i] becomes that of value lane * count / lanes + i, rounded down. Of fewer
/// values than lanes, lanes / count neighbours have the same one.
template <int count, int lanes> TFCC_FN void sum_over_lanes(f32* x, int lane) {
  if constexpr (lanes > 1 && count > 1) {
    constexpr int half = count / 2, step = lanes / 2;
    const bool upper = lane & step;
#pragma unroll
    for (int i = 0; i < half; ++i)
      x[i] = (upper ? x[half + i] : x[i]) +
             __shfl_xor_sync(kAllLanes, upper ? x[i] : x[half + i], step);
    sum_over_lanes<half, step>(x, lane);
  } else if constexpr (lanes > 1) {
#pragma unroll
    for (int step = lanes / 2; step > 0; step /= 2) x[0] += __shfl_xor_sync(kAllLanes, x[0], step);
  }
}
/// What sum_over_lanes() leaves, for all lanes: x[i] becomes the sum of value i.
template <int count, int lanes> TFCC_FN void share_sums(f32 (&x)[count], int lane) {
  if constexpr (lanes > 1) {
    constexpr int left = count > lanes ? count / lanes : 1,
                  same = count > lanes ? 1 : lanes / count;  // neighbours with one value
    const int first = (int)threadIdx.x % kWarp - lane;
    f32 own[left];
#pragma unroll
    for (int i = 0; i < left; ++i) own[i] = x[i];
#pragma unroll
    for (int i = 0; i < count; ++i)
      x[i] = __shfl_sync(kAllLanes, own[i % left], first + i / left * same);
  }
}

/// What a token multiplies older sums by, and beta.
struct StepGates {
  f32 keep = 1.0f, rate = 1.0f;
};
/// Of token t, in shared memory [tokens, 4].
template <class Spec> TFCC_FN StepGates gates_at(const f32* gates, int t) {
  return {Spec::decays ? gates[4 * t] : 1.0f, Spec::delta ? gates[4 * t + 1] : 1.0f};
}

/// What a thread holds: kRows rows of the state, and of the sum of keys, at its quads.
template <class Spec> struct LinearStepRows {
  using Shape = LinearStepShape<Spec>;
  static constexpr int n = 4 * Shape::quads, d = Shape::d, kRows = Shape::kRows,
                       kTokens = Shape::kTokens;
  f32 s[kRows][n], z[n];
  int row, part;  // row: the first of its own in the block
  idx first;      // channel of v of the block
  bool sums;      // in the first warp, where there is a sum of keys

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
  TFCC_FN bool has(int r) const {
    return row + r < Shape::columns && first + row + r < Spec::v_dim;
  }
  TFCC_FN int place(int u) const { return 4 * (part + u * Shape::parts); }

  TFCC_FN void take_row(const f32* from, f32 (&to)[n]) const {
#pragma unroll
    for (int u = 0; u < Shape::quads; ++u) {
      const int e = place(u);
      if constexpr (d % 4 == 0 && Spec::sums_aligned) {
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
      if constexpr (d % 4 == 0 && Spec::sums_aligned) {
        if (d < Shape::width && e >= d) continue;
        *(float4*)(to + e) =
            make_float4(from[4 * u], from[4 * u + 1], from[4 * u + 2], from[4 * u + 3]);
      } else {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          if (e + c < d) to[e + c] = from[4 * u + c];
        }
      }
    }
  }
  /// The same as take(), from rows [columns, d] and the sum of keys behind them.
  TFCC_FN void take_fetched(const f32* from) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (has(r)) take_row(from + (row + r) * d, s[r]);
    }
    if (sums) take_row(from + Shape::columns * d, z);
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
  /// The same of a row of q or k as it is stored: map(element, place).
  template <class T, class Map>
  TFCC_FN void load_mapped(const T* from, f32 (&to)[n], const Map& map) const {
#pragma unroll
    for (int u = 0; u < Shape::quads; ++u) {
      const int e = place(u);
      f32 x[4] = {};
      const bool there = d == Shape::width || e < d;
      if (there) load_pack(from + e, x);
#pragma unroll
      for (int c = 0; c < 4; ++c) to[4 * u + c] = there ? map(x[c], e + c) : 0.0f;
    }
  }
  /// The same of the softmax of a row, if this thread `has` one; all threads call.
  template <class T, class Map>
  TFCC_FN void load_softened(const T* from, f32 (&to)[n], const Map& map, bool has = true) const {
    const auto there = [&](int x) { return place(x / 4) + x % 4 < d; };
#pragma unroll
    for (int x = 0; x < n; ++x) to[x] = has && there(x) ? load(from, place(x / 4) + x % 4) : 0.0f;
    const RowSoftmax of = row_softmax<typename Spec::T, Shape::parts>([&](const auto& f) {
#pragma unroll
      for (int x = 0; x < n; ++x) {
        if (d == Shape::width || there(x)) f(to[x]);
      }
    });
#pragma unroll
    for (int x = 0; x < n; ++x) {
      const f32 y = exp_of<typename Spec::T>(to[x] - of.top) * of.scale;
      to[x] = there(x) ? map(y, place(x / 4) + x % 4) : 0.0f;
    }
  }
  template <bool softmax, class T, class Map>
  TFCC_FN void load_features(const T* from, f32 (&to)[n], const Map& map) const {
    if constexpr (softmax) load_softened(from, to, map);
    else load_mapped(from, to, map);
  }
  /// `count` rows [Shape::width] become map(element of their softmax, row, place), in place; all
  /// threads call. A row is summed as load_softened() does.
  template <class Map> TFCC_FN void soften_rows(f32* rows, int count, const Map& map) const {
    constexpr int at_once = Shape::threads / Shape::parts;
    const int mine = (int)threadIdx.x / Shape::parts;
#pragma unroll 1
    for (int first = 0; first < count; first += at_once) {
      const int r = first + mine;
      f32 x[n];
      load_softened(
          rows + r * Shape::width, x,
          [&](f32 y, int e) { return map(y, (int)imin(r, count - 1), e); }, r < count);
#pragma unroll
      for (int k = 0; k < n; ++k) {
        if (r < count) rows[r * Shape::width + place(k / 4) + k % 4] = x[k];
      }
    }
  }
  template <class T> TFCC_FN void load_values(const T* from, f32 (&to)[kRows]) const {
    load_pack(from + (row < Shape::columns ? row : 0), to);
  }
  TFCC_FN void add(const f32* key, const StepGates& gates, const f32* values) {
    f32 k[n], v[kRows];
    load_quads(key, k);
    load_values(values, v);
    add(k, gates, v);
  }
  TFCC_FN void add(const f32 (&k)[n], const StepGates& gates, const f32 (&v)[kRows]) {
    if constexpr (Spec::delta) correct(k, gates, v);
    else join(k, gates.keep, v);
  }
  /// s = keep s + rate (v - k keep s) k^T; all lanes call.
  TFCC_FN void correct(const f32 (&k)[n], const StepGates& gates, const f32 (&v)[kRows]) {
    f32 known[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int x = 0; Spec::decays && x < n; ++x) s[r][x] *= gates.keep;
      known[r] = dot(k, s[r]);
    }
    sum_over_lanes<kRows, Shape::parts>(known, part);
    share_sums<kRows, Shape::parts>(known, part);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const f32 change = gates.rate * (v[r] - known[r]);
#pragma unroll
      for (int x = 0; x < n; ++x) s[r][x] = fmaf(k[x], change, s[r][x]);
    }
  }
  /// s = keep s + v k^T, z = keep z + k
  TFCC_FN void join(const f32 (&k)[n], f32 keep, const f32 (&v)[kRows]) {
#pragma unroll
    for (int x = 0; x < n; ++x) {
#pragma unroll
      for (int r = 0; r < kRows; ++r)
        s[r][x] = fmaf(k[x], v[r], Spec::decays ? s[r][x] * keep : s[r][x]);
    }
    if (!sums) return;
#pragma unroll
    for (int x = 0; x < n; ++x)
      z[x] = Spec::decays ? fmaf(z[x], keep, k[x])
                          : __fadd_rn(z[x], k[x]);  // not one with what made k
  }

  static TFCC_FN f32 dot(const f32 (&a)[n], const f32 (&b)[n]) {
    f32 sum = 0.0f;
#pragma unroll
    for (int x = 0; x < n; ++x) sum = fmaf(a[x], b[x], sum);
    return sum;
  }
  /// `there` tokens join, kTokens at most; to[row] of each becomes what its query sees, and
  /// to[columns] the sum of weights.
  TFCC_FN void step(int there, const f32* keys, const f32* gates, const f32* values,
                    const f32* queries, f32* to) {
    constexpr int group = Shape::group;
    f32 a[kTokens * kRows], w[kTokens];
#pragma unroll(group <= 4 ? group : 1)
    for (int h = 0; h < group; ++h) {
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        if (h == 0 && t < there)
          add(keys + t * Shape::width, gates_at<Spec>(gates, t), values + t * Shape::columns);
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
  /// What one token's query sees of the state: to[row], and to[columns] the sum of weights.
  TFCC_FN void see(const f32 (&q)[n], f32* to) {
    f32 a[kTokens * kRows], w[kTokens];
#pragma unroll
    for (int r = 0; r < kRows; ++r) a[r] = dot(q, s[r]);
    w[0] = sums ? dot(q, z) : 0.0f;
    put<kRows>(a, 1, row < Shape::columns, to + row);
    if (sums) put<1>(w, 1, row == 0, to + Shape::columns);
  }
  /// x: of kTokens tokens `rows` values, whose sums over the parts go where they belong.
  template <int rows> static TFCC_FN void put(f32* x, int there, bool writes, f32* to) {
    constexpr int parts = Shape::parts, count = kTokens * rows,
                  left = count > parts ? count / parts : 1,
                  lanes = count > parts ? 1 : parts / count;
    const int part = (int)threadIdx.x % parts;
    sum_over_lanes<count, parts>(x, part);
#pragma unroll
    for (int i = 0; i < left; ++i) {
      const int v = part / lanes * left + i, t = v / rows;
      if (writes && part % lanes == 0 && t < there)
        to[t * Shape::group * Shape::seen_stride + v % rows] = x[i];
    }
  }
};

/// `most` rows of `width` elements on their way to shared memory: this thread's pieces, loaded all
/// at once where they are few.
template <class Shape, class T, int width, int most> struct StepTokens {
  static constexpr int vec = width % Shape::vec == 0 ? Shape::vec : 1, units = width / vec,
                       steps = ceil_div(most * units, Shape::threads);
  static constexpr bool ahead = steps <= 12;
  union Piece {
    uint4 word;
    T e[vec];
    TFCC_FN Piece() {}
  };
  Piece pieces[ahead ? steps : 1];

  static TFCC_FN int row(int step) { return ((int)threadIdx.x + step * Shape::threads) / units; }
  static TFCC_FN int column(int step) {
    return ((int)threadIdx.x + step * Shape::threads) % units * vec;
  }
  static TFCC_FN void fetch(Piece& p, const T* from) {
    if constexpr (vec * sizeof(T) == 16) p.word = *(const uint4*)from;
    else p.e[0] = *from;
  }
  /// Row r begins at from(r); elements from `there` on are not read.
  template <class From> TFCC_FN void load_rows(int rows, int there, const From& from) {
#pragma unroll
    for (int step = 0; ahead && step < steps; ++step) {
      if (row(step) < rows && column(step) < there)
        fetch(pieces[step], from(row(step)) + column(step));
    }
  }
  /// to[r * width + c] becomes map(element, r, c), 0 from `there` on.
  template <class From, class Map>
  TFCC_FN void put(int rows, int there, const From& from, const Map& map, f32* to) {
#pragma unroll(ahead ? steps : 1)
    for (int step = 0; step < steps; ++step) {
      const int r = row(step), c = column(step);
      if (r >= rows) break;
      Piece& p = pieces[ahead ? step : 0];
      if (!ahead && c < there) fetch(p, from(r) + c);
#pragma unroll
      for (int k = 0; k < vec; ++k)
        to[r * width + c + k] = c + k < there ? map(load(p.e, k), r, c + k) : 0.0f;
    }
  }
};

/// Rows and slots of a sequence.
struct StepSequence {
  idx begin, end, from, to;
};
/// The sums, which rows and slots a sequence has, and how many sequences and slots there are.
struct StepTables {
  static constexpr bool batched = false;
  f32* state;
  const i32 *first_row, *from, *to;
  idx sequences, slots;
  template <bool early> TFCC_FN StepSequence sequence(idx n) const {
    const auto at = [](const i32* p) { return (idx)read_table<early>(p); };
    return {at(first_row + n), at(first_row + n + 1), at(from + n), at(to + n)};
  }
  TFCC_FN bool has(idx slot) const { return slot >= 0 && slot < slots; }
  TFCC_FN const f32* before() const { return state; }
  TFCC_FN f32* after() const { return state; }
};
/// Sequences of `tokens` rows each, and sums before and after them [sequences, ..]; null: none.
struct BatchStates {
  static constexpr bool batched = true;
  const f32* sums_before;
  f32* sums_after;
  idx sequences, tokens;
  template <bool> TFCC_FN StepSequence sequence(idx n) const {
    return {n * tokens, (n + 1) * tokens, sums_before ? n : -1, sums_after ? n : -1};
  }
  TFCC_FN bool has(idx slot) const { return slot >= 0; }
  TFCC_FN const f32* before() const { return sums_before; }
  TFCC_FN f32* after() const { return sums_after; }
};

/// What a block of either form works on.
template <class Spec, class Tables, class QMap, class KMap, class Decay, class Beta, class Epilogue>
struct LinearStepBlock {
  using Shape = LinearStepShape<Spec>;
  using T = typename Spec::T;
  static constexpr int d = Shape::d, width = Shape::width, columns = Shape::columns,
                       group = Shape::group, tokens = Shape::tokens, threads = Shape::threads;
  typename Spec::Out* out;
  const T *q, *k, *v;
  const Tables tables;
  const QMap& q_map;
  const KMap& k_map;
  const Decay& decay;
  const Beta& beta;
  const Epilogue& epilogue;
  f32 *gates, *seen;  // [tokens, 4], of which two are used; [tokens, group, seen_stride]

  /// What expressions are told: rows t of batch 0, or tokens t of sequence b.
  struct Names {
    idx b = 0, first_row = 0;
  };
  TFCC_FN bool there_is(idx slot) const { return tables.has(slot); }
  static TFCC_FN i64 place(idx slot, idx g) {
    return ((i64)slot * Spec::kv_heads + g) * Shape::state_rows * d;
  }
  TFCC_FN const f32* slot_before(idx at, idx g) const { return tables.before() + place(at, g); }
  TFCC_FN f32* slot_after(idx at, idx g) const { return tables.after() + place(at, g); }
  TFCC_FN const T* query(idx t, idx head) const { return q + (i64)t * Spec::q_stride + head * d; }
  TFCC_FN const T* key(idx t, idx g) const { return k + (i64)t * Spec::k_stride + g * d; }
  TFCC_FN const T* value(idx t, idx g) const {
    return v + (i64)t * Spec::v_stride + g * Spec::v_dim;
  }
  TFCC_FN StepGates gates_of(const Names& of, idx g, idx row) const {
    StepGates x;
    const idx t = row - of.first_row;
    if constexpr (Spec::decays) x.keep = expf(decay(of.b, g * group, t));
    if constexpr (Spec::delta) x.rate = beta(of.b, g, t);
    return x;
  }
  static constexpr bool has_gates = Spec::decays || Spec::delta;
  TFCC_FN void put_gates(int j, const StepGates& x) const {
    if constexpr (Spec::decays) gates[4 * j] = x.keep;
    if constexpr (Spec::delta) gates[4 * j + 1] = x.rate;
  }

  /// Results of `there` tokens from t0 on, of channels from `first` on, from what they saw.
  TFCC_FN void write(const Names& names, int there, idx g, idx t0, idx first) const {
    const int most = (int)imin(columns, Spec::v_dim - first);
#pragma unroll 4
    for (int x = threadIdx.x; x < there * group * columns; x += threads) {
      const int j = x / (group * columns), h = x / columns % group, m = x % columns;
      if (m >= most) continue;
      const f32* const of = seen + (j * group + h) * Shape::seen_stride;
      const idx t = t0 + j, head = g * group + h;
      store(out + (i64)t * Spec::out_stride + head * Spec::v_dim + first, m,
            epilogue(of[m], Spec::normalises ? of[columns] : 0.0f, names.b, head,
                     t - names.first_row, first + m));
    }
  }

  /// Sequence number `place` of those of this launch; all lanes call. -1: there are not so many.
  TFCC_FN idx listed(idx place) const {
    if constexpr (Spec::least == 0) {
      return place < tables.sequences ? place : -1;
    } else {
      const auto counts = [&](idx n) {
        return tables.first_row[n + 1] - tables.first_row[n] >= Spec::least ? 1 : 0;
      };
      return tile_place(place, tables.sequences, counts).sequence;
    }
  }
  /// A block for each tile; rows of q, k and v are mapped once, for all threads.
  TFCC_FN void one_tile(idx n, idx g, idx first, f32* queries) const {
    f32* const keys =
        queries + tokens * group * width;       // [tokens, width], behind [tokens, group, width]
    f32* const values = keys + tokens * width;  // [tokens, columns]
    const int most = (int)imin(columns, Spec::v_dim - first);
    const StepSequence at = tables.template sequence<false>(n);
    Names names;
    if constexpr (Tables::batched) names = {n, at.begin};
    LinearStepRows<Spec> held(first);
    if (there_is(at.from)) held.take(slot_before(at.from, g));
#pragma unroll 1
    for (idx t0 = at.begin; t0 < at.end; t0 += tokens) {
      const int there = (int)imin(tokens, at.end - t0);
      const auto query_of = [&](int r) { return query(t0 + r / group, g * group + r % group); };
      const auto key_of = [&](int r) { return key(t0 + r, g); };
      const auto value_of = [&](int r) { return value(t0 + r, g) + first; };
      StepTokens<Shape, T, width, tokens * group> of_q;
      StepTokens<Shape, T, width, tokens> of_k;
      StepTokens<Shape, T, columns, tokens> of_v;
      of_k.load_rows(there, d, key_of);
      of_v.load_rows(there, most, value_of);
      of_q.load_rows(there * group, d, query_of);
      const auto same = [](f32 x, int, int) { return x; };
      const idx t = t0 - names.first_row;
      const auto map_key = [&](f32 x, int r, int e) { return k_map(x, names.b, g, t + r, e); };
      const auto map_query = [&](f32 x, int r, int e) {
        return q_map(x, names.b, g * group + r % group, t + r / group, e);
      };
      if constexpr (Spec::k_softmax) of_k.put(there, d, key_of, same, keys);
      else of_k.put(there, d, key_of, map_key, keys);
      of_v.put(there, most, value_of, same, values);
      if constexpr (Spec::q_softmax) of_q.put(there * group, d, query_of, same, queries);
      else of_q.put(there * group, d, query_of, map_query, queries);
      if constexpr (Spec::q_softmax || Spec::k_softmax) __syncthreads();
      if constexpr (Spec::k_softmax) held.soften_rows(keys, there, map_key);
      if constexpr (Spec::q_softmax) held.soften_rows(queries, there * group, map_query);
      for (int j = threadIdx.x; has_gates && j < there; j += threads)
        put_gates(j, gates_of(names, g, t0 + j));
      __syncthreads();
#pragma unroll 1
      for (int j = 0; j < there; j += Shape::kTokens) {
        held.step((int)imin(Shape::kTokens, there - j), keys + j * width, gates + 4 * j,
                  values + j * columns, queries + j * group * width,
                  seen + j * group * Shape::seen_stride);
      }
      __syncthreads();
      write(names, there, g, t0, first);
    }
    if (there_is(at.to)) held.leave(slot_after(at.to, g));
  }

  struct Tile {
    idx at;
    StepSequence of;
    static constexpr idx blocks = ceil_div(Spec::v_dim, columns);
    TFCC_FN idx head() const { return at / blocks % Spec::kv_heads; }
    TFCC_FN idx first() const { return at % blocks * columns; }  // channel of v
    TFCC_FN int most() const { return (int)imin(columns, Spec::v_dim - first()); }
    TFCC_FN int tokens_from(idx t0) const { return (int)imax(0, imin(tokens, of.end - t0)); }
  };
  TFCC_FN idx tiles() const { return tables.sequences * Spec::kv_heads * Tile::blocks; }
  template <bool early = false> TFCC_FN Tile tile(idx x) const {
    const StepSequence none{0, 0, -1, -1};
    if (x >= tiles()) return {x, none};
    const StepSequence s = tables.template sequence<early>(x / (Tile::blocks * Spec::kv_heads));
    return {x, s.end - s.begin <= Spec::most ? s : none};
  }
  /// Rows of `there` tokens from t0 on come to [tokens, row], by copy(to, from) of Shape::vec
  /// elements.
  template <class Copy>
  TFCC_FN void copy_rows(T* rows, int there, idx t0, const Tile& x, const Copy& copy) const {
    constexpr int vec = Shape::vec, of_v = columns / vec, of_k = of_v + d / vec,
                  units = of_k + group * d / vec;
#pragma unroll 1
    for (int i = threadIdx.x; i < there * units; i += threads) {
      const int j = i / units, u = i % units;
      if (u < of_v && u * vec >= x.most()) continue;
      copy(rows + j * Shape::row + u * vec,
           u < of_v   ? value(t0 + j, x.head()) + x.first() + u * vec
           : u < of_k ? key(t0 + j, x.head()) + (u - of_v) * vec
                      : query(t0 + j, x.head() * group) + (u - of_k) * vec);
    }
  }
  TFCC_FN void copy_rows_now(T* rows, int there, idx t0, const Tile& x) const {
    copy_rows(rows, there, t0, x, [](T* to, const T* from) {
      if constexpr (Shape::vec * sizeof(T) == 16) *(uint4*)to = *(const uint4*)from;
      else *to = *from;
    });
  }
#if __CUDA_ARCH__ >= 900
  /// By one thread: announces the state of x at the barrier, without arriving there, and asks for it.
  TFCC_FN void ask_for_state(f32* to, u64* barrier, const Tile& x) const {
    if (!there_is(x.of.from)) return;
    const f32* const from = slot_before(x.of.from, x.head());
    const int most = x.most();
    sm90::announce(barrier, 4 * d * (most + Spec::normalises));
    sm90::copy_bytes(to, from + (i64)x.first() * d, 4 * d * most, barrier);
    if constexpr (Spec::normalises)
      sm90::copy_bytes(to + columns * d, from + (i64)Spec::v_dim * d, 4 * d, barrier);
  }
  /// By one thread: arrives, and asks for rows of the first tokens of x where they are aligned.
  TFCC_FN void ask_for_rows(T* rows, u64* barrier, const Tile& x) const {
    const int there = Spec::aligned ? x.tokens_from(x.of.begin) : 0, most = x.most();
    sm90::arrive_and_announce(barrier, there * (d * (1 + group) + most) * (int)sizeof(T));
#pragma unroll 1
    for (int j = 0; j < there; ++j) {
      T* const row = rows + j * Shape::row;
      const idx t = x.of.begin + j;
      sm90::copy_bytes(row, value(t, x.head()) + x.first(), most * (int)sizeof(T), barrier);
      sm90::copy_bytes(row + columns, key(t, x.head()), d * (int)sizeof(T), barrier);
      sm90::copy_bytes(row + columns + d, query(t, x.head() * group), group * d * (int)sizeof(T),
                       barrier);
    }
  }
#endif
  /// Asks for the state of x, and for the rows of its first tokens where these are aligned; all
  /// threads call.
  TFCC_FN void ask(char* place, [[maybe_unused]] u64* barrier, const Tile& x) const {
    f32* const to = (f32*)place;
    T* const rows = (T*)(to + Shape::state_floats);
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x > 0) return;
    ask_for_state(to, barrier, x);
    ask_for_rows(rows, barrier, x);
#else
    const bool state = there_is(x.of.from);
    const f32* const from = slot_before(state ? x.of.from : 0, x.head());
    const int there = Spec::aligned ? x.tokens_from(x.of.begin) : 0, most = x.most();
    for (int i = threadIdx.x; state && i < (columns + Spec::normalises) * d / 4; i += threads) {
      const int r = i / (d / 4);
      if (r < most || r == columns)
        copy_async(to + i * 4,
                   from + (i64)(r == columns ? Spec::v_dim : x.first() + r) * d + i % (d / 4) * 4,
                   true);
    }
    if constexpr (Spec::aligned)
      copy_rows(rows, there, x.of.begin, x,
                [](T* to, const T* from) { copy_async(to, from, true); });
    commit_copies();
#endif
  }
  /// Waits for what was asked for `places` - 1 times before the last; all threads meet.
  TFCC_FN void wait_for([[maybe_unused]] u64* barrier, [[maybe_unused]] u32 parity) const {
#if __CUDA_ARCH__ >= 900
    __syncthreads();
    sm90::wait(barrier, parity);
#else
    wait_copies<Spec::places - 1>();
    __syncthreads();
#endif
  }
  /// The gates of this thread's token, from t0 on.
  TFCC_FN StepGates own_gates(const Tile& x, idx t0) const {
    return has_gates && threadIdx.x < tokens && t0 + (idx)threadIdx.x < x.of.end
               ? gates_of({}, x.head(), t0 + threadIdx.x)
               : StepGates{};
  }
  TFCC_FN void put_own_gates(const StepGates& own) const {
    if (has_gates && threadIdx.x < tokens) put_gates(threadIdx.x, own);
  }
  /// The tokens of a tile join `held` and are written, and the state is left; `rows` has the first
  /// of them where rows are aligned.
  TFCC_FN void join_all(LinearStepRows<Spec>& held, T* rows, const Tile& x) const {
    idx t0 = x.of.begin;
#pragma unroll 1
    do {
      const int there = x.tokens_from(t0);
      if (t0 > x.of.begin || !Spec::aligned) {
        copy_rows_now(rows, there, t0, x);
#if __CUDA_ARCH__ >= 900
        sm90::publish_writes();  // before copies of a later tile to the same place
#endif
        if (t0 > x.of.begin) put_own_gates(own_gates(x, t0));
        __syncthreads();
      }
#pragma unroll 1
      for (int j = 0; j < there; ++j) join(held, rows + j * Shape::row, x.head(), t0 + j, j);
      if (t0 + tokens >= x.of.end && there_is(x.of.to)) held.leave(slot_after(x.of.to, x.head()));
      __syncthreads();
      write({}, there, x.head(), t0, x.first());
    } while ((t0 += tokens) < x.of.end);
  }
#if __CUDA_ARCH__ >= 900
  static TFCC_FN void init_barriers(u64* full) {
    for (int p = 0; p < Spec::places; ++p) sm90::init_barrier(full + p, 1);
    sm90::publish_barriers();
  }
  /// By one thread, before the launches before this one have ended: barriers, and the states of the
  /// first tiles.
  TFCC_FN void begin_early(char* places, u64* full) const {
    init_barriers(full);
#pragma unroll
    for (int p = 0; p < Spec::places - 1; ++p)
      ask_for_state((f32*)(places + p * Shape::place_bytes), full + p,
                    tile<true>((idx)blockIdx.x + p * (idx)gridDim.x));
  }
#endif
  /// Asks for the first tiles of a block, all but the last of x; all threads call.
  TFCC_FN void ask_for_first(const Tile (&x)[Spec::places], char* places, u64* full) const {
#if __CUDA_ARCH__ >= 900
    if (!Spec::early && threadIdx.x == 0) init_barriers(full);
#endif
#pragma unroll
    for (int p = 0; p < Spec::places - 1; ++p) {
      char* const place = places + p * Shape::place_bytes;
      if constexpr (Spec::early) {
#if __CUDA_ARCH__ >= 900
        if (threadIdx.x == 0) ask_for_rows((T*)((f32*)place + Shape::state_floats), full + p, x[p]);
#endif
      } else {
        ask(place, full + p, x[p]);
      }
    }
  }
  /// Blocks that take tiles one after the other; states, and rows of their first tokens, are on
  /// their way to `places`.
  TFCC_FN void tiles_ahead(char* places, u64* full) const {
    constexpr int count = Spec::places;
    const auto place = [&](int p) { return places + p * Shape::place_bytes; };
    const idx step = (idx)gridDim.x;
    // Which tile comes next is known a tile before it is asked for.
    idx at = (idx)blockIdx.x;
    Tile x[count];
#pragma unroll
    for (int p = 0; p < count; ++p) x[p] = tile(at + p * step);
    ask_for_first(x, places, full);
    StepGates gates_now = own_gates(x[0], x[0].of.begin);
    int p = 0;
    u32 parity = 0;
#pragma unroll 1
    for (; at < tiles(); at += step) {
      const int last = p > 0 ? p - 1 : count - 1;
      const Tile later = tile(at + count * step), now = x[0];
      ask(place(last), full + last, x[count - 1]);
      const StepGates gates_next = own_gates(x[1], x[1].of.begin);
      LinearStepRows<Spec> held(now.first());
      put_own_gates(gates_now);
      wait_for(full + p, parity);
      if (there_is(now.of.from)) held.take_fetched((const f32*)place(p));
      join_all(held, (T*)((f32*)place(p) + Shape::state_floats), now);
#pragma unroll
      for (int i = 0; i + 1 < count; ++i) x[i] = x[i + 1];
      x[count - 1] = later, gates_now = gates_next;
      if (++p == count) p = 0, parity ^= 1;
    }
  }
  /// Token t, the j-th of those whose rows are there, joins; its queries see.
  TFCC_FN void join(LinearStepRows<Spec>& held, const T* rows, idx g, idx t, int j) const {
    f32 x[LinearStepRows<Spec>::n], values[Shape::kRows];
    held.load_values(rows, values);
    held.template load_features<Spec::k_softmax>(
        rows + columns, x, [&](f32 e, int c) { return k_map(e, 0, g, t, c); });
    held.add(x, gates_at<Spec>(gates, j), values);
#pragma unroll(group <= 4 ? group : 1)
    for (int h = 0; h < group; ++h) {
      held.template load_features<Spec::q_softmax>(
          rows + columns + (1 + h) * d, x,
          [&](f32 e, int c) { return q_map(e, 0, g * group + h, t, c); });
      held.see(x, seen + (j * group + h) * Shape::seen_stride);
    }
  }
};

/// `tables` makes StepTables or BatchStates, and `early_tables` StepTables past the caches of the
/// multiprocessor. If Spec::early this waits itself for the launches before; else it is called when
/// they have ended.
template <class Spec, class MakeTables, class EarlyTables, class QMap, class KMap, class Decay,
          class Beta, class Epilogue>
TFCC_FN void linear_attention_step(typename Spec::Out* out, const typename Spec::T* q,
                                   const typename Spec::T* k, const typename Spec::T* v,
                                   const MakeTables& tables,
                                   [[maybe_unused]] const EarlyTables& early_tables,
                                   const QMap& q_map, const KMap& k_map, const Decay& decay,
                                   const Beta& beta, const Epilogue& epilogue) {
  using Shape = LinearStepShape<Spec>;
  TFCC_DYNAMIC_SHARED(tfcc_shared);
  f32 *const gates = (f32*)tfcc_shared, *const seen = gates + Shape::tokens * 4,
             *const rest = seen + Shape::tokens * Shape::group * Shape::seen_stride;
  const auto block_of = [&](auto t) {
    return LinearStepBlock<Spec, decltype(t), QMap, KMap, Decay, Beta, Epilogue>{
        out, q, k, v, t, q_map, k_map, decay, beta, epilogue, gates, seen};
  };
  if constexpr (Spec::ahead) {
    char* const places = (char*)rest;
    u64* const full = (u64*)(places + Spec::places * Shape::place_bytes);
#if __CUDA_ARCH__ >= 900
    if constexpr (Spec::early) {
      // One thread: all that there are would crowd where the tables lie.
      if (threadIdx.x == 0) block_of(early_tables()).begin_early(places, full);
      wait_for_predecessor();
    }
#endif
    block_of(tables()).tiles_ahead(places, full);
  } else {
    const auto block = block_of(tables());
    const idx n = block.listed((idx)blockIdx.z);
    if (n >= 0) block.one_tile(n, (idx)blockIdx.y, (idx)blockIdx.x * Shape::columns, rest);
  }
}
