// SPDX-License-Identifier: Apache-2.0
// Reading and making a norm, whose body is an expression: the plain one of a value, and that of a
// sum of two.
#pragma once

#include <optional>
#include <string>

#include "ir/graph.h"

namespace tfcc::ir {

/// The weights of a norm and what it computes with them. gamma and beta are vectors over the last
/// axis; an rms norm has no beta.
struct NormOf {
  NormKind kind = NormKind::layer;
  double eps = 0;
  ValueId gamma;
  std::optional<ValueId> beta;
};
NormOf norm_of(const Op& op);

/// What the norm is of, as a free expression over the indices of its result.
ExprRef normed(const Graph& graph, OpId o);

/// x, if `o` is norm(x): its body is x at its own place.
std::optional<ValueId> normed_value(const Graph& graph, OpId o);

/// x + residual, or (x + residual) + bias with a bias over the last axis; all of one type.
struct NormedSum {
  ValueId x, residual;
  std::optional<ValueId> bias;
};
/// The sum that `o` is a norm of, in this order; nothing if it is one of something else.
std::optional<NormedSum> normed_sum(const Graph& graph, OpId o);
/// That sum as a free expression at these indices, of a norm of this type.
ExprRef sum_before_norm(const Graph& graph, const NormedSum& sum, const std::vector<ExprRef>& at);

/// Operands and attributes of a norm of a free expression over the indices of its result. Needs: it
/// loads neither gamma nor beta.
struct NormParts {
  std::vector<ValueId> operands;
  NormAttrs attrs;
};
NormParts norm_parts(const NormOf& norm, ExprRef free);
/// norm(x) as a new op with one result of this type.
ValueId add_norm(Graph& graph, const NormOf& norm, ValueId x, const Type& type, std::string name,
                 std::string origin);

}  // namespace tfcc::ir
