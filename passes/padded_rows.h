// SPDX-License-Identifier: Apache-2.0
// Which values of a graph are needed at real tokens alone: what remove-padding may compute without
// padding, proved from the graph.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "passes/match.h"

namespace tfcc::passes {

/// Reads of packed values from outside, which see rows of the padded tensor.
enum class OutsideRead : uint8_t {
  fixed,    // one row of each sequence, at a place that no real token decides: that row is kept
  neutral,  // every row, and what it finds at one that is dropped changes nothing
};

struct PaddedRows {
  ExprRef batch = nullptr, length = nullptr;
  /// Over index 0 and 1, (b, s), free: whether the token is attended to, and whether its row is
  /// read from outside (or null).
  ExprRef live = nullptr, kept = nullptr;
  std::vector<OpId> attentions;  // of these tokens, all with this condition
  std::set<uint32_t> packed;     // values that are computed for live and kept rows alone
  struct Reader {
    OpId op;
    ValueId value;
    OutsideRead read;
  };
  std::vector<Reader> readers;
};

/// Why a graph keeps its padding: the node, and what stands in the way.
struct PaddingKept {
  OpId node;
  std::string reason;
};

/// Nothing, and nothing in `kept`, if no attention knows padding.
std::optional<PaddedRows> find_padded_rows(const Graph& graph, std::optional<PaddingKept>& kept);

/// The conjuncts of an attention's `visible` that data decides for batch and key alone, and the
/// others, free; null where there is none. What positions alone say of a key (the first four, say)
/// is no padding: such a key is a token whose row others may read.
struct KeyCondition {
  ExprRef keys = nullptr, rest = nullptr;
};
KeyCondition key_condition(const Graph& graph, OpId attention);

}  // namespace tfcc::passes
