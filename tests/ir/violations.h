// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
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

/// The graph of a text breaks this rule.
inline void breaks(const std::string& rule, const std::string& text) {
  auto g = parse(text);
  ASSERT_TRUE(g) << g.error().message << "\n" << text;
  const auto problems = verify(*g);
  EXPECT_TRUE(std::any_of(problems.begin(), problems.end(),
                          [&](const Violation& v) { return v.rule == rule; }))
      << rule << "\n"
      << text;
}

}  // namespace tfcc::ir
