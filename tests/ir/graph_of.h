// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "ir/ir.h"

namespace tfcc::ir {

/// The graph of a text that breaks no rule and prints as what it was parsed from.
inline Graph graph_of(const std::string& text) {
  auto g = parse(text);
  EXPECT_TRUE(g) << g.error().message << "\n" << text;
  if (!g) return Graph();
  for (const Violation& problem : verify(*g)) ADD_FAILURE() << to_string(problem) << "\n" << text;
  EXPECT_EQ(print(*g), print(*parse(print(*g))));
  return *std::move(g);
}

}  // namespace tfcc::ir
