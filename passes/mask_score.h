// SPDX-License-Identifier: Apache-2.0
// Scores and masks as numbers, for classify-mask: what is large enough to hide a key, and bounds of
// what a score may be.
#pragma once

#include "passes/match.h"

namespace tfcc::passes {

inline constexpr double kScoreBound = 1000;  // assumed of scores before the mask (docs/numerics.md)
inline constexpr double kMaskMargin = 104;   // exp(-104) == 0 in f32

struct Interval {
  double low, high;
};

/// Bounds of a real expression; `s` and real loads are taken within the assumed bound.
Interval bounds(ExprRef e);

/// Is there a constant beyond the bound and the margin, or NaN?
bool has_large_constant(ExprRef e);

/// Without clamps that no score reaches: max(s, -5e4).
ExprRef without_idle_clamps(ExprRef e);

/// Upper bound of a masked score, given a live one: what both add (a bias by distance) is part of
/// the live score's bound.
double upper_bound(ExprRef masked, ExprRef live);

}  // namespace tfcc::passes
