// SPDX-License-Identifier: Apache-2.0
// Sizes that a user asks for, by the name of a size or by the shape of an input, and what follows
// from them. Used by all commands with --shapes.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/result.h"
#include "runtime/size_role.h"

namespace tfcc::tools {

using NamedShapes = std::map<std::string, std::vector<int64_t>>;
using SizesByName = std::map<std::string, int64_t>;

struct WantedSizes {
  NamedShapes shapes;
  SizesByName sizes;
  NamedShapes arrays = {};  ///< shapes of arrays that are given for inputs
  bool empty() const { return shapes.empty() && sizes.empty(); }
};

/// "input_ids:4x32,past_sequence_length=127"; `option` is what messages name. Errors:
/// invalid_argument.
Result<WantedSizes> parse_shapes(const std::string& text, const std::string& option = "--shapes");

/// A dim of an input: a number, a size alone, or an expression over names of sizes.
struct WantedDim {
  std::optional<int64_t> fixed;
  std::string size;  // as users write it
  std::string text;  // names in it are quoted where the language needs that

  /// From what ir::print() and SizeExpr::print() write.
  static WantedDim of(const std::string& text);
  static WantedDim of_size(const std::string& name) { return {std::nullopt, name, name}; }
  /// Its value, if these sizes tell it.
  std::optional<int64_t> value(const SizesByName& sizes) const;
};

using InputDims = std::pair<std::string, std::vector<WantedDim>>;

/// What a size is that nothing tells, and what it counts.
struct Usual {
  int64_t n = 0;
  SizeRole role = SizeRole::none;
};
using UsualSize = std::function<Usual(const std::string& size)>;

/// The sizes that `wanted` gives: those named, those of dims that are a size alone, and those that
/// a dim of several leaves one choice for (128 = past_sequence_length + 1). With `usual`, all
/// others too: one takes its usual value, then what follows from it is solved, and so on;
/// the context, as an exporter gives the mask over a cache an axis of its own, is the past and the
/// new tokens.
/// Errors: invalid_argument (no such input or size, with a list of those there are; a size with two
/// values; a fixed dim that is to be another), shape (another number of dims, an array of other
/// sizes, a dim that its sizes do not give).
Result<SizesByName> solve_sizes(const std::vector<InputDims>& inputs, const WantedSizes& wanted,
                                const UsualSize& usual = {},
                                const std::string& option = "--shapes");

}  // namespace tfcc::tools
