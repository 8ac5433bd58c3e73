// SPDX-License-Identifier: Apache-2.0
// The operands of a linear attention: q, k and v as tensors [batch, tokens, heads * width], where
// the graph has such, with what is computed of their elements as maps; else computed.
#pragma once

#include <array>
#include <string>

#include "passes/heads.h"
#include "passes/match.h"

namespace tfcc::passes {

struct LinearExtents {
  HeadDims heads;
  ExprRef tokens = nullptr, keys = nullptr;  // of queries, of keys
  ExprRef size = nullptr, v_size = nullptr;  // of a head, constants
};

struct LinearOperand {
  TokenMajor tensor;
  ExprRef map = nullptr;  // of an element, over b, h, t, c with param s; null: the element
  bool softmax = false;   // the element is that of a softmax over c
};

struct LinearOperands {
  std::array<LinearOperand, 3> all;  // q, k, v
  int64_t kv_heads = 0;              // of k and v: heads may share theirs
  std::string problem;               // why they cannot be computed; empty if they can
};

/// The elements of q at (b, h, t, e), of k at (b, h, j, e), of v at (b, h, j, c), indices by
/// LinearIndex.
LinearOperands linear_operands(const Graph& g, const LinearExtents& extents, ExprRef q, ExprRef k,
                               ExprRef v);

}  // namespace tfcc::passes
