// SPDX-License-Identifier: Apache-2.0
// Builders of booleans, reals, select and conversions, and the dispatch of the typed arithmetic. Every rule here is exact
// on the values it rewrites; reals are never reassociated, and 0 * x is never folded.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "ir/expr.h"
#include "ir/range.h"
#include "runtime/result.h"

namespace tfcc::ir {

ExprRef int_add(ExprRef a, ExprRef b);
ExprRef int_sub(ExprRef a, ExprRef b);
ExprRef int_mul(ExprRef a, ExprRef b);
ExprRef int_div(ExprRef a, ExprRef b);
ExprRef int_min(ExprRef a, ExprRef b);
ExprRef int_max(ExprRef a, ExprRef b);
ExprRef int_abs(ExprRef a);

namespace {

bool is_real_type(Scalar t) { return t == Scalar::f32 || t == Scalar::f64; }

ExprRef node(ExprKind kind, Scalar type, std::vector<ExprRef> args) {
  Node n{};
  n.kind = kind;
  n.type = type;
  ExprPool* pool = args.at(0)->pool;
  n.args = std::move(args);
  return pool->intern(std::move(n));
}

bool is_real(ExprRef e, double v) { return e->kind == ExprKind::fconst && e->real == v; }

// Is |c| a power of two, so that x / c == x * (1 / c) exactly?
bool is_power_of_two(double c) {
  int exponent;
  return std::isfinite(c) && c != 0 && std::fabs(std::frexp(c, &exponent)) == 0.5 && exponent > -100 && exponent < 100;
}

}  // namespace

ExprRef ill_typed(ExprPool& pool, Scalar type) {
  pool.ill_typed = true;
  switch (type) {
    case Scalar::i64: return pool.integer(0);
    case Scalar::boolean: return pool.boolean(false);
    default: return pool.real(0, type);
  }
}

namespace {

ExprRef real_binary(ExprKind kind, ExprRef a, ExprRef b) {
  if (a->type != b->type || !is_real_type(a->type)) return ill_typed(*a->pool, a->type);
  const auto va = as_real(a), vb = as_real(b);
  if (va && vb) return a->pool->real(fold_binary(kind, *va, *vb), a->type);
  switch (kind) {
    case ExprKind::fadd:
      if (is_real(a, 0)) return b;
      if (is_real(b, 0)) return a;
      if (b->kind == ExprKind::fneg) return real_binary(ExprKind::fsub, a, b->args[0]);
      if (a->kind == ExprKind::fneg) return real_binary(ExprKind::fsub, b, a->args[0]);
      break;
    case ExprKind::fsub:
      if (is_real(b, 0)) return a;
      break;
    case ExprKind::fmul:
      if (is_real(a, 1)) return b;
      if (is_real(b, 1)) return a;
      break;
    case ExprKind::fdiv:
      if (is_real(b, 1)) return a;
      if (vb && is_power_of_two(*vb)) return real_binary(ExprKind::fmul, a, a->pool->real(1 / *vb, a->type));
      break;
    case ExprKind::fpow:
      if (is_real(b, 1)) return a;
      if (is_real(b, 2)) return real_binary(ExprKind::fmul, a, a);
      if (is_real(b, 3)) return real_binary(ExprKind::fmul, real_binary(ExprKind::fmul, a, a), a);
      break;
    case ExprKind::fmin:
    case ExprKind::fmax:
      if (a == b) return a;
      break;
    default:
      break;
  }
  const bool commutes = kind == ExprKind::fadd || kind == ExprKind::fmul || kind == ExprKind::fmin || kind == ExprKind::fmax;
  if (commutes && compare(a, b) > 0) std::swap(a, b);
  return node(kind, a->type, {a, b});
}

}  // namespace

double fold_binary(ExprKind kind, double a, double b) {
  switch (kind) {
    case ExprKind::fadd: return a + b;
    case ExprKind::fsub: return a - b;
    case ExprKind::fmul: return a * b;
    case ExprKind::fdiv: return a / b;
    case ExprKind::fpow: return std::pow(a, b);
    case ExprKind::fmod: return std::fmod(a, b);
    case ExprKind::fmin: return std::isnan(a) || std::isnan(b) ? std::nan("") : std::min(a, b);
    case ExprKind::fmax: return std::isnan(a) || std::isnan(b) ? std::nan("") : std::max(a, b);
    default: TFCC_CHECK(false && "not a binary real kind");
  }
}

double fold_unary(ExprKind kind, double a) {
  switch (kind) {
    case ExprKind::fneg: return -a;
    case ExprKind::fabs: return std::fabs(a);
    case ExprKind::exp: return std::exp(a);
    case ExprKind::log: return std::log(a);
    case ExprKind::sqrt: return std::sqrt(a);
    case ExprKind::erf: return std::erf(a);
    case ExprKind::tanh: return std::tanh(a);
    case ExprKind::sin: return std::sin(a);
    case ExprKind::cos: return std::cos(a);
    case ExprKind::atan: return std::atan(a);
    case ExprKind::floor: return std::floor(a);
    case ExprKind::ceil: return std::ceil(a);
    case ExprKind::rint: return std::nearbyint(a);
    case ExprKind::sign: return a > 0 ? 1 : (a < 0 ? -1 : a);
    case ExprKind::round_f16: return round_to_f16(a);
    case ExprKind::round_bf16: return round_to_bf16(a);
    default: TFCC_CHECK(false && "not a unary real kind");
  }
}

double round_to_f16(double v) {
  if (!std::isfinite(v) || v == 0) return v;
  int e;
  std::frexp(v, &e);                                  // v = m * 2^e, 0.5 <= |m| < 1
  const int shift = std::max(e, -13) - 11;            // 11 significant bits; subnormals share the exponent -14
  const double scaled = std::nearbyint(std::ldexp(v, -shift));
  const double r = std::ldexp(scaled, shift);
  return std::fabs(r) > 65504 ? std::copysign(INFINITY, v) : r;
}

double round_to_bf16(double v) {
  if (!std::isfinite(v) || v == 0) return v;
  int e;
  std::frexp(v, &e);
  const int shift = std::max(e, -125) - 8;
  const double r = std::ldexp(std::nearbyint(std::ldexp(v, -shift)), shift);
  return std::fabs(r) > 3.3895313892515355e38 ? std::copysign(INFINITY, v) : r;
}

ExprRef add(ExprRef a, ExprRef b) { return is_real_type(a->type) ? real_binary(ExprKind::fadd, a, b) : int_add(a, b); }
ExprRef sub(ExprRef a, ExprRef b) { return is_real_type(a->type) ? real_binary(ExprKind::fsub, a, b) : int_sub(a, b); }
ExprRef mul(ExprRef a, ExprRef b) { return is_real_type(a->type) ? real_binary(ExprKind::fmul, a, b) : int_mul(a, b); }
ExprRef div(ExprRef a, ExprRef b) { return is_real_type(a->type) ? real_binary(ExprKind::fdiv, a, b) : int_div(a, b); }

ExprRef mod(ExprRef a, ExprRef b) {
  if (is_real_type(a->type)) return real_binary(ExprKind::fmod, a, b);
  return sub(a, mul(b, div(a, b)));
}

ExprRef min(ExprRef a, ExprRef b) { return is_real_type(a->type) ? real_binary(ExprKind::fmin, a, b) : int_min(a, b); }
ExprRef max(ExprRef a, ExprRef b) { return is_real_type(a->type) ? real_binary(ExprKind::fmax, a, b) : int_max(a, b); }
ExprRef pow(ExprRef a, ExprRef b) { return real_binary(ExprKind::fpow, a, b); }

ExprRef bit_and(ExprRef a, ExprRef b) {
  if (a->type != Scalar::i64 || b->type != Scalar::i64) return ill_typed(*a->pool, Scalar::i64);
  const auto x = as_int(a), y = as_int(b);
  if (x && y) return a->pool->integer(*x & *y);
  if (a == b || (x && *x == 0) || (y && *y == -1)) return a;
  if ((y && *y == 0) || (x && *x == -1)) return b;
  if (compare(a, b) > 0) std::swap(a, b);
  return node(ExprKind::bitand_, Scalar::i64, {a, b});
}

ExprRef wrap(ExprRef e, int bits, bool is_signed) {
  if (e->type != Scalar::i64 || bits < 2 || bits > 32) return ill_typed(*e->pool, Scalar::i64);
  const int64_t size = int64_t{1} << bits, least = is_signed ? -(size / 2) : 0;
  if (range_of(e).inside(least, least + size - 1)) return e;
  if (const auto v = as_int(e)) {
    const int64_t low = *v & (size - 1);
    return e->pool->integer(low >= least + size ? low - size : low);
  }
  if (e->kind == ExprKind::wrap && std::abs(e->value) >= bits) return wrap(e->args[0], bits, is_signed);
  if (e->kind == ExprKind::select && as_int(e->args[1]) && as_int(e->args[2])) {
    return select(e->args[0], wrap(e->args[1], bits, is_signed), wrap(e->args[2], bits, is_signed));
  }
  Node n{};
  n.kind = ExprKind::wrap;
  n.type = Scalar::i64;
  n.value = is_signed ? bits : -bits;
  n.args = {e};
  return e->pool->intern(std::move(n));
}

ExprRef neg(ExprRef a) { return is_real_type(a->type) ? unary(ExprKind::fneg, a) : from_poly(*a->pool, scale(to_poly(a), -1)); }
ExprRef abs(ExprRef a) { return is_real_type(a->type) ? unary(ExprKind::fabs, a) : int_abs(a); }

ExprRef unary(ExprKind kind, ExprRef a) {
  if (!is_real_type(a->type)) return ill_typed(*a->pool, a->type);
  if (auto v = as_real(a)) return a->pool->real(fold_unary(kind, *v), a->type);
  if (kind == ExprKind::fneg && a->kind == ExprKind::fneg) return a->args[0];
  const bool idempotent = kind == ExprKind::fabs || kind == ExprKind::floor || kind == ExprKind::ceil ||
                          kind == ExprKind::rint || kind == ExprKind::round_f16 || kind == ExprKind::round_bf16;
  if (idempotent && a->kind == kind) return a;
  return node(kind, a->type, {a});
}

// ---- booleans ----

namespace {

bool is_bool(ExprRef e, bool v) { return e->kind == (v ? ExprKind::btrue : ExprKind::bfalse); }

bool is_constant(ExprRef e) { return as_int(e).has_value() || as_real(e).has_value(); }

// k * select(c, a, b) + m with constants a, b, m: the comparison moves into the arms, where it folds.
template <class F>
ExprRef through_select(ExprRef p, F compare_with) {
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
  return select(s->args[0], compare_with(p->pool->integer(arms[0])), compare_with(p->pool->integer(arms[1])));
}

int64_t content(const Poly& p) {
  int64_t g = 0;
  for (const Term& t : p.terms) {
    g = std::gcd(g, t.coefficient == INT64_MIN ? 1 : t.coefficient);  // its magnitude does not fit
  }
  return g == 0 ? 1 : g;
}

int64_t floor_of(int64_t a, int64_t b) { return a / b - (a % b != 0 && ((a < 0) != (b < 0))); }

// Can p >= 0 be evaluated: as large side >= small side, and as it is where sizes and indices alone are in it?
bool is_comparable(ExprRef p) {
  return (p->has_load || fits(p)) && sides_fit(p);
}

// x / c <= n is x <= n c + c - 1, and x / c >= n is x >= n c: the bound that a guarded load needs. Null for another polynomial.
ExprRef without_division(ExprRef p) {
  const Poly poly = to_poly(p);
  if (poly.terms.size() != 1 || poly.terms[0].atoms.size() != 1) return nullptr;
  const int64_t sign = poly.terms[0].coefficient;
  ExprRef atom = poly.terms[0].atoms[0];
  if (atom->kind != ExprKind::floordiv || (sign != 1 && sign != -1) || !as_int(atom->args[1]) || !fits(atom->args[0])) return nullptr;
  const int64_t c = *as_int(atom->args[1]);
  if (c < 1) return nullptr;
  const Attempt attempt;
  Poly claim = add({}, {{}, poly.constant}, c);
  if (sign == -1) claim = add(claim, {{}, c - 1});
  claim = add(claim, to_poly(atom->args[0]), sign);
  if (attempt.lost()) return nullptr;
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
    poly.constant = floor_of(poly.constant, g);
    p = from_poly(pool, poly);
  }
  if (ExprRef undivided = without_division(p)) return ge0(undivided);
  if (claim_ge0(p)) return pool.boolean(true);
  if (claim_ge0(sub(pool.integer(-1), p))) return pool.boolean(false);
  return node(ExprKind::ge0, Scalar::boolean, {p});
}

// sign * p >= 1.
bool always_above(const Poly& p, int64_t sign, ExprPool& pool) {
  const Attempt attempt;
  const Poly claim = add(scale(p, sign), {{}, -1});
  return !attempt.lost() && claim_ge0(from_poly(pool, claim));
}

ExprRef eq0(ExprRef p) {
  ExprPool& pool = *p->pool;
  if (auto v = as_int(p)) return pool.boolean(*v == 0);
  if (ExprRef folded = through_select(p, eq0)) return folded;
  Poly poly = to_poly(p);
  const bool whole = fits_twice(poly, pool);  // else 2 x may be 0 where x is not
  const int64_t g = whole ? content(poly) : 1;
  if (poly.constant % g != 0) return pool.boolean(false);
  for (Term& t : poly.terms) t.coefficient /= g;
  poly.constant /= g;
  // p and -p are one condition: the sign that makes the first number which has one positive.
  const auto first = std::find_if(poly.terms.begin(), poly.terms.end(), [](const Term& t) { return t.coefficient != INT64_MIN; });
  if (first != poly.terms.end() && first->coefficient < 0) {
    const auto negated = [](int64_t v) { return static_cast<int64_t>(0 - static_cast<uint64_t>(v)); };
    for (Term& t : poly.terms) t.coefficient = negated(t.coefficient);
    poly.constant = negated(poly.constant);
  }
  p = from_poly(pool, poly);
  if (whole && (always_above(poly, 1, pool) || always_above(poly, -1, pool))) return pool.boolean(false);
  return node(ExprKind::eq0, Scalar::boolean, {p});
}

// n-ary and/or: flattened, sorted, without repetition; all operands may be evaluated, so guards of loads stay selects.
ExprRef junction(ExprKind kind, ExprRef a, ExprRef b) {
  const bool is_and = kind == ExprKind::band;
  std::vector<ExprRef> args;
  if (a->type != Scalar::boolean || b->type != Scalar::boolean) return ill_typed(*a->pool, Scalar::boolean);
  for (ExprRef e : {a, b}) {
    if (is_bool(e, !is_and)) return e;
    if (is_bool(e, is_and)) continue;
    if (e->kind == kind) args.insert(args.end(), e->args.begin(), e->args.end());
    else args.push_back(e);
  }
  std::sort(args.begin(), args.end(), [](ExprRef x, ExprRef y) { return compare(x, y) < 0; });
  args.erase(std::unique(args.begin(), args.end()), args.end());
  if (args.empty()) return a->pool->boolean(is_and);
  for (ExprRef e : args) {
    if (std::find(args.begin(), args.end(), logical_not(e)) != args.end()) return a->pool->boolean(!is_and);
  }
  if (args.size() == 1) return args[0];
  return node(kind, Scalar::boolean, std::move(args));
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
      if (kind == ExprKind::feq) return whole ? eq(p, pool.integer(static_cast<int64_t>(*c))) : pool.boolean(false);
      ExprRef limit = pool.integer(static_cast<int64_t>(std::floor(*c)));
      return kind == ExprKind::flt && whole ? lt(p, limit) : le(p, limit);      // p < 2.5 means p <= 2
    }
  }
  if (auto c = as_real(a)) {
    if (ExprRef p = exact_integer(b, *c)) {
      const bool whole = std::floor(*c) == *c;
      if (kind == ExprKind::feq) return whole ? eq(p, pool.integer(static_cast<int64_t>(*c))) : pool.boolean(false);
      ExprRef limit = pool.integer(static_cast<int64_t>(std::ceil(*c)));
      return kind == ExprKind::flt && whole ? lt(limit, p) : le(limit, p);
    }
  }
  return nullptr;
}

ExprRef real_compare(ExprKind kind, ExprRef a, ExprRef b) {
  ExprPool& pool = *a->pool;
  if (a->type != b->type) return ill_typed(pool, Scalar::boolean);
  const auto va = as_real(a), vb = as_real(b);
  if (va && vb) {
    return pool.boolean(kind == ExprKind::flt ? *va < *vb : kind == ExprKind::fle ? *va <= *vb : *va == *vb);
  }
  if (ExprRef folded = compare_arms(kind, a, b)) return folded;
  if (ExprRef folded = compare_integer(kind, a, b)) return folded;
  if (kind == ExprKind::feq) {
    // x - y == 0 exactly when x == y, for finite numbers; c - i2f(p) is finite.
    if (is_real(b, 0) && a->kind == ExprKind::fsub && (as_real(a->args[0]) || as_real(a->args[1]))) {
      return real_compare(kind, a->args[0], a->args[1]);
    }
    if (compare(a, b) > 0) std::swap(a, b);
  }
  return node(kind, Scalar::boolean, {a, b});
}

}  // namespace

ExprRef logical_and(ExprRef a, ExprRef b) { return junction(ExprKind::band, a, b); }
ExprRef logical_or(ExprRef a, ExprRef b) { return junction(ExprKind::bor, a, b); }

ExprRef logical_not(ExprRef a) {
  ExprPool& pool = *a->pool;
  if (a->type != Scalar::boolean) return ill_typed(pool, Scalar::boolean);
  switch (a->kind) {
    case ExprKind::btrue: return pool.boolean(false);
    case ExprKind::bfalse: return pool.boolean(true);
    case ExprKind::bnot: return a->args[0];
    case ExprKind::ge0: {
      ExprRef p = sub(pool.integer(-1), a->args[0]);
      return is_comparable(p) ? ge0(p) : node(ExprKind::bnot, Scalar::boolean, {a});
    }
    default: return node(ExprKind::bnot, Scalar::boolean, {a});
  }
}

namespace {

// b - a - less, if a <= b - less is what that says on a machine; else null.
ExprRef difference(ExprRef b, ExprRef a, int64_t less) {
  if (a->type != Scalar::i64 || b->type != Scalar::i64) {
    ill_typed(*a->pool, Scalar::boolean);
    return a->pool->integer(0);
  }
  if (!fits(a) || !fits(b)) return nullptr;
  const Attempt attempt;
  const Poly p = add(add(to_poly(b), to_poly(a), -1), {{}, -less});
  if (attempt.lost()) return nullptr;
  ExprRef e = from_poly(*a->pool, p);
  return is_comparable(e) ? e : nullptr;
}

}  // namespace

ExprRef lt(ExprRef a, ExprRef b) {
  if (is_real_type(a->type)) return real_compare(ExprKind::flt, a, b);
  if (ExprRef p = difference(b, a, 1)) return ge0(p);
  return logical_not(le(b, a));
}

ExprRef le(ExprRef a, ExprRef b) {
  if (is_real_type(a->type)) return real_compare(ExprKind::fle, a, b);
  if (ExprRef p = difference(b, a, 0)) return ge0(p);
  if (prove_le(a, b)) return a->pool->boolean(true);
  if (range_of(b).hi < range_of(a).lo) return a->pool->boolean(false);
  return eq(max(a, b), b);  // a <= b exactly if b is the larger; nothing is added that could wrap
}

ExprRef eq(ExprRef a, ExprRef b) {
  if (is_real_type(a->type)) return real_compare(ExprKind::feq, a, b);
  if (a->type == Scalar::boolean) return logical_or(logical_and(a, b), logical_and(logical_not(a), logical_not(b)));
  return eq0(sub(a, b));
}

ExprRef is_nan(ExprRef a) {
  if (!is_real_type(a->type)) return ill_typed(*a->pool, Scalar::boolean);
  if (auto v = as_real(a)) return a->pool->boolean(std::isnan(*v));
  if (a->kind == ExprKind::i2f) return a->pool->boolean(false);
  return node(ExprKind::isnan, Scalar::boolean, {a});
}

ExprRef select(ExprRef c, ExprRef a, ExprRef b) {
  if (c->type != Scalar::boolean || a->type != b->type) return ill_typed(*c->pool, a->type);
  if (is_bool(c, true) || a == b) return a;
  if (is_bool(c, false)) return b;
  if (c->kind == ExprKind::bnot) return select(c->args[0], b, a);
  if (a->kind == ExprKind::select && a->args[0] == c) return select(c, a->args[1], b);
  if (b->kind == ExprKind::select && b->args[0] == c) return select(c, a, b->args[2]);
  if (a->type == Scalar::boolean) {
    if (is_bool(a, true)) return logical_or(c, b);
    if (is_bool(a, false)) return is_bool(b, true) ? logical_not(c) : logical_and(logical_not(c), b);
    if (is_bool(b, false)) return logical_and(c, a);
    if (is_bool(b, true)) return logical_or(logical_not(c), a);
  }
  return node(ExprKind::select, a->type, {c, a, b});
}

ExprRef convert(ExprRef a, Scalar to) {
  if (a->type == to) return a;
  ExprPool& pool = *a->pool;
  if (to == Scalar::boolean) {
    return a->type == Scalar::i64 ? logical_not(eq(a, pool.integer(0))) : logical_not(eq(a, pool.real(0, a->type)));
  }
  if (a->type == Scalar::boolean) {
    if (to == Scalar::i64) return select(a, pool.integer(1), pool.integer(0));
    return select(a, pool.real(1, to), pool.real(0, to));
  }
  if (a->type == Scalar::i64) {
    if (auto v = as_int(a)) return pool.real(static_cast<double>(*v), to);
    if (a->kind == ExprKind::select && is_constant(a->args[1]) && is_constant(a->args[2])) {
      return select(a->args[0], convert(a->args[1], to), convert(a->args[2], to));
    }
    return node(ExprKind::i2f, to, {a});
  }
  if (to == Scalar::i64) {
    if (auto v = as_real(a)) {
      if (std::isnan(*v)) return pool.integer(0);
      if (*v >= 9.2e18) return pool.integer(INT64_MAX);
      if (*v <= -9.2e18) return pool.integer(INT64_MIN);
      return pool.integer(static_cast<int64_t>(*v));
    }
    if (a->kind == ExprKind::i2f) {
      ExprRef limit = pool.integer(a->type == Scalar::f32 ? int64_t{1} << 24 : int64_t{1} << 53);
      if (prove_le(a->args[0], limit) && prove_le(neg(limit), a->args[0])) return a->args[0];
    }
    if (ExprRef whole = whole_of(a)) return whole;
    return node(ExprKind::f2i, Scalar::i64, {a});
  }
  if (auto v = as_real(a)) return pool.real(*v, to);
  if (a->kind == ExprKind::f2f && a->type == Scalar::f64 && a->args[0]->type == to) return a->args[0];
  return node(ExprKind::f2f, to, {a});
}

}  // namespace tfcc::ir
