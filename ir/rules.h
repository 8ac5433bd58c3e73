// SPDX-License-Identifier: Apache-2.0
// The rules of ir/ops.md as functions; internal to the verifier. Each adds its violations, without
// the op and its place.
#pragma once

#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "ir/ir.h"

namespace tfcc::ir {

/// Where an expression stands: what its index variables range over, and which parameters it may
/// use.
struct ExprPlace {
  std::string_view attribute;
  std::vector<ExprRef> extents;  // of index variable k
  size_t first_slot = 0;         // operands before it are not for loads
  std::vector<std::string_view> params = {};
};

/// E1 to E7: the expression of `op` that the attribute `key` is, where its signature says.
void check_expr(const Graph& graph, const Op& op, std::string_view key, ExprRef e,
                std::vector<Violation>& problems);
void check_expr(const Graph& graph, const Op& op, ExprRef e, const ExprPlace& place,
                std::vector<Violation>& problems);
/// The names of the sizes that are read. Expressions are over them; what is computed of them is for
/// codegen and the runtime alone.
using ReadSizes = std::unordered_set<std::string_view>;
ReadSizes read_sizes(const Graph& graph);
/// G5: a size or condition over these alone.
void check_size(const Graph& graph, const ReadSizes& read, ExprRef e, Scalar type,
                std::string_view what, std::vector<Violation>& problems);
/// The rules of the op's own section.
void check_op(const Graph& graph, const Op& op, std::vector<Violation>& problems);

}  // namespace tfcc::ir
