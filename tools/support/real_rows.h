// SPDX-License-Identifier: Apache-2.0
// From padded inputs to those of a program without padding (docs/ragged.md).
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "runtime/tfcc.h"
#include "tools/support/npy.h"

namespace tfcc::tools {

/// The rows of [batch * length] that are real tokens, and cu_seqlens of their sequences.
struct RealRows {
  std::vector<int64_t> rows, ends = {0};
  int64_t places = 0;  // batch * length
  void add_place(bool real, bool last_of_sequence);
};
/// Those where the mask, one of the inputs of a model, is not 0. Errors: usage (there is no mask of
/// whole numbers).
Result<RealRows> real_rows(const std::vector<TensorInfo>& model,
                           const std::vector<std::pair<std::string, Array>>& inputs);
/// Inputs of a padded model as its program without padding takes them, whose own are `ragged`: real
/// rows of those over tokens, and cu_seqlens. Errors: usage (an input is missing, of another type or of
/// other places than the mask).
Result<std::vector<std::pair<std::string, Array>>> without_padding(
    const std::vector<TensorInfo>& ragged, const RealRows& real,
    std::vector<std::pair<std::string, Array>> inputs);
/// Whether an input or output of a program without padding has a row for each token.
bool is_of_tokens(const TensorInfo& info);

}  // namespace tfcc::tools
