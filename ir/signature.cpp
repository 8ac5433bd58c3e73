// SPDX-License-Identifier: Apache-2.0
#include "ir/signature.h"

#include <fmt/format.h>

#include <algorithm>

#include "ir/lexer.h"
#include "ir/matmul.h"

namespace tfcc::ir {
namespace {

Error malformed(std::string text) { return {ErrorCode::bad_file, std::move(text)}; }

bool has_rank(const Graph& graph, const Op& op, size_t operand, size_t rank) {
  return operand < op.operands.size() && graph.value(op.operands[operand]).type.rank() == rank;
}

Result<Signature> of_attention(const Graph& graph, const Op& op, std::string_view key) {
  const auto& a = op.as<AttentionAttrs>();
  if (!has_rank(graph, op, 0, 3) || !has_rank(graph, op, 1, a.page ? 4 : 3))
    return malformed("attention needs q, k and v of rank 3 (pages of rank 4)");
  if (!a.packed.empty() && a.packed.size() != 2)
    return malformed("'packed' needs batch and length");
  Signature s{{}, attention_extents(graph, op), {"b", "h", "i", "j"}};
  if (key == "score") s.params = {{"s", Scalar::f32}};
  if (key == "sink") s.extents.resize(2), s.indices.resize(2);
  return s;
}

Result<Signature> of_linear_attention(const Graph& graph, const Op& op, std::string_view key) {
  const auto& a = op.as<LinearAttentionAttrs>();
  for (size_t i = 0; i < 3; ++i) {
    if (!has_rank(graph, op, i, 3))
      return malformed(fmt::format("{} needs q, k and v of rank 3", to_string(op.kind)));
  }
  if (a.heads <= 0 || a.kv_heads <= 0) return malformed("the number of heads is not positive");
  if (!a.packed.empty() && a.packed.size() != 2)
    return malformed("'packed' needs batch and length");
  Signature s{{}, linear_attention_extents(graph, op, key), {"b", "h", "t", "c"}};
  s.indices.resize(s.extents.size());
  if (key == "epilogue") s.params = {{"s", Scalar::f32}, {"z", Scalar::f32}};
  if (key == "q_map" || key == "k_map") s.params = {{"s", Scalar::f32}};
  return s;
}

// The sum of a product, in the type that it is computed in, and the moments of its row.
std::vector<Signature::Param> params_of_matmul(const Graph& graph, const Op& op, const Type& result,
                                               std::string_view key) {
  const bool integers = !op.operands.empty() && is_integer(graph.value(op.operands[0]).type.dtype);
  const Scalar real = scalar_of(result.dtype);
  std::vector<Signature::Param> params{{"s", integers ? Scalar::i64 : real}};
  if (key == "epilogue" && op.as<MatmulAttrs>().norm)
    params.insert(params.end(), {{"mean", real}, {"rstd", real}});
  if (key == "gate") params.push_back({"t", real});
  return params;
}

}  // namespace

Result<Signature> signature(const Graph& graph, const Op& op, const std::vector<Type>& results,
                            std::string_view key) {
  switch (op.kind) {
    case OpKind::attention: return of_attention(graph, op, key);
    case OpKind::linear_attention:
    case OpKind::linear_attention_step: return of_linear_attention(graph, op, key);
    default: break;
  }
  if (results.empty()) return malformed(fmt::format("{} has no result", to_string(op.kind)));
  Signature s{{}, results[0].dims, {}};
  if (op.kind == OpKind::matmul && key == "weight") {
    const bool matrices = !op.operands.empty() && results[0].rank() >= 2 &&
                          graph.value(op.operands[0]).type.rank() >= 2;
    if (!matrices) return malformed("a product with a weight has no matrices");
    s.extents = weight_type(graph, op, results[0]).dims;
  } else if (op.kind == OpKind::matmul) s.params = params_of_matmul(graph, op, results[0], key);
  if (op.kind == OpKind::grouped_matmul && !s.extents.empty()) {
    if (key == "weight" && !op.operands.empty())
      s.extents = computed_matrices(graph, op, results[0]).dims;
    else s.extents.pop_back();
  }
  if (op.kind == OpKind::reduce) {
    const auto& more = op.as<ReduceAttrs>().extents;
    s.extents.insert(s.extents.end(), more.begin(), more.end());
  }
  for (size_t k = 0; k < s.extents.size(); ++k)
    s.indices.push_back(index_name(static_cast<int64_t>(k)));
  return s;
}

Signature signature(const Graph& graph, const Op& op, std::string_view key) {
  std::vector<Type> results;
  for (ValueId v : op.results) results.push_back(graph.value(v).type);
  Result<Signature> s = signature(graph, op, results, key);
  return s ? *std::move(s) : Signature{};
}

// Whether expressions are among the attributes of its kind.
static bool has_expressions(const Op& op) {
  bool found = false;
  Attrs attrs = op.attrs;
  const auto field = [&](std::string_view, auto& value) {
    using T = std::decay_t<decltype(value)>;
    found |= std::is_same_v<T, ExprRef> || std::is_same_v<T, OptionalExpr>;
  };
  std::visit([&](auto& a) { a.visit(field); }, attrs);
  return found;
}

size_t first_loaded(const Op& op) {
  switch (op.kind) {
    case OpKind::attention: return op.as<AttentionAttrs>().own_operands();
    case OpKind::linear_attention: return op.as<LinearAttentionAttrs>().own_operands();
    case OpKind::linear_attention_step: return 7;
    case OpKind::matmul: return op.as<MatmulAttrs>().weight ? 1 : 2;
    case OpKind::norm: return 1 + op.as<NormAttrs>().has_beta;
    case OpKind::grouped_matmul: return op.as<GroupedMatmulAttrs>().weight ? 1 : 2;
    default: return has_expressions(op) ? 0 : op.operands.size();
  }
}

std::vector<ExprRef> attention_extents(const Graph& graph, const Op& op) {
  const auto& a = op.as<AttentionAttrs>();
  ExprRef heads = graph.pool().integer(a.heads);
  if (!a.packed.empty()) return {a.packed[0], heads, a.packed[1], a.packed[1]};
  const auto &q = graph.value(op.operands[0]).type.dims, &k = graph.value(op.operands[1]).type.dims;
  return {q[0], heads, q[1], k[1]};
}

std::vector<ExprRef> linear_attention_extents(const Graph& graph, const Op& op,
                                              std::string_view key) {
  const auto& a = op.as<LinearAttentionAttrs>();
  ExprPool& pool = graph.pool();
  const auto dims = [&](size_t i) { return graph.value(op.operands[i]).type.dims; };
  const auto width = [&](ExprRef all, int64_t heads) { return div(all, pool.integer(heads)); };
  const bool of_query = key == "q_map" || key == "epilogue",
             of_key = key == "k_map" || key == "visible" || key == "beta";
  std::vector<ExprRef> extents = {dims(0)[0], pool.integer(of_key ? a.kv_heads : a.heads),
                                  dims(of_query ? 0 : 1)[1]};
  if (!a.packed.empty()) extents[0] = a.packed[0], extents[2] = a.packed[1];
  if (key == "q_map") extents.push_back(width(dims(0)[2], a.heads));
  if (key == "k_map") extents.push_back(width(dims(1)[2], a.kv_heads));
  if (key == "epilogue") extents.push_back(width(dims(2)[2], a.kv_heads));
  return extents;
}

}  // namespace tfcc::ir
