// SPDX-License-Identifier: Apache-2.0
#include "codegen/plan/size_limit.h"

#include <algorithm>

#include "ir/range.h"

namespace tfcc::codegen {
namespace {

using ir::ExprRef;

constexpr int64_t kRoom = int64_t{1}
                          << 61;  // the other half is for the products that tensors bound

bool before(ExprRef a, ExprRef b) { return ir::compare(a, b) < 0; }

// The elements of all tensors, as sums of products.
std::vector<ir::Poly> counts(const ir::Graph& g) {
  std::vector<ir::Poly> out;
  auto add = [&](ir::ValueId v) {
    ExprRef n = g.pool().integer(1);
    for (ExprRef d : g.value(v).type.dims) n = ir::mul(n, d);
    out.push_back(ir::to_poly(n));
  };
  for (ir::ValueId v : g.inputs()) add(v);
  for (ir::OpId o : g.order()) {
    for (ir::ValueId v : g.op(o).results) add(v);
  }
  return out;
}

// A product of the sizes in `t` is at most one of those in `whole`: what else is in it is at least
// 1.
bool covers(const ir::Term& whole, const ir::Term& t) {
  if (whole.coefficient < t.coefficient) return false;
  if (!std::includes(whole.atoms.begin(), whole.atoms.end(), t.atoms.begin(), t.atoms.end(),
                     before))
    return false;
  std::vector<ExprRef> rest;
  std::set_difference(whole.atoms.begin(), whole.atoms.end(), t.atoms.begin(), t.atoms.end(),
                      std::back_inserter(rest), before);
  return std::all_of(rest.begin(), rest.end(), [](ExprRef a) { return ir::range_of(a).lo >= 1; });
}

}  // namespace

ExprRef sizes_fit(const ir::Graph& graph) {
  const ir::Poly assumed = ir::assumed_sizes(graph.pool());
  if (assumed.terms.empty()) return nullptr;
  const std::vector<ir::Poly> tensors = counts(graph);
  auto counted = [&](const ir::Term& t) {
    return std::any_of(tensors.begin(), tensors.end(), [&](const ir::Poly& n) {
      const bool sum = std::all_of(n.terms.begin(), n.terms.end(),
                                   [](const ir::Term& x) { return x.coefficient > 0; }) &&
                       n.constant >= 0;
      return sum && std::any_of(n.terms.begin(), n.terms.end(),
                                [&](const ir::Term& x) { return covers(x, t); });
    });
  };
  std::vector<ir::Term> left;
  for (const ir::Term& t : assumed.terms) {
    if (!counted(t)) left.push_back(t);
  }
  ExprRef condition = graph.pool().boolean(true);
  for (const ir::Term& t : left) {
    ExprRef limit = graph.pool().integer(kRoom / static_cast<int64_t>(left.size()));
    condition = ir::logical_and(condition, ir::le(ir::from_poly(graph.pool(), {{t}, 0}), limit));
  }
  return condition->kind == ir::ExprKind::btrue ? nullptr : condition;
}

}  // namespace tfcc::codegen
