// SPDX-License-Identifier: Apache-2.0
#include "passes/norm_argument.h"

#include <unordered_set>

namespace tfcc::passes {

NormArguments::NormArguments(const Graph& graph) {
  for (size_t i = 0; i < graph.order().size(); ++i) place_[graph.order()[i]] = i;
}

bool NormArguments::is_in_weights(const Graph& graph, const ir::NormOf& norm, ValueId e) const {
  return is_in(graph, norm.gamma, e) || (norm.beta && is_in(graph, *norm.beta, e));
}

bool NormArguments::is_in(const Graph& graph, ValueId v, ValueId e) const {
  constexpr size_t kLongWay = 16;
  const size_t of_e = place_.at(graph.value(e).def);
  std::vector<ValueId> next{v};
  std::unordered_set<ValueId> seen;
  while (!next.empty()) {
    const ValueId x = next.back();
    next.pop_back();
    if (x == e) return true;
    if (!graph.def(x)) continue;
    if (!seen.insert(x).second) continue;  // cost: its operands wait already
    if (seen.size() > kLongWay) return true;
    const auto at = place_.find(graph.value(x).def);  // an op of this pass has none
    if (at != place_.end() && at->second < of_e) continue;
    const auto& operands = graph.def(x)->operands;
    next.insert(next.end(), operands.begin(), operands.end());
  }
  return false;
}

}  // namespace tfcc::passes
