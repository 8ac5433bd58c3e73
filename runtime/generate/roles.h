// SPDX-License-Identifier: Apache-2.0
// What the inputs and outputs of a decoder are for.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/tfcc.h"

namespace tfcc::generate {

/// Keys or values of a layer: `past` goes in, and comes out longer as `present`. Or a state of one
/// size, as a convolution or linear attention has it: it is 0 before the first token.
struct Cache {
  TensorInfo past;
  std::string present;
  size_t batch_axis = SIZE_MAX, past_axis = SIZE_MAX;  ///< SIZE_MAX: none, it is fixed
  bool grows() const { return past_axis != SIZE_MAX; }
};

/// Empty names: the graph has no such input.
struct Roles {
  TensorInfo ids, mask, positions, types;
  std::string logits;
  int64_t vocabulary = 0;
  std::vector<Cache> caches;
};

/// Errors: unsupported (an input or output without a role, or with two; the message says how to
/// give it one).
Result<Roles> find_roles(const std::vector<TensorInfo>& inputs,
                         const std::vector<TensorInfo>& outputs,
                         std::span<const std::pair<std::string, std::string>> given);

}  // namespace tfcc::generate
