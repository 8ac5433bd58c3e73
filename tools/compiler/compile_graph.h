// SPDX-License-Identifier: Apache-2.0
// The last step of the compiler alone: a graph that passes have rewritten, made a file for one
// target. `tfcc verify` compiles parts of a graph with it, tests a kernel's graph; a model goes
// through compiler.h.
#pragma once

#include <string>

#include "codegen/compile.h"

namespace tfcc::compiler {

struct GraphOptions {
  codegen::TargetName target;
  std::string precision = "f32";  ///< on CUDA: what the plan says of itself
  int threads = 0;                ///< 0: one per core
  bool strip = false;             ///< leave IR and sources out of the file
  codegen::KernelCacheOptions cache = {};
};

/// What code generation is given of a graph.
codegen::PlanInput plan_input(const ir::Graph& graph, const GraphOptions& options);

/// Writes `output`, whole or not at all. Errors: those of codegen::compile().
Result<codegen::CompileResult> compile_graph(const ir::Graph& graph, const std::string& output,
                                             const GraphOptions& options);

}  // namespace tfcc::compiler
