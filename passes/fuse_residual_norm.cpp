// SPDX-License-Identifier: Apache-2.0
// fuse-residual-norm: a norm computes the residual add before it, with the bias of a product.
//   before: %s = pointwise(%m, @bias, %x) {body = (i,j,k) => %m[i,j,k] + @bias[k] + %x[i,j,k]}; %y = norm(@g, @b, %s) {body = (i,j,k) => %s[i,j,k], ..}
//   after:  %y = norm(@g, @b, %m, %x, @bias) {body = (i,j,k) => %m[i,j,k] + %x[i,j,k] + @bias[k], ..}
//   with other uses of %s:  %y, %s = norm(...)
// Requires: two addends of the type of %s, and at most one rank-1 bias on the last axis; gamma and
// beta are not made of %s.
#include "ir/norm.h"
#include "passes/match.h"
#include "passes/norm_argument.h"
#include "passes/passes.h"

namespace tfcc::passes {
namespace {

std::optional<ir::NormedSum> as_sum(const Graph& g, ValueId s, const Indices& at,
                                    std::string& reason) {
  std::vector<ValueId> terms;  // of the full type
  std::optional<ValueId> bias;
  for (ExprRef e : summands(expanded_sum(g, s, at))) {
    if (auto x = loaded_at(e, at); x && g.value(*x).type == g.value(s).type) {
      terms.push_back(*x);
    } else if (auto b = loaded_along_last(g, e, at); b && !bias) {
      bias = b;
    } else {
      reason = "an addend is neither a tensor of the same type nor one bias";
      return std::nullopt;
    }
  }
  if (terms.size() == 2) return ir::NormedSum{terms[0], terms[1], bias};
  reason = "the norm's argument is no sum of two tensors";
  return std::nullopt;
}

}  // namespace

PassReport fuse_residual_norm(Graph& graph) {
  PassReport report;
  const NormArguments arguments(graph);
  for (OpId o : std::vector<OpId>(graph.order())) {
    if (graph.op(o).kind != OpKind::norm || graph.op(o).results.size() > 1) continue;
    const auto of = ir::normed_value(graph, o);
    if (!of) continue;
    const ValueId s = *of, y = graph.result(o);
    const ir::Op* add = graph.def(s);
    if (!add || add->kind != OpKind::pointwise) continue;
    std::string reason;
    auto sum = as_sum(graph, s, ir::indices_of(graph, s), reason);
    if (!sum) {
      report.misses.push_back({label(graph, o), reason});
      continue;
    }
    const ir::NormOf norm = ir::norm_of(graph.op(o));
    const bool keep_sum = graph.use_count(s) > 1;
    if (keep_sum && arguments.is_in_weights(graph, norm, s)) {
      report.misses.push_back({label(graph, o), "gamma or beta is made of the norm's argument"});
      continue;
    }
    ir::NormParts parts =
        ir::norm_parts(norm, ir::sum_before_norm(graph, *sum, ir::indices_of(graph, y)));
    std::vector<ir::Type> types{graph.value(y).type};
    if (keep_sum) types.push_back(graph.value(s).type);
    std::vector<std::string> names{graph.value(y).name};
    if (keep_sum) names.push_back(graph.value(s).name);
    const OpId f = graph.add_op(OpKind::norm, std::move(parts.operands), std::move(parts.attrs),
                                types, names, graph.op(o).origin);
    graph.replace_uses(y, graph.result(f, 0));
    if (keep_sum) graph.replace_uses(s, graph.result(f, 1));
    ++report.rewrites;
  }
  return report;
}

}  // namespace tfcc::passes
