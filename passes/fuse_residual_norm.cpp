// SPDX-License-Identifier: Apache-2.0
// fuse-residual-norm: one op for a residual add (with the bias of the product before it) and the norm after it.
//   before: %s = pointwise(%m, @bias, %x) {body = (i,j,k) => %m[i,j,k] + @bias[k] + %x[i,j,k]}; %y = layer_norm(%s, @g, @b) {eps}
//   after:  %y = residual_norm(%m, %x, @g, @b, @bias) {eps, has_beta, has_bias, kind = layer}
//   with other uses of %s:  %y, %s = residual_norm(...)
// Requires: two addends of the type of %s, and at most one rank-1 bias on the last axis.
#include "passes/match.h"
#include "passes/passes.h"

namespace tfcc::passes {
namespace {

struct Sum {
  std::vector<ValueId> terms;  // of the full type
  std::optional<ValueId> bias;
};

std::optional<Sum> as_sum(const Graph& g, ValueId s, const Indices& at, std::string& reason) {
  Sum sum;
  for (ExprRef e : summands(expanded_single_use(g, s, at))) {
    if (auto x = loaded_at(e, at); x && g.value(*x).type == g.value(s).type) {
      sum.terms.push_back(*x);
    } else if (auto b = loaded_along_last(g, e, at); b && !sum.bias) {
      sum.bias = b;
    } else {
      reason = "an addend is neither a tensor of the same type nor one bias";
      return std::nullopt;
    }
  }
  if (sum.terms.size() == 2) return sum;
  reason = "the norm's argument is no sum of two tensors";
  return std::nullopt;
}

}  // namespace

PassReport fuse_residual_norm(Graph& graph) {
  PassReport report;
  for (OpId o : std::vector<OpId>(graph.order())) {
    const OpKind kind = graph.op(o).kind;
    if (kind != OpKind::layer_norm && kind != OpKind::rms_norm) continue;
    const std::vector<ValueId> operands = graph.op(o).operands;
    const ValueId s = operands[0], y = graph.result(o);
    const ir::Op* add = graph.def(s);
    if (!add || add->kind != OpKind::pointwise) continue;
    std::string reason;
    auto sum = as_sum(graph, s, ir::indices_of(graph, s), reason);
    if (!sum) {
      report.misses.push_back({label(graph, o), reason});
      continue;
    }
    ir::ResidualNormAttrs attrs;
    attrs.eps = graph.op(o).as<ir::NormAttrs>().eps;
    attrs.kind = kind == OpKind::layer_norm ? ir::NormKind::layer : ir::NormKind::rms;
    attrs.has_beta = operands.size() > 2;
    attrs.has_bias = sum->bias.has_value();
    std::vector<ValueId> fused{sum->terms[0], sum->terms[1], operands[1]};
    if (attrs.has_beta) fused.push_back(operands[2]);
    if (attrs.has_bias) fused.push_back(*sum->bias);
    const ir::Type type = graph.value(y).type;
    const bool keep_sum = graph.use_count(s) > 1;
    std::vector<ir::Type> types(keep_sum ? 2 : 1, type);
    std::vector<std::string> names{graph.value(y).name};
    if (keep_sum) names.push_back(graph.value(s).name);
    OpId f = graph.add_op(OpKind::residual_norm, fused, attrs, types, names, graph.op(o).origin);
    graph.replace_uses(y, graph.result(f, 0));
    if (keep_sum) graph.replace_uses(s, graph.result(f, 1));
    ++report.rewrites;
  }
  return report;
}

}  // namespace tfcc::passes
