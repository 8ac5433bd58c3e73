// SPDX-License-Identifier: Apache-2.0
// fuse-linear-bias: the bias add after a product becomes the product's own bias.
//   before: %m = matmul(%x, @w); %y = pointwise(@b, %m) {body = (i,j,k) => %m[i,j,k] + @b[k]}
//   after:  %y = matmul(%x, @w, @b) {epilogue = (s,i,j,k) => s + @b[k]}
// Requires: %m has one use and no epilogue yet; @b is rank 1 on the last axis.
#include "ir/matmul.h"
#include "passes/match.h"
#include "passes/passes.h"

namespace tfcc::passes {

PassReport fuse_linear_bias(Graph& graph) {
  PassReport report;
  for (OpId o : std::vector<OpId>(graph.order())) {
    if (graph.op(o).kind != OpKind::pointwise) continue;
    const ValueId y = graph.result(o);
    const Indices at = ir::indices_of(graph, y);
    const auto sum = bias_add(graph, ir::element_of(graph, y, at), at);
    if (!sum || !sum->bias || !sum->x) continue;
    const auto [m, bias] = *sum;
    if (graph.value(*m).type != graph.value(y).type) continue;
    const ir::Op* product = graph.def(*m);
    if (!product || product->kind != OpKind::matmul || product->as<ir::MatmulAttrs>().epilogue ||
        product->as<ir::MatmulAttrs>().gate || product->as<ir::MatmulAttrs>().heads)
      continue;
    if (graph.value(*bias).type.dtype != graph.value(y).type.dtype) continue;
    if (graph.use_count(*m) != 1) {
      report.misses.push_back({label(graph, o), "the product has another use"});
      continue;
    }
    const ir::Type type = graph.value(y).type;
    graph.replace_uses(y, ir::add_matmul(graph, product->operands[0], product->operands[1],
                                         ir::free_attrs(graph, graph.value(*m).def),
                                         ir::bias_epilogue(graph, type, bias), type,
                                         graph.value(y).name, product->origin));
    ++report.rewrites;
  }
  return report;
}

}  // namespace tfcc::passes
