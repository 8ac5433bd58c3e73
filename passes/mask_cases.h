// SPDX-License-Identifier: Apache-2.0
// The cases of a masked score, for classify-mask: a decision is picked, both of its outcomes are
// put into the score and folded, and so on while something is left that may hide a key: a constant
// of magnitude 1200 or more, or the logarithm of a mask.
// A control is the condition of a real-valued select; a graph input [batch, position] (other axes
// of size 1) that is converted to a real; or such an input that is real, and is multiplied with a
// large constant or put into a logarithm. What finds the element of a load (the bucket of a
// relative position) is none. Before that, a constant matrix of two values that depend on j - i
// alone becomes a condition, up to 64 MiB, and conditions are taken apart: |i - j| <= n is two,
// and so is m_i * m_j == 0. A clamp that no score reaches is dropped.
// An input that is computed with is taken for 0 or 1, and a flag checks it. So it must enter the
// score as a factor of first degree, alone or with other masks (1 - m, m_i * m_j). Squares,
// quotients, clips to small numbers, integer functions (ids % 2, min(ids, 1)) and differences from
// the same input at another place (seg_i - seg_j) say that it is something else. An integer that is
// proved to be 0 or 1 (clip(ids, 0, 1), a product of comparisons) is a condition, without a flag. A
// remainder is not: it says nothing of padding.
#pragma once

#include <functional>
#include <string>

#include "passes/match.h"

namespace tfcc::passes {

/// A decision that cases differ in: a condition, or an input mask taken as 0 or 1.
struct Control {
  ExprRef node = nullptr;  // boolean condition, or load of a number
  bool operator==(const Control&) const = default;
};

struct Choice {
  Control control;
  bool value;
  bool operator==(const Choice&) const = default;
};

/// The expression with a control decided. `mask == 1` being true says what the mask is.
ExprRef decide(ExprRef e, const Control& c, bool value);

struct Case {
  std::vector<Choice> choices;
  ExprRef score;
};

class MaskCases {
 public:
  /// Of an attention's score.
  MaskCases(const Graph& graph, OpId attention)
      : graph_(graph), operands_(graph.op(attention).operands) {}

  /// The score with its conditions and constant masks spelled out, as the functions below want it.
  /// `flag_of` numbers a flag of the graph by its message.
  ExprRef prepared(ExprRef score, const std::function<int64_t(const std::string&)>& flag_of) const;

  /// Is there what may hide a key: a large constant, or the logarithm of a mask?
  bool may_mask(ExprRef score) const;

  /// Nothing if a path has too many decisions.
  std::optional<std::vector<Case>> split(ExprRef score);

 private:
  bool is_mask_load(ExprRef load) const;
  ExprRef real_mask(ExprRef e) const;
  bool is_indicator(ExprRef load) const;
  std::optional<Control> find_control(ExprRef e) const;
  bool split(Case c);

  const Graph& graph_;
  const std::vector<ValueId>& operands_;
  ExprRef whole_ = nullptr;  // the score before anything is decided
  std::vector<Case> cases_;
};

}  // namespace tfcc::passes
