// SPDX-License-Identifier: Apache-2.0
// How sample chooses a token of one row of logits, for NVRTC and Clang alike; the order of choice is
// in ir/ops.md. What walks the row is a team: one thread on the CPU (cpu/sample.h), a block of them
// on a GPU (cuda/sample.cuh). All of a team call its functions with the same values and get the
// same:
//
//     best(row)                  the largest logit and the lowest i that has it
//     keys(row, key)             key(y) of each logit, for the functions below
//     sum(keys, units)           the sum of units(i, key), u64
//     first_past(keys, units, at) the first i with which the running sum of units is more than at
//     clear(); add(bin, x); find(left)
//                                kBins sums of u64; add() is for one i of a walk, find() gives the
//                                highest bin with which the sums from above reach `left`, and what
//                                those above it sum to
//     walk(keys, f)              f(i, key) once for each i, by whom it may be
#pragma once

#ifndef TFCC_CUDA
#include "expr.h"
#endif

inline constexpr int kBins = 1024, kBinBits = 10;
inline constexpr f32 kUnitsOfOne = 0x1p40f;  // 1 in whole units

/// 32 bits of Philox4x32-10 (Salmon et al., 2011), of the counter's first word.
TFCC_FN u32 philox(u64 key, u64 counter) {
  u32 c0 = (u32)counter, c1 = (u32)(counter >> 32), c2 = 0, c3 = 0, k0 = (u32)key,
      k1 = (u32)(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const u64 a = (u64)0xd2511f53u * c0, b = (u64)0xcd9e8d57u * c2;
    c0 = (u32)(b >> 32) ^ c1 ^ k0;
    c1 = (u32)b;
    c2 = (u32)(a >> 32) ^ c3 ^ k1;
    c3 = (u32)a;
    k0 += 0x9e3779b9u;
    k1 += 0xbb67ae85u;
  }
  return c0;
}

struct Best {
  f32 value;
  idx index;  // -1: there is none
};
struct Bin {
  int bin;
  u64 above;
};

/// Options of a row, each in its range (ir/ops.md): callers may have given anything.
struct Sampling {
  f32 inverse, top_p, min_p, penalty;  // of the temperature; 0: the likeliest
  i32 top_k;
  u64 seed, position;
};
TFCC_FN Sampling sampling_of(const f32* reals, const i32* whole, u64 position) {
  const auto share = [](f32 x, f32 otherwise) {
    return x >= 0.0f ? (x < 1.0f ? x : 1.0f) : x < 0.0f ? 0.0f : otherwise;
  };
  const f32 inverse = reals[0] > 0.0f ? 1.0f / reals[0] : 0.0f, penalty = reals[3];
  return {inverse < kInf ? inverse : 0.0f,
          share(reals[1], 1.0f),
          share(reals[2], 0.0f),
          penalty > 0.0f && penalty < kInf ? penalty : 1.0f,
          whole[0],
          (u64)(u32)whole[1] | (u64)(u32)whole[2] << 32,
          position};
}

/// NaN counts as minus infinity.
TFCC_FN f32 number_of(f32 logit) { return logit == logit ? logit : -kInf; }

/// n logits: raw(i) as they are, and of(i, raw) after a penalty (Keskar et al., 2019) on what was
/// seen: `own`, and the bits of `words` words.
template <class Raw> struct PenalisedRow {
  idx n;
  Raw raw;
  f32 penalty, inverse;
  const i32* seen;
  idx words;
  i64 own;
  TFCC_FN f32 of(idx i, f32 logit) const {
    const f32 x = number_of(logit);
    if (penalty == 1.0f) return x;
    const bool was = i == own || (i / 32 < words && ((u32)seen[i / 32] >> (i % 32) & 1) != 0);
    return !was ? x : x * (x > 0 ? inverse : penalty);
  }
};
template <class Raw> struct PlainRow {
  idx n;
  Raw raw;
  TFCC_FN f32 of(idx, f32 logit) const { return number_of(logit); }
};

template <class Raw> TFCC_FN PlainRow<Raw> plain(idx n, const Raw& raw) { return {n, raw}; }

/// p in whole units of 2^-40.
TFCC_FN u64 units_of(f32 p) { return (u64)(p * kUnitsOfOne); }

/// The key of e^x: its bits, which rise with it; 0 if it is less than a unit.
TFCC_FN u32 key_of(f32 x) {
  const f32 p = fexp(x);
  return p * kUnitsOfOne >= 1.0f ? bit_cast<u32>(p) : 0u;
}

/// What is left of a row: keys above `key`, and of those equal to it the tokens below `end`.
struct Cut {
  u32 key;
  idx end;
  TFCC_FN bool keeps(u32 k, idx i) const { return k > key || (k == key && i < end); }
};

/// The largest key from which on, and with which, measure(key) sums to `target`; that key's sum is
/// cut by index so that no more than needed is left. The sum of all is at least the target.
template <class Team, class Keys, class Measure>
TFCC_FN Cut reach(Team& team, const Keys& keys, const Measure& measure, u64 target) {
  u32 prefix = 0;
  u64 left = target;
#pragma unroll 1
  for (int shift = 2 * kBinBits; shift >= 0; shift -= kBinBits) {
    team.clear();
    team.walk(keys, [&](idx, u32 k) {
      if (k != 0 && k >> (shift + kBinBits) == prefix)
        team.add((int)(k >> shift & (kBins - 1)), measure(k));
    });
    const Bin found = team.find(left);
    prefix = prefix << kBinBits | (u32)found.bin;
    left -= found.above;
  }
  const u64 each = measure(prefix), wanted = (left + each - 1) / each;  // of this key
  const idx last = team.first_past(
      keys, [&](idx, u32 k) { return (u64)(k == prefix); }, wanted - 1);
  return {prefix, last + 1};
}

/// The token of a row; -1 where no logit is a number.
template <class Team, class Row>
TFCC_FN idx choose_token(Team& team, const Row& row, const Sampling& s) {
  const Best best = s.penalty == 1.0f ? team.best(plain(row.n, row.raw)) : team.best(row);
  if (best.index < 0 || s.inverse == 0.0f || best.value == kInf) return best.index;
  const auto keys = team.keys(row, [&](f32 y) { return key_of((y - best.value) * s.inverse); });
  const auto units = [](u32 k) { return units_of(bit_cast<f32>(k)); };
  Cut cut{0, 0};
  const auto kept = [&](idx i, u32 k) { return cut.keeps(k, i) ? units(k) : (u64)0; };
  if (s.top_k > 0) {
    const u64 all = team.sum(keys, [](idx, u32 k) { return (u64)(k != 0); });
    const auto one = [](u32) { return (u64)1; };
    if (all > (u64)s.top_k) cut = reach(team, keys, one, (u64)s.top_k);
  }
  u64 sum = team.sum(keys, kept);
  if (sum == 0) return best.index;
  if (s.top_p < 1.0f) {
    const f64 share = (f64)s.top_p * (f64)sum;
    u64 target = (u64)share;
    target += (f64)target < share;
    cut = reach(team, keys, units, target < 1 ? 1 : target < sum ? target : sum);
  }
  if (s.min_p > 0.0f && bit_cast<u32>(s.min_p) > cut.key) cut = {bit_cast<u32>(s.min_p) - 1, 0};
  if (s.top_p < 1.0f || s.min_p > 0.0f) sum = team.sum(keys, kept);
  if (sum == 0) return best.index;  // rounding took even the likeliest away
  const u64 bits = philox(s.seed, s.position);
  const u64 at = bits * (sum >> 32) + ((bits * (sum & 0xffffffffu)) >> 32);  // bits * sum / 2^32
  return team.first_past(keys, kept, at);
}

/// The logarithm of the share that e to the logit of the token has of all.
template <class Team, class Row> TFCC_FN f32 log_share(Team& team, const Row& row, idx token) {
  const Best best = team.best(row);
  const auto keys = team.keys(row, [&](f32 y) { return key_of(y - best.value); });
  const u64 sum = team.sum(keys, [](idx, u32 k) { return units_of(bit_cast<f32>(k)); });
  return row.raw(token) - best.value - flog((f32)((f64)sum / (f64)kUnitsOfOne));
}
