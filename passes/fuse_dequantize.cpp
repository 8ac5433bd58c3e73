// SPDX-License-Identifier: Apache-2.0
// fuse-dequantize: a weight that is computed from constants of few bits becomes an expression of its
// product, which reads the bits.
//   before: %w = pointwise(@p, @s) {body = (i,j) => (f32(@p[i,j / 2] / 16) - 8.0) * @s[i,j / 32]} : f16[N,K]
//           %y = matmul(%x, %w) {trans_b = true}
//   after:  %y = matmul(%x, @s, @p) {trans_b = true, weight = (i,j) => (f32(@p[i,j / 2] / 16) - 8.0) * @s[i,j / 32]}
// So do the matrices of a grouped_matmul: {groups = 32, weight = (i,j,k) => .., which = ..}. A weight by rows becomes one by
// columns; what it reads in its own place is turned with it. Requires: %w is read
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
bool is_dequantised(const Graph& g, ValueId b, size_t rank) {
  const ir::Op* op = g.def(b);
  if (!op || op->kind != OpKind::pointwise || g.value(b).type.rank() != rank) return false;
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

// The element of b, if products may read it where it is computed.
ExprRef weight_of(Graph& g, OpId o, ValueId b, PassReport& report) {
  ExprRef weight = ir::element_of(g, b, ir::indices_of(g, b));
  const char* why = g.use_count(b) != 1 ? "the weight has another use"
                    : ir::node_count(weight) > kLargestWeight
                        ? "the weight is too large an expression"
                        : nullptr;
  if (!why) return weight;
  report.misses.push_back({label(g, o), why});
  return nullptr;
}

bool fuse_product(Graph& g, OpId o, PassReport& report) {
  const ir::Op product = g.op(o);
  const ValueId b = product.operands[1], y = product.results[0];
  if (product.results.size() != 1 || !is_dequantised(g, b, 2)) return false;
  ExprRef weight = weight_of(g, o, b, report);
  if (!weight) return false;
  auto attrs = product.as<ir::MatmulAttrs>();
  if (!attrs.trans_b) {
    weight = by_columns(g, weight, g.value(b).type.dims);
    attrs.trans_b = true;
  }
  attrs.weight = weight;
  ExprRef epilogue = ir::free_epilogue(g, o, ir::indices_of(g, y));
  g.replace_uses(y, ir::add_matmul(g, product.operands[0], b, attrs, epilogue, g.value(y).type,
                                   g.value(y).name, product.origin));
  return true;
}

bool fuse_matrices(Graph& g, OpId o, PassReport& report) {
  const ValueId w = g.op(o).operands[1];
  if (!is_dequantised(g, w, 3)) return false;
  ExprRef weight = weight_of(g, o, w, report);
  if (weight) ir::compute_matrices(g, o, weight);
  return weight != nullptr;
}

}  // namespace

PassReport fuse_dequantize(Graph& graph) {
  PassReport report;
  for (OpId o : std::vector<OpId>(graph.order())) {
    const ir::Op& op = graph.op(o);
    if (ir::is_plain_product(op)) report.rewrites += fuse_product(graph, o, report);
    if (op.kind == OpKind::grouped_matmul) report.rewrites += fuse_matrices(graph, o, report);
  }
  return report;
}

}  // namespace tfcc::passes
