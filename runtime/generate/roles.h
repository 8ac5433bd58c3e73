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

/// Keys or values of a layer: `past` goes in, and comes out longer as `present`.
struct Cache {
  TensorInfo past;
  std::string present;
  size_t batch_axis = SIZE_MAX, past_axis = 0;  ///< no batch axis: it is fixed
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
