// SPDX-License-Identifier: Apache-2.0
// A constant that ops make of other constants, when somebody reads it.
#pragma once

#include <cstddef>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ir/graph.h"

namespace tfcc::ir {

/// The one output of a graph that needs nothing of a run (problem()).
class ComputedConstant {
 public:
  explicit ComputedConstant(Graph graph) : graph_(std::move(graph)) {}

  const Graph& graph() const { return graph_; }
  const Type& type() const { return graph_.value(graph_.outputs[0].value).type; }
  /// The graph as text, or where this is if the text would be long: what is equal has equal elements.
  /// For graphs without problem().
  const std::string& key() const;

  /// Why the graph gives no constant; empty if it does: constants and ops of serves() alone, no
  /// input, size of a run, check or flag, no other computed constant, and no more elements and work
  /// than a compiler may take. Whether ops keep their rules verify() tells.
  static std::string problem(const Graph& graph);
  /// Elementwise ops, reductions, norms, softmax and products of stored factors.
  static bool serves(const Op& op);
  /// The elements of a type of known sizes; nothing if one is not known, or there are more than a
  /// computed constant may use.
  static std::optional<int64_t> elements(const Type& type);
  /// What an op of such sizes costs the evaluator, in multiplications of a product: 2e9 take a
  /// second. Reading a constant counts too.
  static double work(const Graph& graph, const Op& op);

  /// Row-major elements of its type: evaluated in float64 and rounded to the type, the first time
  /// that somebody asks. Others wait. They live as long as this. Errors: those of eval().
  Result<std::span<const std::byte>> bytes() const;

 private:
  Graph graph_;
  mutable std::mutex making_;
  mutable std::string key_;
  mutable std::vector<std::byte> bytes_;
  mutable bool made_ = false;
};

/// Whether it, or a part that is joined, is computed.
bool is_computed(const Constant& constant);

}  // namespace tfcc::ir
