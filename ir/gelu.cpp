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
  bool erf = false, tanh = false;
  std::vector<ExprRef> parts;
  for_each_node(body, [&](ExprRef n) {
    erf |= n->kind == ExprKind::erf;
    tanh |= n->kind == ExprKind::tanh;
    if (n != body && n->type == body->type && !as_real(n)) parts.push_back(n);
  });
  for (ExprRef x : parts) {
    if (erf && gelu_of(x, GeluKind::erf) == body) return Gelu{GeluKind::erf, x};
    if (tanh && gelu_of(x, GeluKind::tanh) == body) return Gelu{GeluKind::tanh, x};
  }
  return std::nullopt;
}

}  // namespace tfcc::ir
