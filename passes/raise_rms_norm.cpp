// SPDX-License-Identifier: Apache-2.0
// raise-rms-norm: Pow, ReduceMean, Add, Sqrt, Div or Reciprocal, Mul, Mul as one op.
//   before: %v = mean(%x * %x); %y = %x * (1 / sqrt(%v + eps)) * @g
//   after:  %y = norm(@g, %x) {body = (i,j,k) => %x[i,j,k], eps, kind = rms}
// Requires: the mean over the last axis, of the square of the same %x; @g rank 1 on it. A missing
// @g becomes ones. In a 16-bit graph the norm may run in f32 between casts: it reads the 16-bit
// value, and its result is rounded once.
#include <algorithm>

#include "ir/norm.h"
#include "passes/raise_norm.h"

namespace tfcc::passes {
namespace {

bool is_mean_square(const Graph& g, ValueId v, ValueId x, const Indices& at) {
  auto body = mean_over_last(g, v, Indices(at.begin(), at.end() - 1), at.back());
  if (!body) return false;
  ExprRef e = ir::expand(g, *body, [&](ValueId u) { return u != x; });
  ExprRef load = ir::load_of(g, x, at);
  return e == ir::mul(load, load);
}

bool raise(Graph& g, OpId o, const std::vector<ValueId>& candidates, PassReport& report) {
  const ValueId y = g.result(o);
  const ir::Type type = g.value(y).type;
  if (!row_width(type)) return false;
  const Indices at = ir::indices_of(g, y);
  const auto stop = [&](ValueId v) {
    return std::binary_search(candidates.begin(), candidates.end(), v);
  };
  ExprRef e = rounded_once(expanded(g, y, at, stop, kNearby), type.dtype);
  for (const Affine& a : affine_forms(g, e, at)) {
    if (a.beta) continue;
    for (const Normalised& n : normalised_forms(a.core)) {
      auto x = loaded_at(n.numerator, at);
      auto statistic = row_statistic(g, n.root.statistic, at);
      if (!x || !statistic || g.value(*x).type.dims != type.dims) continue;
      if (!is_mean_square(g, *statistic, *x, at)) {
        report.misses.push_back(
            {label(g, o), "the root is not over the mean square of the same value"});
        continue;
      }
      const ValueId source = before_widening(g, *x);
      const ir::NormOf norm{ir::NormKind::rms, n.root.eps, gamma_or_ones(g, a, source),
                            std::nullopt};
      g.replace_uses(y, ir::add_norm(g, norm, source, type, g.value(y).name, g.op(o).origin));
      return true;
    }
  }
  return false;
}

}  // namespace

PassReport raise_rms_norm(Graph& graph) { return raise_norms(graph, true, raise); }

}  // namespace tfcc::passes
