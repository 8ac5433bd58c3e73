// SPDX-License-Identifier: Apache-2.0
#include "ir/gelu.h"

#include <cmath>
#include <vector>

namespace tfcc::ir {

ExprRef gelu_of(ExprRef x, GeluKind kind) {
  ExprPool& pool = *x->pool;
  auto c = [&](double v) { return pool.real(v, x->type); };
  ExprRef inner = kind == GeluKind::erf
                      ? unary(ExprKind::erf, mul(x, c(std::sqrt(0.5))))
                      : unary(ExprKind::tanh, mul(c(std::sqrt(2 / M_PI)),
                                                  add(x, mul(mul(mul(c(0.044715), x), x), x))));
  return mul(mul(c(0.5), x), add(c(1), inner));
}

std::optional<Gelu> as_gelu(ExprRef body) {
  if (body->kind != ExprKind::fmul) return std::nullopt;
  std::optional<GeluKind> kind;
  std::vector<ExprRef> parts;
  for_each_node(body, [&](ExprRef n) {
    if (n->kind == ExprKind::erf) kind = GeluKind::erf;
    if (n->kind == ExprKind::tanh) kind = GeluKind::tanh;
    if (n != body && n->type == body->type && !as_real(n)) parts.push_back(n);
  });
  if (!kind) return std::nullopt;
  for (ExprRef x : parts) {
    if (gelu_of(x, *kind) == body) return Gelu{*kind, x};
  }
  return std::nullopt;
}

}  // namespace tfcc::ir
