// SPDX-License-Identifier: Apache-2.0
// fuse-dequantize: a weight that is computed from constants of few bits becomes an expression of its
// product, which reads the bits.
//   before: %w = pointwise(@p, @s) {body = (i,j) => (f32(@p[i,j / 2] / 16) - 8.0) * @s[i,j / 32]} : f16[N,K]
//           %y = matmul(%x, %w) {trans_b = true}
//   after:  %y = matmul(%x, @s, @p) {trans_b = true, weight = (i,j) => (f32(@p[i,j / 2] / 16) - 8.0) * @s[i,j / 32]}
// A weight by rows becomes one by columns; what it reads in its own place is turned with it. Requires: %w is read
// by this product alone. Runs last: the passes before it look at products of stored matrices. What
// no arm computes at once, code generation splits off again.
#include <algorithm>

#include "ir/matmul.h"
#include "passes/match.h"
#include "passes/passes.h"

namespace tfcc::passes {
namespace {

constexpr size_t kLargestWeight = 96;  // nodes

// b is computed from constants, integers among them.
bool is_dequantised(const Graph& g, ValueId b) {
  const ir::Op* op = g.def(b);
  if (!op || op->kind != OpKind::pointwise || g.value(b).type.rank() != 2) return false;
  const auto is_stored = [&](ValueId v) { return g.is_constant(v); };
  const auto is_code = [&](ValueId v) { return is_integer(g.value(v).type.dtype); };
  return std::ranges::all_of(op->operands, is_stored) &&
         std::ranges::any_of(op->operands, is_code) && is_float(g.value(b).type.dtype);
}

ValueId turned(Graph& g, ValueId v) {
  ir::Constant c = *g.constant(v);
  c.steps.push_back({ir::ConstantStep::Kind::transpose, {1, 0}, c.result_dtype()});
  return g.add_constant(g.value(v).name + ".columns", c);
}

// The element of the transpose: constants that are read in the own place lie the other way, others
// are read as before.
ExprRef by_columns(Graph& g, ExprRef weight, const std::vector<ExprRef>& dims) {
  const Indices swapped = ir::indices_of(g.pool(), {dims[1], dims[0]}),
                own = {swapped[1], swapped[0]};
  return ir::rewrite(ir::substitute_indices(weight, own), [&](ExprRef n) -> ExprRef {
    const auto v = loaded(n);
    const bool own_place = v && n->args == own && g.value(*v).type.dims == dims;
    return own_place ? ir::load_of(g, turned(g, *v), swapped) : nullptr;
  });
}

}  // namespace

PassReport fuse_dequantize(Graph& graph) {
  PassReport report;
  for (OpId o : std::vector<OpId>(graph.order())) {
    if (!ir::is_plain_product(graph.op(o))) continue;
    const ir::Op product = graph.op(o);
    const ValueId b = product.operands[1], y = product.results[0];
    if (product.results.size() != 1 || !is_dequantised(graph, b)) continue;
    const Indices at = ir::indices_of(graph, b);
    ExprRef weight = ir::element_of(graph, b, at);
    if (graph.use_count(b) != 1) {
      report.misses.push_back({label(graph, o), "the weight has another use"});
      continue;
    }
    if (ir::node_count(weight) > kLargestWeight) {
      report.misses.push_back({label(graph, o), "the weight is too large an expression"});
      continue;
    }
    auto attrs = product.as<ir::MatmulAttrs>();
    if (!attrs.trans_b) {
      weight = by_columns(graph, weight, graph.value(b).type.dims);
      attrs.trans_b = true;
    }
    attrs.weight = weight;
    ExprRef epilogue = ir::free_epilogue(graph, o, ir::indices_of(graph, y));
    graph.replace_uses(y, ir::add_matmul(graph, product.operands[0], b, attrs, epilogue,
                                         graph.value(y).type, graph.value(y).name, product.origin));
    ++report.rewrites;
  }
  return report;
}

}  // namespace tfcc::passes
