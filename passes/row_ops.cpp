// SPDX-License-Identifier: Apache-2.0
#include "passes/row_ops.h"

#include <algorithm>

#include "ir/matmul.h"

namespace tfcc::passes {

bool is_row_operand(const ir::Op& op, size_t i) {
  switch (op.kind) {
    case OpKind::softmax:
    case OpKind::grouped_matmul:
    case OpKind::matmul: return i == 0;
    case OpKind::rope: return i < 3;
    case OpKind::attention:
    case OpKind::linear_attention: return i < 3;
    default: return false;
  }
}

bool is_at_rows(ExprRef load, const Indices& own) {
  const auto first_other =
      std::mismatch(load->args.begin(), load->args.end(), own.begin(), own.end()).first;
  return first_other - load->args.begin() >= 2;
}

bool computes_rows(const Graph& graph, const ir::Op& op) {
  const auto rank = [&](ValueId v) { return graph.value(v).type.rank(); };
  switch (op.kind) {
    case OpKind::pointwise:
    case OpKind::reduce: return rank(op.results[0]) >= 2;
    case OpKind::grouped_matmul: return rank(op.operands[0]) >= 3;
    case OpKind::norm:
    case OpKind::softmax:
    case OpKind::rope:
      return rank(op.results[0]) >= 3;  // of two axes the last is that of the tokens
    case OpKind::matmul: {
      const auto b = ir::second_factor(graph, op).dims;
      const bool one_matrix =
          std::all_of(b.begin(), b.end() - 2, [](ExprRef d) { return ir::is_int(d, 1); });
      return rank(op.results[0]) >= 3 && rank(op.operands[0]) == rank(op.results[0]) &&
             one_matrix && !op.as<ir::MatmulAttrs>().trans_a;
    }
    default: return false;
  }
}

}  // namespace tfcc::passes
