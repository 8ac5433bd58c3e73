// SPDX-License-Identifier: Apache-2.0
// Sizes that a user asks for, by the name of a size or by the shape of an input, and what follows from them. Used by all commands with
// --shapes.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "runtime/result.h"

namespace tfcc::tools {

using NamedShapes = std::map<std::string, std::vector<int64_t>>;
using SizesByName = std::map<std::string, int64_t>;

struct WantedSizes {
  NamedShapes shapes;
  SizesByName sizes;
  bool empty() const { return shapes.empty() && sizes.empty(); }
};

/// "input_ids:4x32,past_sequence_length=127"; `option` is what messages name. Errors: invalid_argument.
Result<WantedSizes> parse_shapes(const std::string& text, const std::string& option = "--shapes");

/// Name and dims of an input, each as text: "2", "batch_size", "past_sequence_length + sequence_length".
using InputDims = std::pair<std::string, std::vector<std::string>>;

/// The sizes with names that `wanted` gives: those named, those of dims of shapes that are a size alone, and those that a dim of several
/// leaves one choice for (128 = past_sequence_length + 1). Other dims are under their text.
/// Errors: invalid_argument (no such input or size; the message lists those there are), shape (another number of dims, a size with two
/// values, a dim that no size gives).
Result<SizesByName> solve_sizes(const std::vector<InputDims>& inputs, const WantedSizes& wanted, const std::string& option = "--shapes");

}  // namespace tfcc::tools
