// SPDX-License-Identifier: Apache-2.0
#include "tools/compiler/compile_graph.h"

namespace tfcc::compiler {

codegen::PlanInput plan_input(const ir::Graph& graph, const GraphOptions& o) {
  codegen::PlanInput input{o.target.family, graph, {}};
  if (o.target.family == Family::cuda) input.options.precision = o.precision;
  return input;
}

Result<codegen::CompileResult> compile_graph(const ir::Graph& graph, const std::string& output,
                                             const GraphOptions& o) {
  codegen::CompileOptions options;
  options.targets = {o.target};
  options.strip = o.strip;
  options.threads = o.threads;
  options.cache = o.cache;
  return codegen::compile({plan_input(graph, o)}, output, options);
}

}  // namespace tfcc::compiler
