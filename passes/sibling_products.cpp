// SPDX-License-Identifier: Apache-2.0
#include "passes/sibling_products.h"

#include <algorithm>

#include "ir/matmul.h"

namespace tfcc::passes {

std::optional<OpId> joinable_product(const Graph& graph, ValueId v, OpId reader,
                                     const std::string& what, std::string& reason) {
  const ir::Op* op = graph.def(v);
  const auto why_not = [&]() -> std::string {
    if (!op || op->kind != OpKind::matmul) return what + " is no product";
    if (!graph.constant(op->operands[1]) || graph.value(op->operands[1]).type.rank() != 2 ||
        op->as<ir::MatmulAttrs>().trans_a)
      return "a weight is no constant matrix";
    if (!ir::has_plain_epilogue(graph, *op)) return "a product has more of an epilogue than a bias";
    if (op->operands.size() > 2 && !graph.is_constant(op->operands[2]))
      return "a bias is no constant";
    const bool alone =
        std::ranges::all_of(graph.value(v).users, [&](OpId user) { return user == reader; });
    return alone && !graph.is_output(v) ? "" : what + " has another use";
  };
  reason = why_not();
  return reason.empty() ? std::optional(graph.value(v).def) : std::nullopt;
}

bool are_siblings(const Graph& graph, OpId a, OpId b) {
  const ir::Op &x = graph.op(a), &y = graph.op(b);
  const auto &p = x.as<ir::MatmulAttrs>(), &q = y.as<ir::MatmulAttrs>();
  return x.operands[0] == y.operands[0] && x.operands.size() == y.operands.size() &&
         p.alpha == q.alpha && p.trans_b == q.trans_b &&
         graph.value(x.operands.back()).type.dtype == graph.value(y.operands.back()).type.dtype;
}

ValueId join_products(Graph& graph, const std::vector<OpId>& products, const std::string& name,
                      std::vector<ExprRef>& starts) {
  const ir::Op first = graph.op(products[0]);
  const auto attrs = first.as<ir::MatmulAttrs>();
  std::vector<ir::Constant> weights, biases;
  ExprRef width = graph.pool().integer(0);
  for (OpId p : products) {
    weights.push_back(*graph.constant(graph.op(p).operands[1]));
    if (first.operands.size() > 2) biases.push_back(*graph.constant(graph.op(p).operands[2]));
    starts.push_back(width);
    width = ir::add(width, graph.value(graph.result(p)).type.dims.back());
  }
  const ValueId weight =
      graph.add_constant(name + ".weight", ir::concat_constants(weights, attrs.trans_b ? 0 : 1));
  std::optional<ValueId> bias;
  if (!biases.empty()) bias = graph.add_constant(name + ".bias", ir::concat_constants(biases, 0));
  ir::Type type = graph.value(first.results[0]).type;
  type.dims.back() = width;
  return ir::add_matmul(graph, first.operands[0], weight, attrs,
                        ir::bias_epilogue(graph, type, bias), type, name, first.origin);
}

}  // namespace tfcc::passes
