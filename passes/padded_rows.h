// SPDX-License-Identifier: Apache-2.0
// Which values of a graph are needed at real tokens alone: what remove-padding may compute without
// padding, proved from the graph.
//   1. All attentions with a condition on keys that says what padding is (padding_condition.h) have
//      the same expression, over the same batch. It counts no tokens: with lengths summed up from a
//      mask, a token beyond the count is a query that the graph computes. Lengths that are an input
//      are fine. Batch and length are 1 at least.
//   2. Queries and keys are the same tokens (passes/row_origins.h).
//   3. A real token sees itself: the rest of `visible` is true at j = i. So each real token's row
//      has a key. A row that is kept though it is padding may have none, and is 0 then.
//   4. An attention of these tokens that sees padding is not packed, nor is what it reads; what
//      follows must not read it elsewhere. Such a one is a linear attention that decays (each row
//      of padding fades older sums), or whose condition has a part of places or compares reals
//      (which may be weights of real tokens). Packed, a row that is kept sees every token, so that
//      a causal linear attention must have none.
//   5. What follows from attention is read row by row; at a row of each sequence that sizes and
//      inputs name, which is kept; where padding changes nothing; or as an output, which is 0 at
//      padding. Else the padding of all is kept.
//   6. Padding changes nothing where the reading expression does not depend on the row with the
//      condition taken as false, and `mask` as 0 where that is mask != 0 or bounded(mask, 2) == 1:
//      select(mask != 0, x, -inf), x * f32(mask). 0 times a number of a dropped row is taken to be
//      0. It may have been a NaN; a NaN at padding never reaches a real token. A softmax over tokens
//      and an attention of other queries may hide padding, too (passes/dropped_rows.h). A softmax
//      may compute reals with a mask m whose condition is m != 0, such as -10000 * (1 - m); m is
//      taken for 1 at real tokens then, and a run checks that it is 0 or 1.
// What attention reads is packed too as far as nobody else needs it at padding; else it is
// gathered.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "passes/own_tokens.h"

namespace tfcc::passes {

/// Reads of packed values from outside, which see rows of the padded tensor.
enum class OutsideRead : uint8_t {
  fixed,    // one row of each sequence, at a place that no real token decides: that row is kept
  neutral,  // every row, and what it finds at one that is dropped changes nothing
  factor,   // the same, as a factor of a product
};

struct PaddedRows {
  ExprRef batch = nullptr, length = nullptr;
  /// Over index 0 and 1, (b, s), free: whether the token is attended to, and whether its row is
  /// read from outside (or null).
  ExprRef live = nullptr, kept = nullptr;
  /// The element of an input m where live is m != 0, if it is taken for 1 at real tokens where reals
  /// are computed with it, so that a run has to check that it is 0 or 1; else null.
  ExprRef binary = nullptr;
  std::vector<OpId> attentions;  // of these tokens, all with this condition
  std::set<uint32_t> packed;     // values that are computed for live and kept rows alone
  struct Reader {
    OpId op;
    ValueId value;
    OutsideRead read;
  };
  std::vector<Reader> readers;
  /// Readers of a token in the flattened batch. While there are any, they stand for the one that
  /// they read if a run has it there (ask_for_own_tokens).
  OwnTokens flattened;
};

/// Why a graph keeps its padding: the node, and what stands in the way.
struct PaddingKept {
  OpId node;
  std::string reason;
};

/// Nothing, and nothing in `kept`, if no attention knows padding.
std::optional<PaddedRows> find_padded_rows(const Graph& graph, std::optional<PaddingKept>& kept);

/// The conjuncts of an attention's `visible` that data decides for batch and key alone and that say
/// what padding is (passes/padding_condition.h), and the others, free; null where there is none. What
/// positions alone say of a key (the first four, say) is no padding: such a key is a token whose row
/// others may read.
struct KeyCondition {
  ExprRef keys = nullptr, rest = nullptr;
};
KeyCondition key_condition(const Graph& graph, OpId attention);

}  // namespace tfcc::passes
