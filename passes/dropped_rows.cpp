// SPDX-License-Identifier: Apache-2.0
#include "passes/dropped_rows.h"

#include <algorithm>
#include <set>

#include "ir/matmul.h"
#include "passes/mask_score.h"

namespace tfcc::passes {
namespace {

// What is 0 where a condition does not hold: m where it is m != 0; and m, which a flag says is 0
// or 1, where it is bounded(m, 2, f) == 1, so that it is 1 where the condition holds.
struct Numbers {
  std::vector<ExprRef> zero_where_false, one_where_true;
};

Numbers numbers_of(ExprRef condition) {
  if (condition->kind == ExprKind::bnot) {
    ExprRef equal = condition->args[0];
    if (equal->kind == ExprKind::eq0) return {{equal->args[0]}, {}};
    if (equal->kind == ExprKind::feq && ir::as_real(equal->args[1]) == 0.0)
      return {{equal->args[0]}, {}};
  }
  if (condition->kind != ExprKind::eq0) return {};
  ExprRef difference = condition->args[0];
  std::vector<ExprRef> found;
  ir::for_each_node(difference, [&](ExprRef n) {
    if (n->kind != ExprKind::bounded || !ir::is_int(n->args[1], 2)) return;
    ExprRef off = ir::sub(n, n->pool->integer(1));
    if (difference == off || difference == ir::mul(off, n->pool->integer(-1)))
      found = {n, n->args[0]};
  });
  return {found, found};
}

bool contains(const std::vector<ExprRef>& all, ExprRef e) {
  return std::ranges::find(all, e) != all.end();
}

bool uses(ExprRef e, ExprRef part) {
  bool found = false;
  ir::for_each_node(e, [&](ExprRef n) { found |= n == part; });
  return found;
}

// 0 * x is 0 here: what stands at a row that is dropped may be any number, but is one
// (docs/passes.md).
bool is_zero(ExprRef e) {
  return ir::as_real(e) == 0.0 ||
         (e->kind == ExprKind::fmul && std::any_of(e->args.begin(), e->args.end(), is_zero));
}

bool depends(ExprRef e, ValueId v) {
  if (loaded(e) == v) return true;
  if (is_zero(e)) return false;
  const auto below = [&](ExprRef a) { return depends(a, v); };
  return std::any_of(e->args.begin(), e->args.end(), below) ||
         std::any_of(e->terms.begin(), e->terms.end(), [&](const ir::Term& t) {
           return std::any_of(t.atoms.begin(), t.atoms.end(), below);
         });
}

// f of each load of v in an elementwise op or a sum, both free, with its body.
template <class F> bool all_loads(const Graph& g, OpId o, ValueId v, F f) {
  ir::Op op = g.op(o);
  bool ok = true;
  for (ExprRef* body : ir::expressions_of(op)) {
    ExprRef free = ir::free_expr(g, o, *body, {});
    ir::for_each_node(free, [&](ExprRef n) {
      if (loaded(n) == v) ok = ok && f(n, free);
    });
  }
  return ok;
}

}  // namespace

ExprRef without_assertions(ExprRef condition) {
  if (condition->kind != ExprKind::band) return condition;
  ExprRef all = condition->pool->boolean(true);
  for (ExprRef e : condition->args) {
    if (!ir::is_assertion(e)) all = ir::logical_and(all, e);
  }
  return all;
}

ExprRef mask_of(const Graph& g, ExprRef live) {
  const Numbers n = numbers_of(without_assertions(live));
  ExprRef m = n.zero_where_false.empty() ? nullptr : n.zero_where_false[0];
  const auto v = m ? loaded(m) : std::nullopt;
  if (!v) return nullptr;
  const InputRole role = g.value(*v).role;
  return role == InputRole::mask || role == InputRole::none ? m : nullptr;
}

std::optional<OutsideRead> DroppedRows::neutral_read(OpId reader, ValueId v) const {
  if (reads_neutrally(reader, v) || masks_scores(reader, v)) return OutsideRead::neutral;
  if (multiplies_by_zeros(reader, v) || hides_keys(reader, v)) return OutsideRead::factor;
  return std::nullopt;
}

// Any rows, as a mean over real tokens does: what is computed with a row that is dropped does not
// depend on it.
bool DroppedRows::reads_neutrally(OpId o, ValueId v) const {
  if (g_.op(o).kind != OpKind::pointwise && g_.op(o).kind != OpKind::reduce) return false;
  return all_loads(g_, o, v, [&](ExprRef load, ExprRef body) {
    return !depends(where(body, load->args[0], load->args[1], false), v);
  });
}

// The same of a product over tokens: the other factor is 0 at a row that is dropped.
bool DroppedRows::multiplies_by_zeros(OpId o, ValueId v) const {
  const ir::Op& op = g_.op(o);
  if (op.kind != OpKind::matmul || g_.value(v).type.rank() != 3) return false;
  const auto& attrs = op.as<ir::MatmulAttrs>();
  const bool right = op.operands[1] == v;
  if (!right && op.operands[0] != v) return false;
  if (right ? attrs.trans_b : !attrs.trans_a) return false;  // the sum is over channels
  if (std::ranges::count(op.operands, v) != 1) return false;
  const Indices at = ir::indices_of(g_, op.results[0]);
  ExprRef token = g_.pool().index(static_cast<int64_t>(at.size()), rows_.length);
  ExprRef other = right ? ir::factor_element(g_, op.operands[0], attrs.trans_a, at, at[1], token)
                        : ir::factor_element(g_, op.operands[1], attrs.trans_b, at, token, at[2]);
  return is_zero(where(other, at[0], token, false));
}

bool DroppedRows::masks_scores(OpId o, ValueId v) const {
  if (g_.op(o).kind != OpKind::pointwise) return false;
  const ValueId scores = g_.result(o);
  if (g_.is_output(scores)) return false;
  for (OpId user : g_.value(scores).users) {
    if (g_.op(user).kind != OpKind::softmax || !stays_in_sequence(g_.result(user))) return false;
  }
  const int64_t last = static_cast<int64_t>(g_.value(scores).type.rank()) - 1;
  ExprRef token = g_.pool().index(last, rows_.length);
  return all_loads(g_, o, v, [&](ExprRef load, ExprRef body) {
    return load->args[1] == token && !uses(load->args[0], token) &&
           is_masked(body, load->args[0], token);
  });
}

// An attention whose keys these rows are, and no queries; it sees real tokens alone.
bool DroppedRows::hides_keys(OpId o, ValueId v) const {
  const ir::Op& op = g_.op(o);
  if (op.kind != OpKind::attention || op.operands[0] == v) return false;
  if (std::find(op.operands.begin() + 3, op.operands.end(), v) != op.operands.end()) return false;
  const KeyCondition condition = key_condition(g_, o);
  if (!condition.keys) return false;
  ExprRef s = g_.pool().index(1, rows_.length);
  ExprRef seen = ir::substitute_indices(condition.keys, {nullptr, nullptr, nullptr, s});
  return without_assertions(seen) == without_assertions(rows_.live);
}

// A free expression where live(b, s) holds, or does not.
ExprRef DroppedRows::where(ExprRef e, ExprRef b, ExprRef s, bool live) const {
  ExprRef condition = ir::substitute_indices(without_assertions(rows_.live), {b, s});
  // A mask that has other readers, such as the count of a mean, is an op of its own.
  ExprRef free = ir::expand(g_, e, [&](ValueId x) { return !is_packed(x); });
  Numbers known = numbers_of(condition);
  ExprRef binary = rows_.binary ? ir::substitute_indices(rows_.binary, {b, s}) : nullptr;
  if (binary && binary->type != Scalar::i64) known.one_where_true.push_back(binary);
  return ir::rewrite(free, [&](ExprRef n) -> ExprRef {
    // Compared, a mask may be more than 0 and 1: it is 1 where a real is computed with it.
    if (live && binary && n->kind == ExprKind::i2f)
      return ir::convert(
          ir::rewrite(n->args[0],
                      [&](ExprRef m) { return m == binary ? g_.pool().integer(1) : nullptr; }),
          n->type);
    if (n == condition) return g_.pool().boolean(live);
    if (live && n == ir::logical_not(condition)) return g_.pool().boolean(false);
    if (contains(live ? known.one_where_true : known.zero_where_false, n))
      return ir::convert(g_.pool().integer(live), n->type);
    return !live && is_no_probability(n, b, s) ? g_.pool().real(0, n->type) : nullptr;
  });
}

// Is a score made of what could hide a token? A number within 1000 stays far from it unless an
// exponential, a quotient or a factor takes it there.
bool DroppedRows::may_hide(ExprRef score) const {
  constexpr double kFarAway = 1e5;
  const Interval of_score = bounds(score);
  bool found = has_large_constant(score) || !(of_score.low >= -kFarAway);
  ir::for_each_node(score, [&](ExprRef n) {
    found |= n->kind == ExprKind::log;
    if (n->kind == ExprKind::i2f) {
      ExprRef most = g_.pool().integer(static_cast<int64_t>(kScoreBound));
      found |= !ir::prove_le(ir::neg(most), n->args[0]) || !ir::prove_le(n->args[0], most);
    }
    const auto v = loaded(n);
    const ir::Op* op = v ? g_.def(*v) : nullptr;
    if (op && op->kind == OpKind::reduce) {
      ExprRef body = ir::free_expr(g_, g_.value(*v).def, op->as<ir::ReduceAttrs>().body, {});
      found |= may_hide(ir::expand(g_, body, [](ValueId) { return true; }));
    }
  });
  return found;
}

// Is all that follows from v computed for an index of its first axis, that of the sequences, from v
// at that index alone?
bool DroppedRows::stays_in_sequence(ValueId v) const {
  std::set<uint32_t> seen{v.value};
  std::vector<ValueId> open{v};
  while (!open.empty()) {
    const ValueId x = open.back();
    open.pop_back();
    for (OpId user : g_.value(x).users) {
      if (!reads_own_sequence(user, x)) return false;
      for (ValueId r : g_.op(user).results) {
        if (seen.insert(r.value).second) open.push_back(r);
      }
    }
  }
  return true;
}

bool DroppedRows::reads_own_sequence(OpId reader, ValueId v) const {
  const ir::Op& op = g_.op(reader);
  const Indices own = ir::indices_of(g_, op.results[0]);
  if (own.empty()) return false;
  if (!all_loads(g_, reader, v, [&](ExprRef load, ExprRef) { return load->args[0] == own[0]; }))
    return false;
  for (size_t i = 0; i < ir::first_loaded(op); ++i) {
    if (op.operands[i] != v) continue;
    const bool rows = i == 0 && (op.kind == OpKind::norm || op.kind == OpKind::softmax);
    const bool batched = g_.value(v).type.rank() > 2;
    const bool factor =
        op.kind == OpKind::matmul && (batched || (i == 0 && !op.as<ir::MatmulAttrs>().trans_a));
    if (!(rows || factor) || own.size() < 2) return false;
  }
  return true;
}

// Does a score hide the token (b, s) if it is padding, and no real one?
bool DroppedRows::is_masked(ExprRef score, ExprRef b, ExprRef s) const {
  ExprRef real = where(score, b, s, true);
  // What is packed may hide real tokens too, in an op of its own.
  if (may_hide(where(ir::expand(g_, real, [](ValueId) { return true; }), b, s, true))) return false;
  return upper_bound(where(score, b, s, false), real) <= -kScoreBound - kMaskMargin;
}

// Is a load one of a probability, whose score the token (b, s) hides? Its row has one score for each
// token of the sequence, of which a real one is not hidden.
bool DroppedRows::is_no_probability(ExprRef load, ExprRef b, ExprRef s) const {
  const auto v = loaded(load);
  const ir::Op* op = v ? g_.def(*v) : nullptr;
  if (!op || op->kind != OpKind::softmax) return false;
  if (s->kind != ExprKind::index || s->args[0] != rows_.length) return false;
  if (uses(b, s) || !stays_in_sequence(*v)) return false;
  for (size_t k = 0; k + 1 < load->args.size(); ++k) {
    if (uses(load->args[k], s)) return false;
  }
  return is_masked(ir::load_of(g_, op->operands[0], load->args), b, s);
}

}  // namespace tfcc::passes
