// SPDX-License-Identifier: Apache-2.0
#include "passes/padding_condition.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

namespace tfcc::passes {
namespace {

/// A condition that is longer with all its elementwise values put in is left as it is.
constexpr size_t kMostNodes = 2000;

bool is_pointwise(const Graph& g, ValueId v) {
  const ir::Op* op = g.def(v);
  return op && op->kind == OpKind::pointwise;
}

/// Elements of elementwise values, made of what they read.
ExprRef spelled_out(const Graph& g, ExprRef e) {
  for (;;) {
    const std::vector<ValueId> loads = ir::loads_of(e);
    if (ir::node_count(e) > kMostNodes ||
        std::none_of(loads.begin(), loads.end(), [&](ValueId v) { return is_pointwise(g, v); }))
      return e;
    e = ir::rewrite(e, [&](ExprRef n) -> ExprRef {
      const auto v = loaded(n);
      return v && is_pointwise(g, *v) ? ir::element_of(g, *v, n->args) : nullptr;
    });
  }
}

/// The inputs of the graph that a value is made of.
void inputs_of(const Graph& g, ValueId v, std::set<uint32_t>& seen, std::set<InputRole>& roles) {
  if (!seen.insert(v.value).second) return;
  const ir::Op* op = g.def(v);
  if (!op) return void(roles.insert(g.value(v).role));
  for (ValueId operand : op->operands) inputs_of(g, operand, seen, roles);
}

bool is_id(const Graph& g, ExprRef e) {
  const auto v = loaded(e);
  return v && !g.def(*v) && g.value(*v).role == InputRole::ids;
}

/// Functions of an id that change at the constants in them alone.
bool is_stepwise(ExprRef e) {
  switch (e->kind) {
    case ExprKind::poly:
      return std::all_of(e->terms.begin(), e->terms.end(), [](const ir::Term& t) {
        return t.atoms.size() == 1 && std::abs(t.coefficient) == 1;
      });
    case ExprKind::imin:
    case ExprKind::imax:
    case ExprKind::iabs:
    case ExprKind::bounded:
    case ExprKind::select:
    case ExprKind::ge0:
    case ExprKind::eq0:
    case ExprKind::band:
    case ExprKind::bor:
    case ExprKind::bnot:
    case ExprKind::flt:
    case ExprKind::fle:
    case ExprKind::feq:
    case ExprKind::i2f:
    case ExprKind::f2f: return true;
    default: return false;
  }
}

/// Ids at which a condition may change: its constants and their neighbours, the first and a large one.
/// Empty if it is another function of ids.
std::set<int64_t> ids_to_try(const Graph& g, ExprRef condition) {
  constexpr int64_t kLargest = 1 << 29;  // more ids than a vocabulary has
  std::set<int64_t> ids = {0, 1, 2, kLargest};
  std::set<ExprRef> of_ids;
  bool stepwise = true;
  ir::for_each_node(condition, [&](ExprRef e) {
    const auto reads = [&](ExprRef a) { return of_ids.count(a) > 0; };
    bool above = std::any_of(e->args.begin(), e->args.end(), reads);
    for (const ir::Term& t : e->terms) above |= std::any_of(t.atoms.begin(), t.atoms.end(), reads);
    if (above && !is_stepwise(e)) stepwise = false;
    if (above || is_id(g, e)) of_ids.insert(e);
    double at = e->kind == ExprKind::fconst ? std::abs(e->real) : 0;
    if (e->kind == ExprKind::poly) at = std::abs(static_cast<double>(e->value));
    if (!(at < kLargest)) return;
    for (int64_t near : {-1, 0, 1, 2})
      ids.insert(std::max<int64_t>(0, static_cast<int64_t>(at) + near));
  });
  if (!stepwise) ids.clear();
  return ids;
}

/// Does the condition hold for all ids but one, where nothing else stands against it?
bool holds_but_for_one_id(const Graph& g, ExprRef condition) {
  const std::set<int64_t> ids = ids_to_try(g, condition);
  int64_t none = 0;
  for (int64_t id : ids) {
    ExprRef of_this = ir::rewrite(condition, [&](ExprRef n) -> ExprRef {
      return is_id(g, n) ? n->pool->integer(id) : nullptr;
    });
    none += of_this->kind == ExprKind::bfalse;
  }
  return !ids.empty() && none <= 1;
}

}  // namespace

std::vector<bool> say_padding(const Graph& g, const std::vector<ExprRef>& conditions) {
  std::vector<bool> padding;
  int by_ids = 0, by_others = 0;
  for (ExprRef c : conditions) {
    ExprRef spelled = spelled_out(g, c);
    std::set<uint32_t> seen;
    std::set<InputRole> roles;
    bool ids = false, others = false;
    for (ValueId v : ir::loads_of(spelled)) {
      const bool is_ids = !g.def(v) && g.value(v).role == InputRole::ids;
      ids |= is_ids, others |= !is_ids && !g.is_constant(v);
      inputs_of(g, v, seen, roles);
    }
    const bool of_tokens = roles.count(InputRole::types) || roles.count(InputRole::positions);
    padding.push_back(!of_tokens && (!ids || (!others && holds_but_for_one_id(g, spelled))));
    (ids ? by_ids : by_others) += !of_tokens;
  }
  if (by_ids == 0 || by_ids + by_others == 1) return padding;
  for (size_t i = 0; i < conditions.size(); ++i) {  // a mask says what padding is, and no id
    const std::vector<ValueId> loads = ir::loads_of(spelled_out(g, conditions[i]));
    if (std::any_of(loads.begin(), loads.end(),
                    [&](ValueId v) { return !g.def(v) && g.value(v).role == InputRole::ids; }))
      padding[i] = false;
  }
  return padding;
}

}  // namespace tfcc::passes
