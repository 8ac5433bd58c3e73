// SPDX-License-Identifier: Apache-2.0
// Polynomial arithmetic on integers, exact division, and the builders of integer expressions.
#include "ir/expr_poly.h"

#include "ir/range.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "runtime/result.h"

namespace tfcc::ir {
namespace {

// Past these no size of a model goes; without them 50 squarings of a size would have 2^50 factors,
// and a graph of products of sums would take minutes.
constexpr size_t kMostFactors = 64, kMostTerms = 256;
// Tries at a simplification that each cost as much as the expression is long.
constexpr int kAttempts = 64;

bool less_atom(ExprRef a, ExprRef b) { return compare(a, b) < 0; }

// Graded lexicographic order: larger degree first, then more of the smaller atom. A monomial order,
// as division needs.
int order(const std::vector<ExprRef>& a, const std::vector<ExprRef>& b) {
  if (a.size() != b.size()) return a.size() > b.size() ? -1 : 1;
  for (size_t i = 0; i < a.size(); ++i) {
    if (int c = compare(a[i], b[i])) return c;
  }
  return 0;
}

// A number of a sum modulo 2^64; one that does not fit is noted in the sum.
int64_t narrow(__int128 v, Poly& sum) {
  sum.wrapped |= v > INT64_MAX || v < INT64_MIN;
  return static_cast<int64_t>(static_cast<uint64_t>(v));
}

// What was lost in an operand is lost in the result.
void inherit(Poly& p, const Poly& from) {
  p.wrapped |= from.wrapped;
  if (p.poison == Poison::none) p.poison = from.poison;
}

bool has_load(const Poly& p) {
  return std::any_of(p.terms.begin(), p.terms.end(), [](const Term& t) {
    return std::any_of(t.atoms.begin(), t.atoms.end(), [](ExprRef a) { return a->has_load; });
  });
}

// The largest term that divides both: gcd of coefficients times the common atoms.
Term common_factor(const Term& a, const Term& b) {
  Term g;
  const bool fits = a.coefficient != INT64_MIN && b.coefficient != INT64_MIN;
  g.coefficient = fits ? std::gcd(a.coefficient, b.coefficient) : 1;
  std::set_intersection(a.atoms.begin(), a.atoms.end(), b.atoms.begin(), b.atoms.end(),
                        std::back_inserter(g.atoms), less_atom);
  return g;
}

bool is_unit(const Term& t) { return t.coefficient == 1 && t.atoms.empty(); }

Poly poly_of(const Term& t) {
  Poly p;
  if (t.atoms.empty()) p.constant = t.coefficient;
  else p.terms.push_back(t);
  return p;
}

}  // namespace

void normalise(Poly& p) {
  std::sort(p.terms.begin(), p.terms.end(),
            [](const Term& a, const Term& b) { return order(a.atoms, b.atoms) < 0; });
  std::vector<Term> merged;
  for (Term& t : p.terms) {
    if (!merged.empty() && merged.back().atoms == t.atoms) {
      merged.back().coefficient =
          narrow(static_cast<__int128>(merged.back().coefficient) + t.coefficient, p);
    } else {
      merged.push_back(std::move(t));
    }
  }
  std::erase_if(merged, [](const Term& t) { return t.coefficient == 0; });
  p.terms = std::move(merged);
}

Poly to_poly(ExprRef e) {
  Poly p;
  if (e->type != Scalar::i64) {
    p.poison = Poison::ill_typed;
  } else if (e->kind == ExprKind::poison) {
    p.poison = poison_of(e);
  } else if (e->kind == ExprKind::poly) {
    p.terms = e->terms;
    p.constant = e->value;
  } else {
    p.terms.push_back({{e}, 1});
  }
  return p;
}

ExprRef from_poly(ExprPool& pool, Poly p) {
  if (p.poison == Poison::none && p.terms.size() > kMostTerms) p.poison = Poison::too_large;
  if (p.poison == Poison::none && p.wrapped && !has_load(p)) p.poison = Poison::overflow;
  if (p.poison != Poison::none) return pool.poison(p.poison, Scalar::i64);
  if (p.terms.empty()) return pool.integer(p.constant);
  if (p.constant == 0 && p.terms.size() == 1 && p.terms[0].coefficient == 1 &&
      p.terms[0].atoms.size() == 1) {
    return p.terms[0].atoms[0];
  }
  Node n{};
  n.kind = ExprKind::poly;
  n.type = Scalar::i64;
  n.value = p.constant;
  n.terms = std::move(p.terms);
  return pool.intern(std::move(n));
}

// Both are sorted: a merge.
Poly add(const Poly& a, const Poly& b, int64_t scale_b) {
  Poly r;
  inherit(r, a);
  inherit(r, b);
  r.terms.reserve(a.terms.size() + b.terms.size());
  auto scaled = [&](const Term& t) {
    return narrow(static_cast<__int128>(t.coefficient) * scale_b, r);
  };
  auto x = a.terms.begin();
  for (const Term& y : b.terms) {
    int c = -1;
    for (; x != a.terms.end() && (c = order(x->atoms, y.atoms)) < 0; ++x) r.terms.push_back(*x);
    const bool same = x != a.terms.end() && c == 0;
    const int64_t sum =
        same ? narrow(static_cast<__int128>(x->coefficient) + scaled(y), r) : scaled(y);
    if (sum != 0) r.terms.push_back({y.atoms, sum});
    if (same) ++x;
  }
  r.terms.insert(r.terms.end(), x, a.terms.end());
  r.constant =
      narrow(static_cast<__int128>(a.constant) + static_cast<__int128>(b.constant) * scale_b, r);
  return r;
}

void append(Poly& sum, const Poly& more) {
  inherit(sum, more);
  sum.terms.insert(sum.terms.end(), more.terms.begin(), more.terms.end());
  sum.constant = narrow(static_cast<__int128>(sum.constant) + more.constant, sum);
  if (sum.terms.size() <= 4 * kMostTerms) return;
  normalise(sum);
  if (sum.terms.size() <= kMostTerms) return;
  sum = {};
  sum.poison = Poison::too_large;
}

Poly scale(const Poly& a, int64_t k) { return add(Poly{}, a, k); }

namespace {

size_t degree(const Poly& p) { return p.terms.empty() ? 0 : p.terms.front().atoms.size(); }

}  // namespace

Poly multiply(const Poly& a, const Poly& b) {
  Poly r;
  inherit(r, a);
  inherit(r, b);
  if (degree(a) + degree(b) > kMostFactors || a.terms.size() * b.terms.size() > kMostTerms) {
    if (r.poison == Poison::none) r.poison = Poison::too_large;
    return r;
  }
  r.constant = narrow(static_cast<__int128>(a.constant) * b.constant, r);
  auto push = [&](const std::vector<ExprRef>& x, const std::vector<ExprRef>& y, __int128 k) {
    Term t;
    std::merge(x.begin(), x.end(), y.begin(), y.end(), std::back_inserter(t.atoms), less_atom);
    t.coefficient = narrow(k, r);
    r.terms.push_back(std::move(t));
  };
  for (const Term& s : a.terms) {
    for (const Term& t : b.terms)
      push(s.atoms, t.atoms, static_cast<__int128>(s.coefficient) * t.coefficient);
    if (b.constant) push(s.atoms, {}, static_cast<__int128>(s.coefficient) * b.constant);
  }
  if (a.constant) {
    for (const Term& t : b.terms)
      push({}, t.atoms, static_cast<__int128>(t.coefficient) * a.constant);
  }
  normalise(r);
  return r;
}

bool divide_term(const Term& t, const Term& divisor, Term& quotient) {
  if (divisor.coefficient == 0 || (divisor.coefficient == -1 && t.coefficient == INT64_MIN))
    return false;
  if (t.coefficient % divisor.coefficient != 0) return false;
  if (!std::includes(t.atoms.begin(), t.atoms.end(), divisor.atoms.begin(), divisor.atoms.end(),
                     less_atom))
    return false;
  quotient.coefficient = t.coefficient / divisor.coefficient;
  quotient.atoms.clear();
  std::set_difference(t.atoms.begin(), t.atoms.end(), divisor.atoms.begin(), divisor.atoms.end(),
                      std::back_inserter(quotient.atoms), less_atom);
  return true;
}

void split_by_atom(const Poly& p, ExprRef x, Poly& q, Poly& r) {
  q = {};
  r = {};
  inherit(q, p);
  inherit(r, p);
  r.constant = p.constant;
  for (const Term& t : p.terms) {
    auto it = std::find(t.atoms.begin(), t.atoms.end(), x);
    if (it == t.atoms.end()) {
      r.terms.push_back(t);
      continue;
    }
    Term rest = t;
    rest.atoms.erase(rest.atoms.begin() + (it - t.atoms.begin()));
    if (rest.atoms.empty())
      q.constant = narrow(static_cast<__int128>(q.constant) + rest.coefficient, q);
    else q.terms.push_back(std::move(rest));
  }
  normalise(q);
}

namespace {

// The terms above zero with a constant, and those below without their signs with another.
struct Halves {
  Poly large, small;
  bool fit(ExprPool& pool) const { return fits(large, pool) && fits(small, pool); }
};

// With the constant where it is not negative, and on the other side. Empty if a number has no
// magnitude.
std::optional<std::pair<Halves, Halves>> halves(ExprRef p) {
  Halves first;
  const Poly all = to_poly(p);
  if (all.lost() || all.constant == INT64_MIN) return std::nullopt;
  for (const Term& t : all.terms) {
    if (t.coefficient == INT64_MIN) return std::nullopt;
    if (t.coefficient > 0) first.large.terms.push_back(t);
    else first.small.terms.push_back({t.atoms, -t.coefficient});
  }
  Halves other = first;
  (all.constant >= 0 ? first.large : first.small).constant = std::abs(all.constant);
  (all.constant >= 0 ? other.small : other.large).constant = -std::abs(all.constant);
  return std::pair(std::move(first), std::move(other));
}

}  // namespace

std::pair<ExprRef, ExprRef> sides(ExprRef p) {
  ExprPool& pool = *p->pool;
  const auto both = halves(p);
  if (!both) return {p, pool.integer(0)};
  const Halves& h = !both->first.fit(pool) && both->second.fit(pool) ? both->second : both->first;
  return {from_poly(pool, h.large), from_poly(pool, h.small)};
}

bool sides_fit(ExprRef p) {
  const auto both = halves(p);
  return both && (both->first.fit(*p->pool) || both->second.fit(*p->pool));
}

std::optional<ExprRef> exact_div(ExprRef a, ExprRef b) {
  Poly rest = to_poly(a), divisor = to_poly(b), quotient;
  if (rest.lost() || divisor.lost()) return std::nullopt;
  if (divisor.is_constant() && divisor.constant == 0) return std::nullopt;
  const Term lead = divisor.terms.empty() ? Term{{}, divisor.constant} : divisor.terms.front();
  for (int step = 0; step < 64 && !(rest.is_constant() && rest.constant == 0); ++step) {
    const Term top = rest.terms.empty() ? Term{{}, rest.constant} : rest.terms.front();
    Term q;
    if (!divide_term(top, lead, q)) return std::nullopt;
    const Poly part = poly_of(q);
    quotient = add(quotient, part);
    rest = add(rest, multiply(part, divisor), -1);
  }
  if (rest.lost() || quotient.lost() || !rest.is_constant() || rest.constant != 0)
    return std::nullopt;
  return from_poly(*a->pool, std::move(quotient));
}

std::vector<ModPart> extract_mods(Poly& p) {
  std::vector<ModPart> parts;
  int attempts = kAttempts;
  for (size_t i = 0; i < p.terms.size(); ++i) {
    for (ExprRef f : p.terms[i].atoms) {
      if (f->kind != ExprKind::floordiv) continue;
      const Poly dividend = to_poly(f->args[0]), divisor = to_poly(f->args[1]);
      Term lead = divisor.terms.empty() ? Term{{}, divisor.constant} : divisor.terms.front();
      lead.atoms.insert(std::upper_bound(lead.atoms.begin(), lead.atoms.end(), f, less_atom), f);
      Term k;
      if (!divide_term(p.terms[i], lead, k)) continue;
      if (--attempts < 0) return parts;
      k.coefficient = -k.coefficient;
      const Poly factor = poly_of(k);
      Poly rest = add(p, multiply(factor, dividend), -1);
      rest = add(rest, multiply(factor, multiply(divisor, to_poly(f))));
      if (rest.lost() || rest.terms.size() >= p.terms.size()) continue;
      p = std::move(rest);
      parts.push_back({k, f->args[0], f->args[1]});
      i = static_cast<size_t>(-1);
      break;
    }
  }
  return parts;
}

namespace {

ExprRef binary_int(ExprKind kind, ExprRef a, ExprRef b) {
  Node n{};
  n.kind = kind;
  n.type = Scalar::i64;
  n.args = {a, b};
  return a->pool->intern(std::move(n));
}

// The same by a divisor of several terms (b*P + b*S + j by P + S): whole multiples of it, as long
// as each leaves fewer terms.
void divide_by_sum(const Poly& divisor, Poly& quotient, Poly& rest) {
  const Term& lead = divisor.terms.front();
  int attempts = kAttempts;
  for (size_t i = 0; i < rest.terms.size(); ++i) {
    Term q;
    if (!divide_term(rest.terms[i], lead, q)) continue;
    if (--attempts < 0) return;
    Poly less = add(rest, multiply(poly_of(q), divisor), -1);
    if (less.terms.size() >= rest.terms.size()) continue;
    quotient = add(quotient, poly_of(q));
    rest = std::move(less);
    i = static_cast<size_t>(-1);
  }
}

// Splits a = divisor * quotient + rest, term by term, the constant too.
void divide_terms(const Poly& a, const Poly& divisor, Poly& quotient, Poly& rest) {
  rest = {};
  quotient = {};
  for (const Poly* p : {&a, &divisor}) {
    inherit(rest, *p);
    inherit(quotient, *p);
  }
  if (divisor.is_constant()) {
    quotient.constant = floor_div(a.constant, divisor.constant);
    // Not the difference: the multiple below INT64_MIN / 5 does not fit.
    rest.constant = divisor.constant == -1 ? 0 : a.constant % divisor.constant;
    if (rest.constant != 0 && (rest.constant < 0) != (divisor.constant < 0))
      rest.constant += divisor.constant;
  } else {
    rest.constant = a.constant;
  }
  const Term lead = divisor.terms.empty() ? Term{{}, divisor.constant} : divisor.terms.front();
  for (const Term& t : a.terms) {
    Term q;
    if ((divisor.terms.size() + (divisor.constant != 0) == 1) && divide_term(t, lead, q)) {
      if (q.atoms.empty())
        quotient.constant =
            narrow(static_cast<__int128>(quotient.constant) + q.coefficient, quotient);
      else quotient.terms.push_back(std::move(q));
    } else {
      rest.terms.push_back(t);
    }
  }
  normalise(quotient);
  if (divisor.terms.size() > 1) divide_by_sum(divisor, quotient, rest);
}

// floor((g*x + y) / (g*d)) = floor(x / d) when 0 <= y < g: finds such a g among the common factors
// of terms and divisor.
ExprRef reduce_by_factor(ExprPool& pool, const Poly& a, const Poly& divisor) {
  if (divisor.terms.size() + (divisor.constant != 0) != 1) return nullptr;
  const Term d = divisor.terms.empty() ? Term{{}, divisor.constant} : divisor.terms.front();
  std::vector<Term> tried;
  for (const Term& t : a.terms) {
    const Term g = common_factor(t, d);
    if (is_unit(g) || g.coefficient <= 0) continue;
    const bool again = std::any_of(tried.begin(), tried.end(), [&](const Term& o) {
      return o.coefficient == g.coefficient && o.atoms == g.atoms;
    });
    if (again || tried.size() == kAttempts) continue;
    tried.push_back(g);
    Poly x, y;
    divide_terms(a, poly_of(g), x, y);
    Term smaller;
    if (x.is_constant() || !divide_term(d, g, smaller)) continue;
    ExprRef rest = from_poly(pool, y);
    if (!fits(x, pool) || !prove_in(rest, from_poly(pool, poly_of(g)))) continue;
    return div(from_poly(pool, x), from_poly(pool, poly_of(smaller)));
  }
  return nullptr;
}

ExprRef floordiv(ExprRef a, ExprRef b);

// Of numbers that do not wrap: what is true of quotients is so of mathematical integers.
ExprRef simplified_floordiv(ExprRef a, ExprRef b) {
  ExprPool& pool = *a->pool;
  if (!fits(a) || !fits(b)) return binary_int(ExprKind::floordiv, a, b);
  if (auto q = exact_div(a, b)) return *q;
  Poly quotient, rest;
  const Poly divisor = to_poly(b);
  divide_terms(to_poly(a), divisor, quotient, rest);
  if (!fits(rest, pool) || !fits(quotient, pool)) return binary_int(ExprKind::floordiv, a, b);
  ExprRef r = from_poly(pool, rest), q = from_poly(pool, quotient);
  if (prove_in(r, b)) return q;
  if (const auto by = as_int(b)) {  // -S / 64 is -1 for S in 1..64
    const Interval in = range_of(r);
    if (floor_div(in.lo, *by) == floor_div(in.hi, *by))
      return add(q, pool.integer(floor_div(in.lo, *by)));
  }
  if (ExprRef reduced = reduce_by_factor(pool, rest, divisor)) return add(q, reduced);
  if (r->kind == ExprKind::floordiv && fits(r->args[0]) && range_of(r->args[1]).lo >= 1) {
    const Poly both = multiply(to_poly(r->args[1]), divisor);
    if (fits(both, pool)) return add(q, floordiv(r->args[0], from_poly(pool, both)));
  }
  return add(q, binary_int(ExprKind::floordiv, r, b));
}

ExprRef floordiv(ExprRef a, ExprRef b) {
  ExprPool& pool = *a->pool;
  if (a->type != Scalar::i64 || b->type != Scalar::i64)
    return pool.poison(Poison::ill_typed, Scalar::i64);
  const auto va = as_int(a), vb = as_int(b);
  if (vb && *vb == 1) return a;
  if (va && vb && *vb > 0) return pool.integer(floor_div(*va, *vb));
  if (vb && *vb <= 0) return binary_int(ExprKind::floordiv, a, b);
  if (ExprRef known = pool.quotient(a, b)) return known;
  ExprRef result = simplified_floordiv(a, b);
  pool.keep_quotient(a, b, result);
  return result;
}

ExprRef min_or_max(ExprKind kind, ExprRef a, ExprRef b) {
  const bool is_min = kind == ExprKind::imin;
  if (a->type != Scalar::i64 || b->type != Scalar::i64)
    return a->pool->poison(Poison::ill_typed, Scalar::i64);
  if (a == b || prove_le(a, b)) return is_min ? a : b;
  if (prove_le(b, a)) return is_min ? b : a;
  if (compare(a, b) > 0) std::swap(a, b);
  return binary_int(kind, a, b);
}

}  // namespace

ExprRef int_add(ExprRef a, ExprRef b) { return from_poly(*a->pool, add(to_poly(a), to_poly(b))); }
ExprRef int_sub(ExprRef a, ExprRef b) {
  return from_poly(*a->pool, add(to_poly(a), to_poly(b), -1));
}
ExprRef int_mul(ExprRef a, ExprRef b) {
  return from_poly(*a->pool, multiply(to_poly(a), to_poly(b)));
}
ExprRef int_div(ExprRef a, ExprRef b) { return floordiv(a, b); }
ExprRef int_min(ExprRef a, ExprRef b) { return min_or_max(ExprKind::imin, a, b); }
ExprRef int_max(ExprRef a, ExprRef b) { return min_or_max(ExprKind::imax, a, b); }

ExprRef int_abs(ExprRef a) {
  if (a->type != Scalar::i64) return a->pool->poison(Poison::ill_typed, Scalar::i64);
  if (const auto v = as_int(a))
    return a->pool->integer(*v < 0 ? static_cast<int64_t>(0 - static_cast<uint64_t>(*v)) : *v);
  if (prove_ge0(a)) return a;
  if (prove_le(a, a->pool->integer(0)) && range_of(a).lo > INT64_MIN) return neg(a);
  // |-x| and |x| are one node: the sign whose first term is positive.
  const Poly p = to_poly(a);
  if (!p.terms.empty() && p.terms.front().coefficient < 0 && p.constant != INT64_MIN) a = neg(a);
  Node n{};
  n.kind = ExprKind::iabs;
  n.type = Scalar::i64;
  n.args = {a};
  return a->pool->intern(std::move(n));
}

ExprRef bounded(ExprRef e, ExprRef n, int64_t flag) {
  if (e->type != Scalar::i64 || n->type != Scalar::i64)
    return e->pool->poison(Poison::ill_typed, Scalar::i64);
  if (prove_in(e, n)) return e;
  Node node{};
  node.kind = ExprKind::bounded;
  node.type = Scalar::i64;
  node.args = {e, n};
  node.value = flag;
  return e->pool->intern(std::move(node));
}

ExprRef asserted(ExprRef condition, int64_t flag) {
  ExprPool& pool = *condition->pool;
  ExprRef wrong = pool.boolean(true);
  for (ExprRef e : condition->kind == ExprKind::bor ? condition->args : std::vector{condition})
    wrong = logical_and(wrong, logical_not(e));
  ExprRef outside = select(wrong, pool.integer(2), pool.integer(0));
  return eq(bounded(outside, pool.integer(2), flag), pool.integer(0));
}

bool is_assertion(ExprRef e) {
  if (e->kind != ExprKind::eq0 || e->args[0]->kind != ExprKind::bounded) return false;
  const Node& n = *e->args[0];
  if (!is_int(n.args[1], 2) || n.args[0]->kind != ExprKind::select) return false;
  ExprRef held = n.args[0]->args[1], broken = n.args[0]->args[2];
  if (is_int(held, 2)) std::swap(held, broken);  // select takes the condition without a `not`
  return is_int(held, 0) && is_int(broken, 2);
}

}  // namespace tfcc::ir
