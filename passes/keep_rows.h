// SPDX-License-Identifier: Apache-2.0
// Part of canonicalize: products, norms and elementwise ops on rows that were listed along one
// axis, or whose leading axes were exchanged, work on the tensor as it was; the view moves behind
// them, until it meets one that undoes it. So rows are not copied, and the passes behind see the
// tensors that they look for. A norm of every head behind the transposition (Gemma3's q and k)
// works on the heads of a token where they stand: x [.., heads * width] as [.., heads, width].
// Requires: the view keeps the last axis, or cuts it into whole rows (of a norm alone), and all
// rows, and has no more dims than the tensor, so cut, which has at most five, but axes of one row
// (of a product or norm alone, where the tensor has three or more), and no type of its own; a
// weight has rank 2 and is not on the left. Of an elementwise op, all such views are of one kind,
// read at its own place or in its body, and the rest depends on the last axis alone; no reduction
// (a norm still in pieces) reads the view or the result.
#pragma once

#include "passes/match.h"

namespace tfcc::passes {

/// True if op `o` was replaced by one on the tensor before the view, and a view of its result.
bool keep_axes_of_rows(Graph& graph, OpId o);

}  // namespace tfcc::passes
