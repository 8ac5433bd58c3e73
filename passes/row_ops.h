// SPDX-License-Identifier: Apache-2.0
// Ops that compute a tensor [B,S,..] row by row: which ops these are, and which operands they read
// so.
#pragma once

#include "passes/match.h"

namespace tfcc::passes {

/// Whether the op, if it computes rows, reads operand i a row at a time, at the rows of its own
/// result, and not by its body.
bool is_row_operand(const ir::Op& op, size_t i);
/// Whether a load is of the row (own[0], own[1]).
bool is_at_rows(ExprRef load, const Indices& own);
/// Whether rows [b,s] of the op's results could be computed for some (b,s) alone: its sums do not
/// run over tokens, and none of its own operands but the rows differs from sequence to sequence.
/// Attention is not among these.
bool computes_rows(const Graph& graph, const ir::Op& op);

}  // namespace tfcc::passes
