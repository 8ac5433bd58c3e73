// SPDX-License-Identifier: Apache-2.0
// The op pack with the size that it makes, for passes and importers that drop padding (ops.md).
#pragma once

#include "ir/elements.h"

namespace tfcc::ir {

/// Results of a pack of [batch, length], and what a packed row stands for.
struct Packing {
  ExprRef batch = nullptr, length = nullptr;
  ExprRef total = nullptr;  // the number of packed rows, a size with the role `packed`
  ValueId row, cu, keys, order, seq, pos;
  int64_t flag = 0;  // of loads at a row, which lie inside whatever is loaded

  /// (b, s) of packed row t.
  ExprRef sequence(const Graph& graph, ExprRef t) const;
  ExprRef place(const Graph& graph, ExprRef t) const;
  /// The operands of an op over packed rows behind q, k and v.
  std::vector<ValueId> operands() const { return {cu, keys, order, pos}; }
};

/// Adds it for rows (b, s) = indices 0 and 1, of which live or kept (null: none) hold, both free. The
/// graph must have no size of that role.
Packing add_pack(Graph& graph, ExprRef live, ExprRef kept, ExprRef batch, ExprRef length,
                 std::string origin = {});

}  // namespace tfcc::ir
