// SPDX-License-Identifier: Apache-2.0
// Roles of inputs, told from types, dims and names.
#include "frontend/import/input_roles.h"

#include <gtest/gtest.h>

#include "ir/ir.h"

namespace tfcc::frontend {
namespace {

// "ids mask none": of each input.
std::string roles(const std::string& inputs, const std::string& symbols) {
  auto graph =
      ir::parse("graph @g(" + inputs + ") symbols(" + symbols + ") {\n  return\n}\n", "test");
  EXPECT_TRUE(graph) << graph.error().message;
  if (!graph) return "";
  tell_input_roles(*graph);
  for (const ir::Violation& v : ir::verify(*graph)) ADD_FAILURE() << ir::to_string(v);
  std::string out;
  for (ir::ValueId v : graph->inputs())
    out += (out.empty() ? "" : " ") + std::string(to_string(graph->value(v).role));
  auto again = ir::parse(ir::print(*graph), "again");
  EXPECT_TRUE(again) << again.error().message;
  if (again) EXPECT_EQ(ir::print(*again), ir::print(*graph));
  return out;
}

const std::string kSizes = "B = x.0 in 1.. as batch, S = x.1 in 1.. as length";

TEST(InputRoles, ByName) {
  EXPECT_EQ(roles("%x: i64[B,S], %input_ids: i64[B,S], %attention_mask: i64[B,S], "
                  "%token_type_ids: i32[B,S], %position_ids: i64[B,S], %segment_ids: i64[B,S]",
                  kSizes),
            "none ids mask types positions types");
  EXPECT_EQ(
      roles("%x: i64[B,S], %mask: bool[B,S], %visual_mask: f32[B,S], %tokens: i32[B,S]", kSizes),
      "none mask mask ids");
}

// Only whole numbers are ids, positions or types.
TEST(InputRoles, OfReals) {
  EXPECT_EQ(roles("%x: f32[B,S], %ids: f32[B,S], %positions: f16[B,S], %types: bool[B,S]", kSizes),
            "none none none none");
}

TEST(InputRoles, AMaskByItsDims) {
  const std::string past = "%x: i64[B,S], %past: f32[B,2,P,4], ",
                    sizes = kSizes + ", P = past.2 in 0.. as past";
  EXPECT_EQ(roles(past + "%seen: i64[B,P + S]", sizes), "none none mask");
  EXPECT_EQ(roles(past + "%seen: i64[B,P]", sizes), "none none none");
  EXPECT_EQ(roles(past + "%seen: f32[B,P + S]", sizes), "none none none");
  EXPECT_EQ(roles(past + "%seen: i64[B,1,P + S]", sizes), "none none none");
  EXPECT_EQ(roles(past + "%seen: i64[B,T]", sizes + ", T = seen.1 in 1.. as context"),
            "none none mask");
  EXPECT_EQ(roles("%x: i64[B,S], %seen: i64[B,S]", kSizes), "none none");
}

TEST(InputRoles, AreCheckedAndRead) {
  const auto broken = ir::parse("graph @g(%x: f32[4] as ids) {\n  return\n}\n", "test");
  ASSERT_TRUE(broken);
  const auto violations = ir::verify(*broken);
  ASSERT_EQ(violations.size(), 1U);
  EXPECT_EQ(ir::to_string(violations[0]), "%x: ids that are no i64 or i32 (G9)");
  EXPECT_TRUE(
      ir::verify(*ir::parse("graph @g(%x: f32[4] as mask) {\n  return\n}\n", "test")).empty());
  const auto twice = ir::verify(*ir::parse(
      "graph @g(%x: i32[4] as seqlens, %y: i32[4] as seqlens) {\n  return\n}\n", "test"));
  ASSERT_EQ(twice.size(), 2U);
  EXPECT_EQ(ir::to_string(twice[0]), "%x: two inputs are the seqlens (G9)");
  const auto unknown = ir::parse("graph @g(%x: f32[4] as batch) {\n  return\n}\n", "test");
  ASSERT_FALSE(unknown);
  EXPECT_NE(unknown.error().message.find("expected ids, mask, positions or types"),
            std::string::npos)
      << unknown.error().message;
}

}  // namespace
}  // namespace tfcc::frontend
