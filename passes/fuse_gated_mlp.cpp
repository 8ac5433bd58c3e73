// SPDX-License-Identifier: Apache-2.0
// fuse-gated-mlp: the gate and up products of a gated feed-forward block become one product;
// activation * up reads both halves of its result in one kernel.
//   before: %g = matmul(%x, @wg); %u = matmul(%x, @wu); %y = pointwise(%g, %u) {body = (i,j,k) => silu(%g[i,j,k]) * %u[i,j,k]}
//   after:  %gu = matmul(%x, concat(1, @wg, @wu)); %y = pointwise(%gu) {body = (i,j,k) => silu(%gu[i,j,k]) * %gu[i,j,k + 256]}
// Requires: weights are constants of rank 2, the attributes agree, both or none have a bias, and
// one elementwise op alone reads both products. Runs after: fuse-pointwise.
#include <algorithm>

#include "ir/matmul.h"
#include "passes/match.h"
#include "passes/passes.h"

namespace tfcc::passes {
namespace {

// The product behind v, if this op alone reads it and it may be merged; else why not.
std::optional<OpId> mergeable(const Graph& g, OpId reader, ValueId v, std::string& reason) {
  const ir::Op& op = *g.def(v);
  const auto& users = g.value(v).users;
  if (g.is_output(v) || std::ranges::any_of(users, [&](OpId u) { return u != reader; })) {
    reason = "gate or up has another use";
    return std::nullopt;
  }
  if (!g.constant(op.operands[1]) || g.value(op.operands[1]).type.rank() != 2 ||
      op.as<ir::MatmulAttrs>().trans_a) {
    reason = "a weight is no constant matrix";
    return std::nullopt;
  }
  if (!ir::has_plain_epilogue(g, op)) {
    reason = "a product has more of an epilogue than a bias";
    return std::nullopt;
  }
  if (op.operands.size() > 2 && !g.is_constant(op.operands[2])) {
    reason = "a bias is no constant";
    return std::nullopt;
  }
  return g.value(v).def;
}

bool agree(const Graph& g, const ir::Op& a, const ir::Op& b) {
  const auto &p = a.as<ir::MatmulAttrs>(), &q = b.as<ir::MatmulAttrs>();
  return a.operands.size() == b.operands.size() && p.alpha == q.alpha && p.trans_b == q.trans_b &&
         g.value(a.operands.back()).type.dtype == g.value(b.operands.back()).type.dtype &&
         g.value(a.results[0]).type == g.value(b.results[0]).type;
}

bool reads_at_own_place(const Graph& g, OpId o, ExprRef body, ValueId v) {
  const Indices own = ir::indices_of(g, g.result(o));
  bool ok = true;
  ir::for_each_node(ir::free_expr(g, o, body, {}), [&](ExprRef n) {
    if (loaded(n) == v) ok &= n->args == own;
  });
  return ok;
}

// The two products of one input that the op reads, in the order of its operands.
std::vector<ValueId> gate_and_up(const Graph& g, OpId o) {
  std::vector<ValueId> found;
  for (ValueId v : g.op(o).operands) {
    const ir::Op* op = g.def(v);
    if (!op || op->kind != OpKind::matmul) continue;
    if (!found.empty() && g.def(found[0])->operands[0] != op->operands[0]) continue;
    found.push_back(v);
  }
  return found;
}

bool fuse(Graph& g, OpId o, PassReport& report) {
  auto miss = [&](const std::string& reason) {
    report.misses.push_back({label(g, o), reason});
    return false;
  };
  ExprRef body = g.op(o).as<ir::PointwiseAttrs>().body;
  const std::vector<ValueId> pair = gate_and_up(g, o);
  if (pair.size() != 2) return false;
  std::string reason;
  std::vector<ir::Op> products;
  for (ValueId v : pair) {
    const auto p = mergeable(g, o, v, reason);
    if (!p) return miss(reason);
    if (!reads_at_own_place(g, o, body, v))
      return miss("gate or up is not read at the op's own place");
    products.push_back(g.op(*p));
  }
  if (!agree(g, products[0], products[1]))
    return miss("the products differ in size, bias or attributes");

  const auto attrs = products[0].as<ir::MatmulAttrs>();
  const std::string base = g.value(g.result(o)).name;
  const std::vector<ir::Constant> weights{*g.constant(products[0].operands[1]),
                                          *g.constant(products[1].operands[1])};
  const ValueId weight =
      g.add_constant(base + ".gated.weight", ir::concat_constants(weights, attrs.trans_b ? 0 : 1));
  std::optional<ValueId> bias;
  if (products[0].operands.size() > 2) {
    bias = g.add_constant(
        base + ".gated.bias",
        ir::concat_constants(
            {*g.constant(products[0].operands[2]), *g.constant(products[1].operands[2])}, 0));
  }
  ir::Type type = g.value(pair[0]).type;
  ExprRef width = type.dims.back();
  type.dims.back() = ir::add(width, width);
  const ValueId both =
      ir::add_matmul(g, products[0].operands[0], weight, attrs, ir::bias_epilogue(g, type, bias),
                     type, base + ".gated", products[0].origin);
  ExprRef merged = ir::rewrite(ir::free_expr(g, o, body, {}), [&](ExprRef n) -> ExprRef {
    const auto v = loaded(n);
    if (!v || (*v != pair[0] && *v != pair[1])) return nullptr;
    Indices at = n->args;
    if (*v == pair[1]) at.back() = ir::add(at.back(), width);
    return ir::load_of(g, both, at);
  });
  ir::Captured c = ir::capture(merged);
  g.set_operands(o, c.operands);
  g.op(o).as<ir::PointwiseAttrs>().body = c.body;
  return true;
}

}  // namespace

PassReport fuse_gated_mlp(Graph& graph) {
  PassReport report;
  for (OpId o : std::vector<OpId>(graph.order())) {
    if (graph.op(o).kind == OpKind::pointwise && graph.use_count(graph.result(o)) > 0)
      report.rewrites += fuse(graph, o, report);
  }
  return report;
}

}  // namespace tfcc::passes
