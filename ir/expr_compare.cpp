// SPDX-License-Identifier: Apache-2.0
// Builders of booleans: comparisons of integers and of reals, and what joins them. Every rule here
// is exact on the values it rewrites.
#include <cmath>
#include <numeric>

#include "ir/expr_node.h"
#include "ir/expr_poly.h"
#include "ir/range.h"
#include "runtime/result.h"

namespace tfcc::ir {
namespace {

// k * select(c, a, b) + m with constants a, b, m: the comparison moves into the arms, where it
// folds.
template <class F> ExprRef through_select(ExprRef p, F compare_with) {
  const Poly poly = to_poly(p);
  if (poly.terms.size() != 1 || poly.terms[0].atoms.size() != 1) return nullptr;
  ExprRef s = poly.terms[0].atoms[0];
  if (s->kind != ExprKind::select || !as_int(s->args[1]) || !as_int(s->args[2])) return nullptr;
  int64_t arms[2];
  for (size_t i = 0; i < 2; ++i) {
    if (__builtin_mul_overflow(*as_int(s->args[i + 1]), poly.terms[0].coefficient, &arms[i]) ||
        __builtin_add_overflow(arms[i], poly.constant, &arms[i])) {
      return nullptr;
    }
  }
  return select(s->args[0], compare_with(p->pool->integer(arms[0])),
                compare_with(p->pool->integer(arms[1])));
}

int64_t content(const Poly& p) {
  int64_t g = 0;
  for (const Term& t : p.terms) {
    g = std::gcd(g, t.coefficient == INT64_MIN ? 1 : t.coefficient);  // its magnitude does not fit
  }
  return g == 0 ? 1 : g;
}

// Can p >= 0 be evaluated: as large side >= small side, and as it is where sizes and indices alone
// are in it?
bool is_comparable(ExprRef p) { return (p->has_load || fits(p)) && sides_fit(p); }

// x / c <= n is x <= n c + c - 1, and x / c >= n is x >= n c: the bound that a guarded load needs.
// Null for another polynomial.
ExprRef without_division(ExprRef p) {
  const Poly poly = to_poly(p);
  if (poly.terms.size() != 1 || poly.terms[0].atoms.size() != 1) return nullptr;
  const int64_t sign = poly.terms[0].coefficient;
  ExprRef atom = poly.terms[0].atoms[0];
  if (atom->kind != ExprKind::floordiv || (sign != 1 && sign != -1) || !as_int(atom->args[1]) ||
      !fits(atom->args[0]))
    return nullptr;
  const int64_t c = *as_int(atom->args[1]);
  if (c < 1) return nullptr;
  Poly claim = add({}, {{}, poly.constant}, c);
  if (sign == -1) claim = add(claim, {{}, c - 1});
  claim = add(claim, to_poly(atom->args[0]), sign);
  if (claim.lost()) return nullptr;
  ExprRef undivided = from_poly(*p->pool, std::move(claim));
  return is_comparable(undivided) ? undivided : nullptr;
}

// Of a polynomial that is_comparable().
ExprRef ge0(ExprRef p) {
  ExprPool& pool = *p->pool;
  if (auto v = as_int(p)) return pool.boolean(*v >= 0);
  if (ExprRef folded = through_select(p, ge0)) return folded;
  Poly poly = to_poly(p);
  const int64_t g = content(poly);
  if (g > 1) {
    for (Term& t : poly.terms) t.coefficient /= g;
    poly.constant = floor_div(poly.constant, g);
    p = from_poly(pool, poly);
  }
  if (ExprRef undivided = without_division(p)) return ge0(undivided);
  if (claim_ge0(p)) return pool.boolean(true);
  if (claim_ge0(sub(pool.integer(-1), p))) return pool.boolean(false);
  return make_node(ExprKind::ge0, Scalar::boolean, {p});
}

// sign * p >= 1.
bool always_above(const Poly& p, int64_t sign, ExprPool& pool) {
  const Poly claim = add(scale(p, sign), {{}, -1});
  return !claim.lost() && claim_ge0(from_poly(pool, claim));
}

// b - a - less, if a <= b - less is what that says on a machine; else null.
ExprRef difference(ExprRef b, ExprRef a, int64_t less) {
  if (!fits(a) || !fits(b)) return nullptr;
  const Poly p = add(add(to_poly(b), to_poly(a), -1), {{}, -less});
  if (p.lost()) return nullptr;
  ExprRef e = from_poly(*a->pool, p);
  return is_comparable(e) ? e : nullptr;
}

// max(a, b) == b is a <= b, as at_most() writes what might wrap: where its parts have become sizes it
// is compared as they are. Null for another polynomial.
ExprRef without_extremum(const Poly& p, ExprPool& pool) {
  for (const Term& t : p.terms) {
    if (t.atoms.size() != 1 || (t.coefficient != 1 && t.coefficient != -1)) continue;
    ExprRef m = t.atoms[0];
    if (m->kind != ExprKind::imax && m->kind != ExprKind::imin) continue;
    ExprRef equal = from_poly(pool, add(to_poly(m), p, -t.coefficient));
    for (const size_t i : {0, 1}) {
      if (m->args[i] != equal) continue;
      ExprRef other = m->args[1 - i];
      ExprRef d =
          m->kind == ExprKind::imax ? difference(equal, other, 0) : difference(other, equal, 0);
      if (d) return ge0(d);
    }
  }
  return nullptr;
}

ExprRef eq0(ExprRef p) {
  ExprPool& pool = *p->pool;
  if (const Poison why = poison_of(p); why != Poison::none)
    return pool.poison(why, Scalar::boolean);
  if (auto v = as_int(p)) return pool.boolean(*v == 0);
  if (ExprRef folded = through_select(p, eq0)) return folded;
  Poly poly = to_poly(p);
  if (ExprRef compared = without_extremum(poly, pool)) return compared;
  const bool whole = fits_twice(poly, pool);  // else 2 x may be 0 where x is not
  const int64_t g = whole ? content(poly) : 1;
  if (poly.constant % g != 0) return pool.boolean(false);
  for (Term& t : poly.terms) t.coefficient /= g;
  poly.constant /= g;
  // p and -p are one condition: the sign that makes the first number which has one positive.
  const auto first = std::find_if(poly.terms.begin(), poly.terms.end(),
                                  [](const Term& t) { return t.coefficient != INT64_MIN; });
  if (first != poly.terms.end() && first->coefficient < 0) {
    const auto negated = [](int64_t v) {
      return static_cast<int64_t>(0 - static_cast<uint64_t>(v));
    };
    for (Term& t : poly.terms) t.coefficient = negated(t.coefficient);
    poly.constant = negated(poly.constant);
  }
  p = from_poly(pool, poly);
  if (whole && (always_above(poly, 1, pool) || always_above(poly, -1, pool)))
    return pool.boolean(false);
  return make_node(ExprKind::eq0, Scalar::boolean, {p});
}

// n-ary and/or: flattened, sorted, without repetition; all operands may be evaluated, so guards of
// loads stay selects.
ExprRef junction(ExprKind kind, ExprRef a, ExprRef b) {
  const bool is_and = kind == ExprKind::band;
  std::vector<ExprRef> args;
  if (a->type != Scalar::boolean || b->type != Scalar::boolean)
    return a->pool->poison(Poison::ill_typed, Scalar::boolean);
  for (ExprRef e : {a, b}) {
    if (poison_of(e) != Poison::none) return e;  // it is its own opposite
    if (is_bool(e, !is_and)) return e;
    if (is_bool(e, is_and)) continue;
    if (e->kind == kind) args.insert(args.end(), e->args.begin(), e->args.end());
    else args.push_back(e);
  }
  std::sort(args.begin(), args.end(), [](ExprRef x, ExprRef y) { return compare(x, y) < 0; });
  args.erase(std::unique(args.begin(), args.end()), args.end());
  if (args.empty()) return a->pool->boolean(is_and);
  for (ExprRef e : args) {
    if (std::find(args.begin(), args.end(), logical_not(e)) != args.end())
      return a->pool->boolean(!is_and);
  }
  if (args.size() == 1) return args[0];
  return make_node(kind, Scalar::boolean, std::move(args));
}

// Comparison of a real constant with select(c, constant, constant) folds in the arms.
ExprRef real_compare(ExprKind kind, ExprRef a, ExprRef b);

ExprRef compare_arms(ExprKind kind, ExprRef a, ExprRef b) {
  auto constant_arms = [](ExprRef s) {
    return s->kind == ExprKind::select && is_constant(s->args[1]) && is_constant(s->args[2]);
  };
  if (constant_arms(a) && is_constant(b)) {
    return select(a->args[0], real_compare(kind, a->args[1], b), real_compare(kind, a->args[2], b));
  }
  if (constant_arms(b) && is_constant(a)) {
    return select(b->args[0], real_compare(kind, a, b->args[1]), real_compare(kind, a, b->args[2]));
  }
  return nullptr;
}

// The integer behind a real, where comparing with the integer-valued constant `c` is exact.
ExprRef exact_integer(ExprRef a, double c) {
  if (a->kind != ExprKind::i2f || !(std::fabs(c) < 16777216.0)) return nullptr;  // NaN is none
  return a->args[0];
}

ExprRef compare_integer(ExprKind kind, ExprRef a, ExprRef b) {
  ExprPool& pool = *a->pool;
  if (auto c = as_real(b)) {
    if (ExprRef p = exact_integer(a, *c)) {
      const bool whole = std::floor(*c) == *c;
      if (kind == ExprKind::feq)
        return whole ? eq(p, pool.integer(static_cast<int64_t>(*c))) : pool.boolean(false);
      ExprRef limit = pool.integer(static_cast<int64_t>(std::floor(*c)));
      return kind == ExprKind::flt && whole ? lt(p, limit) : le(p, limit);  // p < 2.5 means p <= 2
    }
  }
  if (auto c = as_real(a)) {
    if (ExprRef p = exact_integer(b, *c)) {
      const bool whole = std::floor(*c) == *c;
      if (kind == ExprKind::feq)
        return whole ? eq(p, pool.integer(static_cast<int64_t>(*c))) : pool.boolean(false);
      ExprRef limit = pool.integer(static_cast<int64_t>(std::ceil(*c)));
      return kind == ExprKind::flt && whole ? lt(limit, p) : le(limit, p);
    }
  }
  return nullptr;
}

ExprRef real_compare(ExprKind kind, ExprRef a, ExprRef b) {
  ExprPool& pool = *a->pool;
  if (a->type != b->type) return pool.poison(Poison::ill_typed, Scalar::boolean);
  const auto va = as_real(a), vb = as_real(b);
  if (va && vb) {
    return pool.boolean(kind == ExprKind::flt   ? *va < *vb
                        : kind == ExprKind::fle ? *va <= *vb
                                                : *va == *vb);
  }
  if (ExprRef folded = compare_arms(kind, a, b)) return folded;
  if (ExprRef folded = compare_integer(kind, a, b)) return folded;
  if (kind == ExprKind::feq) {
    // x - y == 0 exactly when x == y, for finite numbers; c - i2f(p) is finite.
    if (is_real(b, 0) && a->kind == ExprKind::fsub &&
        (as_real(a->args[0]) || as_real(a->args[1]))) {
      return real_compare(kind, a->args[0], a->args[1]);
    }
    if (compare(a, b) > 0) std::swap(a, b);
  }
  return make_node(kind, Scalar::boolean, {a, b});
}

}  // namespace

ExprRef logical_and(ExprRef a, ExprRef b) { return junction(ExprKind::band, a, b); }
ExprRef logical_or(ExprRef a, ExprRef b) { return junction(ExprKind::bor, a, b); }

ExprRef logical_not(ExprRef a) {
  ExprPool& pool = *a->pool;
  if (a->type != Scalar::boolean) return pool.poison(Poison::ill_typed, Scalar::boolean);
  switch (a->kind) {
    case ExprKind::btrue: return pool.boolean(false);
    case ExprKind::bfalse: return pool.boolean(true);
    case ExprKind::bnot: return a->args[0];
    case ExprKind::ge0: {
      ExprRef p = sub(pool.integer(-1), a->args[0]);
      return is_comparable(p) ? ge0(p) : make_node(ExprKind::bnot, Scalar::boolean, {a});
    }
    default: return make_node(ExprKind::bnot, Scalar::boolean, {a});
  }
}

namespace {

// a <= b - less of integers, less being 0 or 1.
ExprRef at_most(ExprRef a, ExprRef b, int64_t less) {
  ExprPool& pool = *a->pool;
  if (a->type != Scalar::i64 || b->type != Scalar::i64)
    return pool.poison(Poison::ill_typed, Scalar::boolean);
  if (ExprRef p = difference(b, a, less)) return ge0(p);
  if (less == 1) return logical_not(at_most(b, a, 0));
  if (prove_le(a, b)) return pool.boolean(true);
  if (range_of(b).hi < range_of(a).lo) return pool.boolean(false);
  return eq(max(a, b), b);  // a <= b exactly if b is the larger; nothing is added that could wrap
}

}  // namespace

ExprRef lt(ExprRef a, ExprRef b) {
  return is_real_type(a->type) ? real_compare(ExprKind::flt, a, b) : at_most(a, b, 1);
}

ExprRef le(ExprRef a, ExprRef b) {
  return is_real_type(a->type) ? real_compare(ExprKind::fle, a, b) : at_most(a, b, 0);
}

ExprRef eq(ExprRef a, ExprRef b) {
  if (is_real_type(a->type)) return real_compare(ExprKind::feq, a, b);
  if (a->type == Scalar::boolean)
    return logical_or(logical_and(a, b), logical_and(logical_not(a), logical_not(b)));
  const Interval x = range_of(a), y = range_of(b);
  // Not by their difference: that from the least integer may not fit.
  if (x.hi < y.lo || y.hi < x.lo) return a->pool->boolean(false);
  return eq0(sub(a, b));
}

ExprRef is_nan(ExprRef a) {
  if (!is_real_type(a->type)) return a->pool->poison(Poison::ill_typed, Scalar::boolean);
  if (auto v = as_real(a)) return a->pool->boolean(std::isnan(*v));
  if (a->kind == ExprKind::i2f) return a->pool->boolean(false);
  return make_node(ExprKind::isnan, Scalar::boolean, {a});
}

}  // namespace tfcc::ir
