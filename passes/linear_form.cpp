// SPDX-License-Identifier: Apache-2.0
#include "passes/linear_form.h"

#include <algorithm>

#include "ir/ir.h"
#include "ir/matmul.h"

namespace tfcc::passes {

std::set<int64_t> numbers_of(ExprRef e) {
  std::set<int64_t> found;
  ir::for_each_node(e, [&](ExprRef n) {
    if (n->kind == ExprKind::index) found.insert(n->value);
  });
  return found;
}

namespace {

bool uses(ExprRef e, int64_t number) { return ir::uses_index(e, number); }

ExprRef element(const Graph& g, ValueId v, const Indices& at) {
  return expanded(g, v, at, [&](ValueId x) { return is_biased_product(g, x); });
}

// Operand i of a product at (row, column) of what it multiplies, its leading dims those of the
// result.
ExprRef operand_at(const Graph& g, const ir::Op& product, size_t i, bool swap, const Indices& lead,
                   ExprRef row, ExprRef column) {
  const ValueId v = product.operands[i];
  return element(g, v, ir::factor_indices(g, v, swap, lead, row, column));
}

}  // namespace

ExprRef summand(const Graph& g, ExprRef load, int64_t number) {
  const auto v = loaded(load);
  const ir::Op* op = v ? g.def(*v) : nullptr;
  if (!op) return nullptr;
  if (op->kind == OpKind::reduce) {
    const auto& a = op->as<ir::ReduceAttrs>();
    if (a.kind != ir::ReduceKind::sum || a.extents.size() != 1) return nullptr;
    Indices at = load->args;
    at.push_back(g.pool().index(number, a.extents[0]));
    return ir::expand(g, ir::free_expr(g, g.value(*v).def, a.body, at),
                      [&](ValueId x) { return !is_biased_product(g, x); });
  }
  if (!ir::is_plain_product(*op) || load->type != Scalar::f32) return nullptr;
  const auto& a = op->as<ir::MatmulAttrs>();
  if (a.epilogue) return nullptr;  // a bias is added to the sum
  const auto& left = g.value(op->operands[0]).type;
  const size_t r = load->args.size();
  const Indices lead(load->args.begin(), load->args.end() - 2);
  ExprRef x = g.pool().index(number, a.trans_a ? left.dims[left.rank() - 2] : left.dims.back());
  ExprRef p = ir::mul(operand_at(g, *op, 0, a.trans_a, lead, load->args[r - 2], x),
                      operand_at(g, *op, 1, a.trans_b, lead, x, load->args[r - 1]));
  return a.alpha == 1 ? p : ir::mul(p, g.pool().real(a.alpha));
}

ExprRef running_summand(const Graph& g, ExprRef load, int64_t number, ExprRef* end,
                        bool any_direction) {
  const auto v = loaded(load);
  const ir::Op* op = v ? g.def(*v) : nullptr;
  if (!op || op->kind != OpKind::cumsum) return nullptr;
  const auto& a = op->as<ir::CumsumAttrs>();
  if (!any_direction && (a.exclusive || a.reverse)) return nullptr;
  Indices at = load->args;
  const auto axis = static_cast<size_t>(a.axis);
  *end = at[axis];
  at[axis] = g.pool().index(number, g.value(*v).type.dims[axis]);
  ExprRef added = element(g, op->operands[0], at);
  return added && added->type == Scalar::f32 ? added : nullptr;
}

namespace {

void split(ExprRef e, bool below, Factors& f) {
  if (const auto c = ir::as_real(e)) {
    f.scale = below ? f.scale / *c : f.scale * *c;
  } else if (e->kind == ExprKind::fmul || e->kind == ExprKind::fdiv) {
    split(e->args[0], below, f);
    split(e->args[1], e->kind == ExprKind::fdiv ? !below : below, f);
  } else if (e->kind == ExprKind::fneg) {
    f.scale = -f.scale;
    split(e->args[0], below, f);
  } else {
    (below ? f.down : f.up).push_back(e);
  }
}

}  // namespace

Factors factors_of(ExprRef e) {
  Factors f;
  split(e, false, f);
  return f;
}

ExprRef product_of(const std::vector<ExprRef>& factors) {
  ExprRef p = nullptr;
  for (ExprRef f : factors) p = p ? ir::mul(p, f) : f;
  return p;
}

namespace {

bool is_zero(ExprRef e) { return ir::as_real(e) == 0.0; }
bool is_minus_infinity(ExprRef e) {
  const auto c = ir::as_real(e);
  return c && *c < -1e30;  // whose exp is 0 too
}

// A weight, perhaps kept in few bits.
bool is_weight(const Graph& g, ValueId v, int steps = 6) {
  if (g.is_constant(v)) return true;
  if (steps == 0) return false;  // cost: no weight is unpacked in as many steps
  const ir::Op* op = g.def(v);
  if (!op || op->operands.empty())
    return false;  // cost: what follows from sizes alone is no token's
  return std::ranges::all_of(op->operands, [&](ValueId x) { return is_weight(g, x, steps - 1); });
}

// q, k and v themselves, where they have no bias: a token times a weight.
bool is_projection(const Graph& g, ExprRef e) {
  const auto v = loaded(e);
  const ir::Op* op = v ? g.def(*v) : nullptr;
  return op && op->kind == OpKind::matmul &&
         (is_weight(g, op->operands[0]) || is_weight(g, op->operands[1]));
}

// Whether this load may be the sum inside: one of both x and something else.
bool sums_inside(const Graph& g, ExprRef e, int64_t x, int64_t inside) {
  if (!uses(e, x)) return false;  // cost: such a sum is a factor of the row
  if (is_projection(g, e)) return false;
  ExprRef end = nullptr;
  return summand(g, e, inside) || running_summand(g, e, inside, &end, true);
}

class FormReader {
 public:
  FormReader(const Graph& g, int64_t x, int64_t inside) : g_(g), x_(x), inside_(inside) {}

  LinearForm read(ExprRef product) {
    take(product);
    if (f_.problem.empty() && !f_.inner) f_.problem = "no sum inside of it";
    if (f_.problem.empty()) look_inside();
    return std::move(f_);
  }

 private:
  void fail(const char* why) {
    if (f_.problem.empty()) f_.problem = why;
  }

  void take(ExprRef e) {
    Factors parts = factors_of(e);
    f_.scale *= parts.scale;
    for (ExprRef d : parts.down) {
      if (uses(d, x_)) fail("the sum is divided by what it is summed over");
      f_.row_divisors.push_back(d);
    }
    for (ExprRef u : parts.up) take_factor(u);
  }

  void take_factor(ExprRef e) {
    if (!uses(e, x_)) {
      f_.rows.push_back(e);
    } else if (e->kind == ExprKind::select && (is_zero(e->args[1]) || is_zero(e->args[2])) &&
               is_of_weights(e)) {
      const bool hides = is_zero(e->args[1]);
      f_.conditions.push_back(hides ? ir::logical_not(e->args[0]) : e->args[0]);
      take(e->args[hides ? 2 : 1]);
    } else if (e->kind == ExprKind::exp) {
      take_exponent(e->args[0]);
    } else if (e->kind == ExprKind::fpow && !uses(e->args[0], x_)) {
      f_.exponents.push_back(ir::mul(ir::unary(ExprKind::log, e->args[0]), e->args[1]));
    } else if (!f_.inner && sums_inside(g_, e, x_, inside_)) {
      f_.inner = e;
    } else {
      factors_.push_back(e);
    }
  }

  // A condition on weights is one on places, or it shows the sum inside, or 1; others belong to
  // features.
  bool is_of_weights(ExprRef e) const {
    bool found = !ir::has_loads(e->args[0]) || (ir::as_real(e->args[1]) && ir::as_real(e->args[2]));
    ir::for_each_node(e, [&](ExprRef n) { found = found || sums_inside(g_, n, x_, inside_); });
    return found;
  }

  void take_exponent(ExprRef e) {
    if (e->kind == ExprKind::select &&
        (is_minus_infinity(e->args[1]) || is_minus_infinity(e->args[2]))) {
      const bool hides = is_minus_infinity(e->args[1]);
      f_.conditions.push_back(hides ? ir::logical_not(e->args[0]) : e->args[0]);
      e = e->args[hides ? 2 : 1];
    }
    f_.exponents.push_back(e);
  }

  // A state is a running sum, or a sum inside of which one factor alone depends on x: with q and k
  // both do.
  void look_inside() {
    ExprRef sum = running_summand(g_, f_.inner, inside_, &f_.end, true);
    f_.running = sum != nullptr;
    if (sum && !running_summand(g_, f_.inner, inside_, &f_.end))
      fail("the running sum leaves its own token out, or runs from the end");
    if (!sum) sum = summand(g_, f_.inner, inside_);
    Factors parts = factors_of(sum);
    if (!parts.down.empty()) return fail("what is summed inside is divided");
    f_.scale *= parts.scale;
    // A query depends on the token that the sum outside is not over; in a state it stands outside.
    f_.state = f_.running || f_.conditions.empty();
    if (f_.state) {
      for (ExprRef e : f_.exponents) factors_.push_back(ir::unary(ExprKind::exp, e));
      f_.exponents.clear();
      if (!f_.conditions.empty()) return fail("a condition on features");
      f_.q = factors_;
      f_.inside = parts.up;
      return;
    }
    f_.inside = factors_;
    for (ExprRef u : parts.up) (uses(u, x_) ? f_.k : f_.q).push_back(u);
  }

  const Graph& g_;
  int64_t x_, inside_;
  LinearForm f_;
  std::vector<ExprRef> factors_;
};

}  // namespace

LinearForm linear_form(const Graph& g, ExprRef product, int64_t x, int64_t inside) {
  return FormReader(g, x, inside).read(product);
}

namespace {

bool is_index(ExprRef e) { return e->kind == ExprKind::i2f; }

// a and b of a comparison of a with b, both integers, or nothing.
std::optional<std::pair<ExprRef, ExprRef>> compared(ExprRef a, ExprRef b) {
  if (is_index(a) && is_index(b)) return std::pair(a->args[0], b->args[0]);
  const auto difference = [](ExprRef e) {
    return e->kind == ExprKind::fsub && is_index(e->args[0]) && is_index(e->args[1]);
  };
  if (difference(a) && is_zero(b)) return std::pair(a->args[0]->args[0], a->args[1]->args[0]);
  if (difference(b) && is_zero(a)) return std::pair(b->args[1]->args[0], b->args[0]->args[0]);
  return std::nullopt;
}

}  // namespace

ExprRef over_integers(ExprRef c) {
  if (c->kind == ExprKind::bnot) return ir::logical_not(over_integers(c->args[0]));
  if (c->kind == ExprKind::band) {
    ExprRef all = c->pool->boolean(true);
    for (ExprRef a : c->args) all = ir::logical_and(all, over_integers(a));
    return all;
  }
  if (c->kind != ExprKind::flt && c->kind != ExprKind::fle) return c;
  const auto pair = compared(c->args[0], c->args[1]);
  if (!pair) return c;
  return c->kind == ExprKind::flt ? ir::lt(pair->first, pair->second)
                                  : ir::le(pair->first, pair->second);
}

ExprRef decay_of(const Graph& g, ExprRef exponent, ExprRef t, ExprRef j) {
  const auto is_distance = [&](ExprRef e) {
    if (e->kind == ExprKind::i2f) return e->args[0] == ir::sub(t, j);
    return e->kind == ExprKind::fsub && e->args[0] == ir::convert(t, Scalar::f32) &&
           e->args[1] == ir::convert(j, Scalar::f32);
  };
  Factors parts = factors_of(exponent);
  if (!parts.down.empty()) return nullptr;
  const auto found = std::find_if(parts.up.begin(), parts.up.end(), is_distance);
  const bool by_distance = found != parts.up.end();
  ExprRef decay = nullptr;
  if (by_distance) {
    parts.up.erase(found);
    decay = product_of(parts.up);
    if (!decay) return g.pool().real(parts.scale);
  } else if (parts.up.size() == 1 && parts.up[0]->kind == ExprKind::fsub) {
    ExprRef from = nullptr, to = nullptr;
    ExprRef a = parts.up[0]->args[0], b = parts.up[0]->args[1];
    const double scale = peel_scale(a);
    if (peel_scale(b) != scale) return nullptr;
    ExprRef at_t = running_summand(g, a, kJ, &to), at_j = running_summand(g, b, kJ, &from);
    if (at_t != at_j || to != t || from != j) return nullptr;
    decay = ir::rewrite(at_t, [&](ExprRef n) { return n == j ? t : nullptr; });
    parts.scale *= scale;
  }
  if (!decay || uses(decay, kJ) || (by_distance && uses(decay, kT))) return nullptr;
  return parts.scale == 1 ? decay : ir::mul(decay, g.pool().real(parts.scale));
}

}  // namespace tfcc::passes
