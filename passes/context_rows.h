// SPDX-License-Identifier: Apache-2.0
// What a decoder computes of all tokens of its context, for lift-kv-cache: of a latent that it keeps
// instead of keys and values, say.
#pragma once

#include <map>
#include <set>
#include <vector>

#include "passes/decoder_inputs.h"

namespace tfcc::passes {

/// Rewrites of a decoder before it is lifted. What its outputs are stays.
///
/// 1. Ops on rows have the tokens at axis 1:
///      %y = norm(..) : [B,heads,S,d]  ->  %y' = norm(..) : [B,S,heads,d], and a view of it
///      %y = reduce(..) : [B*S,n]      ->  %y' = reduce(..) : [B,S,n], and a view of it
/// 2. What is computed of each token of the context is a past of its own with new rows behind it:
///      %y = matmul(%present, %w) : [B,P + S,n]
///      ->  %y' = matmul(%new, %w) : [B,S,n]                the new rows of %present
///          %y = the input %y.past : [B,P,n], then %y'
///    Requires: row j of %y is a function of row j of presents, of j and of constants alone, the same
///    for tokens of the past and for new ones. So what a step kept is what the next would compute.
class ContextRows : protected DecoderInputs {
 protected:
  using DecoderInputs::DecoderInputs;

  /// Both rewrites. Needs inputs and sizes.
  void arrange();

  /// A value of rows of the new tokens.
  bool is_rows(ValueId v) const;
  /// Element `at` of keys, values or what becomes of them, from past and rows.
  ExprRef from_rows(ValueId v, const Indices& at) const;
  /// The same function of what products, norms and the like compute, whatever ops it goes through.
  ExprRef from_all(ExprRef e);
  /// Outputs that are an input with new rows behind it, and which input.
  std::map<size_t, ValueId> carried_outputs_;

 private:
  struct Carried {
    ValueId past, present;
    size_t axis = 0;  // of tokens
  };
  void unlist_rows(OpId o);
  void cut_to_rows(OpId o);
  void put_tokens_first(OpId o);
  void turn_rows(OpId o);
  void find_carried();
  void find_present(ValueId past, size_t axis);
  bool is_token_axis(ExprRef n) const;
  bool is_context_axis(ExprRef n) const;  // of past and new tokens
  bool is_context(ValueId v) const;
  void carry_op(OpId o);
  void carry_element(ValueId v);
  void carry(ValueId v, ValueId new_rows);
  bool is_of_row(ExprRef element, ExprRef j);
  bool is_function_of_rows(ExprRef element);
  bool reads_carried(ExprRef e) const;
  ExprRef at_token(ExprRef element, ExprRef token);

  std::vector<Carried> carried_;
  std::set<uint32_t> read_;  // pasts that keys or values are elements of
};

}  // namespace tfcc::passes
