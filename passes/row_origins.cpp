// SPDX-License-Identifier: Apache-2.0
#include "passes/row_origins.h"

#include <algorithm>

#include "passes/row_ops.h"

namespace tfcc::passes {

RowOrigins::RowOrigins(const Graph& graph) : graph_(graph) {
  const auto has_rows = [&](ValueId v) { return graph.value(v).type.rank() >= 2; };
  for (ValueId v : graph.inputs()) {
    if (has_rows(v)) origins_[v.value] = {v.value};
  }
  for (OpId o : graph.order()) {
    for (ValueId v : graph.op(o).results) {
      if (has_rows(v)) origins_[v.value] = origins_of(o, v);
    }
  }
}

bool RowOrigins::are_same_tokens(ValueId queries, ValueId keys) const {
  const std::set<uint32_t>&q = origins_.at(queries.value), &k = origins_.at(keys.value);
  return !k.empty() && std::includes(q.begin(), q.end(), k.begin(), k.end());
}

std::set<uint32_t> RowOrigins::origins_of(OpId o, ValueId v) const {
  const ir::Op& op = graph_.op(o);
  std::set<uint32_t> found;
  const auto add = [&](ValueId from) {
    const auto it = origins_.find(from.value);
    if (it != origins_.end()) found.insert(it->second.begin(), it->second.end());
  };
  if (op.kind == OpKind::attention) {
    add(op.operands[0]);  // keys and values are read at all rows
  } else if (computes_rows(graph_, op)) {
    for (size_t i = 0; i < op.operands.size(); ++i) {
      if (is_row_operand(op, i)) add(op.operands[i]);
    }
    const Indices own = ir::indices_of(graph_, v);
    ir::Op copy = op;
    for (ExprRef* body : ir::expressions_of(copy)) {
      ir::for_each_node(*body, [&](ExprRef n) {
        if (n->kind == ExprKind::load && is_at_rows(n, own))
          add(op.operands[static_cast<size_t>(n->value)]);
      });
    }
  }
  const bool from_constants = std::all_of(op.operands.begin(), op.operands.end(),
                                          [&](ValueId x) { return graph_.is_constant(x); });
  if (found.empty() && !from_constants) found.insert(v.value);
  return found;
}

}  // namespace tfcc::passes
