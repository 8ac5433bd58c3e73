// SPDX-License-Identifier: Apache-2.0
#include "ir/range.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

namespace tfcc::ir {
namespace {

using Wide = __int128;

constexpr Wide kFarthest = Wide{1} << 110;  // sums of 256 of these fit
constexpr int64_t kUsualSize = 4096;
constexpr Wide kRoom = Wide{1} << 62;
constexpr int64_t kSmallBound = int64_t{1} << 40;  // a bound beyond this says nothing about a size

struct WideInterval {
  Wide lo, hi;
};

Wide clipped(Wide v) { return std::clamp(v, -kFarthest, kFarthest); }

Wide product(Wide a, Wide b) {
  Wide r;
  if (!__builtin_mul_overflow(a, b, &r)) return clipped(r);
  return (a < 0) == (b < 0) ? kFarthest : -kFarthest;
}

WideInterval product(WideInterval a, WideInterval b) {
  const Wide corners[] = {product(a.lo, b.lo), product(a.lo, b.hi), product(a.hi, b.lo),
                          product(a.hi, b.hi)};
  return {*std::min_element(corners, corners + 4), *std::max_element(corners, corners + 4)};
}

WideInterval widened(Interval i) { return {i.lo, i.hi}; }

WideInterval range_of_term(const Term& t) {
  WideInterval r{t.coefficient, t.coefficient};
  for (ExprRef a : t.atoms) r = product(r, widened(range_of(a)));
  return r;
}

void accumulate(WideInterval& sum, const WideInterval& t) {
  sum.lo = clipped(sum.lo + t.lo);
  sum.hi = clipped(sum.hi + t.hi);
}

// Of the mathematical value.
WideInterval range_of_poly(const Poly& p) {
  WideInterval sum{p.constant, p.constant};
  for (const Term& t : p.terms) accumulate(sum, range_of_term(t));
  return sum;
}

bool is_int64(const WideInterval& w) { return w.lo >= INT64_MIN && w.hi <= INT64_MAX; }

Interval narrowed(const WideInterval& w) {
  return {static_cast<int64_t>(w.lo), static_cast<int64_t>(w.hi)};
}

// The part of w that a machine holds; all integers if there is none.
Interval machine_part(const WideInterval& w) {
  if (w.lo > INT64_MAX || w.hi < INT64_MIN) return {};
  return {static_cast<int64_t>(std::max<Wide>(w.lo, INT64_MIN)),
          static_cast<int64_t>(std::min<Wide>(w.hi, INT64_MAX))};
}

// x - n * floor(x / n) is what a modulo leaves, in [0, n - 1], whatever x wraps to.
Interval range_with_modulos(ExprRef e) {
  Poly rest = to_poly(e);
  const std::vector<ModPart> mods = extract_mods(rest);
  if (mods.empty()) return {};
  WideInterval sum = range_of_poly(rest);
  for (const ModPart& m : mods) {
    const Interval divisor = range_of(m.divisor);
    if (divisor.lo < 1) return {};
    accumulate(sum, product(range_of_term(m.factor), {0, Wide{divisor.hi} - 1}));
  }
  return is_int64(sum) ? narrowed(sum) : Interval{};
}

Interval range_of_poly(ExprRef e) {
  const Poly p = to_poly(e);
  const WideInterval w = range_of_poly(p);
  if (is_int64(w)) return narrowed(w);
  if (fits(p, *e->pool)) return machine_part(w);
  return range_with_modulos(e);
}

Interval range_of_quotient(ExprRef e) {
  const Interval a = range_of(e->args[0]), b = range_of(e->args[1]);
  if (b.lo < 1) return {};
  return {std::min(floor_div(a.lo, b.lo), floor_div(a.lo, b.hi)),
          std::max(floor_div(a.hi, b.lo), floor_div(a.hi, b.hi))};
}

Interval range_of_bits(int64_t bits) {
  if (bits < 0) return {0, (int64_t{1} << -bits) - 1};
  return {-(int64_t{1} << (bits - 1)), (int64_t{1} << (bits - 1)) - 1};
}

Interval range_of_type(DType t) {
  switch (t) {
    case DType::i32: return range_of_bits(32);
    case DType::i16: return range_of_bits(16);
    case DType::i8: return range_of_bits(8);
    case DType::u8: return range_of_bits(-8);
    default: return {};
  }
}

struct RealInterval {
  double lo = -std::numeric_limits<double>::infinity(),
         hi = std::numeric_limits<double>::infinity();
};

// Of a real where it is a number: what clamps by literals leave.
RealInterval real_range(ExprRef e) {
  if (const auto value = as_real(e)) {  // as written, or as f32 has it
    const double stored = e->type == Scalar::f32 ? static_cast<float>(*value) : *value;
    return std::isnan(*value) ? RealInterval{}
                              : RealInterval{std::min(*value, stored), std::max(*value, stored)};
  }
  if (e->kind == ExprKind::rint || e->kind == ExprKind::floor || e->kind == ExprKind::ceil) {
    const RealInterval a = real_range(e->args[0]);
    return {std::floor(a.lo), std::ceil(a.hi)};
  }
  if (e->kind != ExprKind::fmin && e->kind != ExprKind::fmax) return {};
  const RealInterval a = real_range(e->args[0]), b = real_range(e->args[1]);
  if (e->kind == ExprKind::fmin) return {std::min(a.lo, b.lo), std::min(a.hi, b.hi)};
  return {std::max(a.lo, b.lo), std::max(a.hi, b.hi)};
}

// Truncated; what is no number becomes 0.
Interval range_of_truncated(RealInterval r) {
  constexpr double kExact = 9007199254740992;  // 2^53
  Interval i;
  if (r.lo > -kExact) i.lo = static_cast<int64_t>(std::min(std::trunc(r.lo), 0.0));
  if (r.hi < kExact) i.hi = static_cast<int64_t>(std::max(std::trunc(r.hi), 0.0));
  return i;
}

Interval computed_range(ExprRef e) {
  auto arg = [&](size_t i) { return range_of(e->args[i]); };
  switch (e->kind) {
    case ExprKind::poly: return range_of_poly(e);
    case ExprKind::index: return {0, std::max<int64_t>(arg(0).hi, 1) - 1};
    case ExprKind::symbol: {
      const SymbolRange range = e->pool->range(e->name);
      return {range.min, std::max(range.min, range.max.value_or(kLargestSize))};
    }
    case ExprKind::load: return range_of_type(e->dtype);
    case ExprKind::floordiv: return range_of_quotient(e);
    case ExprKind::imin: {
      const Interval a = arg(0), b = arg(1);
      return {std::min(a.lo, b.lo), std::min(a.hi, b.hi)};
    }
    case ExprKind::imax: {
      const Interval a = arg(0), b = arg(1);
      return {std::max(a.lo, b.lo), std::max(a.hi, b.hi)};
    }
    case ExprKind::iabs: {  // of the least integer it is the least integer
      const Interval a = arg(0);
      if (a.lo == INT64_MIN) return {};
      const int64_t far = std::max(a.lo < 0 ? -a.lo : a.lo, a.hi < 0 ? -a.hi : a.hi);
      return {a.lo > 0 ? a.lo : a.hi < 0 ? -a.hi : 0, far};
    }
    case ExprKind::bounded: return {0, std::max<int64_t>(arg(1).hi, 1) - 1};
    case ExprKind::select: {
      const Interval a = arg(1), b = arg(2);
      return {std::min(a.lo, b.lo), std::max(a.hi, b.hi)};
    }
    case ExprKind::bitand_: {
      const Interval a = arg(0), b = arg(1);
      if (a.lo < 0 && b.lo < 0) return {};
      return {0, std::min(a.lo < 0 ? INT64_MAX : a.hi, b.lo < 0 ? INT64_MAX : b.hi)};
    }
    case ExprKind::f2i: return range_of_truncated(real_range(e->args[0]));
    case ExprKind::wrap: {
      const Interval a = arg(0), bits = range_of_bits(e->value);
      return a.inside(bits.lo, bits.hi) ? a : bits;
    }
    default: return {};
  }
}

Poly absolute(Poly p) {
  for (Term& t : p.terms)
    t.coefficient = t.coefficient == INT64_MIN ? INT64_MAX : std::abs(t.coefficient);
  p.constant = p.constant == INT64_MIN ? INT64_MAX : std::abs(p.constant);
  return p;
}

// Null for what is lost: a bound of it says nothing.
ExprRef kept(ExprPool& pool, Poly p) {
  ExprRef e = from_poly(pool, std::move(p));
  return poison_of(e) == Poison::none ? e : nullptr;
}

ExprRef magnitude_of_poly(ExprRef e) {
  Poly sum{{}, absolute({{}, e->value}).constant};
  for (const Term& t : e->terms) {
    Poly product{{}, t.coefficient == INT64_MIN ? INT64_MAX : std::abs(t.coefficient)};
    for (ExprRef a : t.atoms) {
      ExprRef m = magnitude(a);
      if (!m) return nullptr;
      product = multiply(product, to_poly(m));
    }
    append(sum, product);
  }
  normalise(sum);
  return kept(*e->pool, std::move(sum));
}

ExprRef magnitude_of_sum(ExprRef e, size_t first) {
  ExprRef a = magnitude(e->args[first]), b = magnitude(e->args[first + 1]);
  if (!a || !b) return nullptr;
  return kept(*e->pool, add(to_poly(a), to_poly(b)));
}

ExprRef computed_magnitude(ExprRef e) {
  if (e->kind == ExprKind::poly) return magnitude_of_poly(e);
  const Interval range = range_of(e);
  const bool bounded = range.inside(-kSmallBound, kSmallBound);
  ExprRef bound =
      bounded ? e->pool->integer(std::max(std::abs(range.lo), std::abs(range.hi))) : nullptr;
  if (bounded && range.inside(-kUsualSize, kUsualSize)) return bound;
  ExprRef sizes = nullptr;
  switch (e->kind) {
    case ExprKind::symbol: return e;
    case ExprKind::index: sizes = magnitude(e->args[0]); break;
    case ExprKind::bounded: sizes = magnitude(e->args[1]); break;
    case ExprKind::floordiv:
      if (range_of(e->args[1]).lo >= 1) sizes = magnitude(e->args[0]);
      break;
    case ExprKind::imin:
    case ExprKind::imax: sizes = magnitude_of_sum(e, 0); break;
    case ExprKind::iabs: sizes = magnitude(e->args[0]); break;
    case ExprKind::select: sizes = magnitude_of_sum(e, 1); break;
    default: break;
  }
  return sizes ? sizes : bound;
}

// A sum of products of sizes at usual sizes.
Wide usual(ExprRef magnitude) {
  const Poly p = to_poly(magnitude);
  Wide sum = p.constant;
  for (const Term& t : p.terms) {
    Wide v = t.coefficient;
    for (ExprRef a : t.atoms)
      v = product(v, std::min(range_of(a).hi, std::max(range_of(a).lo, kUsualSize)));
    sum = clipped(sum + v);
  }
  return sum;
}

// Not by any range of sizes, but at those that models have; the run checks the rest.
bool fits_usually(const Poly& p, ExprPool& pool) {
  ExprRef sum = kept(pool, p), m = sum ? magnitude(sum) : nullptr;
  if (!m || usual(m) > kRoom) return false;
  pool.assume_size(m);
  return true;
}

}  // namespace

Interval range_of(ExprRef e) {
  auto& known = e->pool->known().ranges;
  if (e->type != Scalar::i64) return {};
  if (auto it = known.find(e); it != known.end()) return it->second;
  const Interval r = computed_range(e);
  known.emplace(e, r);
  return r;
}

ExprRef magnitude(ExprRef e) {
  auto& known = e->pool->known().magnitudes;
  if (auto it = known.find(e); it != known.end()) return it->second;
  ExprRef m = computed_magnitude(e);
  known.emplace(e, m);
  return m;
}

bool fits(const Poly& p, ExprPool& pool) {
  return !p.lost() && (is_int64(range_of_poly(p)) || fits_usually(p, pool));
}

bool fits(ExprRef e) {
  if (e->kind == ExprKind::poison) return false;
  if (e->kind != ExprKind::poly) return true;  // an atom is what it evaluates to
  auto& known = e->pool->known().fitting;
  if (auto it = known.find(e); it != known.end()) return it->second;
  const bool result = fits(to_poly(e), *e->pool);
  known.emplace(e, result);
  return result;
}

bool fits_twice(const Poly& p, ExprPool& pool) {
  if (p.lost()) return false;
  const WideInterval w = range_of_poly(p);
  constexpr Wide kTwice = Wide{1} << 64;
  return (w.lo > -kTwice && w.hi < kTwice) || fits_usually(p, pool);
}

Poly assumed_sizes(ExprPool& pool) {
  Poly all;
  for (ExprRef m : pool.assumed()) {
    const Poly p = to_poly(m);
    all.constant = std::max(all.constant, p.constant);
    for (const Term& t : p.terms) {
      auto same = std::find_if(all.terms.begin(), all.terms.end(),
                               [&](const Term& o) { return o.atoms == t.atoms; });
      if (same == all.terms.end()) all.terms.push_back(t);
      else same->coefficient = std::max(same->coefficient, t.coefficient);
    }
  }
  normalise(all);
  return all;
}

}  // namespace tfcc::ir
