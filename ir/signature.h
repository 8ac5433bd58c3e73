// SPDX-License-Identifier: Apache-2.0
// What the expressions of an op are written over. The text form, the verifier and what rewrites
// bodies ask here, so that an op with a body says it once.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"
#include "runtime/result.h"

namespace tfcc::ir {

/// (s, b, h, i, j) => expression
struct Signature {
  struct Param {
    std::string_view name;
    Scalar type;
  };
  std::vector<Param> params;         // scalars that the op computes
  std::vector<ExprRef> extents;      // of index variable k
  std::vector<std::string> indices;  // names of the index variables in text
};

/// Of the expression that the attribute `key` of this op is. `results` are the types of its results;
/// its other attributes are set. Errors: bad_file if operands or attributes have not the form that
/// index variables need.
Result<Signature> signature(const Graph& graph, const Op& op, const std::vector<Type>& results,
                            std::string_view key);
/// The same of an op in the graph; without parameters where it has not that form.
Signature signature(const Graph& graph, const Op& op, std::string_view key);

/// The first operand that expressions load: those before it are the op's own.
size_t first_loaded(const Op& op);

/// Extents of the indices of an attention (AttentionIndex): batch, heads, queries, keys.
std::vector<ExprRef> attention_extents(const Graph& graph, const Op& op);

/// Extents of the indices (LinearAttentionIndex) of an expression of a linear attention, "q_map" or
/// another. visible and decay have no channel; k_map and visible have heads of keys.
std::vector<ExprRef> linear_attention_extents(const Graph& graph, const Op& op,
                                              std::string_view key);

}  // namespace tfcc::ir
