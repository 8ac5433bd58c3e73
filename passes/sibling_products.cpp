// SPDX-License-Identifier: Apache-2.0
#include "passes/sibling_products.h"

#include <algorithm>

#include "ir/matmul.h"

namespace tfcc::passes {

namespace {

// A weight that is computed from constants, each of which has a row for each column of it; they lie
// behind each other as its columns do.
bool is_computed_by_columns(const Graph& g, ValueId w) {
  const ir::Op* op = g.def(w);
  if (!op || op->kind != OpKind::pointwise) return false;
  ExprRef column = ir::indices_of(g, w)[0];
  if (column->kind != ExprKind::index) return false;  // one column: nothing says where it is read
  ExprRef body = op->as<ir::PointwiseAttrs>().body;
  ExprRef rest = ir::rewrite(body, [&](ExprRef n) -> ExprRef {
    return n->kind == ExprKind::load ? g.pool().param("element", n->type) : nullptr;
  });
  bool ok = !ir::uses_index(rest, column->value);
  ir::for_each_node(body, [&](ExprRef n) {
    if (n->kind != ExprKind::load) return;
    const ValueId v = op->operands[static_cast<size_t>(n->value)];
    const auto& dims = g.value(v).type.dims;
    ok &= g.is_constant(v) && !dims.empty() && dims[0] == column->args[0] && n->args[0] == column &&
          std::none_of(n->args.begin() + 1, n->args.end(),
                       [&](ExprRef i) { return ir::uses_index(i, column->value); });
  });
  return ok;
}

bool may_join(const Graph& g, const ir::Op& product) {
  const ValueId w = product.operands[1];
  if (g.value(w).type.rank() != 2) return false;
  return g.constant(w) || (product.as<ir::MatmulAttrs>().trans_b && g.use_count(w) == 1 &&
                           is_computed_by_columns(g, w));
}

// The body of a computed weight as that of one of `columns` columns.
ExprRef body_over(const Graph& g, ValueId w, ExprRef columns) {
  const Indices at = ir::indices_of(g, w);
  return ir::substitute_indices(g.def(w)->as<ir::PointwiseAttrs>().body,
                                {g.pool().index(at[0]->value, columns), at[1]});
}

// Weights of siblings behind each other, along their columns.
ValueId join_weights(Graph& g, const std::vector<ValueId>& weights, bool by_columns,
                     ExprRef columns, const std::string& name) {
  const auto joined = [&](const std::string& name, auto of_weight, int64_t axis) {
    std::vector<ir::Constant> parts;
    for (ValueId w : weights) parts.push_back(*g.constant(of_weight(w)));
    return g.add_constant(name, ir::concat_constants(parts, axis));
  };
  if (g.constant(weights[0]))
    return joined(
        name, [](ValueId w) { return w; }, by_columns ? 0 : 1);
  const ir::Op first = *g.def(weights[0]);
  std::vector<ValueId> operands;
  for (size_t k = 0; k < first.operands.size(); ++k)
    operands.push_back(joined(
        name + "." + std::to_string(k), [&](ValueId w) { return g.def(w)->operands[k]; }, 0));
  ir::Type type = g.value(weights[0]).type;
  ExprRef body = body_over(g, weights[0], columns);
  type.dims[0] = columns;
  return g.add_pointwise(operands, body, type, name, first.origin);
}

}  // namespace

std::optional<OpId> joinable_product(const Graph& graph, ValueId v, OpId reader,
                                     const std::string& what, std::string& reason) {
  const ir::Op* op = graph.def(v);
  const auto why_not = [&]() -> std::string {
    if (!op || !ir::is_plain_product(*op)) return what + " is no product";
    if (!may_join(graph, *op) || op->as<ir::MatmulAttrs>().trans_a)
      return "a weight is no constant matrix, nor computed from constants column by column";
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

// Two constants, or two weights that are computed alike.
static bool have_like_weights(const Graph& g, ValueId v, ValueId w) {
  if (g.constant(v) || g.constant(w)) return g.constant(v) && g.constant(w);
  const auto &a = g.def(v)->operands, &b = g.def(w)->operands;
  const auto alike = [&](ValueId x, ValueId y) {
    const ir::Type &s = g.value(x).type, &t = g.value(y).type;
    return s.dtype == t.dtype &&
           std::equal(s.dims.begin() + 1, s.dims.end(), t.dims.begin() + 1, t.dims.end());
  };
  ExprRef columns = g.value(w).type.dims[0];
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), alike) &&
         body_over(g, v, columns) == body_over(g, w, columns);
}

bool are_siblings(const Graph& graph, OpId a, OpId b) {
  const ir::Op &x = graph.op(a), &y = graph.op(b);
  const auto &p = x.as<ir::MatmulAttrs>(), &q = y.as<ir::MatmulAttrs>();
  return x.operands[0] == y.operands[0] && x.operands.size() == y.operands.size() &&
         p.alpha == q.alpha && p.trans_b == q.trans_b &&
         graph.value(x.operands.back()).type.dtype == graph.value(y.operands.back()).type.dtype &&
         have_like_weights(graph, x.operands[1], y.operands[1]);
}

ValueId join_products(Graph& graph, const std::vector<OpId>& products, const std::string& name,
                      std::vector<ExprRef>& starts) {
  const ir::Op first = graph.op(products[0]);
  const auto attrs = first.as<ir::MatmulAttrs>();
  std::vector<ir::Constant> biases;
  std::vector<ValueId> weights;
  ExprRef width = graph.pool().integer(0);
  for (OpId p : products) {
    weights.push_back(graph.op(p).operands[1]);
    if (first.operands.size() > 2) biases.push_back(*graph.constant(graph.op(p).operands[2]));
    starts.push_back(width);
    width = ir::add(width, graph.value(graph.result(p)).type.dims.back());
  }
  const ValueId weight = join_weights(graph, weights, attrs.trans_b, width, name + ".weight");
  std::optional<ValueId> bias;
  if (!biases.empty()) bias = graph.add_constant(name + ".bias", ir::concat_constants(biases, 0));
  ir::Type type = graph.value(first.results[0]).type;
  type.dims.back() = width;
  return ir::add_matmul(graph, first.operands[0], weight, attrs,
                        ir::bias_epilogue(graph, type, bias), type, name, first.origin);
}

}  // namespace tfcc::passes
