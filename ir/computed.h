// SPDX-License-Identifier: Apache-2.0
// A constant that ops make of other constants, when somebody reads it.
#pragma once

#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ir/graph.h"

namespace tfcc::ir {

/// The one output of a graph that needs nothing: constants, ops over them, and no inputs, sizes of a
/// run, checks, flags or states (ComputedConstant::problem()).
class ComputedConstant {
 public:
  explicit ComputedConstant(Graph graph) : graph_(std::move(graph)) {}

  const Graph& graph() const { return graph_; }
  const Type& type() const { return graph_.value(graph_.outputs[0].value).type; }
  /// Why the graph gives no constant; empty if it does. Does not look into ops: verify() does.
  static std::string problem(const Graph& graph);

  /// Row-major elements of its type, evaluated in float64 and rounded once. The first reader makes
  /// them, others wait; they live as long as this. Errors: those of eval().
  Result<std::span<const std::byte>> bytes() const;

 private:
  Graph graph_;
  mutable std::mutex making_;
  mutable std::vector<std::byte> bytes_;
  mutable bool made_ = false;
};

}  // namespace tfcc::ir
