// SPDX-License-Identifier: Apache-2.0
// The matrix product in words that import, passes and codegen share: its sum, its factors and its
// epilogue as element expressions.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "ir/graph.h"

namespace tfcc::ir {

/// What an epilogue calls s: alpha times the sum over k, in the scalar type of the result; of
/// integers the sum as an i32 has it.
ExprRef matmul_sum(ExprPool& pool, DType factor, DType result);

/// Columns that stand side by side where a gate has two sums of each: eight of s, then eight of t.
inline constexpr int64_t kGated = 8;
/// The column of the sum s of column j of a gated product, or of t.
ExprRef gated_column(ExprPool& pool, ExprRef j, bool second);
/// The gate of a product with these in the place of s and t.
ExprRef with_sums(ExprRef gate, ExprRef s, ExprRef t);

/// The epilogue of a product (s where it has none) as a free expression, index variable k replaced
/// by at[k].
ExprRef free_epilogue(const Graph& graph, OpId product, const std::vector<ExprRef>& at);

/// The same expression with `sum` in the place of s.
ExprRef with_sum(ExprRef epilogue, ExprRef sum);

/// Is it one product whose second factor is stored, and that gives sums one by one, without a gate?
/// Passes that look at factors ask this.
bool is_plain_product(const Op& op);

/// The type of the matrix whose element `weight` of a product with this result is.
Type weight_type(const Graph& graph, const Op& product, const Type& result);
/// The type of the second factor: that, or of operand 1.
Type second_factor(const Graph& graph, const Op& product);

/// The type of the matrices [groups, n, k] whose element `weight` of a grouped_matmul with this result
/// is.
Type computed_matrices(const Graph& graph, const Op& grouped, const Type& result);
/// Puts this free expression over [groups, n, k] in the place of its stored matrices.
void compute_matrices(Graph& graph, OpId grouped, ExprRef weight);
/// The type of its matrices: that, or of operand 1.
Type matrices_type(const Graph& graph, const Op& grouped);

/// The indices of the element of a factor at (row, column) of what is multiplied, where the leading
/// dims of the result have the indices `lead`.
std::vector<ExprRef> factor_indices(const Graph& graph, ValueId factor, bool transposed,
                                    std::span<const ExprRef> lead, ExprRef row, ExprRef column);

/// Element (row, column) of a factor [..., rows, columns], or with `transposed` [..., columns,
/// rows], free; `at` are the indices of the result, to whose leading dims those of the factor
/// broadcast.
ExprRef factor_element(const Graph& graph, ValueId factor, bool transposed,
                       const std::vector<ExprRef>& at, ExprRef row, ExprRef column);

/// Adds a product whose epilogue is this free expression over matmul_sum() and index variables of
/// `type`'s dims; null: none. A weight of attrs is free
/// too, and stands for b then.
ValueId add_matmul(Graph& graph, ValueId a, ValueId b, MatmulAttrs attrs, ExprRef epilogue,
                   const Type& type, std::string_view name, std::string_view origin = "");

/// The attributes of a product with its weight, if it has one, as a free expression.
MatmulAttrs free_attrs(const Graph& graph, OpId product);

/// s + bias[j] for a product of this type; null without a bias.
ExprRef bias_epilogue(const Graph& graph, const Type& type, std::optional<ValueId> bias);

/// The bias of a product whose epilogue is s + bias[j], a vector of reals along the last axis.
std::optional<ValueId> bias_of(const Graph& graph, const Op& product);
/// No epilogue and no gate, or a bias alone.
bool has_plain_epilogue(const Graph& graph, const Op& product);

}  // namespace tfcc::ir
