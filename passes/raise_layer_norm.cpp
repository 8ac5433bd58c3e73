// SPDX-License-Identifier: Apache-2.0
// raise-layer-norm: ReduceMean, Sub, Pow, ReduceMean, Add, Sqrt, Div, Mul, Add as one op.
//   before: %m = mean(%x); %v = mean((%x - %m)^2); %y = (%x - %m) / sqrt(%v + eps) * @g + @b
//   after:  %y = norm(@g, @b, %x) {body = (i,j,k) => %x[i,j,k], eps, has_beta, kind = layer}
//   before: %m = mean(%x); %y = norm(@g, %c) {kind = rms} of %c = %x - %m                 (opset 23)
// Factors come in any order, also with 1 / sqrt.
// Requires: both means over the last axis, of the same %x; @g, @b rank 1 on it. A missing @g
// becomes ones. In a 16-bit graph the norm may run in f32 between casts: it reads the 16-bit value,
// and its result is rounded once.
#include <algorithm>
#include <functional>

#include "ir/norm.h"
#include "passes/raise_norm.h"

namespace tfcc::passes {
namespace {

// e == load(x at indices) - mean(x) of the row; returns x and the mean.
struct Centered {
  ValueId x, mean;
};

std::optional<Centered> centered(const Graph& g, ExprRef e, const Indices& at) {
  if (e->kind != ExprKind::fsub) return std::nullopt;
  auto x = loaded_at(e->args[0], at);
  auto mean = row_statistic(g, e->args[1], at);
  if (!x || !mean) return std::nullopt;
  auto body = mean_over_last(g, *mean, Indices(at.begin(), at.end() - 1), at.back());
  if (!body || loaded_at(*body, at) != x) return std::nullopt;
  return Centered{*x, *mean};
}

// Is v the mean of the squares of this centered x?
bool is_variance(const Graph& g, ValueId v, ValueId x, ExprRef numerator, const Indices& at) {
  auto body = mean_over_last(g, v, Indices(at.begin(), at.end() - 1), at.back());
  if (!body) return false;
  ExprRef square = ir::expand(g, *body, [&](ValueId u) { return u != x; });
  return square == ir::mul(numerator, numerator);
}

/// The mean of the squares of x - mean(x) is the variance of x, as is its variance.
bool raise_centered(Graph& g, OpId o, const std::function<bool(ValueId)>& stop) {
  const ValueId y = g.result(o);
  const ir::Type type = g.value(y).type;
  const auto c = centered(g, ir::expand(g, ir::normed(g, o), std::not_fn(stop), kNearby),
                          ir::indices_of(g, y));
  if (!c || g.value(c->x).type.dims != type.dims) return false;
  ir::NormOf norm = ir::norm_of(g.op(o));
  norm.kind = ir::NormKind::layer;
  g.replace_uses(
      y, ir::add_norm(g, norm, before_widening(g, c->x), type, g.value(y).name, g.op(o).origin));
  return true;
}

bool raise(Graph& g, OpId o, const std::vector<ValueId>& candidates, PassReport& report) {
  const ValueId y = g.result(o);
  const ir::Type type = g.value(y).type;
  if (!row_width(type)) return false;
  const Indices at = ir::indices_of(g, y);
  auto stop = [&](ValueId v) {
    return std::binary_search(candidates.begin(), candidates.end(), v);
  };
  if (g.op(o).kind == OpKind::norm) return raise_centered(g, o, stop);
  ExprRef e = rounded_once(expanded(g, y, at, stop, kNearby), type.dtype);
  for (const Affine& a : affine_forms(g, e, at)) {
    for (const Normalised& n : normalised_forms(a.core)) {
      auto c = centered(g, n.numerator, at);
      if (!c) continue;
      auto variance = row_statistic(g, n.root.statistic, at);
      if (!variance || !is_variance(g, *variance, c->x, n.numerator, at)) {
        report.misses.push_back(
            {label(g, o), "the root is not over the variance of the same value"});
        continue;
      }
      if (g.value(c->x).type.dims != type.dims) continue;
      const ValueId source = before_widening(g, c->x);
      const ir::NormOf norm{ir::NormKind::layer, n.root.eps, gamma_or_ones(g, a, source), a.beta};
      g.replace_uses(y, ir::add_norm(g, norm, source, type, g.value(y).name, g.op(o).origin));
      return true;
    }
  }
  return false;
}

}  // namespace

PassReport raise_layer_norm(Graph& graph) { return raise_norms(graph, false, raise); }

}  // namespace tfcc::passes
