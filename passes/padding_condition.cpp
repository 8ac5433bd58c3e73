// SPDX-License-Identifier: Apache-2.0
#include "passes/padding_condition.h"

#include <algorithm>
#include <cmath>
#include <map>
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
  if (!seen.insert(v.value).second) return;  // cost: looked at before
  const ir::Op* op = g.def(v);
  if (!op) return void(roles.insert(g.value(v).role));
  for (ValueId operand : op->operands) inputs_of(g, operand, seen, roles);
}

bool is_id(const Graph& g, ExprRef e) {
  const auto v = loaded(e);
  return v && g.value(*v).role == InputRole::ids;
}

/// A bounded() without its flag.
ExprRef clamped(ExprRef n) {
  if (n->kind != ExprKind::bounded) return nullptr;
  ExprRef zero = n->pool->integer(0), last = ir::sub(n->args[1], n->pool->integer(1));
  return ir::min(ir::max(n->args[0], zero), last);
}

/// What a condition reads, with its elementwise values put in.
struct Reads {
  ExprRef condition;
  std::vector<ExprRef> ids;  // distinct elements of ids
  bool others = false;       // other data
  bool of_tokens = false;    // in a way that says what a token is
};

Reads reads_of(const Graph& g, ExprRef condition) {
  Reads r{ir::rewrite(spelled_out(g, condition), clamped), {}};
  std::set<uint32_t> seen;
  std::set<InputRole> roles;
  ir::for_each_node(r.condition, [&](ExprRef n) {
    const auto v = loaded(n);
    if (!v || g.is_constant(*v)) return;
    if (is_id(g, n)) return r.ids.push_back(n);
    r.others = true;
    inputs_of(g, *v, seen, roles);
  });
  for (InputRole of : {InputRole::ids, InputRole::types, InputRole::positions})
    r.of_tokens |= roles.count(of) > 0;
  return r;
}

/// The condition with numbers for elements of ids.
ExprRef with_ids(const Reads& r, const std::vector<int64_t>& ids) {
  return ir::rewrite(r.condition, [&](ExprRef n) -> ExprRef {
    const auto at = std::find(r.ids.begin(), r.ids.end(), n);
    return at == r.ids.end() ? nullptr
                             : n->pool->integer(ids[static_cast<size_t>(at - r.ids.begin())]);
  });
}

/// Whether e is ids, or of ids and numbers by functions that change at sums of these alone.
bool is_stepwise(const Graph& g, ExprRef e, const std::set<ExprRef>& of_ids) {
  switch (e->kind) {
    case ExprKind::poly:
      return std::all_of(e->terms.begin(), e->terms.end(), [](const ir::Term& t) {
        return t.atoms.size() == 1 && std::abs(t.coefficient) == 1;
      });
    case ExprKind::iabs: return is_id(g, e->args[0]) || !of_ids.count(e->args[0]);
    case ExprKind::imin:
    case ExprKind::imax:
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

/// Ids at which a condition on one element of ids may change: sums of its numbers, and their
/// neighbours. Empty if it is another function of it, or has many numbers.
std::set<int64_t> ids_to_try(const Graph& g, ExprRef condition) {
  constexpr int64_t kLargest = 1 << 29;  // more ids than a vocabulary has
  constexpr size_t kMostNumbers = 5;
  std::set<ExprRef> of_ids;
  std::set<int64_t> numbers;
  bool stepwise = true;
  ir::for_each_node(condition, [&](ExprRef e) {
    const auto reads = [&](ExprRef a) { return of_ids.count(a) > 0; };
    bool above = std::any_of(e->args.begin(), e->args.end(), reads);
    for (const ir::Term& t : e->terms) above |= std::any_of(t.atoms.begin(), t.atoms.end(), reads);
    if (above && !is_stepwise(g, e, of_ids)) stepwise = false;
    if (above || is_id(g, e)) of_ids.insert(e);
    double at = e->kind == ExprKind::fconst ? std::abs(e->real) : 0;
    if (e->kind == ExprKind::poly) at = std::abs(static_cast<double>(e->value));
    if (at >= 1 && at < kLargest) numbers.insert(static_cast<int64_t>(at));
  });
  if (!stepwise || numbers.size() > kMostNumbers) return {};
  std::set<int64_t> sums = {0};
  for (int64_t n : numbers) {
    for (int64_t sum : std::vector<int64_t>(sums.begin(), sums.end()))
      sums.insert({sum + n, sum - n});
  }
  std::set<int64_t> ids = {0, 1, 2, kLargest};
  for (int64_t sum : sums) {
    for (int64_t near : {-1, 0, 1, 2}) ids.insert(std::max<int64_t>(0, sum + near));
  }
  return ids;
}

/// The one id that is padding by a condition on one element of ids; -1 where it is none of those
/// that there are (ids != -100).
std::optional<int64_t> padding_id(const Graph& g, const Reads& r) {
  if (r.ids.size() != 1) return std::nullopt;
  const std::set<int64_t> ids = ids_to_try(g, r.condition);
  std::vector<int64_t> none;
  for (int64_t id : ids) {
    const ExprKind holds = with_ids(r, {id})->kind;
    if (holds == ExprKind::bfalse) none.push_back(id);
    else if (holds != ExprKind::btrue) return std::nullopt;
  }
  if (ids.empty() || none.size() > 1) return std::nullopt;
  return none.empty() ? -1 : none[0];
}

/// Does the condition only ask which elements of ids are this one?
bool asks_for(const Reads& r, int64_t padding) {
  constexpr size_t kMostElements = 3;
  if (r.ids.size() > kMostElements) return false;  // cost: each is tried with each
  const int64_t some[] = {padding, padding + 1, padding + 3, padding + 7};  // none near another
  size_t choices = 1;
  for (size_t i = 0; i < r.ids.size(); ++i) choices *= std::size(some);
  std::map<std::vector<bool>, ExprKind> found;
  for (size_t c = 0; c < choices; ++c) {
    std::vector<int64_t> ids;
    std::vector<bool> is_padding;
    for (size_t i = 0, left = c; i < r.ids.size(); ++i, left /= std::size(some)) {
      ids.push_back(some[left % std::size(some)]);
      is_padding.push_back(ids.back() == padding);
    }
    const ExprKind holds = with_ids(r, ids)->kind;
    if (holds != ExprKind::btrue && holds != ExprKind::bfalse) return false;
    if (found.try_emplace(is_padding, holds).first->second != holds) return false;
  }
  return true;
}

}  // namespace

std::vector<bool> say_padding(const Graph& g, const std::vector<ExprRef>& conditions) {
  std::vector<Reads> reads;
  std::vector<bool> padding(conditions.size());
  std::optional<int64_t> id;
  std::optional<ValueId> of;  // the input that it is of
  int by_id = 0, by_others = 0;
  for (size_t i = 0; i < conditions.size(); ++i) {
    const Reads& r = reads.emplace_back(reads_of(g, conditions[i]));
    padding[i] = r.others && !r.of_tokens && r.ids.empty();
    by_others += padding[i];
    if (const auto found = padding_id(g, r)) id = found, of = loaded(r.ids[0]), ++by_id;
  }
  if (by_others > 0 || by_id != 1) return padding;  // a mask says what padding is, and no id
  for (size_t i = 0; i < conditions.size(); ++i) {
    const bool same = std::all_of(reads[i].ids.begin(), reads[i].ids.end(),
                                  [&](ExprRef n) { return loaded(n) == of; });
    padding[i] =
        !reads[i].ids.empty() && same && (padding_id(g, reads[i]) || asks_for(reads[i], *id));
  }
  return padding;
}

}  // namespace tfcc::passes
