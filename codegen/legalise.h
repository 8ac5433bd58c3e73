// SPDX-License-Identifier: Apache-2.0
// The last rewrite of a graph before it is lowered.
#pragma once

#include "codegen/matmul/rules.h"
#include "codegen/target.h"
#include "ir/graph.h"

namespace tfcc::codegen {

/// Rewrites what no launch can do as it is into ops that can be: products whose leading dims
/// broadcast on both sides, products of f64, products that read a graph input, epilogues that the
/// arm does not take which is chosen for at most `most_tokens` tokens (0: any number).
void legalise(ir::Graph& graph, const TargetClass& target, int64_t most_tokens,
              const ProductRules& rules = {});

}  // namespace tfcc::codegen
