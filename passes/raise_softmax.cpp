// SPDX-License-Identifier: Apache-2.0
// raise-softmax: exp of the distance to the row's maximum, over its sum, as one op.
//   before: %m = max(%x); %s = sum(exp(%x - %m)); %y = exp(%x - %m) / %s
//   after:  %y = softmax(%x)
// A softmax of that distance is the softmax of the row.
//   before: %m = max(%x); %y = softmax(%x - %m)
//   after:  %y = softmax(%x)
// So is one more column that is spelled behind the product with values (passes/scaled_softmax.h).
// Requires: the reductions over the last axis alone, of the same %x.
#include <algorithm>

#include "passes/raise_norm.h"
#include "passes/scaled_softmax.h"

namespace tfcc::passes {
namespace {

// The x of x - max(x).
std::optional<ValueId> match_distance(const Graph& g, ExprRef e, const Indices& at) {
  if (e->kind != ExprKind::fsub) return std::nullopt;
  auto x = loaded_at(e->args[0], at);
  auto max = reduced_body(g, e->args[1], ir::ReduceKind::max, at);
  return max && loaded_at(*max, at) == x ? x : std::nullopt;
}

std::optional<ValueId> match(const Graph& g, ExprRef e, const Indices& at) {
  if (e->kind != ExprKind::fdiv || e->args[0]->kind != ExprKind::exp) return std::nullopt;
  auto x = match_distance(g, e->args[0]->args[0], at);
  auto sum = reduced_body(g, e->args[1], ir::ReduceKind::sum, at);
  if (!x || !sum) return std::nullopt;
  ExprRef summed = ir::expand(g, *sum, [&](ValueId v) { return v != *x; });
  return summed == e->args[0] ? x : std::nullopt;
}

// Values whose row maximum is taken: where expansion has to stop.
std::vector<ValueId> maximised(const Graph& g) {
  std::vector<ValueId> out;
  for (OpId o : g.order()) {
    const ir::Op& op = g.op(o);
    if (op.kind == OpKind::reduce && op.as<ir::ReduceAttrs>().kind == ir::ReduceKind::max) {
      out.insert(out.end(), op.operands.begin(), op.operands.end());
    }
  }
  return out;
}

}  // namespace

PassReport raise_softmax(Graph& graph) {
  PassReport report;
  for (OpId o : std::vector<OpId>(graph.order())) report.rewrites += take_sink(graph, o);
  const std::vector<ValueId> stops = maximised(graph);
  if (stops.empty()) return report;
  for (OpId o : std::vector<OpId>(graph.order())) {
    const ValueId y = graph.result(o);
    const ir::Type type = graph.value(y).type;
    const Indices at = ir::indices_of(graph, y);
    if (at.empty() || at.back()->kind != ExprKind::index) continue;
    const auto element = [&](ValueId v) {
      return expanded(
          graph, v, at,
          [&](ValueId w) { return std::find(stops.begin(), stops.end(), w) != stops.end(); },
          kNearby);
    };
    const bool is_softmax = graph.op(o).kind == OpKind::softmax;
    auto x = is_softmax ? match_distance(graph, element(graph.op(o).operands[0]), at)
                        : match(graph, element(y), at);
    if (!x || graph.value(*x).type != type) continue;
    graph.replace_uses(y, graph.add(OpKind::softmax, {*x}, ir::SoftmaxAttrs{}, type,
                                    graph.value(y).name, graph.op(o).origin));
    ++report.rewrites;
  }
  return report;
}

}  // namespace tfcc::passes
