// SPDX-License-Identifier: Apache-2.0
// Element expressions over the values of a graph: the mechanism behind import, fusion and mask
// classification.
//
// Inside an op a load's slot is an operand position. Between ops ("free" expressions) the slot is
// the ValueId, so that expressions of several ops compose; capture() turns a free expression into
// operands and a body again.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "ir/graph.h"
#include "ir/signature.h"

namespace tfcc::ir {

/// A load of v at these indices, free.
ExprRef load_of(const Graph& graph, ValueId v, std::vector<ExprRef> indices);

/// An expression of op `o` (its body, its score) as a free expression, index variable k replaced by
/// indices[k] where given.
ExprRef free_expr(const Graph& graph, OpId o, ExprRef expr, const std::vector<ExprRef>& indices);

/// True if v is computed element by element from its operands.
bool has_elements(const Graph& graph, ValueId v);

/// The element of v at these indices by one step of its definition (free); needs has_elements(v).
ExprRef element_of(const Graph& graph, ValueId v, const std::vector<ExprRef>& indices);

/// May the definition of v be inlined at these indices?
using InlinePolicy = std::function<bool(ValueId v)>;

/// How far expand() goes: definitions one inside the other, and loads replaced in all.
struct Reach {
  size_t depth = 128;
  size_t loads = 4096;
};

/// A free expression with every load of a value that `inline_it` accepts replaced by its element,
/// repeatedly; what lies out of reach stays a load.
ExprRef expand(const Graph& graph, ExprRef free, const InlinePolicy& inline_it, Reach reach = {});

/// Operands and body of a free expression: slots in order of first appearance.
struct Captured {
  std::vector<ValueId> operands;
  ExprRef body = nullptr;
};
Captured capture(ExprRef free);
/// The same for several expressions over one operand list; `operands` may hold leading operands
/// that are not for loads.
std::vector<ExprRef> capture(const std::vector<ExprRef>& free, std::vector<ValueId>& operands);

/// The expressions of an op that load operands (a body, an epilogue, a score), those that it has.
std::vector<ExprRef*> expressions_of(Op& op);
/// Why an expression of this op or a dim of its results has no value; none if all have one.
Poison poison_in(const Graph& graph, OpId op);

/// Of an op whose expressions load operands: a value that is listed twice (two became equal) is
/// listed once.
void merge_operands(Graph& graph, OpId o);

/// The indices of a tensor of these dims under broadcasting, its last index being the last of `at`:
/// 0 along a dim of 1.
std::vector<ExprRef> broadcast_indices(ExprPool& pool, const std::vector<ExprRef>& dims,
                                       std::span<const ExprRef> at);

/// Distinct values loaded by a free expression, in order of first appearance.
std::vector<ValueId> loads_of(ExprRef free);
bool has_loads(ExprRef e);
/// Whether a part of it is a real.
bool has_reals(ExprRef e);
/// True if any node is an index variable (of number `number`, if given).
bool uses_index(ExprRef e, int64_t number = -1);

/// Index variables over the dims of v.
std::vector<ExprRef> indices_of(const Graph& graph, ValueId v);

/// Row-major position of indices in a tensor of these dims.
ExprRef linear_index(ExprPool& pool, const std::vector<ExprRef>& indices,
                     const std::vector<ExprRef>& dims);
/// Indices into `from` of the element that has these indices in `to`, both views of the same
/// elements in row-major order. Groups of equal product are matched first, so that only real merges
/// and splits make divisions.
std::vector<ExprRef> reshape_indices(ExprPool& pool, const std::vector<ExprRef>& indices,
                                     const std::vector<ExprRef>& to,
                                     const std::vector<ExprRef>& from);

/// The element at [b,s,..] of what a packed tensor [1,T,..] is without packing: that of row
/// `row[b,s]`, or 0 where a pack left none. `row` is the first result of the pack. `flag` says that
/// a row lies outside of its tensor.
ExprRef padded_element(const Graph& graph, ValueId row, ValueId packed,
                       std::vector<ExprRef> indices, int64_t flag);

/// Whether the graph takes tokens without padding: an input says where sequences begin.
bool is_ragged(const Graph& graph);

/// The same graph over a pool of its own, which knows its symbols alone and nothing of what was
/// proved before.
Graph with_own_pool(const Graph& graph);

/// An operand that is a state, an input of the graph that the op changes in place, and the result
/// that it becomes.
struct StateOf {
  size_t operand, result;
};
/// Of kv_append and rope_append the pages of a cache, of linear_attention_step the sums, of
/// earlier_rows the rows; of other ops none.
std::span<const StateOf> states_of(const Op& op);
/// Whether v is an input that is a state of an op.
bool is_state_before(const Graph& graph, ValueId v);
/// Whether v is a state after a run: a result of such an op, in the memory of the state before.
bool is_state(const Graph& graph, ValueId v);
/// The input that is the state before it; invalid if v is none.
ValueId state_before(const Graph& graph, ValueId v);
/// Outputs that are no states; states come after them.
size_t plain_outputs(const Graph& graph);

/// How many elements a running sum has at place k of n.
ExprRef summed_count(const CumsumAttrs& attrs, ExprRef k, ExprRef n);

/// Whether its epilogue uses z, the sum of weights.
bool normalises(const LinearAttentionAttrs& attrs);

/// Whether heads that share keys may have different decays: where these are of h, and not of h /
/// (heads / kv_heads).
bool decays_apart(const Graph& graph, const LinearAttentionAttrs& attrs);

/// A condition on the distance of key j (index variable kKey) from query i (kQuery) in an attention
/// of these lengths: j >= i + keys - queries - size if `left`, else j <= i + keys - queries + size.
struct Band {
  bool left;
  int64_t size;
};
/// Nothing if the condition is another one, or a band that leaves out its own diagonal.
std::optional<Band> band_of(ExprRef condition, ExprRef queries, ExprRef keys);

/// What a constant is at these indices without a load: a literal at constant indices, one number
/// for all, an affine function of the indices, a triangle or a band. Null if none of these.
/// Constants over `largest` bytes are never looked at.
ExprRef constant_element(ExprPool& pool, const Constant& c, const std::vector<ExprRef>& indices,
                         int64_t largest = 64 * 1024);

}  // namespace tfcc::ir
