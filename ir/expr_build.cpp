// SPDX-License-Identifier: Apache-2.0
// Builders of reals, select and conversions, and the dispatch of the typed arithmetic. Every rule
// here is exact on the values it rewrites; reals are never reassociated, and 0 * x is never folded.
#include <algorithm>
#include <cmath>

#include "ir/expr_node.h"
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

// Is |c| a power of two, so that x / c == x * (1 / c) exactly?
bool is_power_of_two(double c) {
  int exponent;
  return std::isfinite(c) && c != 0 && std::fabs(std::frexp(c, &exponent)) == 0.5 &&
         exponent > -100 && exponent < 100;
}

}  // namespace

namespace {

ExprRef real_binary(ExprKind kind, ExprRef a, ExprRef b) {
  if (a->type != b->type || !is_real_type(a->type))
    return a->pool->poison(Poison::ill_typed, a->type);
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
      if (vb && is_power_of_two(*vb))
        return real_binary(ExprKind::fmul, a, a->pool->real(1 / *vb, a->type));
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
    default: break;
  }
  const bool commutes = kind == ExprKind::fadd || kind == ExprKind::fmul ||
                        kind == ExprKind::fmin || kind == ExprKind::fmax;
  if (commutes && compare(a, b) > 0) std::swap(a, b);
  return make_node(kind, a->type, {a, b});
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

std::span<const UnaryFunction> unary_functions() {
  static constexpr UnaryFunction kFunctions[] = {
#define TFCC_UNARY(name, value, costly) {ExprKind::name, #name, costly},
#include "ir/unary.def"
#undef TFCC_UNARY
  };
  return kFunctions;
}

const UnaryFunction* unary_function(ExprKind kind) {
  for (const UnaryFunction& f : unary_functions()) {
    if (f.kind == kind) return &f;
  }
  return nullptr;
}

bool is_costly(ExprRef n) {
  if (const UnaryFunction* f = unary_function(n->kind)) return f->costly;
  return n->kind == ExprKind::fpow || n->kind == ExprKind::fmod || n->kind == ExprKind::fdiv;
}

double fold_unary(ExprKind kind, double a) {
  switch (kind) {
    case ExprKind::fneg: return -a;
    case ExprKind::fabs: return std::fabs(a);
#define TFCC_UNARY(name, value, costly) \
  case ExprKind::name:                  \
    return value;
#include "ir/unary.def"
#undef TFCC_UNARY
    case ExprKind::round_f16: return round_to_f16(a);
    case ExprKind::round_bf16: return round_to_bf16(a);
    default: TFCC_CHECK(false && "not a unary real kind");
  }
}

double round_to_f16(double v) {
  if (!std::isfinite(v) || v == 0) return v;
  int e;
  std::frexp(v, &e);  // v = m * 2^e, 0.5 <= |m| < 1
  const int shift =
      std::max(e, -13) - 11;  // 11 significant bits; subnormals share the exponent -14
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

ExprRef add(ExprRef a, ExprRef b) {
  return is_real_type(a->type) ? real_binary(ExprKind::fadd, a, b) : int_add(a, b);
}
ExprRef sub(ExprRef a, ExprRef b) {
  return is_real_type(a->type) ? real_binary(ExprKind::fsub, a, b) : int_sub(a, b);
}
ExprRef mul(ExprRef a, ExprRef b) {
  return is_real_type(a->type) ? real_binary(ExprKind::fmul, a, b) : int_mul(a, b);
}
ExprRef div(ExprRef a, ExprRef b) {
  return is_real_type(a->type) ? real_binary(ExprKind::fdiv, a, b) : int_div(a, b);
}

ExprRef mod(ExprRef a, ExprRef b) {
  if (is_real_type(a->type)) return real_binary(ExprKind::fmod, a, b);
  return sub(a, mul(b, div(a, b)));
}

ExprRef min(ExprRef a, ExprRef b) {
  return is_real_type(a->type) ? real_binary(ExprKind::fmin, a, b) : int_min(a, b);
}
ExprRef max(ExprRef a, ExprRef b) {
  return is_real_type(a->type) ? real_binary(ExprKind::fmax, a, b) : int_max(a, b);
}
ExprRef pow(ExprRef a, ExprRef b) { return real_binary(ExprKind::fpow, a, b); }

ExprRef bit_and(ExprRef a, ExprRef b) {
  if (a->type != Scalar::i64 || b->type != Scalar::i64)
    return a->pool->poison(Poison::ill_typed, Scalar::i64);
  const auto x = as_int(a), y = as_int(b);
  if (x && y) return a->pool->integer(*x & *y);
  if (a == b || (x && *x == 0) || (y && *y == -1)) return a;
  if ((y && *y == 0) || (x && *x == -1)) return b;
  if (compare(a, b) > 0) std::swap(a, b);
  return make_node(ExprKind::bitand_, Scalar::i64, {a, b});
}

ExprRef wrap(ExprRef e, int bits, bool is_signed) {
  if (e->type != Scalar::i64 || bits < 2 || bits > 32)
    return e->pool->poison(Poison::ill_typed, Scalar::i64);
  const int64_t size = int64_t{1} << bits, least = is_signed ? -(size / 2) : 0;
  if (range_of(e).inside(least, least + size - 1)) return e;
  if (const auto v = as_int(e)) {
    const int64_t low = *v & (size - 1);
    return e->pool->integer(low >= least + size ? low - size : low);
  }
  if (e->kind == ExprKind::wrap && std::abs(e->value) >= bits)
    return wrap(e->args[0], bits, is_signed);
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

ExprRef neg(ExprRef a) {
  return is_real_type(a->type) ? unary(ExprKind::fneg, a)
                               : from_poly(*a->pool, scale(to_poly(a), -1));
}
ExprRef abs(ExprRef a) { return is_real_type(a->type) ? unary(ExprKind::fabs, a) : int_abs(a); }

ExprRef unary(ExprKind kind, ExprRef a) {
  if (!is_real_type(a->type)) return a->pool->poison(Poison::ill_typed, a->type);
  if (auto v = as_real(a)) return a->pool->real(fold_unary(kind, *v), a->type);
  if (kind == ExprKind::fneg && a->kind == ExprKind::fneg) return a->args[0];
  const bool idempotent = kind == ExprKind::fabs || kind == ExprKind::floor ||
                          kind == ExprKind::ceil || kind == ExprKind::rint ||
                          kind == ExprKind::round_f16 || kind == ExprKind::round_bf16;
  if (idempotent && a->kind == kind) return a;
  return make_node(kind, a->type, {a});
}

// Whether `a`, what a choice of whole numbers has at the first index, is what `b` is there: the rest
// of a concatenation goes on from it. Of indices and sizes alone: what a choice keeps from being
// read or divided must not be computed without it.
static bool begins_with(ExprRef c, ExprRef a, ExprRef b) {
  if (a->type != Scalar::i64 || (c->kind != ExprKind::ge0 && c->kind != ExprKind::eq0))
    return false;
  ExprRef i = c->kind == ExprKind::ge0 ? neg(c->args[0]) : c->args[0];
  if (i->kind != ExprKind::index) return false;
  bool plain = true;
  for_each_node(b, [&](ExprRef n) {
    plain &= n->kind == ExprKind::poly || n->kind == ExprKind::index ||
             n->kind == ExprKind::symbol || n->kind == ExprKind::imin || n->kind == ExprKind::imax;
  });
  if (!plain) return false;
  return a == rewrite(b, [&](ExprRef n) { return n == i ? a->pool->integer(0) : nullptr; });
}

ExprRef select(ExprRef c, ExprRef a, ExprRef b) {
  if (c->type != Scalar::boolean || a->type != b->type)
    return c->pool->poison(Poison::ill_typed, a->type);
  if (is_bool(c, true) || a == b) return a;
  if (is_bool(c, false)) return b;
  if (c->kind == ExprKind::bnot) return select(c->args[0], b, a);
  if (a->kind == ExprKind::select && a->args[0] == c) return select(c, a->args[1], b);
  if (b->kind == ExprKind::select && b->args[0] == c) return select(c, a, b->args[2]);
  if (begins_with(c, a, b)) return b;
  if (a->type == Scalar::boolean) {
    if (is_bool(a, true)) return logical_or(c, b);
    if (is_bool(a, false))
      return is_bool(b, true) ? logical_not(c) : logical_and(logical_not(c), b);
    if (is_bool(b, false)) return logical_and(c, a);
    if (is_bool(b, true)) return logical_or(logical_not(c), a);
  }
  return make_node(ExprKind::select, a->type, {c, a, b});
}

ExprRef convert(ExprRef a, Scalar to) {
  if (a->type == to) return a;
  ExprPool& pool = *a->pool;
  if (to == Scalar::boolean) {
    return a->type == Scalar::i64 ? logical_not(eq(a, pool.integer(0)))
                                  : logical_not(eq(a, pool.real(0, a->type)));
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
    return make_node(ExprKind::i2f, to, {a});
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
    return make_node(ExprKind::f2i, Scalar::i64, {a});
  }
  if (auto v = as_real(a)) return pool.real(*v, to);
  if (a->kind == ExprKind::f2f && a->type == Scalar::f64 && a->args[0]->type == to)
    return a->args[0];
  return make_node(ExprKind::f2f, to, {a});
}

}  // namespace tfcc::ir
