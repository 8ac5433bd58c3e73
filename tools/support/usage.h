// SPDX-License-Identifier: Apache-2.0
// Wrong options, told apart from failures: the command exits with 2 for them, the C API and Python
// say invalid_argument.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "runtime/result.h"

namespace tfcc::tools {

/// An option that is wrong by itself or that this model cannot have.
inline Error usage_error(const std::string& message) { return {ErrorCode::usage, message}; }

/// "a,b" as {"a", "b"}; empty text gives an empty list.
inline std::vector<std::string> split(const std::string& text, char separator = ',') {
  std::vector<std::string> out;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    if (end > begin) out.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return out;
}

}  // namespace tfcc::tools
