// SPDX-License-Identifier: Apache-2.0
// fuse-pointwise: inlines elementwise ops and views into the pointwise and reduce ops that read them.
//   before: %a = pointwise(%x) {body = (i) => %x[i] * 2.0}; %y = pointwise(%a) {body = (i) => exp(%a[i])}
//   after:  %y = pointwise(%x) {body = (i) => exp(%x[i] * 2.0)}
// Requires: the producer has one user, or is a mere view; it is not larger work than its reader repeats cheaply; the body
// stays within 256 nodes.
#include <algorithm>

#include "ir/ir.h"
#include "passes/match.h"
#include "passes/passes.h"

namespace tfcc::passes {
namespace {

constexpr size_t kLargestBody = 256;
constexpr size_t kCheapBody = 24;  // may be computed again for every element of a larger reader

// A body that only moves elements: one load, or no load at all.
bool is_view(const Graph& g, ValueId v) {
  const ir::Op& op = *g.def(v);
  if (op.kind != OpKind::pointwise) return false;
  ExprRef body = op.as<ir::PointwiseAttrs>().body;
  return body->kind == ExprKind::load || op.operands.empty();
}

bool one_user(const Graph& g, ValueId v) {
  if (g.is_output(v)) return false;
  for (OpId u : g.value(v).users) {
    if (u != g.value(v).users[0]) return false;
  }
  return true;
}

bool may_inline(const Graph& g, ValueId v, ValueId reader) {
  if (!ir::has_elements(g, v)) return false;
  if (is_view(g, v)) return true;
  if (!one_user(g, v)) return false;
  const ir::Op& op = *g.def(v);
  if (op.kind != OpKind::pointwise) return g.value(v).type.dims == g.value(reader).type.dims;
  return g.value(v).type.dims == g.value(reader).type.dims || ir::node_count(op.as<ir::PointwiseAttrs>().body) <= kCheapBody;
}

ExprRef* body_of(ir::Op& op) {
  if (op.kind == OpKind::pointwise) return &op.as<ir::PointwiseAttrs>().body;
  if (op.kind == OpKind::reduce) return &op.as<ir::ReduceAttrs>().body;
  return nullptr;
}

// Indices that the body runs over.
std::vector<ExprRef> extents_of(const Graph& g, OpId o) {
  std::vector<ExprRef> dims = g.value(g.result(o)).type.dims;
  if (g.op(o).kind != OpKind::reduce) return dims;
  const auto& more = g.op(o).as<ir::ReduceAttrs>().extents;
  dims.insert(dims.end(), more.begin(), more.end());
  return dims;
}

// Inlines producers one at a time while the body stays small; true if any was. The body is free until the end.
bool fuse(Graph& g, OpId o, PassReport& report) {
  const ValueId reader = g.result(o);
  ExprRef free = ir::free_expr(g, o, *body_of(g.op(o)), {});
  bool changed = false;
  std::vector<ValueId> refused;
  while (true) {
    ValueId pick;
    for (ValueId v : g.op(o).operands) {
      if (std::find(refused.begin(), refused.end(), v) == refused.end() && may_inline(g, v, reader)) pick = v;
    }
    if (!pick.valid()) break;
    ExprRef inlined = ir::rewrite(free, [&](ExprRef n) -> ExprRef {
      if (n->kind != ExprKind::load || n->value != static_cast<int64_t>(pick.value)) return nullptr;
      return ir::element_of(g, pick, n->args);
    });
    if (ir::node_count(inlined) > kLargestBody) {
      refused.push_back(pick);
      continue;
    }
    const std::string problem = ir::body_problem(g, inlined, extents_of(g, o));
    if (!problem.empty()) {
      report.misses.push_back({label(g, o), g.value(pick).name + " is not inlined: " + problem});
      refused.push_back(pick);
      continue;
    }
    free = inlined;
    g.set_operands(o, ir::loads_of(free));
    // Dead now: what it read has one user less, and a chain is inlined to its start.
    if (g.use_count(pick) == 0) g.set_operands(g.value(pick).def, {});
    changed = true;
  }
  if (changed) {
    ir::Captured c = ir::capture(free);
    g.set_operands(o, c.operands);
    *body_of(g.op(o)) = c.body;
  }
  return changed;
}

}  // namespace

PassReport fuse_pointwise(Graph& graph) {
  PassReport report;
  std::vector<OpId> order = graph.order();
  for (auto it = order.rbegin(); it != order.rend(); ++it) {
    if (!body_of(graph.op(*it)) || graph.use_count(graph.result(*it)) == 0) continue;
    report.rewrites += fuse(graph, *it, report);
  }
  return report;
}

}  // namespace tfcc::passes
