// SPDX-License-Identifier: Apache-2.0
// Which plan a target gets.
#include "codegen/target.h"

#include <gtest/gtest.h>

#include <set>

#include "codegen/compile.h"

namespace tfcc::codegen {
namespace {

TEST(TargetClass, OfEachTarget) {
  const std::pair<std::string_view, std::string_view> expected[] = {
      {"x86-64-v3", "cpu"},  {"sm_80", "sm_80"},    {"sm_86", "sm_80"},      {"sm_89", "sm_80"},
      {"sm_90", "sm_90a"},   {"sm_90a", "sm_90a"},  {"sm_100", "sm_100a"},   {"sm_103", "sm_100a"},
      {"sm_120", "sm_120a"}, {"sm_121", "sm_120a"}, {"compute_120", "sm_80"}};
  for (const auto& [target, name] : expected) EXPECT_EQ(class_of(target).name, name) << target;
}

// What one class assumes holds on every machine of it: code for sm_80 runs on the smallest.
TEST(TargetClass, IsTheLeastOfItsMachines) {
  std::set<std::string_view> names;
  for (const TargetClass& c : target_classes()) {
    EXPECT_TRUE(names.insert(c.name).second) << c.name;
    EXPECT_EQ(c.cuda(), c.shared_bytes > 0) << c.name;
    if (c.cuda()) {
      EXPECT_LE(class_of("compute_80").shared_bytes, c.shared_bytes) << c.name;
    }
  }
}

}  // namespace
}  // namespace tfcc::codegen
