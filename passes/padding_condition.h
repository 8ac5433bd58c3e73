// SPDX-License-Identifier: Apache-2.0
// Whether a condition on keys says which tokens are padding, or only which of them an attention
// reads. Rows of the former are nobody's; those of the latter are results. It is told by the inputs
// that the condition is made of (runtime/input_role.h): masks, also those that ops make of masks; and
// where no mask says anything, one id that stands for padding (ids != 1, 0 < ids, min(ids, 1) == 1).
// Token types, positions, constants, ids in any other way (30 < ids, ids == 5, a table of them, the id
// of another place) and what is computed from ids by more than elementwise ops are what a token is. An
// input without a role may be a mask of any name.
#pragma once

#include <vector>

#include "passes/match.h"

namespace tfcc::passes {

/// Which of these conditions say so, all free, that must hold together. By ids it is one, and what
/// asks for nothing but that id at some places.
std::vector<bool> say_padding(const Graph& graph, const std::vector<ExprRef>& conditions);

}  // namespace tfcc::passes
