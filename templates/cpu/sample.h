// SPDX-License-Identifier: Apache-2.0
// sample: tokens[r] and logs[r] of row r of logits [rows, width]; see sampling.h. A work item is a
// row.
#pragma once

#include "expr.h"
#include "sampling.h"

/// One thread is the team.
struct Alone {
  u64 bins[kBins];

  template <class Row> static TFCC_FN f32 at(const Row& row, idx i) {
    return row.of(i, row.raw(i));
  }
  /// By lanes, which compilers make vectors of: a vocabulary is scanned for every token.
  template <class Row> TFCC_FN Best best(const Row& row) {
    constexpr int kWays = 16;
    f32 lanes[kWays];
    for (f32& l : lanes) l = -kInf;
    idx i = 0;
    for (; i + kWays <= row.n; i += kWays) {
      for (int k = 0; k < kWays; ++k) {
        const f32 v = at(row, i + k);
        lanes[k] = v > lanes[k] ? v : lanes[k];
      }
    }
    f32 most = -kInf;
    for (const f32 l : lanes) most = l > most ? l : most;
    for (; i < row.n; ++i) {
      const f32 v = at(row, i);
      most = v > most ? v : most;
    }
    if (most == -kInf) return {most, -1};
    for (i = 0; at(row, i) != most;) ++i;
    return {most, i};
  }
  template <class Row, class F> struct Keys {
    const Row& row;
    F key;
    TFCC_FN u32 operator()(idx i) const { return key(at(row, i)); }
  };
  template <class Row, class F> TFCC_FN Keys<Row, F> keys(const Row& row, const F& key) {
    return {row, key};
  }
  template <class K, class F> TFCC_FN u64 sum(const K& keys, const F& units) {
    u64 all = 0;
    for (idx i = 0; i < keys.row.n; ++i) all += units(i, keys(i));
    return all;
  }
  template <class K, class F> TFCC_FN idx first_past(const K& keys, const F& units, u64 limit) {
    u64 running = 0;
    for (idx i = 0; i < keys.row.n; ++i) {
      if ((running += units(i, keys(i))) > limit) return i;
    }
    return -1;
  }
  TFCC_FN void clear() {
    for (u64& b : bins) b = 0;
  }
  TFCC_FN void add(int bin, u64 x) { bins[bin] += x; }
  TFCC_FN Bin find(u64 left) {
    u64 above = 0;
    int bin = kBins - 1;
    while (bin > 0 && above + bins[bin] < left) above += bins[bin--];
    return {bin, above};
  }
  template <class K, class F> TFCC_FN void walk(const K& keys, const F& f) {
    for (idx i = 0; i < keys.row.n; ++i) f(i, keys(i));
  }
};

/// Spec: In, Id.
template <class Spec>
TFCC_FN void sample(typename Spec::Id* tokens, f32* logs, const typename Spec::In* logits,
                    const typename Spec::Id* ids, const i32* wanted, const i32* positions,
                    const f32* sampling, const i32* draw, const i32* seen, idx width, idx count,
                    idx words, i64 begin, i64 end) {
  for (i64 r = begin; r < end; ++r) {
    const idx at = wanted[r] < 0 ? 0 : wanted[r] < count ? wanted[r] : count - 1;  // -1: no token
    const auto raw = [from = logits + r * width](idx i) { return (f32)load(from, i); };
    const Sampling options =
        sampling_of(sampling + 4 * r, draw + 4 * r, at < 0 ? 0 : (u64)positions[at] + 1);
    const PenalisedRow<decltype(raw)> row{width,
                                          raw,
                                          options.penalty,
                                          1.0f / options.penalty,
                                          seen + r * words,
                                          words,
                                          at < 0 ? -1 : (i64)ids[at]};
    Alone team;
    const idx token = choose_token(team, row, options);
    tokens[r] = (typename Spec::Id)token;
    logs[r] = draw[4 * r + 3] == 0 ? 0.0f
              : token < 0          ? kNan
                                   : log_share(team, plain(width, raw), token);
  }
}
