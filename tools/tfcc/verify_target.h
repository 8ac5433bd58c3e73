// SPDX-License-Identifier: Apache-2.0
// A graph compiled for one target, loaded and run, as `tfcc verify` needs it: the file is gone once
// it is loaded.
#pragma once

#include "runtime/tfcc.h"
#include "tools/compiler/compile_graph.h"
#include "tools/tfcc/verify_bisect.h"

namespace tfcc::tools {

using TargetOptions = compiler::GraphOptions;

class CompiledGraph {
 public:
  /// Errors: those of codegen::compile and Model::load.
  static Result<CompiledGraph> make(const ir::Graph& graph, const TargetOptions& options);
  /// A compiled file as it is. `device` and `threads` as LoadOptions has them. Errors: those of
  /// Model::load.
  static Result<CompiledGraph> load(const std::string& file, const std::string& device,
                                    int threads);
  const Model& model() const { return model_; }
  /// The outputs by name. Errors: those of the executor, a raised flag.
  Result<HostTensors> run(const HostTensors& inputs) const;
  /// The program without padding on the real tokens of padded inputs. Outputs are as run() has them:
  /// padded, with 0 at padding. Errors: also unsupported (there is no such program).
  Result<HostTensors> run_ragged(const HostTensors& inputs, const RealRows& real) const;

 private:
  explicit CompiledGraph(Model model) : model_(std::move(model)) {}
  Model model_;
};

/// Compiles a graph at each call.
Target compiling_target(const TargetOptions& options);

}  // namespace tfcc::tools
