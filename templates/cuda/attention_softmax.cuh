// SPDX-License-Identifier: Apache-2.0
// What the forms of attention on tensor cores share: the online softmax of rows whose scores are in
// accumulators, and masking.
//
// Scores and results are tiles of 16 rows and 8 columns: element [t][c] of a lane is row lane / 4 +
// 8 * (c / 2), column 8 * t + 2 * (lane % 4) + c % 2, for mma.sync and wgmma alike.
#pragma once
#include "cuda/attention_tile.cuh"

inline constexpr f32 kLog2E = 1.44269504088896340736f;

TFCC_FN f32 exp2_fast(f32 x) {
  f32 r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

/// Scores of `lane`, whose first row is `row`, against keys of `tile`: what is hidden becomes -inf.
/// `reads`: elements whose functors may read at the same time; score_of(t, c) is that of element
/// [t][c].
template <int reads, int n, class Block, class Bits, class ScoreOf, class Visible>
TFCC_FN void mask_each_score(f32 (&s)[n][4], const Block& block, int lane, idx row, idx tile,
                             const Bits& bits, bool cut, const ScoreOf& score_of,
                             const Visible& visible) {
#pragma unroll
  for (int t = 0; t < n; ++t) {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int key = t * 8 + lane % 4 * 2 + c % 2;
      const bool bit = (bits.word[t / 4] >> (key % kWarp)) & 1;
      s[t][c] = block.masked(s[t][c], row + c / 2 * 8, tile * (n * 8) + key, bit, cut,
                             score_of(t, c), visible);
      if ((t * 4 + c) % reads == reads - 1) __syncwarp();
    }
  }
}
template <int reads, int n, class Block, class Bits, class Score, class Visible>
TFCC_FN void mask_scores(f32 (&s)[n][4], const Block& block, int lane, idx row, idx tile,
                         const Bits& bits, bool cut, const Score& score, const Visible& visible) {
  const auto same = [&](int, int) -> const Score& { return score; };
  mask_each_score<reads>(s, block, lane, row, tile, bits, cut, same, visible);
}

/// Of the two rows of a lane.
template <class Spec> struct OnlineSoftmax {
  f32 top[2] = {-kInf, -kInf};  // of the scores so far
  f32 sum[2] = {0.0f, 0.0f};    // of this lane's columns

  /// exp of the difference of two scores. Printed scores may be near the largest float: subtract
  /// first.
  static TFCC_FN f32 weight(f32 s, f32 base) {
    constexpr f32 factor = (Spec::scaled ? Spec::score_scale : 1.0f) * kLog2E;
    if constexpr (Spec::scaled) return exp2_fast(s * factor - base * factor);
    else return exp2_fast((s - base) * factor);
  }

  /// s becomes exp(s - top); o and sum are rescaled to the new top.
  template <int n, int m> TFCC_FN void update(f32 (&s)[n][4], f32 (&o)[m][4]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      f32 larger = top[r];
#pragma unroll
      for (int t = 0; t < n; ++t) larger = fmaxf(larger, fmaxf(s[t][2 * r], s[t][2 * r + 1]));
      larger = fmaxf(larger, __shfl_xor_sync(kAllLanes, larger, 1));
      larger = fmaxf(larger, __shfl_xor_sync(kAllLanes, larger, 2));
      const f32 base = larger == -kInf ? 0.0f : larger;  // no visible key yet: all weights are 0
      const f32 rescale =
          top[r] == larger
              ? 1.0f
              : weight(top[r], base);  // exactly 1, so that a hidden tile changes nothing
      top[r] = larger;
      f32 added = 0.0f;
#pragma unroll
      for (int t = 0; t < n; ++t) {
#pragma unroll
        for (int c = 2 * r; c < 2 * r + 2; ++c) {
          s[t][c] = weight(s[t][c], base);
          added += s[t][c];
        }
      }
      sum[r] = sum[r] * rescale + added;
#pragma unroll
      for (int t = 0; t < m; ++t) {
        o[t][2 * r] *= rescale;
        o[t][2 * r + 1] *= rescale;
      }
    }
  }

  /// What row r of o has to be multiplied by; 0 without a visible key.
  template <class Sink> TFCC_FN f32 scale(int r, f32 sink) const {
    f32 total = sum[r];
    total += __shfl_xor_sync(kAllLanes, total, 1);
    total += __shfl_xor_sync(kAllLanes, total, 2);
    return row_scale<Spec, Sink>(total, top[r], sink);
  }
};

/// Keys over pages that are summed by themselves, Spec::span; 0: all are one sum, over pages too
/// where two sums have no place in registers.
template <class Spec, bool paged> struct SpanKeys { static constexpr int value = 0; };
template <class Spec> struct SpanKeys<Spec, true> { static constexpr int value = Spec::span; };

/// Over pages of a cache the keys of a row are summed in spans of Spec::span keys, each as if there
/// were no other, which are then added in their order: so that the forms of attention which share
/// out the spans and those which walk through them have the same bits. This is the sum of the spans
/// so far, for `columns` columns of one row and `lanes` parts of its sum of weights. A span without
/// a visible key, whose top is -inf and whose results are 0, changes nothing.
template <class Spec, int columns, int lanes> struct SpanSum {
  f32 o[columns], sum[lanes], top = -kInf;

  TFCC_FN SpanSum() {
#pragma unroll
    for (int x = 0; x < columns; ++x) o[x] = 0.0f;
#pragma unroll
    for (int x = 0; x < lanes; ++x) sum[x] = 0.0f;
  }
  /// The order of operations is spelled out: it must not be the compiler's choice in each form.
  template <class Sums, class Results>
  TFCC_FN void add(f32 other, const Sums& sums, const Results& results) {
    const f32 larger = fmaxf(top, other), base = larger == -kInf ? 0.0f : larger;
    const f32 mine = top == larger ? 1.0f : OnlineSoftmax<Spec>::weight(top, base);
    const f32 others = other == larger ? 1.0f : OnlineSoftmax<Spec>::weight(other, base);
    top = larger;
#pragma unroll
    for (int x = 0; x < lanes; ++x) sum[x] = __fmaf_rn(sums(x), others, __fmul_rn(sum[x], mine));
#pragma unroll
    for (int x = 0; x < columns; ++x) o[x] = __fmaf_rn(results(x), others, __fmul_rn(o[x], mine));
  }
};
