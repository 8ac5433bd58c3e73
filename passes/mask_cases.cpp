// SPDX-License-Identifier: Apache-2.0
#include "passes/mask_cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "ir/range.h"
#include "passes/mask_score.h"

namespace tfcc::passes {
namespace {

constexpr size_t kControls = 10;
constexpr int64_t kLargestBand = int64_t{64}
                                 << 20;  // bytes of a constant mask: that of 4096 tokens in f32

bool is_real(ExprRef e) { return e->type == Scalar::f32 || e->type == Scalar::f64; }

// Masks below a limit, which a flag holds them to.
struct Held {
  std::function<bool(ExprRef)> is_mask;
  std::function<ExprRef(ExprRef mask, int64_t limit)> below;
};

// A product is 0 where a factor is. It may be 0 elsewhere too, as 2^32 * 2^32, but not if the
// factors are masks of few bits.
ExprRef zero_factors(ExprRef c, const Held& held) {
  ExprRef p = c->args[0];
  ExprPool& pool = *c->pool;
  const int64_t bits = p->kind == ExprKind::wrap ? p->value : 64;
  if (p->kind == ExprKind::wrap) p = p->args[0];
  if (bits < 32 || p->kind != ExprKind::poly || p->terms.size() != 1 || p->value != 0 ||
      p->terms[0].coefficient != 1)
    return c;
  const std::vector<ExprRef>& atoms = p->terms[0].atoms;
  const bool exact = bits == 64 && ir::fits(p);
  if (!exact && !std::all_of(atoms.begin(), atoms.end(), held.is_mask)) return c;
  const int64_t limit = int64_t{1} << ((bits - 1) / static_cast<int64_t>(atoms.size()));
  ExprRef any = pool.boolean(false);
  for (ExprRef atom : atoms)
    any = ir::logical_or(any, ir::eq(exact ? atom : held.below(atom, limit), pool.integer(0)));
  return any;
}

// A comparison of integers that says two things as two: |i - j| <= 4, %m[i] * %m[j] == 0. Else the
// condition itself.
ExprRef spelled_out(ExprRef c, const Held& held) {
  if (c->kind != ExprKind::ge0 && c->kind != ExprKind::eq0) return c;
  ExprRef p = c->args[0];
  ExprPool& pool = *c->pool;
  if (c->kind == ExprKind::eq0) return zero_factors(c, held);
  for (const ir::Term& t : p->terms) {
    if (t.atoms.size() != 1 || t.atoms[0]->kind != ExprKind::iabs) continue;
    ExprRef x = ir::mul(pool.integer(t.coefficient), t.atoms[0]->args[0]);
    ExprRef rest = ir::sub(p, ir::mul(pool.integer(t.coefficient), t.atoms[0]));
    ExprRef above = ir::add(rest, x), below = ir::sub(rest, x);
    const bool apart = ir::fits(above) && ir::fits(below);
    if (!apart) continue;  // what may wrap is one condition
    ExprRef plus = spelled_out(ir::le(pool.integer(0), above), held),
            minus = spelled_out(ir::le(pool.integer(0), below), held);
    return t.coefficient < 0 ? ir::logical_and(plus, minus) : ir::logical_or(plus, minus);
  }
  return c;
}

// What the score is computed from: not what finds the elements that it loads.
void for_each_part(ExprRef e, const std::function<void(ExprRef)>& f) {
  std::unordered_set<ExprRef> indices;
  ir::for_each_node(e, [&](ExprRef n) {
    if (n->kind != ExprKind::load) return;
    for (ExprRef a : n->args) ir::for_each_node(a, [&](ExprRef m) { indices.insert(m); });
  });
  ir::for_each_node(e, [&](ExprRef n) {
    if (!indices.count(n)) f(n);
  });
}

// The score with conditions in parts that can be decided and classified by themselves.
ExprRef with_simple_conditions(ExprRef score, const Held& held) {
  std::unordered_map<ExprRef, ExprRef> by;
  for_each_part(score, [&](ExprRef n) {
    if (ExprRef c = spelled_out(n, held); c != n) by.emplace(n, c);
  });
  if (by.empty()) return score;
  return ir::rewrite(score, [&](ExprRef n) -> ExprRef {
    const auto it = by.find(n);
    return it == by.end() ? nullptr : it->second;
  });
}

// How a number that is 0 or 1 enters a score: as a factor (1), not at all (0), or in a way that
// says it is something else, like an id or a position (2): in a power, a remainder, a minimum, or
// in a difference from the same input at another place.
class Degree {
 public:
  explicit Degree(ExprRef mask) : mask_(mask) {}

  int of(ExprRef e) {
    if (e->type == Scalar::boolean) return 0;
    if (auto it = known_.find(e); it != known_.end()) return it->second;
    const int d = compute(e);
    known_.emplace(e, d);
    return d;
  }

 private:
  int compute(ExprRef e) {
    if (e == mask_) return 1;
    switch (e->kind) {
      case ExprKind::poly: return of_polynomial(e);
      case ExprKind::i2f:
      case ExprKind::f2f:
      case ExprKind::fneg:
      case ExprKind::log:
      case ExprKind::round_f16:
      case ExprKind::round_bf16: return of(e->args[0]);
      case ExprKind::fmul: return std::min(of(e->args[0]) + of(e->args[1]), 2);
      case ExprKind::fdiv: return of(e->args[1]) ? 2 : of(e->args[0]);
      case ExprKind::select: return std::max(of(e->args[1]), of(e->args[2]));
      case ExprKind::fadd:
      case ExprKind::fsub: return is_compared(e) ? 2 : std::max(of(e->args[0]), of(e->args[1]));
      case ExprKind::fmin:
      case ExprKind::fmax: {
        // A clip to small numbers makes its own 0 and 1; penalties are clipped to large ones, and
        // masks joined with others.
        const bool clips = is_small(e->args[0]) || is_small(e->args[1]);
        return occurs(e) && (clips || is_compared(e)) ? 2
                                                      : std::max(of(e->args[0]), of(e->args[1]));
      }
      default: return occurs(e) ? 2 : 0;
    }
  }

  static bool is_small(ExprRef e) { return ir::as_real(e) && !has_large_constant(e); }

  // One product of masks and conditions, and what no data is in.
  int of_polynomial(ExprRef e) {
    int degree = 0, with_data = 0;
    for (const ir::Term& t : e->terms) {
      int d = 0;
      for (ExprRef atom : t.atoms) d += of(atom);
      degree = std::max(degree, d);
      with_data += std::any_of(t.atoms.begin(), t.atoms.end(), ir::has_loads);
    }
    return degree == 1 && with_data > 1 ? 2 : std::min(degree, 2);
  }

  // Does a sum that masks nothing by itself read the same input at two places?
  bool is_compared(ExprRef e) {
    if (has_large_constant(e)) return false;
    for (size_t k = 0; k < 2; ++k) {
      if (of(e->args[k]) == 0) continue;  // cost: then nothing of it is in the other
      bool found = false;
      for_each_part(e->args[1 - k], [&](ExprRef n) {
        found |= n->kind == ExprKind::load && n->value == mask_->value && n != mask_;
      });
      if (found) return true;
    }
    return false;
  }

  bool occurs(ExprRef e) {
    bool found = false;
    for_each_part(e, [&](ExprRef n) { found |= n == mask_; });
    return found;
  }

  ExprRef mask_;
  std::unordered_map<ExprRef, int> known_;
};

// A converted integer that is proved to be 0 or 1 is a condition: clip(ids, 0, 1), a product of
// comparisons. A remainder is not taken for one: it says nothing of padding, and where no id is odd
// the sequence would count as padded throughout.
ExprRef as_condition(ExprRef n) {
  if (n->kind != ExprKind::i2f) return nullptr;
  ExprPool& pool = *n->pool;
  ExprRef x = n->args[0], one = pool.integer(1), zero = pool.integer(0);
  bool divides = false;
  ir::for_each_node(x, [&](ExprRef m) { divides |= m->kind == ExprKind::floordiv; });
  if (divides || !ir::has_loads(x) || !ir::prove_le(zero, x) || !ir::prove_le(x, one))
    return nullptr;
  return ir::select(ir::le(one, x), pool.real(1, n->type), pool.real(0, n->type));
}

}  // namespace

ExprRef decide(ExprRef e, const Control& c, bool value) {
  ExprPool& pool = *e->pool;
  ExprRef known = nullptr, is = nullptr;
  if (value && c.node->kind == ExprKind::eq0) {
    ExprRef p = c.node->args[0];
    if (p->kind == ExprKind::load) known = p, is = pool.integer(0);
    if (p->kind == ExprKind::poly && p->terms.size() == 1 && p->terms[0].atoms.size() == 1 &&
        p->terms[0].coefficient == 1 && p->terms[0].atoms[0]->kind == ExprKind::load) {
      known = p->terms[0].atoms[0];
      is = pool.integer(-p->value);
    }
  }
  return ir::rewrite(e, [&](ExprRef n) -> ExprRef {
    if (n == c.node && n->type == Scalar::boolean) return pool.boolean(value);
    if (n == c.node)
      return n->type == Scalar::i64 ? pool.integer(value) : pool.real(value, n->type);
    return n == known ? is : nullptr;
  });
}

// A graph input [batch, position], other axes of size 1 aside.
bool MaskCases::is_mask_load(ExprRef load) const {
  if (load->kind != ExprKind::load) return false;
  if (graph_.def(operands_[load->value])) return false;
  size_t positions = 0;
  for (size_t k = 1; k < load->args.size(); ++k) {
    ExprRef i = load->args[k];
    if (ir::is_int(i, 0)) continue;
    if (i->kind != ExprKind::index || i->value < 2) return false;
    ++positions;
  }
  return positions == 1 && load->args[0]->kind == ExprKind::index &&
         load->args[0]->value == ir::kBatch;
}

bool MaskCases::may_mask(ExprRef score) const {
  bool found = false;
  for_each_part(score, [&](ExprRef n) {
    found |= n->args.empty() && has_large_constant(n);
    if (n->kind != ExprKind::log) return;
    ir::for_each_node(n, [&](ExprRef m) { found |= is_mask_load(m); });
  });
  return found;
}

// A real mask that e reads through real arithmetic alone: after a rounding it need not be 0 or 1.
ExprRef MaskCases::real_mask(ExprRef e) const {
  if (e->kind == ExprKind::load) return e->type != Scalar::i64 && is_mask_load(e) ? e : nullptr;
  switch (e->kind) {
    case ExprKind::fadd:
    case ExprKind::fsub:
    case ExprKind::fmul:
    case ExprKind::fdiv:
    case ExprKind::fneg:
    case ExprKind::f2f:
    case ExprKind::log: break;
    default: return nullptr;
  }
  for (ExprRef a : e->args) {
    ExprRef m = real_mask(a);
    if (m) return m;
  }
  return nullptr;
}

// The contract of a mask that is computed with is that it is 0 or 1; a number used in another way
// is no such mask.
bool MaskCases::is_indicator(ExprRef load) const {
  return is_mask_load(load) && Degree(load).of(whole_) <= 1;
}

std::optional<Control> MaskCases::find_control(ExprRef e) const {
  std::unordered_set<ExprRef>
      compared;  // a number in a comparison need not be 0 or 1: the comparison is the control
  for_each_part(e, [&](ExprRef n) {
    if (n->kind != ExprKind::flt && n->kind != ExprKind::fle && n->kind != ExprKind::feq) return;
    for (ExprRef a : n->args) compared.insert(a);
  });
  std::optional<Control> found;
  // Children first: a comparison with what a select makes waits until that is decided.
  for_each_part(e, [&](ExprRef n) {
    if (found) return;
    if (n->kind == ExprKind::select && is_real(n)) {
      // A conjunction is decided one literal at a time, so that each can be classified by its
      // indices.
      ExprRef c = n->args[0];
      while (c->kind == ExprKind::band || c->kind == ExprKind::bor || c->kind == ExprKind::bnot)
        c = c->args[0];
      found = Control{c};
    } else if (n->kind == ExprKind::i2f && !compared.count(n)) {
      ir::for_each_node(n->args[0], [&](ExprRef m) {
        if (!found && m->type == Scalar::i64 && is_indicator(m)) found = Control{m};
      });
    }
  });
  if (found) return found;
  // A real mask is one where a large constant is multiplied by what it makes; what is only added is
  // a bias.
  ir::for_each_node(e, [&](ExprRef n) {
    if (found) return;  // cost: any of them will do
    if (n->kind != ExprKind::log && (n->kind != ExprKind::fmul || !may_mask(n))) return;
    if (ExprRef m = real_mask(n); m && is_indicator(m)) found = Control{m};
  });
  return found;
}

// A triangle or a band that the graph holds as a constant becomes the condition that it is;
// conditions come in simple parts.
ExprRef MaskCases::prepared(ExprRef score,
                            const std::function<int64_t(const std::string&)>& flag_of) const {
  Held held;
  held.is_mask = [&](ExprRef e) { return is_mask_load(e); };
  held.below = [&](ExprRef mask, int64_t limit) {
    ExprPool& pool = *mask->pool;
    const std::string message = fmt::format(
        "{}: a mask value is {} or more, or as far below 0; compile with --skip-passes=classify-mask if it is no mask",
        graph_.value(operands_[mask->value]).name, limit);
    return ir::bounded(ir::abs(mask), pool.integer(limit), flag_of(message));
  };
  score = ir::rewrite(score, [&](ExprRef n) -> ExprRef {
    if (n->kind != ExprKind::load) return nullptr;
    if (!ir::uses_index(n, ir::kQuery) || !ir::uses_index(n, ir::kKey))
      return nullptr;  // cost: no triangle
    const ir::Constant* c = graph_.constant(operands_[n->value]);
    return c ? ir::constant_element(*n->pool, *c, n->args, kLargestBand) : nullptr;
  });
  return without_idle_clamps(ir::rewrite(with_simple_conditions(score, held), as_condition));
}

std::optional<std::vector<Case>> MaskCases::split(ExprRef score) {
  cases_.clear();
  whole_ = score;
  if (!split(Case{{}, score})) return std::nullopt;
  return std::move(cases_);
}

namespace {

// Whether no index makes both of these so: a >= 0 and b < 0 where b >= a, and the like.
bool contradict(const Choice& a, const Choice& b) {
  const auto bound = [](const Choice& c) -> ExprRef {  // >= 0 where the choice holds
    if (c.control.node->kind != ExprKind::ge0) return nullptr;
    ExprRef e = c.control.node->args[0];
    return c.value ? e : ir::sub(e->pool->integer(-1), e);
  };
  ExprRef x = bound(a), y = bound(b);
  return x && y && ir::prove_ge0(ir::sub(x->pool->integer(-1), ir::add(x, y)));
}

}  // namespace

bool MaskCases::split(Case c) {
  std::optional<Control> control;
  if (may_mask(c.score)) control = find_control(c.score);
  if (!control) {
    cases_.push_back(std::move(c));
    return true;
  }
  if (c.choices.size() >= kControls) return false;
  for (bool value : {true, false}) {
    Case next = c;
    const Choice choice{*control, value};
    if (std::ranges::any_of(c.choices, [&](const Choice& o) { return contradict(o, choice); }))
      continue;
    next.choices.push_back(choice);
    next.score = without_idle_clamps(decide(c.score, *control, value));
    if (!split(std::move(next))) return false;
  }
  return true;
}

}  // namespace tfcc::passes
