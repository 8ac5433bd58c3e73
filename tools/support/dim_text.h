// SPDX-License-Identifier: Apache-2.0
// Dims as users see them, "past_sequence_length + sequence_length", as expressions.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "ir/expr.h"

namespace tfcc::tools {

/// A dim over names of sizes, each the number that `sizes` gives it, or a symbol; null if the text
/// is no expression.
ir::ExprRef parse_dim(const std::string& text, ir::ExprPool& pool,
                      const std::map<std::string, int64_t>& sizes);
/// The names of sizes in a dim.
std::vector<std::string> sizes_in(const std::string& text);

}  // namespace tfcc::tools
