// SPDX-License-Identifier: Apache-2.0
// raise-gelu: the erf or tanh form of GELU, spelled out in any association and over many ops, as
// one body in one spelling.
//   before: %y = 0.5 * %x * (1 + erf(%x / sqrt(2)))         or 0.5 * %x * (1 + tanh(0.79788 * (%x + 0.044715 * %x^3)))
//   after:  %y = pointwise(%x) {body = (i) => 0.5 * %x[i] * (1 + erf(%x[i] * 0.70711))}, spelled as ir/gelu.h does it
// Epilogues compute that spelling fast. x may be taken out of the cubic (BLOOM).
// Requires: constants within 1e-3 of the exact ones (a graph converted to fp16 rounds them); one %x
// in all places, a value of its own.
#include <algorithm>

#include "ir/gelu.h"
#include "passes/match.h"
#include "passes/passes.h"

namespace tfcc::passes {
namespace {

// c * x for any association of constants: c and x.
std::pair<double, ExprRef> scaled(ExprRef e) {
  const double c = peel_scale(e);
  return {c, e};
}

bool close(double a, double b) { return std::fabs(a - b) <= 1e-3 * std::fabs(b); }

// The argument x of erf(x / sqrt 2), or of tanh(sqrt(2/pi) (x + 0.044715 x^3)).
struct Inner {
  ExprRef x;
  ir::GeluKind kind;
};

// The product of the constant factors of e, and the others.
std::pair<double, std::vector<ExprRef>> without_constants(ExprRef e) {
  std::vector<ExprRef> f = factors(e);
  double c = 1;
  std::erase_if(f, [&](ExprRef q) {
    const auto v = ir::as_real(q);
    if (v) c *= *v;
    return v.has_value();
  });
  return {c, f};
}

// sqrt(2/pi) x (1 + 0.044715 x x): the cubic with x taken out.
ExprRef factored_cubic(ExprRef e) {
  const auto [c, f] = without_constants(e);
  if (f.size() != 2 || !close(c, std::sqrt(2 / M_PI))) return nullptr;
  for (size_t i : {0, 1}) {
    ExprRef x = f[1 - i];
    if (f[i]->kind != ExprKind::fadd) continue;
    for (size_t k : {0, 1}) {
      const auto [third, square] = without_constants(f[i]->args[1 - k]);
      if (near(f[i]->args[k], 1, 0) && close(third, 0.044715) &&
          square == std::vector<ExprRef>(2, x))
        return x;
    }
  }
  return nullptr;
}

std::optional<Inner> inner_of(ExprRef e) {
  if (e->kind == ExprKind::erf) {
    auto [c, x] = scaled(e->args[0]);
    if (close(c, std::sqrt(0.5))) return Inner{x, ir::GeluKind::erf};
  }
  if (e->kind != ExprKind::tanh) return std::nullopt;
  ExprRef factored = factored_cubic(e->args[0]);
  if (factored) return Inner{factored, ir::GeluKind::tanh};
  auto [c, sum] = scaled(e->args[0]);
  if (!close(c, std::sqrt(2 / M_PI)) || sum->kind != ExprKind::fadd) return std::nullopt;
  for (size_t i : {0, 1}) {
    ExprRef x = sum->args[i];
    const auto [k, cube] = without_constants(sum->args[1 - i]);
    if (close(k, 0.044715) && cube == std::vector<ExprRef>(3, x))
      return Inner{x, ir::GeluKind::tanh};
  }
  return std::nullopt;
}

// 0.5 * x * (1 + inner), factors in any order.
std::optional<Inner> match(ExprRef e) {
  const auto [scale, f] = without_constants(e);
  for (size_t i = 0; i < f.size() && close(scale, 0.5); ++i) {
    if (f[i]->kind != ExprKind::fadd) continue;
    for (size_t k : {0, 1}) {
      if (!near(f[i]->args[k], 1, 0)) continue;
      auto inner = inner_of(f[i]->args[1 - k]);
      if (!inner) continue;
      std::vector<ExprRef> rest = f;
      rest.erase(rest.begin() + i);
      if (rest == factors(inner->x)) return inner;
    }
  }
  return std::nullopt;
}

// A GELU is a product, with a factor or its half outermost; most ops need no further look.
bool is_product(const ir::Op& op) {
  if (op.kind != OpKind::pointwise) return false;  // cost: no other op expands to a GELU
  const ExprKind kind = op.as<ir::PointwiseAttrs>().body->kind;
  return kind == ExprKind::fmul || kind == ExprKind::fdiv;
}

// A value that already computes x at these indices, searched backwards from y. A part of a wider
// tensor is none: there the elementwise op that reads it (the gated product of ModernBERT) computes
// the GELU as well.
std::optional<ValueId> find_value(const Graph& g, ValueId y, ExprRef x, const Indices& at) {
  if (auto v = loaded_at(x, at); v && g.value(*v).type.dims == g.value(y).type.dims) return v;
  std::vector<ValueId> queue{y};
  for (size_t i = 0; i < queue.size() && queue.size() < 64; ++i) {
    const ir::Op* op = g.def(queue[i]);
    if (!op) continue;
    for (ValueId v : op->operands) {
      if (g.value(v).type.dims == g.value(y).type.dims && expanded(g, v, at, {}, kNearby) == x)
        return v;
      queue.push_back(v);
    }
  }
  return std::nullopt;
}

}  // namespace

PassReport raise_gelu(Graph& graph) {
  PassReport report;
  std::vector<OpId> order = graph.order();
  for (auto it = order.rbegin(); it != order.rend(); ++it) {
    const ValueId y = graph.result(*it);
    if (graph.use_count(y) == 0) continue;     // cost: read by nothing
    if (!is_product(graph.op(*it))) continue;  // cost: the match would fail
    const Indices at = ir::indices_of(graph, y);
    auto inner = match(expanded(graph, y, at, {}, kNearby));
    if (!inner || ir::as_gelu(ir::element_of(graph, y, at))) continue;
    auto x = find_value(graph, y, inner->x, at);
    if (!x) {
      report.misses.push_back(
          {label(graph, *it), "the argument of the GELU is no tensor of its own"});
      continue;
    }
    ir::Captured c = ir::capture(
        ir::gelu_of(ir::convert(ir::load_of(graph, *x, at), inner->x->type), inner->kind));
    graph.replace_uses(y, graph.add_pointwise(c.operands, c.body, graph.value(y).type,
                                              graph.value(y).name, graph.op(*it).origin));
    ++report.rewrites;
  }
  return report;
}

}  // namespace tfcc::passes
