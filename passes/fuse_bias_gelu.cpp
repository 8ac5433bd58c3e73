// SPDX-License-Identifier: Apache-2.0
// fuse-bias-gelu: one op for a bias add and the GELU after it. With GELU(x) for its expression
// (ir/gelu.h):
//   before: %h = pointwise(%m, @b) {body = (i,j,k) => %m[i,j,k] + @b[k]}; %y = pointwise(%h) {body = (i,j,k) => GELU(%h[i,j,k])}
//   after:  %y = pointwise(%m, @b) {body = (i,j,k) => GELU(%m[i,j,k] + @b[k])}
// Requires: %h has one use; @b is rank 1 on the last axis; %m has the type of %h.
#include "ir/gelu.h"
#include "passes/match.h"
#include "passes/passes.h"

namespace tfcc::passes {

PassReport fuse_bias_gelu(Graph& graph) {
  PassReport report;
  for (OpId o : std::vector<OpId>(graph.order())) {
    if (graph.op(o).kind != OpKind::pointwise) continue;
    const ValueId y = graph.result(o);
    const Indices at = ir::indices_of(graph, y);
    const auto gelu = ir::as_gelu(ir::element_of(graph, y, at));
    const auto read = gelu ? loaded_at(gelu->x, at) : std::nullopt;
    if (!read || !ir::has_elements(graph, *read) || graph.value(*read).type != graph.value(y).type)
      continue;
    const ValueId h = *read;
    auto miss = [&](const char* reason) { report.misses.push_back({label(graph, o), reason}); };
    ExprRef e = ir::element_of(graph, h, at);
    const auto sum = bias_add(graph, e, at);
    if (!sum) continue;
    if (!sum->bias) {
      miss("the addend is no bias on the last axis");
      continue;
    }
    if (!sum->x || graph.value(*sum->x).type != graph.value(h).type) {
      miss("the other addend is not read as it is");
      continue;
    }
    if (graph.use_count(h) != 1) {
      miss("the sum has another use");
      continue;
    }
    ir::Captured c = ir::capture(ir::gelu_of(e, gelu->kind));
    graph.replace_uses(y, graph.add_pointwise(c.operands, c.body, graph.value(y).type,
                                              graph.value(y).name, graph.op(o).origin));
    ++report.rewrites;
  }
  return report;
}

}  // namespace tfcc::passes
