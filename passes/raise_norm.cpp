// SPDX-License-Identifier: Apache-2.0
#include "passes/raise_norm.h"

#include <algorithm>

namespace tfcc::passes {

std::optional<int64_t> row_width(const ir::Type& type) {
  return type.dims.empty() ? std::nullopt : ir::as_int(type.dims.back());
}

std::optional<ExprRef> mean_over_last(const Graph& g, ValueId v, const Indices& row, ExprRef last) {
  const auto& attrs = g.def(v)->as<ir::ReduceAttrs>();
  if (attrs.kind != ir::ReduceKind::mean) return std::nullopt;
  Indices at = row;
  if (g.value(v).type.rank() == row.size() + 1) at.push_back(g.pool().integer(0));
  ExprRef extent = last->kind == ExprKind::index ? last->args[0] : g.pool().integer(1);
  if (attrs.extents[0] != extent) return std::nullopt;
  at.push_back(last);
  return ir::free_expr(g, g.value(v).def, attrs.body, at);
}

std::optional<ValueId> row_statistic(const Graph& g, ExprRef e, const Indices& at) {
  const auto v = loaded(e);
  if (!v) return std::nullopt;
  const ir::Op* op = g.def(*v);
  if (!op || op->kind != OpKind::reduce) return std::nullopt;
  Indices row(at.begin(), at.end() - 1);
  if (e->args == row) return v;
  row.push_back(g.pool().integer(0));
  return e->args == row ? v : std::nullopt;
}

std::optional<ExprRef> reduced_body(const Graph& g, ExprRef e, ir::ReduceKind kind,
                                    const Indices& at) {
  auto v = row_statistic(g, e, at);
  if (!v) return std::nullopt;
  const auto& attrs = g.def(*v)->as<ir::ReduceAttrs>();
  if (attrs.kind != kind || attrs.extents.size() != 1 || attrs.extents[0] != at.back()->args[0])
    return std::nullopt;
  Indices full = e->args;
  full.push_back(at.back());
  return ir::free_expr(g, g.value(*v).def, attrs.body, full);
}

namespace {

// x if the body is x, or with `squares` x * x: spelled in the reduction or as an op of its own.
std::optional<ValueId> averaged(const Graph& g, ExprRef body, bool squares) {
  for (int step = 0; step < 2; ++step) {
    const bool square = body->kind == ExprKind::fmul && body->args[0] == body->args[1];
    if (square) return squares ? loaded(body->args[0]) : std::nullopt;
    const auto v = loaded(body);
    if (!v || !squares) return v;
    if (!ir::has_elements(g, *v)) return std::nullopt;
    body = ir::element_of(g, *v, body->args);
  }
  return std::nullopt;
}

}  // namespace

std::vector<ValueId> normalised_candidates(const Graph& g, bool squares) {
  std::vector<ValueId> out;
  for (OpId o : g.order()) {
    const ir::Op& op = g.op(o);
    if (op.kind != OpKind::reduce || op.as<ir::ReduceAttrs>().kind != ir::ReduceKind::mean)
      continue;
    if (auto x = averaged(g, ir::free_expr(g, o, op.as<ir::ReduceAttrs>().body, {}), squares))
      out.push_back(*x);
  }
  std::sort(out.begin(), out.end());  // the passes search in it
  return out;
}

std::vector<Affine> affine_forms(const Graph& g, ExprRef e, const Indices& at) {
  std::vector<Affine> out;
  auto scaled = [&](ExprRef x, std::optional<ValueId> beta) {
    out.push_back({x, std::nullopt, beta});
    if (x->kind != ExprKind::fmul) return;
    for (size_t i : {0, 1}) {
      if (auto gamma = loaded_along_last(g, x->args[i], at))
        out.push_back({x->args[1 - i], gamma, beta});
    }
    // (numerator * gamma) / root and gamma * (x * (1 / root)) associate differently: gather the
    // factors.
    std::vector<ExprRef> f = factors(x);
    for (size_t i = 0; i < f.size(); ++i) {
      auto gamma = loaded_along_last(g, f[i], at);
      if (!gamma) continue;
      ExprRef rest = nullptr;
      for (size_t k = 0; k < f.size(); ++k) {
        if (k != i) rest = rest ? ir::mul(rest, f[k]) : f[k];
      }
      out.push_back({rest, gamma, beta});
    }
  };
  if (e->kind == ExprKind::fadd) {
    for (size_t i : {0, 1}) {
      if (auto beta = loaded_along_last(g, e->args[i], at)) scaled(e->args[1 - i], beta);
    }
  }
  scaled(e, std::nullopt);
  return out;
}

std::optional<RootTerm> root_of(ExprRef e) {
  if (e->kind != ExprKind::sqrt) return std::nullopt;
  ExprRef inside = e->args[0];
  if (inside->kind == ExprKind::fadd) {
    for (size_t i : {0, 1}) {
      if (auto eps = ir::as_real(inside->args[i])) return RootTerm{inside->args[1 - i], *eps};
    }
  }
  return RootTerm{inside, 0};
}

std::vector<Normalised> normalised_forms(ExprRef e) {
  std::vector<Normalised> out;
  if (e->kind == ExprKind::fdiv) {
    if (auto root = root_of(e->args[1])) out.push_back({e->args[0], *root});
  }
  if (e->kind == ExprKind::fmul) {
    for (size_t i : {0, 1}) {
      ExprRef f = e->args[i];
      if (f->kind != ExprKind::fdiv || !near(f->args[0], 1, 0)) continue;
      if (auto root = root_of(f->args[1])) out.push_back({e->args[1 - i], *root});
    }
  }
  return out;
}

ExprRef rounded_once(ExprRef e, DType result) {
  if (result != DType::f16 && result != DType::bf16) return e;
  const ExprKind cast = result == DType::f16 ? ExprKind::round_f16 : ExprKind::round_bf16;
  return ir::rewrite(e, [&](ExprRef n) -> ExprRef {
    return n->kind == cast ? rounded_once(n->args[0], result) : nullptr;
  });
}

ValueId before_widening(const Graph& g, ValueId v) {
  const ir::Op* op = g.def(v);
  if (!op || op->kind != OpKind::pointwise || g.value(v).type.dtype != DType::f32) return v;
  const auto source = loaded_at(ir::element_of(g, v, ir::indices_of(g, v)), ir::indices_of(g, v));
  if (!source || g.value(*source).type.dims != g.value(v).type.dims) return v;
  const DType type = g.value(*source).type.dtype;
  return type == DType::f16 || type == DType::bf16 ? *source : v;
}

ValueId gamma_or_ones(Graph& g, const Affine& a, ValueId x) {
  if (a.gamma) return *a.gamma;
  const ir::Type& t = g.value(x).type;
  const int64_t n = *ir::as_int(t.dims.back());
  std::vector<std::byte> bytes(n * size_of(t.dtype));
  for (int64_t i = 0; i < n; ++i) ir::write_real(t.dtype, bytes.data(), i, 1);
  return g.add_constant(g.value(x).name + ".ones",
                        ir::constant_from_bytes(t.dtype, {n}, std::move(bytes)));
}

namespace {

// For each op, whether its element, expanded as far as a norm reaches, may load a reduction.
std::vector<bool> reduction_is_near(const Graph& g) {
  constexpr size_t kFar = SIZE_MAX / 2;
  std::vector<size_t> steps(g.op_count(),
                            kFar);  // elements inlined until the load of a reduction appears
  std::vector<bool> reaches(g.op_count());
  for (OpId o : g.order()) {
    const ir::Op& op = g.op(o);
    if (op.kind == OpKind::reduce) steps[o.value] = 0;
    size_t nearest = kFar;
    for (ValueId v : op.operands) {
      if (!g.def(v)) continue;  // cost: nothing is near an input
      nearest = std::min(nearest, steps[g.value(v).def.value] + 1);
    }
    // cost: what is no element is not expanded; a norm is looked at, and not through
    if (op.kind == OpKind::pointwise) steps[o.value] = std::min(steps[o.value], nearest);
    reaches[o.value] = (op.kind == OpKind::norm ? nearest : steps[o.value]) <= kNearby.depth;
  }
  return reaches;
}

}  // namespace

PassReport raise_norms(Graph& g, bool squares, RaiseNorm raise) {
  PassReport report;
  const std::vector<ValueId> candidates = normalised_candidates(g, squares);
  const std::vector<OpId> order = g.order();
  const std::vector<bool> may_be_norm =
      reduction_is_near(g);  // of what is above an op, which stays as it is until its turn
  for (auto it = order.rbegin(); it != order.rend(); ++it) {
    if (!may_be_norm[it->value] || g.use_count(g.result(*it)) == 0)
      continue;  // cost: a norm has a mean of its row
    if (raise(g, *it, candidates, report)) {
      ++report.rewrites;
      g.clean();
    }
  }
  return report;
}

}  // namespace tfcc::passes
