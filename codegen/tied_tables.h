// SPDX-License-Identifier: Apache-2.0
// A table that is also the weight of a product, as the embedding of a model whose head is tied to
// it, stands in a file once.
#pragma once

#include "codegen/target.h"
#include "ir/graph.h"

namespace tfcc::codegen {

/// Lets ops that look rows up in the weight of a product read it as the product has it packed.
/// Changes nothing where weights are not packed (on CUDA one layout serves both).
void tie_tables(ir::Graph& graph, const TargetClass& target);

}  // namespace tfcc::codegen
