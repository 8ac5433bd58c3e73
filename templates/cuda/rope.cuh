// SPDX-License-Identifier: Apache-2.0
// rope: rotary embedding of the first `rotary` channels of each head; the others are copied. If
// Spec::normalises, a head is x / sqrt(mean(x^2) + eps) * gamma [dim] first, as an rms norm has it.
//
// x [rows, heads * dim] with rows x_stride apart, out [rows, heads * dim]; cos, sin [tables, rotary
// / 2] or, if wide, [tables, rotary]; row r reads table r % tables. One thread turns vec pairs, or
// copies vec channels. No shared memory.
// Spec: T, Table; heads, dim, rotary, x_stride, vec (a power of two, at most 16 bytes of T, that
// divides rotary / 2, dim, x_stride); interleaved, wide. Grid: ceil(rows * heads * units, threads)
// with units = rotary / 2 / vec + (dim - rotary) / vec.
// Bound: bytes of x and out.
#pragma once
#include "cuda/prelude.cuh"

/// What a thread has of a head: rotary / 2 / vec units that turn vec pairs each, then (dim -
/// rotary) / vec that copy vec channels.
template <class Spec>
inline constexpr u32 kRopeUnits = (Spec::rotary / 2 + Spec::dim - Spec::rotary) / Spec::vec;
/// Values of a table for one token.
template <class Spec>
inline constexpr int kTableWidth = Spec::wide ? Spec::rotary : Spec::rotary / 2;

/// What stands where a gamma does, if heads are not normalised.
struct NoGamma {};

/// One over the root mean square of a head, of which each thread has `own`, the sum of the squares
/// of its unit. The threads of a head ask each other if Spec::in_lanes says that they stand beside
/// each other in a warp, and all of them call; else each reads the head `from` as a whole.
template <class Spec, class T> TFCC_FN f32 head_scale(f32 own, const T* from) {
  constexpr u32 units = kRopeUnits<Spec>;
  if constexpr (Spec::in_lanes && units <= kWarp) {
    const u32 lane = threadIdx.x % kWarp;
    const u32 mask =
        units == kWarp ? kAllLanes : ((1u << units % kWarp) - 1) << (lane & ~(units - 1));
#pragma unroll
    for (int step = units / 2; step > 0; step /= 2) own += __shfl_xor_sync(mask, own, step);
  } else {
    own = 0.0f;
#pragma unroll 1
    for (int e = 0; e < Spec::dim; e += Spec::vec) {
      f32 x[Spec::vec];
      load_pack(from + e, x);
#pragma unroll
      for (int k = 0; k < Spec::vec; ++k) own = fmaf(x[k], x[k], own);
    }
  }
  return 1.0f / sqrtf(own / Spec::dim + Spec::eps);
}

/// The pairs of a and b, from the pair-th of a head on, turned by c and s.
template <class Spec, class Table>
TFCC_FN void turn_pairs(f32 (&a)[Spec::vec], f32 (&b)[Spec::vec], const Table* c, const Table* s,
                        int pair) {
  constexpr int vec = Spec::vec, half = Spec::rotary / 2;
  // Interleaved pairs lie beside each other: 2 * vec channels in two packs.
  if constexpr (Spec::interleaved) {
    f32 both[2 * vec];
#pragma unroll
    for (int k = 0; k < vec; ++k) both[k] = a[k], both[vec + k] = b[k];
#pragma unroll
    for (int k = 0; k < vec; ++k) {
      const f32 u = both[2 * k], v = both[2 * k + 1];
      const int t = Spec::wide ? 2 * (pair + k) : pair + k, t2 = Spec::wide ? t + 1 : t;
      both[2 * k] = u * (f32)load(c, t) - v * (f32)load(s, t);
      both[2 * k + 1] = v * (f32)load(c, t2) + u * (f32)load(s, t2);
    }
#pragma unroll
    for (int k = 0; k < vec; ++k) a[k] = both[k], b[k] = both[vec + k];
  } else {
    f32 c1[vec], s1[vec], c2[vec], s2[vec];
    load_pack(c + pair, c1);
    load_pack(s + pair, s1);
    if constexpr (Spec::wide) {
      load_pack(c + half + pair, c2);
      load_pack(s + half + pair, s2);
    }
#pragma unroll
    for (int k = 0; k < vec; ++k) {
      const f32 u = a[k], v = b[k];
      a[k] = u * c1[k] - v * s1[k];
      b[k] = v * (Spec::wide ? c2[k] : c1[k]) + u * (Spec::wide ? s2[k] : s1[k]);
    }
  }
}

/// One unit of a head. Spec: dim, rotary, vec, interleaved, wide; normalises, and then eps and
/// in_lanes; c and s are the token's tables.
template <class Spec, class T, class Table, class Gamma>
TFCC_FN void rotate_unit(T* to, const T* from, const Table* c, const Table* s, const Gamma& gamma,
                         u32 unit) {
  constexpr int vec = Spec::vec, half = Spec::rotary / 2;
  constexpr u32 turns = half / vec;
  static_assert(is_power_of_two(vec) && half % vec == 0 && Spec::dim % vec == 0,
                "vec: a power of two that divides rotary / 2 and dim");
  static_assert(vec * sizeof(T) <= 16, "vec: at most 16 bytes of T");
  const bool turning = unit < turns;
  const int pair = unit * vec;
  const int first = !turning            ? Spec::rotary + (unit - turns) * vec
                    : Spec::interleaved ? 2 * pair
                                        : pair;
  const int second = Spec::interleaved ? first + vec : first + half;
  f32 a[vec], b[vec] = {};
  load_pack(from + first, a);
  if (turning) load_pack(from + second, b);
  if constexpr (Spec::normalises) {
    f32 squares = 0.0f;
#pragma unroll
    for (int k = 0; k < vec; ++k) squares = fmaf(a[k], a[k], fmaf(b[k], b[k], squares));
    const f32 scale = head_scale<Spec>(squares, from);
    f32 g[vec];
    load_pack(gamma + first, g);
#pragma unroll
    for (int k = 0; k < vec; ++k) a[k] = a[k] * scale * g[k];
    if (turning) load_pack(gamma + second, g);
#pragma unroll
    for (int k = 0; k < vec; ++k) b[k] = b[k] * scale * g[k];
  }
  if (!turning) {
    store_pack(to + first, a);
    return;
  }
  turn_pairs<Spec>(a, b, c, s, pair);
  store_pack(to + first, a);
  store_pack(to + second, b);
}

template <class Spec, class Gamma>
TFCC_FN void rope(typename Spec::T* out, const typename Spec::T* x, const typename Spec::Table* cos,
                  const typename Spec::Table* sin, const Gamma& gamma, idx tables, idx rows) {
  static_assert(Spec::x_stride % Spec::vec == 0, "vec divides x_stride");
  constexpr u32 units = kRopeUnits<Spec>;
  const u32 at = blockIdx.x * blockDim.x + threadIdx.x;
  const u32 row = at / (units * Spec::heads), head = at / units % Spec::heads;
  if (row >= (u32)rows) return;
  const i64 table = (i64)(row % (u32)tables) * kTableWidth<Spec>;
  rotate_unit<Spec>(out + (i64)row * (Spec::heads * Spec::dim) + head * Spec::dim,
                    x + (i64)row * Spec::x_stride + head * Spec::dim, cos + table, sin + table,
                    gamma, at % units);
}
