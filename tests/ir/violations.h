// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "ir/ir.h"

namespace tfcc::ir {

/// Broken rules, a line each.
inline std::string all(const std::vector<Violation>& problems) {
  std::string lines;
  for (const Violation& v : problems) lines += (lines.empty() ? "" : "\n") + to_string(v);
  return lines;
}

}  // namespace tfcc::ir
