// SPDX-License-Identifier: Apache-2.0
#include "ir/matmul.h"

#include <algorithm>

#include "ir/elements.h"

namespace tfcc::ir {

ExprRef matmul_sum(ExprPool& pool, DType factor, DType result) {
  return pool.param("s", is_float(factor) ? scalar_of(result) : Scalar::i64);
}

ExprRef free_epilogue(const Graph& graph, OpId product, const std::vector<ExprRef>& at) {
  const Op& op = graph.op(product);
  ExprRef body = op.as<MatmulAttrs>().epilogue;
  if (body) return free_expr(graph, product, body, at);
  return matmul_sum(graph.pool(), graph.value(op.operands[0]).type.dtype,
                    graph.value(op.results[0]).type.dtype);
}

ExprRef with_sum(ExprRef epilogue, ExprRef sum) {
  return rewrite(epilogue, [&](ExprRef n) {
    return n->kind == ExprKind::param && n->name == "s" ? sum : nullptr;
  });
}

ExprRef gated_column(ExprPool& pool, ExprRef j, bool second) {
  ExprRef eight = pool.integer(kGated);
  ExprRef first = add(mul(pool.integer(2 * kGated), div(j, eight)), mod(j, eight));
  return second ? add(first, eight) : first;
}

ExprRef with_sums(ExprRef gate, ExprRef s, ExprRef t) {
  return rewrite(gate, [&](ExprRef n) -> ExprRef {
    if (n->kind != ExprKind::param) return nullptr;
    return n->name == "s" ? s : n->name == "t" ? t : nullptr;
  });
}

bool is_plain_product(const Op& op) {
  if (op.kind != OpKind::matmul) return false;
  const auto& attrs = op.as<MatmulAttrs>();
  return !attrs.weight && !attrs.gate && !attrs.heads;
}

Type weight_type(const Graph& graph, const Op& product, const Type& result) {
  const auto& attrs = product.as<MatmulAttrs>();
  const Type& a = graph.value(product.operands[0]).type;
  ExprRef k = a.dims[a.rank() - (attrs.trans_a ? 2 : 1)], n = result.dims.back();
  return {a.dtype, attrs.trans_b ? std::vector{n, k} : std::vector{k, n}};
}

Type second_factor(const Graph& graph, const Op& product) {
  return product.as<MatmulAttrs>().weight
             ? weight_type(graph, product, graph.value(product.results[0]).type)
             : graph.value(product.operands[1]).type;
}

Type computed_matrices(const Graph& graph, const Op& grouped, const Type& result) {
  const Type& x = graph.value(grouped.operands[0]).type;
  ExprPool& pool = graph.pool();
  ExprRef k = x.dims.empty() ? pool.integer(0) : x.dims.back();
  return {
      x.dtype,
      {pool.integer(grouped.as<GroupedMatmulAttrs>().groups.value_or(1)), result.dims.back(), k}};
}

void compute_matrices(Graph& graph, OpId grouped, ExprRef weight) {
  const Op product = graph.op(grouped);
  const ValueId y = product.results[0];
  auto attrs = product.as<GroupedMatmulAttrs>();
  attrs.groups = *as_int(graph.value(product.operands[1]).type.dims[0]);
  std::vector<ValueId> operands{product.operands[0]};
  const auto bodies =
      capture({weight, free_expr(graph, grouped, attrs.which, indices_of(graph, y))}, operands);
  attrs.weight = bodies[0], attrs.which = bodies[1];
  graph.replace_uses(y, graph.add(OpKind::grouped_matmul, operands, attrs, graph.value(y).type,
                                  graph.value(y).name, product.origin));
}

Type matrices_type(const Graph& graph, const Op& grouped) {
  return grouped.as<GroupedMatmulAttrs>().weight
             ? computed_matrices(graph, grouped, graph.value(grouped.results[0]).type)
             : graph.value(grouped.operands[1]).type;
}

std::vector<ExprRef> factor_indices(const Graph& graph, ValueId factor, bool transposed,
                                    std::span<const ExprRef> lead, ExprRef row, ExprRef column) {
  const auto& dims = graph.value(factor).type.dims;
  std::vector<ExprRef> at = broadcast_indices(graph.pool(), {dims.begin(), dims.end() - 2}, lead);
  if (transposed) std::swap(row, column);
  at.insert(at.end(), {row, column});
  return at;
}

ExprRef factor_element(const Graph& graph, ValueId factor, bool transposed,
                       const std::vector<ExprRef>& at, ExprRef row, ExprRef column) {
  const auto lead = std::span(at).first(at.size() - 2);
  return load_of(graph, factor, factor_indices(graph, factor, transposed, lead, row, column));
}

ValueId add_matmul(Graph& graph, ValueId a, ValueId b, MatmulAttrs attrs, ExprRef epilogue,
                   const Type& type, std::string_view name, std::string_view origin) {
  std::vector<ValueId> operands{a};
  if (attrs.weight) attrs.weight = capture({attrs.weight}, operands)[0];
  else operands.push_back(b);
  attrs.epilogue = epilogue == matmul_sum(graph.pool(), graph.value(a).type.dtype, type.dtype)
                       ? nullptr
                       : epilogue;
  attrs.epilogue = capture({attrs.epilogue}, operands)[0];
  return graph.add(OpKind::matmul, operands, attrs, type, std::string(name), std::string(origin));
}

MatmulAttrs free_attrs(const Graph& graph, OpId product) {
  auto attrs = graph.op(product).as<MatmulAttrs>();
  if (attrs.weight)
    attrs.weight =
        free_expr(graph, product, attrs.weight,
                  indices_of(graph.pool(), second_factor(graph, graph.op(product)).dims));
  return attrs;
}

ExprRef bias_epilogue(const Graph& graph, const Type& type, std::optional<ValueId> bias) {
  if (!bias) return nullptr;
  ExprRef sum = matmul_sum(graph.pool(), type.dtype, type.dtype);
  return add(
      sum, convert(load_of(graph, *bias, {indices_of(graph.pool(), type.dims).back()}), sum->type));
}

std::optional<ValueId> bias_of(const Graph& graph, const Op& product) {
  ExprRef body = product.as<MatmulAttrs>().epilogue;
  if (!body || !is_float(graph.value(product.operands[0]).type.dtype)) return std::nullopt;
  const std::vector<ValueId> slots = loads_of(body);
  if (slots.size() != 1) return std::nullopt;
  const Type& type = graph.value(product.results[0]).type;
  const int64_t slot = slots[0].value;
  const ValueId bias = product.operands[static_cast<size_t>(slot)];
  const Type& own = graph.value(bias).type;
  if (!is_float(own.dtype) || own.dims != std::vector<ExprRef>{type.dims.back()})
    return std::nullopt;
  ExprRef sum = matmul_sum(graph.pool(), type.dtype, type.dtype);
  ExprRef load = convert(
      graph.pool().load(slot, own.dtype, {indices_of(graph.pool(), type.dims).back()}), sum->type);
  return body == add(sum, load) ? std::optional(bias)
                                : std::nullopt;  // sums are written in one order
}

bool has_plain_epilogue(const Graph& graph, const Op& product) {
  const auto& attrs = product.as<MatmulAttrs>();
  return !attrs.gate && (!attrs.epilogue || bias_of(graph, product));
}

}  // namespace tfcc::ir
