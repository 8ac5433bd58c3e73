// SPDX-License-Identifier: Apache-2.0
// How an attention is executed: describe_attention() -> AttentionDesc -> choose_tile() ->
// AttentionTile -> one launch, or two where sequences that go on have their own. What decides for a
// form and its tile is choose.cpp alone.
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <string>

#include "codegen/emit/emit.h"

namespace tfcc::codegen {

/// Which sequences a launch is for, by their queries.
enum class Sequences { all, few, many };

/// A score as a sum, if it is one. All forms of a GPU sum it so.
struct ScoreParts {
  ExprRef of_product = nullptr;  // has the parameter s
  std::optional<double> scale;   // by which it is multiplied, if that is all
  ExprRef added = nullptr;       // has not, and depends on query or key
  /// The same where it depends on batch, head and j - i alone: its index of the key is j - i +
  /// most_before.
  ExprRef by_distance = nullptr, most_before = nullptr;
};
ScoreParts split_score(ExprRef score);
/// The positive number that the product is multiplied by, if the score is no more than that.
std::optional<double> plain_scale(ExprRef score);

/// What the templates are told of an attention.
struct AttentionDesc {
  DType type = DType::f32;
  int64_t head = 0, v_head = 0;  // sizes of a head
  std::array<RowSlice, 3>
      parts;  // q, k, v: tensors of their own, or slices of one that are read in place
  ExprRef batch, queries, keys;  // extents of indices
  ExprRef most_queries;          // rows of a sequence
  std::optional<double> scale;   // the score is a plain scale, which needs no functor
  ScoreParts score;              // CUDA: if it is none
  ExprRef live = nullptr,
          rest = nullptr;  // conjuncts of visible over batch and key alone, and the others
  bool packed = false;     // rows are those that a pack left
  int64_t kv_heads = 0;
  int64_t page = 0;        // keys and values are in pages of so many tokens; 0: as q is
  bool positions = false;  // and causality or a window asks where they stood
  Sequences sequences = Sequences::all;  // with at most few_queries() queries, or with more
  bool aligned = true;  // rows of q, k, v and of the result begin at multiples of 16 bytes
  F32Products f32 = F32Products::exact;
};

/// Rows of queries and keys that a block has at once, and what it needs.
struct AttentionTile {
  int64_t block_m, block_n;
  uint32_t threads = 0, shared_bytes = 0;
  int line = 0;         // where it was chosen
  int resident = 0;     // by warpgroups alone: blocks of a multiprocessor
  int64_t cluster = 1;  // and blocks
  int64_t warps = 0;    // for few queries over pages: warps that share the keys of a sequence
};

/// Keys over pages that are summed by themselves before they are added to the others: the same for
/// every number of queries, or tokens would depend on how a prompt was cut. A multiple of every
/// tile. 128 keys of all heads keep a small model's multiprocessors busy.
inline constexpr int64_t kSpanKeys = 128;
/// Wider heads have no registers for the sum of a span beside that of the others: their keys are
/// one sum, in one form for all tokens.
inline constexpr int64_t kWidestOfSpans = 128;
inline bool has_spans(DType type, int64_t head, int64_t v_head) {
  return size_of(type) == 2 && std::max(head, v_head) <= kWidestOfSpans;
}
/// Tiles of a warp that are on their way.
inline constexpr int64_t kDecodeStages = 2;

inline int64_t round_up(int64_t v, int64_t to) { return (v + to - 1) / to * to; }

/// Queries whose heads that share keys fill a row tile of the form for few.
inline int64_t few_queries(const ir::AttentionAttrs& attrs) {
  return std::max<int64_t>(1, 16 / (attrs.heads / attrs.kv_heads));
}

/// Errors: unsupported (head sizes that are not known at compile time).
Result<AttentionDesc> describe_attention(const EmitContext& c, OpId op);

/// The form and the tile for those sequences that x says.
AttentionTile choose_tile(const EmitContext& c, const AttentionDesc& x);

/// What was chosen, and why, in words.
Reason explain(const EmitContext& c, const AttentionDesc& x, const AttentionTile& tile);

}  // namespace tfcc::codegen
