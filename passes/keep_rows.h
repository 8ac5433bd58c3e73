// SPDX-License-Identifier: Apache-2.0
// Part of canonicalize: products, norms and elementwise ops on rows that were listed along one
// axis, or whose leading axes were exchanged, work on the tensor as it was; the view moves behind
// them.
#pragma once

#include "passes/match.h"

namespace tfcc::passes {

/// True if op `o` was replaced by one on the tensor before the view, and a view of its result.
bool keep_axes_of_rows(Graph& graph, OpId o);

}  // namespace tfcc::passes
