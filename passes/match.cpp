// SPDX-License-Identifier: Apache-2.0
#include "passes/match.h"

#include <algorithm>
#include <set>

#include "ir/gelu.h"

namespace tfcc::passes {

void flatten(ExprKind kind, ExprRef e, std::vector<ExprRef>& out) {
  if (e->kind != kind) {
    out.push_back(e);
    return;
  }
  for (ExprRef a : e->args) flatten(kind, a, out);
}

bool near(ExprRef e, double v, double relative) {
  auto c = ir::as_real(e);
  return c && std::fabs(*c - v) <= relative * std::fabs(v);
}

std::optional<ValueId> loaded(ExprRef e) {
  if (e->kind != ExprKind::load) return std::nullopt;
  return ValueId{static_cast<uint32_t>(e->value)};
}

std::optional<ValueId> loaded_at(ExprRef e, const Indices& at) {
  return e->args == at ? loaded(e) : std::nullopt;
}

std::optional<ValueId> loaded_along_last(const Graph& graph, ExprRef e, const Indices& at) {
  const auto v = loaded(e);
  if (!v || e->args.size() != 1 || at.empty() || e->args[0] != at.back()) return std::nullopt;
  // An axis of size 1 has no index variable.
  ExprRef extent =
      at.back()->kind == ExprKind::index ? at.back()->args[0] : graph.pool().integer(1);
  if (graph.value(*v).type.dims[0] != extent) return std::nullopt;
  return v;
}

ExprRef expanded(const Graph& graph, ValueId v, const Indices& at,
                 const std::function<bool(ValueId)>& stop, ir::Reach reach) {
  const auto inlined = [&](ValueId x) { return !(stop && stop(x)); };
  return ir::expand(graph, ir::load_of(graph, v, at), inlined, reach);
}

namespace {

// What stays an op of its own beside a sum: a GELU, which has kernels, and what makes a product of
// integers real, which is its epilogue.
bool stands_alone(const Graph& graph, const ir::Op& op) {
  if (ir::as_gelu(op.as<ir::PointwiseAttrs>().body)) return true;
  return std::ranges::any_of(op.operands, [&](ValueId v) {
    const ir::Op* def = graph.def(v);
    return def && def->kind == OpKind::matmul && is_integer(graph.value(v).type.dtype) &&
           graph.use_count(v) == 1;
  });
}

}  // namespace

ExprRef expanded_sum(const Graph& graph, ValueId v, const Indices& at) {
  return ir::expand(graph, ir::load_of(graph, v, at), [&](ValueId x) {
    if (x == v) return true;
    if (graph.use_count(x) != 1) return false;
    const ir::Op& op = *graph.def(x);
    return op.as<ir::PointwiseAttrs>().body->kind == ExprKind::fadd || !stands_alone(graph, op);
  });
}

std::optional<BiasAdd> bias_add(const Graph& graph, ExprRef e, const Indices& at) {
  if (e->kind != ExprKind::fadd) return std::nullopt;
  const size_t bias = loaded_along_last(graph, e->args[0], at) ? 0 : 1;
  return BiasAdd{loaded_at(e->args[1 - bias], at), loaded_along_last(graph, e->args[bias], at)};
}

ExprRef through_views(const Graph& g, ValueId v, const Indices& at) {
  return ir::expand(g, ir::load_of(g, v, at), [&](ValueId x) {
    ExprRef body = g.def(x)->as<ir::PointwiseAttrs>().body;
    return body->kind == ExprKind::load &&
           g.value(g.def(x)->operands[static_cast<size_t>(body->value)]).type.dtype ==
               g.value(x).type.dtype;
  });
}

bool is_biased_product(const Graph& graph, ValueId v) {
  const Indices at = ir::indices_of(graph, v);
  const auto sum = bias_add(graph, ir::element_of(graph, v, at), at);
  const ir::Op* def = sum && sum->x && sum->bias ? graph.def(*sum->x) : nullptr;
  return def && def->kind == OpKind::matmul;
}

bool is_given(const Graph& graph, ValueId v) {
  std::set<uint32_t> seen;
  std::vector<ValueId> wanted{v};
  while (!wanted.empty()) {
    const ValueId x = wanted.back();
    wanted.pop_back();
    const ir::Op* op = graph.def(x);
    if (!op) continue;
    if (!seen.insert(x.value).second) continue;  // cost: looked at before
    const bool whole = !is_float(graph.value(x).type.dtype);
    if (!whole || (op->kind != OpKind::pointwise && op->kind != OpKind::reduce)) return false;
    wanted.insert(wanted.end(), op->operands.begin(), op->operands.end());
  }
  return true;
}

bool is_probability(ExprRef e, ExprRef p) {
  if (e == p) return true;
  if (e->kind == ExprKind::round_f16 || e->kind == ExprKind::round_bf16)
    return is_probability(e->args[0], p);
  return e->kind == ExprKind::select && e->args[0]->kind == ExprKind::isnan &&
         is_probability(e->args[0]->args[0], p) && is_probability(e->args[2], p) &&
         ir::as_real(e->args[1]) == 0.0;
}

double peel_scale(ExprRef& e) {
  double scale = 1;
  while (e->kind == ExprKind::fmul) {
    const size_t constant = ir::as_real(e->args[0]) ? 0 : 1;
    auto c = ir::as_real(e->args[constant]);
    if (!c) break;
    scale *= *c;
    e = e->args[1 - constant];
  }
  if (e->kind == ExprKind::fdiv) {
    if (auto c = ir::as_real(e->args[1])) {
      scale /= *c;
      e = e->args[0];
      scale *= peel_scale(e);
    }
  }
  return scale;
}

namespace {

struct KeyWriter {
  std::vector<uint64_t>& key;
  void operator()(const char*, ExprRef e) {
    key.push_back(reinterpret_cast<uintptr_t>(e));
  }  // hash-consed
  void operator()(const char*, const std::vector<ExprRef>& list) {
    key.push_back(list.size());
    for (ExprRef e : list) key.push_back(reinterpret_cast<uintptr_t>(e));
  }
  void operator()(const char*, const ir::OptionalExpr& e) { (*this)("", e.expr); }
  void operator()(const char*, const ir::OptionalDims& v) { (*this)("", v.dims); }
  void operator()(const char*, const ir::OptionalFlag& v) { key.push_back(v.on); }
  void operator()(const char*, double v) {
    uint64_t bits;
    __builtin_memcpy(&bits, &v, 8);
    key.push_back(bits);
  }
  void operator()(const char*, int64_t v) { key.push_back(static_cast<uint64_t>(v)); }
  template <class T> void operator()(const char*, const std::optional<T>& v) {
    key.push_back(v.has_value());
    (*this)("", v.value_or(T{}));
  }
  void operator()(const char*, bool v) { key.push_back(v); }
  template <class E>
  requires std::is_enum_v<E>
  void operator()(const char*, E v) { key.push_back(static_cast<uint64_t>(v)); }
};

}  // namespace

std::vector<uint64_t> attributes_key(const ir::Op& op) {
  std::vector<uint64_t> key;
  // visit() serves readers and writers, so it needs something mutable; KeyWriter reads.
  std::visit([&](auto& a) { a.visit(KeyWriter{key}); }, const_cast<ir::Attrs&>(op.attrs));
  return key;
}

std::string label(const Graph& graph, OpId o) {
  const ir::Op& op = graph.op(o);
  return op.origin.empty() ? graph.value(op.results[0]).name : op.origin;
}

}  // namespace tfcc::passes
