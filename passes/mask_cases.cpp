// SPDX-License-Identifier: Apache-2.0
#include "passes/mask_cases.h"

#include <unordered_map>
#include <unordered_set>

#include "passes/mask_score.h"

namespace tfcc::passes {
namespace {

constexpr size_t kControls = 10;
constexpr int64_t kLargestBand = int64_t{64} << 20;  // bytes of a constant mask: that of 4096 tokens in f32

bool is_real(ExprRef e) { return e->type == Scalar::f32 || e->type == Scalar::f64; }

// A comparison of integers that says two things as two: |i - j| <= 4, %m[i] * %m[j] == 0. Else the condition itself.
ExprRef spelled_out(ExprRef c) {
  if (c->kind != ExprKind::ge0 && c->kind != ExprKind::eq0) return c;
  ExprRef p = c->args[0];
  ExprPool& pool = *c->pool;
  if (c->kind == ExprKind::eq0) {
    if (p->kind != ExprKind::poly || p->terms.size() != 1 || p->value != 0) return c;
    ExprRef any = pool.boolean(false);
    for (ExprRef atom : p->terms[0].atoms) any = ir::logical_or(any, ir::eq(atom, pool.integer(0)));
    return any;
  }
  for (const ir::Term& t : p->terms) {
    if (t.atoms.size() != 1 || t.atoms[0]->kind != ExprKind::iabs) continue;
    ExprRef x = ir::mul(pool.integer(t.coefficient), t.atoms[0]->args[0]);
    ExprRef rest = ir::sub(p, ir::mul(pool.integer(t.coefficient), t.atoms[0]));
    ExprRef plus = spelled_out(ir::le(pool.integer(0), ir::add(rest, x))), minus = spelled_out(ir::le(pool.integer(0), ir::sub(rest, x)));
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
ExprRef with_simple_conditions(ExprRef score) {
  std::unordered_map<ExprRef, ExprRef> by;
  for_each_part(score, [&](ExprRef n) {
    if (ExprRef c = spelled_out(n); c != n) by.emplace(n, c);
  });
  if (by.empty()) return score;
  return ir::rewrite(score, [&](ExprRef n) -> ExprRef {
    const auto it = by.find(n);
    return it == by.end() ? nullptr : it->second;
  });
}

// The score with a control decided. `mask == 1` being true says what the mask is.
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
    if (n == c.node) return n->type == Scalar::i64 ? pool.integer(value) : pool.real(value, n->type);
    return n == known ? is : nullptr;
  });
}

}  // namespace

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
  return positions == 1 && load->args[0]->kind == ExprKind::index && load->args[0]->value == 0;
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
    case ExprKind::fadd: case ExprKind::fsub: case ExprKind::fmul: case ExprKind::fdiv: case ExprKind::fneg: case ExprKind::f2f: case ExprKind::log:
      break;
    default: return nullptr;
  }
  for (ExprRef a : e->args) {
    ExprRef m = real_mask(a);
    if (m) return m;
  }
  return nullptr;
}

std::optional<Control> MaskCases::find_control(ExprRef e) const {
  std::unordered_set<ExprRef> compared;  // a number in a comparison need not be 0 or 1: the comparison is the control
  for_each_part(e, [&](ExprRef n) {
    if (n->kind != ExprKind::flt && n->kind != ExprKind::fle && n->kind != ExprKind::feq) return;
    for (ExprRef a : n->args) compared.insert(a);
  });
  std::optional<Control> found;
  // Children first: a comparison with what a select makes waits until that is decided.
  for_each_part(e, [&](ExprRef n) {
    if (found) return;
    if (n->kind == ExprKind::select && is_real(n)) {
      // A conjunction is decided one literal at a time, so that each can be classified by its indices.
      ExprRef c = n->args[0];
      while (c->kind == ExprKind::band || c->kind == ExprKind::bor || c->kind == ExprKind::bnot) c = c->args[0];
      found = Control{c};
    } else if (n->kind == ExprKind::i2f && !compared.count(n)) {
      ir::for_each_node(n->args[0], [&](ExprRef m) {
        if (!found && m->type == Scalar::i64 && is_mask_load(m)) found = Control{m};
      });
    }
  });
  if (found) return found;
  // A real mask is one where a large constant is multiplied by what it makes; what is only added is a bias.
  ir::for_each_node(e, [&](ExprRef n) {
    if (found) return;  // cost: any of them will do
    if (n->kind != ExprKind::log && (n->kind != ExprKind::fmul || !may_mask(n))) return;
    if (ExprRef m = real_mask(n)) found = Control{m};
  });
  return found;
}

// A triangle or a band that the graph holds as a constant becomes the condition that it is; conditions come in simple parts.
ExprRef MaskCases::prepared(ExprRef score) const {
  score = ir::rewrite(score, [&](ExprRef n) -> ExprRef {
    if (n->kind != ExprKind::load) return nullptr;
    if (!ir::uses_index(n, 2) || !ir::uses_index(n, 3)) return nullptr;  // cost: no triangle
    const ir::Constant* c = graph_.constant(operands_[n->value]);
    return c ? ir::constant_element(*n->pool, *c, n->args, kLargestBand) : nullptr;
  });
  return without_idle_clamps(with_simple_conditions(score));
}

std::optional<std::vector<Case>> MaskCases::split(ExprRef score) {
  cases_.clear();
  if (!split(Case{{}, score})) return std::nullopt;
  return std::move(cases_);
}

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
    next.choices.push_back({*control, value});
    next.score = without_idle_clamps(decide(c.score, *control, value));
    if (!split(std::move(next))) return false;
  }
  return true;
}

}  // namespace tfcc::passes
