// SPDX-License-Identifier: Apache-2.0
// Whether a condition on keys says which tokens are padding, or only which of them an attention
// reads. Rows of the former are nobody's; those of the latter are results. It is told by the inputs
// that the condition is made of (runtime/input_role.h): masks, and ids of which one alone stands for
// padding (ids != 1, 0 < ids, min(ids, 1) == 1). Token types, positions and ids in any other way
// (30 < ids, ids == 5, a table of them, ids / 2) are what a token is. An input without a role may be a
// mask of any name.
#pragma once

#include <vector>

#include "passes/match.h"

namespace tfcc::passes {

/// Which of these conditions say so, all free, that must hold together: none by ids beside another.
std::vector<bool> say_padding(const Graph& graph, const std::vector<ExprRef>& conditions);

}  // namespace tfcc::passes
