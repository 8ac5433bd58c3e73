// SPDX-License-Identifier: Apache-2.0
// fuse-bias-gelu: one op for a bias add and the GELU after it.
//   before: %h = pointwise(%m, @b) {body = (i,j,k) => %m[i,j,k] + @b[k]}; %y = gelu(%h) {approx = erf}
//   after:  %y = bias_gelu(%m, @b) {approx = erf}
// Requires: %h has one use; @b is rank 1 on the last axis; %m has the type of %h.
#include "passes/match.h"
#include "passes/passes.h"

namespace tfcc::passes {

PassReport fuse_bias_gelu(Graph& graph) {
  PassReport report;
  for (OpId o : std::vector<OpId>(graph.order())) {
    if (graph.op(o).kind != OpKind::gelu) continue;
    const ir::GeluAttrs attrs = graph.op(o).as<ir::GeluAttrs>();
    const ValueId h = graph.op(o).operands[0], y = graph.result(o);
    const ir::Op* add = graph.def(h);
    if (!add || add->kind != OpKind::pointwise) continue;
    auto miss = [&](const char* reason) { report.misses.push_back({label(graph, o), reason}); };
    const Indices at = ir::indices_of(graph, h);
    ExprRef e = ir::element_of(graph, h, at);
    if (e->kind != ExprKind::fadd) continue;
    const bool bias_first = loaded_along_last(graph, e->args[0], at).has_value();
    auto bias = loaded_along_last(graph, e->args[bias_first ? 0 : 1], at);
    auto x = loaded_at(e->args[bias_first ? 1 : 0], at);
    if (!bias) { miss("the addend is no bias on the last axis"); continue; }
    if (!x || graph.value(*x).type != graph.value(h).type) { miss("the other addend is not read as it is"); continue; }
    if (graph.use_count(h) != 1) { miss("the sum has another use"); continue; }
    ValueId fused = graph.add(OpKind::bias_gelu, {*x, *bias}, attrs, graph.value(y).type, graph.value(y).name, graph.op(o).origin);
    graph.replace_uses(y, fused);
    ++report.rewrites;
  }
  return report;
}

}  // namespace tfcc::passes
