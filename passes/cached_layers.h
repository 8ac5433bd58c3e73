// SPDX-License-Identifier: Apache-2.0
// What a decoder keeps of the tokens before, for lift-kv-cache: keys and values of each attention,
// made of a past and of new rows, and the outputs that give them back.
#pragma once

#include <optional>
#include <vector>

#include "passes/shifted_rows.h"

namespace tfcc::passes {

/// Keys or values of an attention.
struct Appended {
  ValueId past;           // invalid: there is none
  ExprRef old = nullptr;  // element (b, j, c) for j < P: a load of past
  ExprRef rows =
      nullptr;  // element (b, i, c) of the new ones: a load of a row of i, or an expression of one
};

struct Layer {
  OpId attention;
  Appended keys, values;
};

class CachedLayers : protected ShiftedRows {
 protected:
  using ShiftedRows::ShiftedRows;

  /// False if there is none, nor a linear one.
  bool find_attentions();
  /// Keys and values of all attentions. False with a miss if they are not a past and new rows behind
  /// it. Needs inputs and sizes.
  bool find_layers();
  /// Linear attentions that go on from the sums that an input holds, in any order of its axes, and
  /// whose sums an output gives back in the same order: what a step leaves is what the next one reads.
  /// They are f32 in the lifted program, also where the graph rounds them to 16 bits in each step. In
  /// front of its first token a generator has sums of 0. False with a miss if one is not so.
  bool find_sums();
  /// Which output is the past of which layer with the new rows behind it; the one that is left has
  /// the logits. False with a miss if there is none.
  bool match_outputs();

  std::vector<OpId> attentions_;
  std::vector<Layer> layers_;
  bool sums_ = false;  // there are linear attentions
  ValueId logits_;

 private:
  bool find_appended(OpId o, ValueId v, Appended& out);
  bool is_circular(ExprRef element) const;
  std::optional<size_t> output_of_sums(ExprRef before, ValueId after) const;
  bool is_present(const Graph::Output& output, const Appended& a);
};

}  // namespace tfcc::passes
