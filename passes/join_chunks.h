// SPDX-License-Identifier: Apache-2.0
// For raise-linear-attention: sums over the tokens up to one, spelled as those of the chunks before
// and those within the chunk, as one triangle over all tokens.
#pragma once

#include <optional>

#include "passes/match.h"

namespace tfcc::passes {

/// A graph in which the sum is one over tokens.
struct JoinedChunks {
  Graph graph;
  OpId root;        // the product that sums, for which a linear attention may stand
  ValueId weights;  // of tokens and tokens, which must not be left in the graph
};

/// Of the pointwise op that adds the two; nothing if it adds something else. Sums of weights of the
/// same tokens are joined too.
std::optional<JoinedChunks> join_chunks(const Graph& graph, OpId add);

}  // namespace tfcc::passes
