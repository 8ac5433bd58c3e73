// SPDX-License-Identifier: Apache-2.0
// Whether an op reads rows of a padded tensor such that those of padding change nothing: a sum over
// tokens with x * mask, a maximum of select(mask, x, -inf), a product with a factor that is 0 at
// padding, a softmax over tokens whose masked scores are far below the others, and an attention of
// other queries that hides padding among its keys.
// By substitution, never by form: what the op computes with a row of padding is taken with the
// condition for a token to be real as false, and with `mask` as 0 where that is mask != 0 or
// bounded(mask, 2) == 1. It may not depend on the row then. 0 times a number of a dropped row is
// taken to be 0.
// A probability of a softmax is 0 where its score, so substituted, lies 104 below -1000 (exp(-104)
// is 0 in f32), while scores of real tokens are made of nothing that could hide them (a constant of
// 1200 or more, a logarithm, integers that are not small, a quotient or an exponential without a
// bound), and are taken to lie within 1000 (docs/numerics.md). A sequence of padding alone has no
// such score, and its result is some number. So what is computed of the softmax must not read one
// sequence for another.
#pragma once

#include <optional>

#include "passes/padded_rows.h"

namespace tfcc::passes {

/// A conjunction without those of its parts that are assertions (ir::is_assertion): what it says in a
/// run that no flag ends.
ExprRef without_assertions(ExprRef condition);
/// The element of an input m that may be a mask, where a condition on tokens is m != 0; else null.
ExprRef mask_of(const Graph& graph, ExprRef live);

class DroppedRows {
 public:
  DroppedRows(const Graph& graph, const PaddedRows& rows) : g_(graph), rows_(rows) {}

  /// How `reader` reads v, rows of these tokens, if padding changes nothing; it reads all of them.
  std::optional<OutsideRead> neutral_read(OpId reader, ValueId v) const;

  /// Does an elementwise op make scores of it that hide padding, for a softmax over tokens and
  /// nobody else? They do so whatever rows of padding add to them.
  bool masks_scores(OpId o, ValueId v) const;

 private:
  bool reads_neutrally(OpId o, ValueId v) const;
  bool multiplies_by_zeros(OpId o, ValueId v) const;
  bool hides_keys(OpId o, ValueId v) const;

  ExprRef where(ExprRef e, ExprRef b, ExprRef s, bool live) const;
  bool may_hide(ExprRef score) const;
  bool is_masked(ExprRef score, ExprRef b, ExprRef s) const;
  bool stays_in_sequence(ValueId v) const;
  bool reads_own_sequence(OpId reader, ValueId v) const;
  bool is_no_probability(ExprRef load, ExprRef b, ExprRef s) const;
  bool is_packed(ValueId v) const { return rows_.packed.count(v.value) > 0; }

  const Graph& g_;
  const PaddedRows& rows_;
};

}  // namespace tfcc::passes
