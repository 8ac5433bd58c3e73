// SPDX-License-Identifier: Apache-2.0
// Who made a result wrong: first the pass after which the graph computes something else in float64,
// or else the target, whose op is found by compiling the graph again with some of its values as
// outputs. Passes and target are given as functions.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ir/ir.h"
#include "tools/tfcc/verify_search.h"

namespace tfcc::tools {

/// A named change of a graph: a pass, or what a test puts in its place.
struct Step {
  std::string name;
  std::function<Result<void>(ir::Graph&)> run;
};
std::vector<Step> steps_of(const std::vector<std::string>& passes);

/// For each op by its id: the steps that made it and that changed what it computes, in order. None:
/// it was there before.
using Makers = std::vector<std::vector<size_t>>;
/// Runs the steps on `graph`. Errors: those of a step.
Result<Makers> run_steps(ir::Graph& graph, const std::vector<Step>& steps);

/// What is compiled: runs a graph, and names the kernel that writes a value.
struct Target {
  std::string name;
  std::function<Result<HostTensors>(const ir::Graph&, const HostTensors& inputs)> run;
  std::function<std::string(const ir::Graph&, const std::string& value)> kernel = {};
};

struct Failure {
  const ir::Graph& imported;  // before any step
  const std::vector<Step>& steps;
  const HostTensors& inputs;
  const Defined& defined;
  std::string output;       // that differs on the target
  Difference difference;    // by so much
  double tolerance = 1e-4;  // of that output
};

/// The op where it begins, in words.
struct WrongOp {
  std::string value, kind, text;  // text: its line of the graph
  std::string node;               // the ONNX node that it comes from; may be empty
  ir::OpId op;
  std::vector<std::string> makers;  // "fuse-qkv"; empty: the import
  std::string kernel;               // empty if a pass is guilty, or none writes it
  std::optional<Difference> difference;
  std::optional<double> operands;
  std::vector<std::string> unknown;  // lines of ops before it that could not be told
  bool narrowed = true;
  DType dtype = DType::f32;
};

/// The op where a wrong output begins, as `measure` tells; none if no op computes it. Makers and
/// kernel are left empty.
/// Errors: those of `measure`.
Result<std::optional<WrongOp>> first_wrong_op(const ir::Graph& graph, const std::string& output,
                                              const Measure& measure, const SearchOptions& options);

struct Guilty {
  std::string pass;            // empty: the target
  size_t step = 0, steps = 0;  // it is the so manieth, from 1
  std::string problem;         // why the graph cannot be evaluated after that pass
  Difference before, after;    // of the output in float64, around that pass
  std::optional<WrongOp> op;
};

/// Errors: those of a step; of evaluating the imported graph.
Result<Guilty> bisect(const Failure& failure, const Target& target,
                      const SearchProgress& progress = {});

/// "%x = gelu: max abs error ...", the text of the op and the ONNX node, as lines for a person.
std::string describe(const WrongOp& op);
/// All that is known, as lines for a person.
std::string report(const Guilty& guilty, const Target& target);

}  // namespace tfcc::tools
