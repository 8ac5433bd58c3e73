// SPDX-License-Identifier: Apache-2.0
// What a decoder reads of the few tokens before a token, for lift-kv-cache: a short convolution, say.
#pragma once

#include <vector>

#include "passes/context_rows.h"

namespace tfcc::passes {

/// Rewrites of a decoder before it is lifted, as it is in a first step. The rows before each token
/// become a value of their own:
///   %y = pointwise(%x) {body = (i,j,k) => %x[i,j,k] + select(2 <= j, %x[i,j - 2,k], 0.0)}
///   ->  %x.earlier = pointwise(%x) {body = (i,j,k,l) => select(k + 1 <= j, %x[i,j - k - 1,l], 0.0)} : [B,S,2,C]
///       %y = pointwise(%x, %x.earlier) {body = (i,j,k) => %x[i,j,k] + select(2 <= j, %x.earlier[i,j,1,k], 0.0)}
/// And so where an input holds the last rows of a sequence and an output gives them back:
///   %all = pointwise(%past, %x) {body = (i,j,k) => select(k <= 1, %past[i,j,k], %x[i,k - 2,j])} : [B,C,S + 2]
///   %y = pointwise(%all) {body = (i,j,k) => %all[i,k,j]}, %present[i,j,k] = %all[i,j,k + S]
///   ->  %y = pointwise(%x.earlier) {body = (i,j,k) => %x.earlier[i,j,1,k]}
/// Requires: a row is at most 16 tokens before, by the bounds of its index. The output is the input
/// with all new rows behind it, cut to the last ones, so that what a step leaves is what the next
/// one reads: rows of the sequence. They have the type that they are made of, but for what is rounded
/// on the way (products of 16 bits). In front of its first token a generator has rows of 0.
class ShiftedRows : protected ContextRows {
 protected:
  using ContextRows::ContextRows;

  /// Needs inputs and sizes, and rows with tokens at axis 1. False with a miss if rows are kept that
  /// no past of tokens goes with.
  bool find_shifted_rows();

  /// Rows [B,S,C] of which a token reads earlier ones.
  struct Shifted {
    ValueId rows;
    int64_t kept = 0;  // rows before a token that are read
    ValueId earlier;   // [B,S,kept,C]
  };
  std::vector<Shifted> shifted_;

 private:
  /// An input [B,..] with the last rows of a sequence along one axis, and what they are.
  struct Kept {
    ValueId past;
    size_t axis = 0;
    int64_t length = 0;
    ExprRef row = nullptr;  // element of row s, at the index of the other axis
    ValueId rows;           // the same as a value
  };
  void find_kept();
  bool is_kept(ValueId past, ValueId present, size_t axis, Kept& out);
  ValueId value_of(const Kept& k);
  ValueId flat(ValueId rows);
  ValueId current(ValueId v) const;
  Shifted& shifted(ValueId rows);
  void define(Shifted& s);
  ExprRef earlier(ValueId rows, ExprRef back, ExprRef channel);
  ExprRef of_kept(ExprRef choice);
  ExprRef of_rows(ExprRef load);
  ExprRef without_shifts(ExprRef e);
  void rewrite_op(OpId o);

  std::vector<Kept> kept_;
  std::map<uint32_t, ValueId> flat_;
};

}  // namespace tfcc::passes
