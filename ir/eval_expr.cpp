// SPDX-License-Identifier: Apache-2.0
// One value of one expression: the plain interpreter that every other implementation is compared
// with.
#include <cmath>
#include <unordered_map>

#include "ir/expr_poly.h"
#include "ir/ir.h"

namespace tfcc::ir {
namespace {

// Integers wrap like the machine's; C++ would call that undefined for signed types.
int64_t wrap_add(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
}
int64_t wrap_mul(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
}

int64_t truncate(double v) {
  if (std::isnan(v)) return 0;
  if (v >= 0x1p63) return INT64_MAX;
  if (v < -0x1p63) return INT64_MIN;
  return static_cast<int64_t>(v);
}

class Interpreter {
 public:
  Interpreter(const ScalarEnv& env, bool round_f32) : env_(env), round_f32_(round_f32) {}

  /// Values are kept per node, so that sharing does not become repetition; arms of a select only
  /// when taken.
  ScalarValue at(ExprRef e) {
    if (e->args.empty() && e->terms.empty()) return compute(e);
    if (const auto it = known_.find(e); it != known_.end()) return it->second;
    const ScalarValue v = compute(e);
    known_.emplace(e, v);
    return v;
  }

 private:
  int64_t i(ExprRef e) { return at(e).i; }
  double r(ExprRef e) { return at(e).r; }
  /// What a comparison or a rounding to an integer looks at: the value as its type holds it.
  double decided(ExprRef e) { return e->type == Scalar::f32 ? static_cast<float>(r(e)) : r(e); }
  static ScalarValue of(int64_t v) { return {v, 0}; }
  ScalarValue real(ExprRef e, double v) const {
    return {0,
            round_f32_ && e->type == Scalar::f32 ? static_cast<double>(static_cast<float>(v)) : v};
  }

  ScalarValue compute(ExprRef e) {
    const auto& a = e->args;
    switch (e->kind) {
      case ExprKind::poly: return of(poly(e));
      case ExprKind::index: return of(env_.indices[static_cast<size_t>(e->value)]);
      case ExprKind::symbol: return of(env_.symbol(e->name));
      case ExprKind::load: return load(e);
      case ExprKind::param: return param(e);
      case ExprKind::floordiv: return of(evaluated_floordiv(i(a[0]), i(a[1])));
      case ExprKind::imin: return of(std::min(i(a[0]), i(a[1])));
      case ExprKind::imax: return of(std::max(i(a[0]), i(a[1])));
      case ExprKind::bitand_: return of(i(a[0]) & i(a[1]));
      case ExprKind::wrap: return of(low_bits(i(a[0]), e->value));
      case ExprKind::iabs: return of(i(a[0]) < 0 ? wrap_mul(i(a[0]), -1) : i(a[0]));
      case ExprKind::bounded: return of(bounded(e));
      case ExprKind::f2i: return of(truncate(decided(a[0])));
      case ExprKind::select: return at(i(a[0]) ? a[1] : a[2]);
      case ExprKind::btrue: return of(1);
      case ExprKind::bfalse: return of(0);
      case ExprKind::ge0: return of(at_least(e));
      case ExprKind::eq0: return of(i(a[0]) == 0);
      case ExprKind::band: return of(junction(e, false));
      case ExprKind::bor: return of(junction(e, true));
      case ExprKind::bnot: return of(!i(a[0]));
      case ExprKind::flt: return of(decided(a[0]) < decided(a[1]));
      case ExprKind::fle: return of(decided(a[0]) <= decided(a[1]));
      case ExprKind::feq: return of(decided(a[0]) == decided(a[1]));
      case ExprKind::isnan: return of(std::isnan(r(a[0])));
      case ExprKind::fconst: return {0, e->real};
      case ExprKind::i2f: return real(e, static_cast<double>(i(a[0])));
      case ExprKind::f2f: return real(e, r(a[0]));
      case ExprKind::fadd:
      case ExprKind::fsub:
      case ExprKind::fmul:
      case ExprKind::fdiv:
      case ExprKind::fpow:
      case ExprKind::fmin:
      case ExprKind::fmax:
      case ExprKind::fmod: return real(e, fold_binary(e->kind, r(a[0]), r(a[1])));
      case ExprKind::floor:
      case ExprKind::ceil:
      case ExprKind::rint: return real(e, fold_unary(e->kind, decided(a[0])));
      case ExprKind::poison: TFCC_CHECK(false && "a poison has no value");
      default: return real(e, fold_unary(e->kind, r(a[0])));
    }
  }

  // In 128 bits, which what a comparison is built of does not leave: a difference may not fit 64.
  bool at_least(ExprRef e) {
    ExprRef p = e->args[0];
    if (!p->has_load || p->kind != ExprKind::poly) return i(p) >= 0;
    __int128 sum = p->value;
    for (const Term& t : p->terms) {
      __int128 product = t.coefficient;
      for (ExprRef x : t.atoms) product *= i(x);
      sum += product;
    }
    return sum >= 0;
  }

  int64_t poly(ExprRef e) {
    int64_t sum = e->value;
    for (const Term& t : e->terms) {
      int64_t product = t.coefficient;
      for (ExprRef x : t.atoms) product = wrap_mul(product, i(x));
      sum = wrap_add(sum, product);
    }
    return sum;
  }

  int64_t junction(ExprRef e, bool stop) {
    for (ExprRef x : e->args) {
      if ((i(x) != 0) == stop) return stop;
    }
    return !stop;
  }

  int64_t bounded(ExprRef e) {
    const int64_t v = i(e->args[0]), n = i(e->args[1]);
    if (v >= 0 && v < n) return v;
    if (env_.flag) env_.flag(e->value);
    return v < 0 || n <= 0 ? 0 : n - 1;
  }

  ScalarValue load(ExprRef e) {
    std::vector<int64_t> at;
    for (ExprRef x : e->args) at.push_back(i(x));
    ScalarValue v;
    env_.load(e->value, at, v.i, v.r);
    return v;
  }

  ScalarValue param(ExprRef e) {
    const double v = env_.param(e->name);
    const bool is_real = e->type == Scalar::f32 || e->type == Scalar::f64;
    return is_real ? real(e, v) : of(static_cast<int64_t>(v));
  }

  const ScalarEnv& env_;
  const bool round_f32_;
  std::unordered_map<ExprRef, ScalarValue> known_;
};

}  // namespace

ScalarValue eval_expr(ExprRef e, const ScalarEnv& env, bool round_f32) {
  return Interpreter(env, round_f32).at(e);
}

int64_t eval_size(ExprRef e, const std::function<int64_t(std::string_view)>& symbol) {
  if (const auto v = as_int(e)) return *v;
  ScalarEnv env;
  env.symbol = symbol;
  return eval_expr(e, env).i;
}

}  // namespace tfcc::ir
