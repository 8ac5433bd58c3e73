// SPDX-License-Identifier: Apache-2.0
#include "ir/norm.h"

#include "ir/elements.h"

namespace tfcc::ir {
namespace {

using Indices = std::vector<ExprRef>;

// The value of these dims that e loads at exactly these indices.
std::optional<ValueId> value_at(const Graph& graph, ExprRef e, const Indices& at,
                                const Indices& dims) {
  if (e->kind != ExprKind::load || e->args != at) return std::nullopt;
  const ValueId v{static_cast<uint32_t>(e->value)};
  return graph.value(v).type.dims == dims ? std::optional(v) : std::nullopt;
}

ExprRef in_reals(const Graph& graph, ValueId v, Indices at, Scalar type) {
  return convert(load_of(graph, v, std::move(at)), type);
}

}  // namespace

NormOf norm_of(const Op& op) {
  const auto& attrs = op.as<NormAttrs>();
  return {attrs.kind, attrs.eps, op.operands[0],
          attrs.has_beta ? std::optional(op.operands[1]) : std::nullopt};
}

ExprRef normed(const Graph& graph, OpId o) {
  return free_expr(graph, o, graph.op(o).as<NormAttrs>().body, indices_of(graph, graph.result(o)));
}

std::optional<ValueId> normed_value(const Graph& graph, OpId o) {
  const ValueId y = graph.result(o);
  return value_at(graph, normed(graph, o), indices_of(graph, y), graph.value(y).type.dims);
}

std::optional<NormedSum> normed_sum(const Graph& graph, OpId o) {
  const ValueId y = graph.result(o);
  const Indices at = indices_of(graph, y);
  const Indices& dims = graph.value(y).type.dims;
  ExprRef sum = normed(graph, o);
  if (sum->kind != ExprKind::fadd) return std::nullopt;
  std::optional<ValueId> bias;
  for (size_t i = 0; i < 2 && !bias && at.size() > 1; ++i) {
    bias = value_at(graph, sum->args[i], {at.back()}, {dims.back()});
    if (bias && sum->args[1 - i]->kind == ExprKind::fadd) sum = sum->args[1 - i];
  }
  const auto x = value_at(graph, sum->args[0], at, dims),
             residual = value_at(graph, sum->args[1], at, dims);
  if (!x || !residual || graph.value(*x).type != graph.value(*residual).type) return std::nullopt;
  return NormedSum{*x, *residual, bias};
}

ExprRef sum_before_norm(const Graph& graph, const NormedSum& sum, const std::vector<ExprRef>& at) {
  const Scalar type = scalar_of(graph.value(sum.x).type.dtype);
  ExprRef e = add(in_reals(graph, sum.x, at, type), in_reals(graph, sum.residual, at, type));
  return sum.bias ? add(e, in_reals(graph, *sum.bias, {at.back()}, type)) : e;
}

NormParts norm_parts(const NormOf& norm, ExprRef free) {
  NormParts parts;
  parts.operands = {norm.gamma};
  if (norm.beta) parts.operands.push_back(*norm.beta);
  parts.attrs.eps = norm.eps;
  parts.attrs.has_beta = norm.beta.has_value();
  parts.attrs.kind = norm.kind;
  parts.attrs.body = capture({free}, parts.operands)[0];
  return parts;
}

ValueId add_norm(Graph& graph, const NormOf& norm, ValueId x, const Type& type, std::string name,
                 std::string origin) {
  NormParts parts = norm_parts(
      norm, convert(load_of(graph, x, indices_of(graph.pool(), type.dims)), scalar_of(type.dtype)));
  return graph.add(OpKind::norm, std::move(parts.operands), std::move(parts.attrs), type,
                   std::move(name), std::move(origin));
}

}  // namespace tfcc::ir
