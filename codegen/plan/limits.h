// SPDX-License-Identifier: Apache-2.0
// What the sizes of a run must keep to on a GPU, and at which shapes memory is planned.
#pragma once

#include <string>
#include <vector>

#include "codegen/lower.h"
#include "codegen/plan/memory.h"

namespace tfcc::codegen {

/// A size that no run may have below zero, and what to say of one that does.
struct SizeLimit {
  ir::ExprRef at_least_zero;
  std::string message;
};
/// CUDA kernels index with 32 bits, and a grid has limits: sizes beyond them are refused before a
/// launch.
std::vector<SizeLimit> cuda_limits(const ir::Graph& graph);

/// Shapes at which a layout is judged: the usual one, one row of it, and rows four times as long.
/// Usual is what the user named, else batch 16 and everything else 128, within the range of the
/// symbol.
JudgedShapes judged_shapes(const ir::Graph& graph, const LowerOptions& options);

}  // namespace tfcc::codegen
