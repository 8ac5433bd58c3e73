// SPDX-License-Identifier: Apache-2.0
#include "passes/mask_score.h"

#include <algorithm>

namespace tfcc::passes {
namespace {

constexpr double kLargeConstant = 1200;  // what may mask: beyond the bound and the margin

constexpr Interval kAny{-INFINITY, INFINITY};

Interval times(Interval a, Interval b) {
  double lo = INFINITY, hi = -INFINITY;
  for (double x : {a.low, a.high}) {
    for (double y : {b.low, b.high}) {
      const double p = x == 0 || y == 0 ? 0 : x * y;
      lo = std::min(lo, p);
      hi = std::max(hi, p);
    }
  }
  return {lo, hi};
}

}  // namespace

Interval bounds(ExprRef e) {
  if (auto c = ir::as_real(e)) return {*c, *c};
  auto a = [&](size_t i) { return bounds(e->args[i]); };
  switch (e->kind) {
    case ExprKind::param:
    case ExprKind::load: return {-kScoreBound, kScoreBound};
    case ExprKind::fadd: return {a(0).low + a(1).low, a(0).high + a(1).high};
    case ExprKind::fsub: return {a(0).low - a(1).high, a(0).high - a(1).low};
    case ExprKind::fneg: return {-a(0).high, -a(0).low};
    case ExprKind::fmul: {
      // A scale on the product: it is the scaled score that the bound is about.
      const bool scaled = (e->args[0]->kind == ExprKind::param && ir::as_real(e->args[1])) ||
                          (e->args[1]->kind == ExprKind::param && ir::as_real(e->args[0]));
      return scaled ? Interval{-kScoreBound, kScoreBound} : times(a(0), a(1));
    }
    case ExprKind::fdiv: {
      auto c = ir::as_real(e->args[1]);
      return c && *c != 0 ? times(a(0), {1 / *c, 1 / *c}) : kAny;
    }
    case ExprKind::fmin: return {std::min(a(0).low, a(1).low), std::min(a(0).high, a(1).high)};
    case ExprKind::fmax: return {std::max(a(0).low, a(1).low), std::max(a(0).high, a(1).high)};
    case ExprKind::select: return {std::min(a(1).low, a(2).low), std::max(a(1).high, a(2).high)};
    case ExprKind::tanh:
    case ExprKind::erf: return {-1, 1};
    case ExprKind::f2f: return a(0);
    case ExprKind::round_f16:
    case ExprKind::round_bf16: return times(a(0), {0.99, 1.01});
    case ExprKind::i2f: return {-0x1p63, 0x1p63};  // any integer: slopes of ALiBi times positions
    default: return kAny;
  }
}

bool has_large_constant(ExprRef e) {
  bool large = false;
  ir::for_each_node(e, [&](ExprRef n) {
    // NaN counts: it masks nothing, but it is no live score either.
    if (auto c = ir::as_real(n)) large |= !(std::fabs(*c) < kLargeConstant);
  });
  return large;
}

ExprRef without_idle_clamps(ExprRef e) {
  return ir::rewrite(e, [](ExprRef n) -> ExprRef {
    if (n->kind != ExprKind::fmax && n->kind != ExprKind::fmin) return nullptr;
    for (size_t i = 0; i < 2; ++i) {
      const auto c = ir::as_real(n->args[i]);
      if (!c) continue;
      ExprRef x = without_idle_clamps(n->args[1 - i]);
      const Interval b = bounds(x);
      if (n->kind == ExprKind::fmax ? *c <= b.low : *c >= b.high) return x;
    }
    return nullptr;
  });
}

double upper_bound(ExprRef masked, ExprRef live) {
  std::vector<ExprRef> rest = summands(masked);
  for (ExprRef s : summands(live)) {
    auto it = std::find(rest.begin(), rest.end(), s);
    if (it == rest.end()) return bounds(masked).high;
    rest.erase(it);
  }
  double high = kScoreBound;
  for (ExprRef s : rest) high += bounds(s).high;
  return std::min(high, bounds(masked).high);
}

}  // namespace tfcc::passes
