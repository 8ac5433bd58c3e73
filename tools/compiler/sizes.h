// SPDX-License-Identifier: Apache-2.0
// What a user promises of sizes, and what it means for the symbols of a graph.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "codegen/lower.h"
#include "frontend/import/import.h"

namespace tfcc::compiler {

/// The largest that max_batch and max_tokens may be.
inline constexpr int64_t kMostOfSize = int64_t{1} << 31;

/// The options as given; 0 and empty: not given. Shapes are "input_ids:8x128,attention_mask:8x128"
/// or "batch_size=8", buckets "64,128,512".
struct SizeOptions {
  std::string min_shapes, opt_shapes, max_shapes, seq_buckets;
  int64_t max_batch = 0, max_tokens = 0;

  bool any() const {
    return max_batch || max_tokens || !(min_shapes + opt_shapes + max_shapes + seq_buckets).empty();
  }
};

/// The options in terms of symbols.
struct ResolvedSizes {
  frontend::SizeRanges ranges;
  std::map<std::string, codegen::SizeOption> options;
  std::vector<int64_t> lengths;
  std::vector<std::string> notes;  // lines that say what an option came to mean

  void give(codegen::LowerOptions& to) const { to.sizes = options, to.lengths = lengths; }
};

/// Reads the options against a graph that was imported without them. Errors: invalid_argument (a
/// form, or an input that is not there), shape (a range that is empty or that the model does not
/// allow), both with the name of the option.
Result<ResolvedSizes> resolve_sizes(const SizeOptions& options, const ir::Graph& graph);

}  // namespace tfcc::compiler
