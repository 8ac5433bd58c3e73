// SPDX-License-Identifier: Apache-2.0
// A norm that computes its argument leaves it to the other readers as a second result.
#pragma once

#include <unordered_map>

#include "ir/norm.h"
#include "passes/match.h"

namespace tfcc::passes {

/// Whether gamma and beta of norms are made without their arguments. Made before a pass changes the
/// graph, whose order it remembers: what stood before an op is not made of it.
class NormArguments {
 public:
  explicit NormArguments(const Graph& graph);
  /// True if gamma or beta is `e`, or made of it, or if that takes a long way to tell.
  bool is_in_weights(const Graph& graph, const ir::NormOf& norm, ValueId e) const;

 private:
  bool is_in(const Graph& graph, ValueId v, ValueId e) const;
  std::unordered_map<OpId, size_t> place_;
};

}  // namespace tfcc::passes
