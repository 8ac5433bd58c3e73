// SPDX-License-Identifier: Apache-2.0
// Scores that count keys from the last one, as MPT's ALiBi does: bias[h, j - (P + S) + n].
#pragma once

#include "passes/match.h"

namespace tfcc::passes {

/// A free score, in which summands that are affine in the key j and count it from the last of
/// `length` new tokens count it from the query i instead: a sum that differs by one number for all
/// keys, which a softmax does not see. A constant table is affine along an axis if it is so within
/// 1e-6 of its largest number; the score moves by as much. Other summands stay as they are.
///   before:  s * 0.125 + @bias[h,0,j - P - S + 2048]
///   after:   s * 0.125 + @bias[h,0,min(j - P - i + 2047, 2047)]
/// Keys behind the query, which it must not see, read the last number.
ExprRef counted_from_query(const Graph& graph, ExprRef score, ExprRef i, ExprRef j, ExprRef length);

}  // namespace tfcc::passes
