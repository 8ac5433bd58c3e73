// SPDX-License-Identifier: Apache-2.0
// fuse-pointwise: inlines elementwise ops and views into the pointwise and reduce ops that read
// them.
//   before: %a = pointwise(%x) {body = (i) => %x[i] * 2.0}; %y = pointwise(%a) {body = (i) => exp(%a[i])}
//   after:  %y = pointwise(%x) {body = (i) => exp(%x[i] * 2.0)}
// Requires: the producer has one user, is a mere view, or spreads few elements in another type; it is
// not larger work than its reader repeats cheaply; the body stays within 256 nodes.
#include <algorithm>
#include <set>

#include "ir/gelu.h"
#include "ir/ir.h"
#include "passes/match.h"
#include "passes/passes.h"

namespace tfcc::passes {
namespace {

constexpr size_t kLargestBody = 256;
constexpr size_t kCheapBody = 24;  // may be computed again for every element of a larger reader

// A pointwise op that only moves elements: its body is one load, or has none at all.
bool is_view(const Graph& g, ValueId v) {
  const ir::Op& op = *g.def(v);
  ExprRef body = op.as<ir::PointwiseAttrs>().body;
  return body->kind == ExprKind::load || op.operands.empty();
}

// Has each of fewer elements many times, in another type, as a mask that is spread over the width of
// rows.
bool spreads(const Graph& g, ValueId v) {
  ExprRef body = g.def(v)->as<ir::PointwiseAttrs>().body;
  if (body->kind != ExprKind::i2f && body->kind != ExprKind::f2f) return false;
  if (body->args[0]->kind != ExprKind::load) return false;
  ExprRef seen = ir::expand(g, ir::element_of(g, v, ir::indices_of(g, v)),
                            [&](ValueId x) { return is_view(g, x); });
  const std::vector<ExprRef>& dims = g.value(v).type.dims;
  for (size_t k = 0; k < dims.size(); ++k) {
    if (!ir::is_int(dims[k], 1) && !ir::uses_index(seen, static_cast<int64_t>(k))) return true;
  }
  return false;
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
  if (is_view(g, v) || spreads(g, v)) return true;
  if (!one_user(g, v)) return false;
  const ir::Op& op = *g.def(v);
  if (g.value(v).type.dims == g.value(reader).type.dims) return true;
  ExprRef body = op.as<ir::PointwiseAttrs>().body;
  return ir::node_count(body) <= kCheapBody && !ir::as_gelu(body);
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

// The producers that fuse() takes one after the other, where nothing else can come between: each is
// the only value with elements that the one before it reads, and nobody else reads it.
std::vector<ValueId> chain_of(const Graph& g, OpId o, const std::vector<ValueId>& refused) {
  std::vector<ValueId> chain;
  for (OpId at = o; chain.size() < kLargestBody;) {
    ValueId next;
    for (ValueId v : g.op(at).operands) {
      if (!ir::has_elements(g, v)) continue;  // cost: never inlined
      if (next.valid()) return chain;         // cost: fuse() takes these one at a time
      next = v;
    }
    if (!next.valid() || std::find(refused.begin(), refused.end(), next) != refused.end())
      return chain;
    if (!one_user(g, next) || !may_inline(g, next, g.result(o))) return chain;
    chain.push_back(next);
    at = g.value(next).def;
  }
  return chain;
}

// `free` with the first `length` of a chain inlined.
ExprRef inlined_chain(const Graph& g, ExprRef free, const std::vector<ValueId>& chain,
                      size_t length) {
  const auto end = chain.begin() + static_cast<long>(length);
  const std::set<ValueId> taken(chain.begin(), end);
  return ir::expand(g, free, [&](ValueId v) { return taken.count(v) > 0; }, {length, SIZE_MAX});
}

// The longest part of the chain from its reader on that a body has room for, inlined at once: one
// at a time, the body would be written as often as it has ops. What is left, and what the verifier
// would refuse, is for fuse() to look at.
size_t inline_chain(Graph& g, OpId o, ExprRef& free, const std::vector<ValueId>& refused) {
  const std::vector<ValueId> chain = chain_of(g, o, refused);
  if (chain.size() < 2) return 0;  // cost: fuse() inlines it
  const size_t before = ir::node_count(free);
  ExprRef best = nullptr;
  size_t fits = 0, too_many = chain.size() + 1, next = std::min<size_t>(chain.size(), 8);
  while (fits + 1 < too_many) {
    ExprRef e = inlined_chain(g, free, chain, next);
    const size_t nodes = ir::node_count(e);
    if (nodes > kLargestBody) {
      too_many = next;
    } else {
      fits = next;
      best = e;
    }
    // As many as there is room for if all are of the average size; then the places next to it, or
    // the middle.
    const size_t grown =
        nodes > before ? next * (kLargestBody - std::min(before, kLargestBody)) / (nodes - before)
                       : chain.size();
    const size_t middle = fits + (too_many - fits) / 2;
    next = grown > fits && grown < too_many ? grown : grown == fits ? fits + 1 : middle;
  }
  if (fits == 0 || !ir::body_problem(g, best, extents_of(g, o)).empty()) return 0;
  free = best;
  g.set_operands(o, ir::loads_of(free));
  for (size_t k = 0; k < fits && g.use_count(chain[k]) == 0; ++k)
    g.set_operands(g.value(chain[k]).def, {});
  return fits;
}

// Inlines producers one at a time while the body stays small; true if any was. The body is free
// until the end.
bool fuse(Graph& g, OpId o, PassReport& report) {
  const ValueId reader = g.result(o);
  ExprRef free = ir::free_expr(g, o, *body_of(g.op(o)), {});
  bool changed = false;
  std::vector<ValueId> refused;
  while (true) {
    changed |= inline_chain(g, o, free, refused) > 0;
    ValueId pick;
    for (ValueId v : g.op(o).operands) {
      if (std::find(refused.begin(), refused.end(), v) == refused.end() && may_inline(g, v, reader))
        pick = v;
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
