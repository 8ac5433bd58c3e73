// SPDX-License-Identifier: Apache-2.0
// transpose-weights: weights of products are stored column by column, so that a kernel that
// takes a few columns reads whole lines.
//   before: const @w : T[K,N] = ..;                  %y = matmul(%x, @w) {trans_b = false}
//   after:  const @w : T[N,K] = .. |> transpose(1,0); %y = matmul(%x, @w) {trans_b = true}
// A weight that is the transpose of something becomes that, so that a head tied to its embedding is
// the embedding. For every CUDA plan; a product of many rows takes either order. Runs after:
// convert-precision.
#include <algorithm>

#include "ir/matmul.h"
#include "passes/match.h"
#include "passes/passes.h"

namespace tfcc::passes {
namespace {

bool is_right_factor(const Graph& g, OpId o, ValueId w) {
  const ir::Op& op = g.op(o);
  return ir::is_plain_product(op) && op.operands[1] == w &&
         std::count(op.operands.begin(), op.operands.end(), w) == 1 &&
         !op.as<ir::MatmulAttrs>().trans_b;
}

const std::vector<int64_t> kExchange = {1, 0};

// The recipe of the transpose: casts do not mind the order.
ir::Constant transposed(ir::Constant c) {
  auto& steps = c.steps;
  const auto last = std::find_if(steps.rbegin(), steps.rend(), [](const ir::ConstantStep& s) {
    return s.kind != ir::ConstantStep::Kind::cast;
  });
  if (last != steps.rend() && last->kind == ir::ConstantStep::Kind::transpose &&
      last->numbers == kExchange)
    steps.erase(std::next(last).base());
  else steps.push_back({ir::ConstantStep::Kind::transpose, kExchange, c.result_dtype()});
  return c;
}

}  // namespace

PassReport transpose_weights(Graph& graph) {
  PassReport report;
  for (OpId o : std::vector<OpId>(graph.order())) {
    if (graph.op(o).kind != OpKind::constant) continue;
    const ValueId w = graph.result(o);
    const ir::Value& v = graph.value(w);
    if (v.type.rank() != 2 || !is_float(v.type.dtype) || v.type.dtype == DType::f64) continue;
    const std::vector<OpId> users = v.users;
    if (graph.is_output(w) || !std::all_of(users.begin(), users.end(),
                                           [&](OpId u) { return is_right_factor(graph, u, w); }))
      continue;
    const ValueId turned = graph.add_constant(v.name, transposed(*graph.constant(w)));
    for (OpId u : users) {
      std::vector<ValueId> operands = graph.op(u).operands;
      operands[1] = turned;
      graph.set_operands(u, operands);
      graph.op(u).as<ir::MatmulAttrs>().trans_b = true;
    }
    ++report.rewrites;
  }
  return report;
}

}  // namespace tfcc::passes
