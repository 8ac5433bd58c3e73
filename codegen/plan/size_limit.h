// SPDX-License-Identifier: Apache-2.0
// What proofs assumed of products of sizes, as a condition for the run.
#pragma once

#include "ir/graph.h"

namespace tfcc::codegen {

/// The condition under which no index or integer that proofs took to fit 64 bits exceeds them, over
/// the symbols of the graph. Null if every product in it is bounded by the elements of a tensor,
/// which the runtime checks anyway.
ir::ExprRef sizes_fit(const ir::Graph& graph);

}  // namespace tfcc::codegen
