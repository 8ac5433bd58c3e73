// SPDX-License-Identifier: Apache-2.0
// fuse-gated-mlp: the gate and up products of a gated feed-forward block become one product;
// activation * up reads both halves of its result in one kernel.
//   before: %g = matmul(%x, @wg); %u = matmul(%x, @wu); %y = pointwise(%g, %u) {body = (i,j,k) => silu(%g[i,j,k]) * %u[i,j,k]}
//   after:  %gu = matmul(%x, concat(1, @wg, @wu)); %y = pointwise(%gu) {body = (i,j,k) => silu(%gu[i,j,k]) * %gu[i,j,k + 256]}
// Requires: weights are constants of rank 2, or computed from constants column by column
// (passes/sibling_products.h), the attributes agree, both or none have a bias, and one elementwise
// op alone reads both products, at its own place. A graph that has gate and up as one product (Phi,
// ModernBERT) is in this form already. Runs after: fuse-pointwise.
#include "passes/passes.h"
#include "passes/sibling_products.h"

namespace tfcc::passes {
namespace {

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
  std::vector<OpId> products;
  for (ValueId v : pair) {
    const auto p = joinable_product(g, v, o, "gate or up", reason);
    if (!p) return miss(reason);
    if (!reads_at_own_place(g, o, body, v))
      return miss("gate or up is not read at the op's own place");
    products.push_back(*p);
  }
  if (!are_siblings(g, products[0], products[1]) || g.value(pair[0]).type != g.value(pair[1]).type)
    return miss("the products differ in size, bias or attributes");

  std::vector<ExprRef> starts;
  const ValueId both = join_products(g, products, g.value(g.result(o)).name + ".gated", starts);
  ExprRef merged = ir::rewrite(ir::free_expr(g, o, body, {}), [&](ExprRef n) -> ExprRef {
    const auto v = loaded(n);
    if (!v || (*v != pair[0] && *v != pair[1])) return nullptr;
    Indices at = n->args;
    if (*v == pair[1]) at.back() = ir::add(at.back(), starts[1]);
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
