// SPDX-License-Identifier: Apache-2.0
#include "passes/heads.h"

#include <algorithm>

namespace tfcc::passes {
namespace {

// One leading dim n = b * heads + h: what its division by a constant says, else its constant
// factor.
HeadDims split_dim(ExprPool& pool, ExprRef n, const std::vector<ExprRef>& among) {
  const auto size = ir::as_int(n);
  int64_t heads = size.value_or(1);
  if (!size && n->kind == ExprKind::poly && n->terms.size() == 1 && n->value == 0)
    heads = n->terms[0].coefficient;
  for (ExprRef e : among) {
    ir::for_each_node(e, [&](ExprRef x) {
      if (x->kind != ExprKind::floordiv || x->args[0]->kind != ExprKind::index ||
          x->args[0]->value != 0)
        return;
      const auto d = ir::as_int(x->args[1]);
      if (d && *d > 0 && heads % *d == 0) heads = *d;
    });
  }
  return {*ir::exact_div(n, pool.integer(heads)), heads};
}

}  // namespace

std::optional<HeadDims> head_dims(const Graph& graph, const std::vector<ExprRef>& leading,
                                  const std::vector<ExprRef>& among) {
  ExprPool& pool = graph.pool();
  if (std::any_of(leading.begin(), leading.end(), [](ExprRef n) { return ir::is_int(n, 0); }))
    return std::nullopt;
  if (leading.empty()) return HeadDims{pool.integer(1), 1};
  if (leading.size() == 1) return split_dim(pool, leading[0], among);
  HeadDims d{leading[0], 1};
  for (size_t k = 1; k < leading.size(); ++k) {
    const auto n = ir::as_int(leading[k]);
    if (!n) return std::nullopt;
    d.heads *= *n;
  }
  return d;
}

TokenMajor token_major(const Graph& graph, ExprRef element, const std::vector<ExprRef>& extents,
                       DType dtype) {
  ExprPool& pool = graph.pool();
  TokenMajor t{
      {dtype, {extents[0], extents[2], ir::mul(extents[1], extents[3])}}, nullptr, std::nullopt};
  const Indices token = ir::indices_of(pool, t.type.dims);
  // The old indices by number; an axis of size 1 was a constant and does not occur.
  t.body = ir::substitute_indices(
      element, {token[0], ir::div(token[2], extents[3]), token[1], ir::mod(token[2], extents[3])});
  if (auto v = loaded_at(t.body, token); v && graph.value(*v).type == t.type) t.existing = v;
  return t;
}

ValueId add_token_major(Graph& graph, const TokenMajor& t, const std::string& name,
                        const std::string& origin) {
  if (t.existing) return *t.existing;
  ir::Captured c = ir::capture(t.body);
  return graph.add_pointwise(c.operands, c.body, t.type, name, origin);
}

}  // namespace tfcc::passes
