// SPDX-License-Identifier: Apache-2.0
// What the rows of a batch's tokens are computed from, row by row: whether two tensors of one shape
// speak of the same tokens. Two texts of one shape do not.
#pragma once

#include <map>
#include <set>

#include "passes/match.h"

namespace tfcc::passes {

class RowOrigins {
 public:
  explicit RowOrigins(const Graph& graph);

  /// Is each row (b,s) of `keys` computed from rows that the row of `queries` at the same place is
  /// computed from too, and from nothing else of its own? (Encoder and decoder may have one shape;
  /// their tokens are still others. Positions that both read decide nothing.)
  bool are_same_tokens(ValueId queries, ValueId keys) const;

 private:
  std::set<uint32_t> origins_of(OpId o, ValueId v) const;

  const Graph& graph_;
  std::map<uint32_t, std::set<uint32_t>>
      origins_;  // by value of rank 2 at least; one that is not computed by rows is its own
};

}  // namespace tfcc::passes
