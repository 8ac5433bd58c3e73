// SPDX-License-Identifier: Apache-2.0
// Random expressions as plain trees with their own evaluation, for comparing everything that
// ir/expr makes of them: floor divisions of negatives, integers that wrap at 64 bits and at fewer,
// infinities and NaN, saturating conversions, guarded and clamped loads by numbers of which data
// makes the worst.
#pragma once

#include <cfenv>
#include <cmath>
#include <cstdlib>
#include <random>
#include <vector>

#include "ir/ir.h"

namespace tfcc::ir {

/// One application of an operator, before any builder has seen it. `kind` names a real function of
/// one argument.
struct Raw {
  enum Op {
    number,
    index,
    size,
    load,
    add,
    sub,
    mul,
    div,
    mod,
    min,
    max,
    abs,
    neg,
    pow,
    select,
    bounded,
    convert,
    lt,
    le,
    eq,
    logical_and,
    logical_or,
    logical_not,
    is_nan,
    unary,
    bit_and,
    wrap
  } op;
  Scalar type;
  double value =
      0;  // of a number; index number; operand of a load; bits of a wrap, negative: unsigned
  ExprKind kind = ExprKind::exp;
  std::vector<Raw> args = {};
};

/// Where an expression is evaluated. Operand 0: f32[n,5], 1: i64[n], 2: bool[], 3: i32[n]; index 0
/// over n, 1 over 5; flag 0.
struct RawSample {
  int64_t n;
  int64_t at[2];
  std::vector<float> reals;
  std::vector<int64_t> ints;
  bool truth;
  std::vector<int32_t> narrow;
};

inline RawSample random_sample(std::mt19937& random) {
  constexpr float kSpecial[] = {0, 1, -1, 0.5f, INFINITY, -INFINITY, NAN, 1e30f, 1e-40f, 2049.0f};
  constexpr int64_t kExtreme[] = {INT64_MIN,
                                  INT64_MIN + 1,
                                  INT64_MAX,
                                  INT64_MAX - 1,
                                  int64_t{1} << 62,
                                  -(int64_t{1} << 62),
                                  INT32_MIN,
                                  INT32_MAX,
                                  int64_t{1} << 32,
                                  -1,
                                  0,
                                  1,
                                  int64_t{-7} << 40};
  RawSample s{static_cast<int64_t>(random() % 4) + 1, {}, {}, {}, random() % 2 == 0, {}};
  s.at[0] = static_cast<int64_t>(random() % static_cast<uint32_t>(s.n));
  s.at[1] = static_cast<int64_t>(random() % 5);
  for (int64_t k = 0; k < s.n * 5; ++k) {
    const float plain = static_cast<float>(static_cast<int>(random() % 4001) - 2000) / 128.0f;
    s.reals.push_back(random() % 4 ? plain : kSpecial[random() % std::size(kSpecial)]);
  }
  for (int64_t k = 0; k < s.n; ++k) {
    s.ints.push_back(random() % 3 ? static_cast<int64_t>(random() % 41) - 20
                                  : kExtreme[random() % std::size(kExtreme)]);
    s.narrow.push_back(static_cast<int32_t>(random() % 3
                                                ? static_cast<int64_t>(random() % 41) - 20
                                                : kExtreme[random() % std::size(kExtreme)]));
  }
  return s;
}

/// A tree of a given depth. Without `transcendental`, every operation of it is exact or correctly
/// rounded everywhere; with `rounded_products` that holds as well where a compiler makes one
/// operation of a product and a sum.
class RawMaker {
 public:
  RawMaker(uint32_t seed, bool transcendental, bool rounded_products = false)
      : random_(seed), transcendental_(transcendental), rounded_products_(rounded_products) {}

  Raw integer(int depth) {
    if (depth <= 0) {
      switch (pick(5)) {
        case 0: return literal(pick(9) - 4);
        case 1: return {Raw::index, Scalar::i64, 0};
        case 2: return {Raw::index, Scalar::i64, 1};
        case 3: return {Raw::size, Scalar::i64};
        default:
          return {Raw::load, Scalar::i64, pick(3) ? 1.0 : 3.0, {}, {{Raw::index, Scalar::i64, 0}}};
      }
    }
    Raw a = integer(depth - 1);
    switch (pick(15)) {
      case 0: return two(Raw::add, a, integer(depth - 1));
      case 1: return two(Raw::sub, a, integer(depth - 1));
      case 2: return two(Raw::mul, a, integer(depth - 2));
      case 3: return two(Raw::div, a, pick(4) ? literal(pick(7) + 1) : Raw{Raw::size, Scalar::i64});
      case 4: return two(Raw::mod, a, pick(4) ? literal(pick(7) + 1) : Raw{Raw::size, Scalar::i64});
      case 5: return two(Raw::min, a, integer(depth - 1));
      case 6: return two(Raw::max, a, integer(depth - 1));
      case 7: return one(Raw::abs, a);
      case 8: return one(Raw::neg, a);
      case 9: return choice(condition(depth - 1), a, integer(depth - 1));
      case 10: return two(Raw::bounded, a, pick(2) ? literal(5) : Raw{Raw::size, Scalar::i64});
      case 11: return {Raw::convert, Scalar::i64, 0, {}, {condition(depth - 1)}};
      case 12: return two(Raw::bit_and, a, integer(depth - 1));
      case 13: return {Raw::wrap, Scalar::i64, kBits[pick(std::size(kBits))], {}, {a}};
      default: return {Raw::convert, Scalar::i64, 0, {}, {real(depth - 1)}};
    }
  }

  Raw condition(int depth) {
    if (depth <= 0) return {Raw::load, Scalar::boolean, 2};
    constexpr Raw::Op kCompare[] = {Raw::lt, Raw::le, Raw::eq};
    switch (pick(7)) {
      case 0:
      case 1: return of(Scalar::boolean, kCompare[pick(3)], integer(depth - 1), integer(depth - 1));
      case 2: return of(Scalar::boolean, kCompare[pick(3)], real(depth - 1), real(depth - 1));
      case 3:
        return of(Scalar::boolean, Raw::logical_and, condition(depth - 1), condition(depth - 1));
      case 4:
        return of(Scalar::boolean, Raw::logical_or, condition(depth - 1), condition(depth - 1));
      case 5: return {Raw::is_nan, Scalar::boolean, 0, {}, {real(depth - 1)}};
      default: return {Raw::logical_not, Scalar::boolean, 0, {}, {condition(depth - 1)}};
    }
  }

  Raw real(int depth) {
    if (depth <= 0) {
      constexpr double kValues[] = {0.5,   0.0,      1e-12f,    3.0, -1.5,  1.0, 2.0,
                                    1e30f, INFINITY, -INFINITY, NAN, 0.125, 0.1f};
      if (pick(2)) return {Raw::number, Scalar::f32, kValues[pick(std::size(kValues))]};
      return load({Raw::index, Scalar::i64, 0});
    }
    constexpr ExprKind kExact[] = {ExprKind::sqrt,      ExprKind::floor, ExprKind::ceil,
                                   ExprKind::rint,      ExprKind::sign,  ExprKind::round_f16,
                                   ExprKind::round_bf16};
    constexpr ExprKind kOther[] = {ExprKind::exp, ExprKind::log, ExprKind::erf, ExprKind::tanh,
                                   ExprKind::sin, ExprKind::cos, ExprKind::atan};
    Raw a = real(depth - 1);
    switch (pick(transcendental_ ? 18 : 15)) {
      case 0:
      case 1: return two(Raw::add, a, real(depth - 1));
      case 2: return two(Raw::sub, a, real(depth - 1));
      case 3:
      case 4: return product(two(Raw::mul, a, real(depth - 1)));
      case 5: return product(two(Raw::div, a, real(depth - 1)));
      case 6: return two(Raw::min, a, real(depth - 1));
      case 7: return two(Raw::max, a, real(depth - 1));
      case 8: return one(pick(2) ? Raw::abs : Raw::neg, a);
      case 9: return choice(condition(depth - 1), a, real(depth - 1));
      case 10: return {Raw::convert, Scalar::f32, 0, {}, {integer(depth - 1)}};
      case 11: return in_f64(depth, a);
      case 12: return guarded(integer(depth - 1), a);
      case 13: return load(two(Raw::bounded, integer(depth - 1), Raw{Raw::size, Scalar::i64}));
      case 14: return {Raw::unary, Scalar::f32, 0, kExact[pick(std::size(kExact))], {a}};
      case 15: return two(Raw::pow, a, real(depth - 2));
      case 16: return two(Raw::mod, a, real(depth - 2));
      default: return {Raw::unary, Scalar::f32, 0, kOther[pick(std::size(kOther))], {a}};
    }
  }

 private:
  static constexpr double kBits[] = {32, -32, 16, 8, -8, 4};
  int pick(size_t n) { return static_cast<int>(random_() % n); }
  static Raw of(Scalar type, Raw::Op op, Raw a, Raw b) {
    return {op, type, 0, {}, {std::move(a), std::move(b)}};
  }
  static Raw two(Raw::Op op, Raw a, Raw b) {
    const Scalar t = a.type;
    return of(t, op, std::move(a), std::move(b));
  }
  static Raw one(Raw::Op op, Raw a) {
    const Scalar t = a.type;
    return {op, t, 0, {}, {std::move(a)}};
  }
  static Raw literal(int64_t v) { return {Raw::number, Scalar::i64, static_cast<double>(v)}; }
  static Raw choice(Raw c, Raw a, Raw b) {
    const Scalar t = a.type;
    return {Raw::select, t, 0, {}, {std::move(c), std::move(a), std::move(b)}};
  }
  static Raw load(Raw row) {
    return {Raw::load, Scalar::f32, 0, {}, {std::move(row), {Raw::index, Scalar::i64, 1}}};
  }

  // A load that only the select around it keeps in range.
  static Raw guarded(const Raw& row, Raw otherwise) {
    Raw inside =
        of(Scalar::boolean, Raw::logical_and, of(Scalar::boolean, Raw::le, literal(0), row),
           of(Scalar::boolean, Raw::lt, row, {Raw::size, Scalar::i64}));
    return choice(std::move(inside), load(row), std::move(otherwise));
  }

  Raw product(Raw p) {
    if (!rounded_products_) return p;
    return {Raw::unary, Scalar::f32, 0, ExprKind::round_bf16, {std::move(p)}};
  }

  Raw in_f64(int depth, Raw a) {
    Raw wide{Raw::convert, Scalar::f64, 0, {}, {std::move(a)}},
        other{Raw::convert, Scalar::f64, 0, {}, {real(depth - 2)}};
    // A compiler may compute this in f32: the result is the same.
    return product({Raw::convert,
                    Scalar::f32,
                    0,
                    {},
                    {two(pick(2) ? Raw::add : Raw::mul, std::move(wide), std::move(other))}});
  }

  std::mt19937 random_;
  bool transcendental_, rounded_products_;
};

/// The expression that the builders make of a tree.
inline ExprRef build(const Raw& r, ExprPool& pool) {
  auto a = [&](size_t i) { return build(r.args[i], pool); };
  switch (r.op) {
    case Raw::number:
      return r.type == Scalar::i64 ? pool.integer(static_cast<int64_t>(r.value))
                                   : pool.real(r.value, r.type);
    case Raw::index:
      return r.value == 0 ? pool.index(0, pool.symbol("N")) : pool.index(1, pool.integer(5));
    case Raw::size: return pool.symbol("N");
    case Raw::load: {
      std::vector<ExprRef> at;
      for (const Raw& i : r.args) at.push_back(build(i, pool));
      if (r.value == 3) return pool.load(3, DType::i32, at);
      return pool.load(static_cast<int64_t>(r.value), r.type, at);
    }
    case Raw::bit_and: return bit_and(a(0), a(1));
    case Raw::wrap: return wrap(a(0), static_cast<int>(std::fabs(r.value)), r.value > 0);
    case Raw::add: return add(a(0), a(1));
    case Raw::sub: return sub(a(0), a(1));
    case Raw::mul: return mul(a(0), a(1));
    case Raw::div: return div(a(0), a(1));
    case Raw::mod: return mod(a(0), a(1));
    case Raw::min: return min(a(0), a(1));
    case Raw::max: return max(a(0), a(1));
    case Raw::abs: return abs(a(0));
    case Raw::neg: return neg(a(0));
    case Raw::pow: return pow(a(0), a(1));
    case Raw::select: return select(a(0), a(1), a(2));
    case Raw::bounded: return bounded(a(0), a(1), 0);
    case Raw::convert: return convert(a(0), r.type);
    case Raw::lt: return lt(a(0), a(1));
    case Raw::le: return le(a(0), a(1));
    case Raw::eq: return eq(a(0), a(1));
    case Raw::logical_and: return logical_and(a(0), a(1));
    case Raw::logical_or: return logical_or(a(0), a(1));
    case Raw::logical_not: return logical_not(a(0));
    case Raw::is_nan: return is_nan(a(0));
    case Raw::unary: return unary(r.kind, a(0));
  }
  return nullptr;
}

/// The value of a tree by C++ itself. `open` is set where docs/expressions.md leaves the result
/// open: the sign of a zero, the last bit of a cube, the rounding of an integer beyond what a
/// double holds.
class RawEval {
 public:
  explicit RawEval(const RawSample& sample) : s_(sample) {}
  bool open = false, flagged = false;
  int64_t largest = int64_t{1} << 53;

  ScalarValue operator()(const Raw& r) {
    if (r.type == Scalar::i64) return {integer(r), 0};
    if (r.type == Scalar::boolean) return {truth(r), 0};
    const double v = real(r);
    return {0, r.type == Scalar::f32 ? static_cast<double>(static_cast<float>(v)) : v};
  }

 private:
  int64_t i(const Raw& r) { return (*this)(r).i; }
  double d(const Raw& r) { return (*this)(r).r; }

  static int64_t wrapped(__int128 v) { return static_cast<int64_t>(static_cast<uint64_t>(v)); }
  static int64_t low_bits_of(__int128 v, int bits) {
    const __int128 size = __int128{1} << std::abs(bits);
    const __int128 low = (v % size + size) % size;
    return static_cast<int64_t>(bits > 0 && low >= size / 2 ? low - size : low);
  }

  static int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0); }

  int64_t truncated(double v) {
    if (std::isnan(v)) return 0;
    return v >= 0x1p63 ? INT64_MAX : v < -0x1p63 ? INT64_MIN : static_cast<int64_t>(v);
  }

  int64_t integer(const Raw& r) {
    if (r.op == Raw::number) return static_cast<int64_t>(r.value);
    if (r.op == Raw::index) return s_.at[static_cast<int>(r.value)];
    if (r.op == Raw::size) return s_.n;
    if (r.op == Raw::load)
      return r.value == 3 ? s_.narrow[static_cast<size_t>(i(r.args[0]))]
                          : s_.ints[static_cast<size_t>(i(r.args[0]))];
    if (r.op == Raw::select) return i(r.args[i(r.args[0]) ? 1 : 2]);
    if (r.op == Raw::convert)
      return r.args[0].type == Scalar::boolean ? i(r.args[0]) : truncated(d(r.args[0]));
    const __int128 a = i(r.args[0]), b = r.args.size() > 1 ? i(r.args[1]) : 0;
    switch (r.op) {
      case Raw::add: return wrapped(a + b);
      case Raw::sub: return wrapped(a - b);
      case Raw::mul: return wrapped(a * b);
      case Raw::div: return floor_div(static_cast<int64_t>(a), static_cast<int64_t>(b));
      case Raw::mod:
        return wrapped(a - b * floor_div(static_cast<int64_t>(a), static_cast<int64_t>(b)));
      case Raw::min: return wrapped(std::min(a, b));
      case Raw::max: return wrapped(std::max(a, b));
      case Raw::abs: return wrapped(a < 0 ? -a : a);
      case Raw::neg: return wrapped(-a);
      case Raw::bit_and: return static_cast<int64_t>(a) & static_cast<int64_t>(b);
      case Raw::wrap: return low_bits_of(a, static_cast<int>(r.value));
      default: break;
    }
    flagged |= a < 0 || a >= b;  // bounded
    return wrapped(std::max<__int128>(0, std::min(a, b - 1)));
  }

  bool truth(const Raw& r) {
    if (r.op == Raw::load) return s_.truth;
    if (r.op == Raw::logical_not) return !i(r.args[0]);
    if (r.op == Raw::is_nan) return std::isnan(d(r.args[0]));
    const ScalarValue a = (*this)(r.args[0]), b = (*this)(r.args[1]);
    if (r.op == Raw::logical_and) return a.i && b.i;
    if (r.op == Raw::logical_or) return a.i || b.i;
    const bool reals = r.args[0].type != Scalar::i64;
    if (r.op == Raw::lt) return reals ? a.r < b.r : a.i < b.i;
    if (r.op == Raw::le) return reals ? a.r <= b.r : a.i <= b.i;
    return reals ? a.r == b.r : a.i == b.i;
  }

  static double extreme(double a, double b, bool larger) {
    if (std::isnan(a) || std::isnan(b)) return NAN;
    return larger ? std::max(a, b) : std::min(a, b);
  }

  double real(const Raw& r) {
    if (r.op == Raw::number) return r.value;
    if (r.op == Raw::load) return s_.reals[static_cast<size_t>(i(r.args[0]) * 5 + i(r.args[1]))];
    if (r.op == Raw::select) return d(r.args[i(r.args[0]) ? 1 : 2]);
    if (r.op == Raw::convert && r.args[0].type == Scalar::i64) {
      const int64_t v = i(r.args[0]);
      open |= v > largest || v < -largest;
      return static_cast<double>(v);
    }
    const double a = d(r.args[0]), b = r.args.size() > 1 ? d(r.args[1]) : 0;
    switch (r.op) {
      case Raw::add: return a + b;
      case Raw::sub: return a - b;
      case Raw::mul: return a * b;
      case Raw::div: open |= b == 0; return a / b;
      case Raw::mod: return std::fmod(a, b);
      case Raw::min: return extreme(a, b, false);
      case Raw::max: return extreme(a, b, true);
      case Raw::abs: return std::fabs(a);
      case Raw::neg: return -a;
      case Raw::pow: open |= a == 0 || b == 3; return std::pow(a, b);
      case Raw::unary: return function(r.kind, a);
      default: return a;  // a conversion between reals
    }
  }

  // To `bits` of significand with exponents from `least` on, to nearest even.
  static double rounded(double v, int bits, int least, double limit) {
    if (!std::isfinite(v) || v == 0) return v;
    const double quantum = std::ldexp(1.0, std::max(std::ilogb(v), least) - bits + 1);
    const double r = std::nearbyint(v / quantum) * quantum;
    return std::fabs(r) >= limit ? std::copysign(INFINITY, v) : r;
  }

  static double function(ExprKind kind, double a) {
    switch (kind) {
      case ExprKind::sqrt: return std::sqrt(a);
      case ExprKind::floor: return std::floor(a);
      case ExprKind::ceil: return std::ceil(a);
      case ExprKind::rint: return std::nearbyint(a);
      case ExprKind::sign: return std::isnan(a) ? a : (a > 0) - (a < 0);
      case ExprKind::round_f16: return rounded(a, 11, -14, 65536);
      case ExprKind::round_bf16: return rounded(a, 8, -126, 0x1p128);
      case ExprKind::exp: return std::exp(a);
      case ExprKind::log: return std::log(a);
      case ExprKind::erf: return std::erf(a);
      case ExprKind::tanh: return std::tanh(a);
      case ExprKind::sin: return std::sin(a);
      case ExprKind::atan: return std::atan(a);
      default: return std::cos(a);
    }
  }

  const RawSample& s_;
};

/// The interpreter of ir/eval at a sample.
inline ScalarValue interpret(ExprRef e, const RawSample& s, bool& flagged) {
  ScalarEnv env;
  env.symbol = [&](std::string_view) { return s.n; };
  env.indices = s.at;
  env.load = [&](int64_t slot, std::span<const int64_t> at, int64_t& i, double& r) {
    if (slot == 0) r = s.reals.at(static_cast<size_t>(at[0] * 5 + at[1]));
    else
      i = slot == 1   ? s.ints.at(static_cast<size_t>(at[0]))
          : slot == 3 ? s.narrow.at(static_cast<size_t>(at[0]))
                      : s.truth;
  };
  env.flag = [&](int64_t) { flagged = true; };
  return eval_expr(e, env, true);
}

/// Equal up to the sign of a zero.
inline bool same(Scalar type, const ScalarValue& a, const ScalarValue& b) {
  if (type == Scalar::i64 || type == Scalar::boolean) return a.i == b.i;
  return a.r == b.r || (std::isnan(a.r) && std::isnan(b.r));
}

}  // namespace tfcc::ir
