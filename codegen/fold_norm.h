// SPDX-License-Identifier: Apache-2.0
// Norms between products become parts of the products.
#pragma once

#include <cstdint>

#include "codegen/target.h"
#include "ir/graph.h"
#include "runtime/result.h"

namespace tfcc::codegen {

/// Where every product around a norm is executed by an arm that takes norms, for runs of at most so
/// many tokens (0: any number), the norm becomes a part of them (ir/ops.md, matmul). Returns how
/// many did. Errors: those of reading weights.
Result<int> fold_norms(ir::Graph& graph, const TargetClass& target, int64_t most_tokens);

}  // namespace tfcc::codegen
