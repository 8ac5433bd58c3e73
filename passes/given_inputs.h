// SPDX-License-Identifier: Apache-2.0
// What lift-kv-cache substitutes: expressions of a decoder with its inputs as a generator gives
// them, for a row of any sequence.
#pragma once

#include <map>
#include <set>
#include <string>

#include "passes/match.h"

namespace tfcc::passes {

/// Behind the names of values whose lifted forms have them now.
inline constexpr std::string_view kBefore = ".before";

/// What a vector of whole numbers, one for each sequence, is taken to say: tokens before the new
/// ones, tokens in all, or the place of the last of them.
enum class Count { past, all, last };
inline constexpr int kCounts = 3;

/// The inputs of a decoder, those of the lifted graph, and the values of both. mask = 1, positions
/// = P + s, token types = 0, lengths P + S.
class GivenInputs {
 protected:
  explicit GivenInputs(Graph& g) : g_(g), pool_(g.pool()) {}

  /// Where rows of an op are: at index 1 of T, or of those that are wanted.
  struct Row {
    ExprRef token = nullptr;  // among all
    ExprRef own = nullptr;    // among the rows of the op
    ExprRef place = nullptr;  // position - P, what stands for s
  };
  Row row_of(bool wanted) const;

  /// A free expression with the inputs as they are given. `row`, if any, stands for s. What it does
  /// not know stays.
  ExprRef given(ExprRef e, const Row* row);
  /// A value that a lifted expression may not read; invalid if there is none.
  ValueId unknown(ExprRef e) const;
  /// Why an expression does not speak of absolute positions alone; empty if it does.
  std::string left_over(ExprRef e) const;
  /// Loads at positions that the graph had proved, by its sizes, to be inside.
  ExprRef guarded(ExprRef e);
  /// Computed from constants alone, as weights that are kept in few bits are.
  bool is_fixed(ValueId v) const;
  /// The name of v as the graph before had it.
  std::string name_before(ValueId v) const;

  bool is_wanted(ValueId v) const { return wanted_values_.count(v.value) > 0; }
  ValueId made(ValueId v) {
    is_made_.insert(v.value);
    return v;
  }

  Graph& g_;
  ExprPool& pool_;
  // Of the graph before.
  struct {
    ValueId ids, mask, positions, types;
  } in_;
  std::map<uint32_t, Count> counts_;
  std::set<ExprRef> capacities_;  // sizes of caches that are written in place: P + S + spare_
  ExprRef spare_ = nullptr;
  std::set<ExprRef> pasts_;  // lengths of pasts that have a name of their own: P as well
  ExprRef batch_ = nullptr, length_ = nullptr, past_ = nullptr, total_ = nullptr, b_ = nullptr,
          s_ = nullptr;
  std::set<uint32_t> wanted_values_;  // that lead to logits alone
  // Of the lifted graph.
  ExprRef tokens_ = nullptr, rows_ = nullptr;
  ValueId new_ids_, positions_, wanted_;
  int64_t flag_ = 0, wanted_flag_ = 0;
  std::set<uint32_t> is_made_;
  std::map<uint32_t, ValueId> lifted_;  // by value of the graph before

 private:
  ExprRef given_load(ExprRef n, const Row* row);
  bool is_own_row(ExprRef load, const Row& row) const;
  ExprRef of_sizes(ValueId v, ExprRef load, const Row* row);
  ExprRef reduced(OpId o, const Indices& at, const Row* row);
  ExprRef summed(const ir::Op& op, const Indices& at, const Row* row);

  std::map<std::pair<ExprRef, ExprRef>, ExprRef> of_sizes_;
  mutable std::map<uint32_t, bool> fixed_;
  int deep_ = 0;
};

}  // namespace tfcc::passes
