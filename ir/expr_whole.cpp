// SPDX-License-Identifier: Apache-2.0
// Integers that exporters compute by way of reals, Cast(Floor(Cast(S) * 0.5)): the same in
// integers, so that sizes stay sizes.
#include <cmath>
#include <optional>

#include "ir/expr.h"
#include "ir/expr_poly.h"

namespace tfcc::ir {
namespace {

// num / den, of integers, den > 0.
struct Ratio {
  ExprRef num, den;
};

// A number of few binary places.
std::optional<Ratio> ratio_of(ExprPool& pool, double v) {
  for (int places = 0; places <= 10; ++places) {
    const double scaled = std::ldexp(v, places);
    if (std::fabs(scaled) > 1 << 24) return std::nullopt;
    if (scaled == std::floor(scaled))
      return Ratio{pool.integer(static_cast<int64_t>(scaled)), pool.integer(int64_t{1} << places)};
  }
  return std::nullopt;
}

bool made_of_sizes(ExprRef e) {
  bool sizes = !e->has_load && !e->has_index;
  for_each_node(e, [&](ExprRef n) { sizes = sizes && n->kind != ExprKind::param; });
  return sizes;
}

ExprRef rounded_down(const Ratio& r) { return div(r.num, r.den); }
ExprRef rounded_up(const Ratio& r) { return neg(div(neg(r.num), r.den)); }

std::optional<Ratio> quotient(ExprRef e);

// A sum, difference or product that reals compute exactly.
std::optional<Ratio> exact(ExprRef e) {
  ExprPool& pool = *e->pool;
  switch (e->kind) {
    case ExprKind::i2f: return Ratio{e->args[0], pool.integer(1)};
    case ExprKind::fconst: return ratio_of(pool, e->real);
    case ExprKind::f2f: return exact(e->args[0]);
    case ExprKind::fneg: {
      const auto a = exact(e->args[0]);
      if (!a) return std::nullopt;
      return Ratio{neg(a->num), a->den};
    }
    case ExprKind::fadd:
    case ExprKind::fsub: {
      const auto a = exact(e->args[0]), b = exact(e->args[1]);
      if (!a || !b) return std::nullopt;
      const ExprRef x = mul(a->num, b->den), y = mul(b->num, a->den);
      return Ratio{e->kind == ExprKind::fadd ? add(x, y) : sub(x, y), mul(a->den, b->den)};
    }
    case ExprKind::fmul: {
      const auto a = exact(e->args[0]), b = exact(e->args[1]);
      if (!a || !b) return std::nullopt;
      return Ratio{mul(a->num, b->num), mul(a->den, b->den)};
    }
    case ExprKind::floor:
    case ExprKind::ceil: {
      const auto a = quotient(e->args[0]);
      if (!a) return std::nullopt;
      return Ratio{e->kind == ExprKind::floor ? rounded_down(*a) : rounded_up(*a), pool.integer(1)};
    }
    default: return std::nullopt;
  }
}

// The same, or one division of such: the quotient of integers below 2^24 is never rounded across an
// integer.
std::optional<Ratio> quotient(ExprRef e) {
  if (e->kind == ExprKind::f2f) return quotient(e->args[0]);
  if (e->kind == ExprKind::fneg) {
    const auto a = quotient(e->args[0]);
    if (!a) return std::nullopt;
    return Ratio{neg(a->num), a->den};
  }
  if (e->kind != ExprKind::fdiv) return exact(e);
  const auto a = exact(e->args[0]), b = exact(e->args[1]);
  if (!a || !b || !prove_le(e->pool->integer(1), b->num)) return std::nullopt;
  return Ratio{mul(a->num, b->den), mul(a->den, b->num)};
}

}  // namespace

ExprRef whole_of(ExprRef real) {
  if (!made_of_sizes(real)) return nullptr;
  const auto r = quotient(real);
  if (!r || poison_of(r->num) != Poison::none || poison_of(r->den) != Poison::none) return nullptr;
  if (prove_ge0(r->num)) return rounded_down(*r);
  if (prove_ge0(neg(r->num))) return rounded_up(*r);
  return select(le(real->pool->integer(0), r->num), rounded_down(*r), rounded_up(*r));
}

}  // namespace tfcc::ir
