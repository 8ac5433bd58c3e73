// SPDX-License-Identifier: Apache-2.0
// Roles of sizes, told from the types of inputs.
#include "frontend/import/size_roles.h"

#include <gtest/gtest.h>

#include "ir/ir.h"

namespace tfcc::frontend {
namespace {

// "B batch, S length, tokens = B*S" of a graph with these inputs and symbols.
std::string roles(const std::string& inputs, const std::string& symbols,
                  const SizeRanges& ranges = {}) {
  auto graph =
      ir::parse("graph @g(" + inputs + ") symbols(" + symbols + ") {\n  return\n}\n", "test");
  EXPECT_TRUE(graph) << graph.error().message;
  if (!graph) return "";
  tell_roles(*graph, ranges);
  std::string out;
  for (const ir::SizeSymbol& s : graph->symbols) {
    out += (out.empty() ? "" : ", ") + s.name;
    if (s.computed()) out += " = " + ir::print(s.formula);
    else if (s.role != SizeRole::none) out += " " + std::string(to_string(s.role));
  }
  for (const ir::Violation& v : ir::verify(*graph)) EXPECT_NE(v.rule, "G4") << ir::to_string(v);
  return out;
}

TEST(SizeRoles, ids_and_masks) {
  EXPECT_EQ(roles("%ids: i64[B,S], %mask: i64[B,S]", "B = ids.0 in 1.., S = ids.1 in 1.."),
            "B batch, S length, tokens = B*S");
  EXPECT_EQ(roles("%ids: i64[2,S]", "S = ids.1 in 1.."), "S length, tokens = 2*S");
  EXPECT_EQ(roles("%ids: i64[1,S]", "S = ids.1 in 1.."), "S length")
      << "the length is the number of tokens";
  EXPECT_EQ(roles("%ids: i64[B,128]", "B = ids.0 in 1.."), "B batch, tokens = 128*B");
  EXPECT_EQ(roles("%ids: i64[N,N]", "N = ids.0 in 1.."), "N batch") << "no length of its own";
  EXPECT_EQ(roles("%box: i64[B,S,4]", "B = box.0 in 1.., S = box.1 in 1.."),
            "B batch, S length, tokens = B*S");
  EXPECT_EQ(roles("%ids: i64[B,C,128]", "B = ids.0 in 1.., C = ids.1 in 1.."), "B batch, C")
      << "rows of 128 tokens";
  EXPECT_EQ(roles("%ids: i64[2,C,S]", "C = ids.1 in 1.., S = ids.2 in 1.."), "C, S")
      << "2*C*S is nothing that a run could be held to";
  EXPECT_EQ(roles("%ids: i64[N,N,S]", "N = ids.0 in 1.., S = ids.2 in 1.."), "N batch, S");
  EXPECT_EQ(roles("%ids: i64[B,C,S]", "B = ids.0 in 1.., C = ids.1 in 1.., S = ids.2 in 1.."),
            "B batch, C, S length, tokens = B*C*S");
}

TEST(SizeRoles, ids_before_reals) {
  EXPECT_EQ(
      roles("%h: f32[B,F,8], %ids: i64[B,S]", "B = h.0 in 1.., F = h.1 in 1.., S = ids.1 in 1.."),
      "B batch, F, S length, tokens = B*S");
}

// In time, height and width: the batch of ids is a later axis there and no width.
TEST(SizeRoles, positions_of_several_axes) {
  const std::string ids = "%ids: i64[B,S], ", sizes = "B = ids.0 in 1.., S = ids.1 in 1..";
  EXPECT_EQ(roles(ids + "%pos: i64[3,B,S]", sizes), "B batch, S length, tokens = B*S");
  EXPECT_EQ(roles(ids + "%pos: f32[3,B,S]", sizes), "B length, S, tokens = 3*B")
      << "reals are no positions";
  EXPECT_EQ(roles(ids + "%pos: i64[3,S,B]", sizes), "B batch, S") << "another order";
  EXPECT_EQ(roles(ids + "%pos: i64[C,B,S]", sizes + ", C = pos.0 in 1.."),
            "B, S length, C batch, tokens = B*C*S")
      << "any number of axes";
}

TEST(SizeRoles, masks_of_pairs_have_no_tokens) {
  const std::string sizes = "B = x.0 in 1.., S = x.1 in 1..";
  for (const char* mask : {"bool[B,S,S]", "i64[B,S,S]", "bool[S,S]"}) {
    EXPECT_EQ(roles(std::string("%x: f32[B,S,8], %mask: ") + mask, sizes),
              "B batch, S length, tokens = B*S")
        << mask;
  }
  EXPECT_EQ(roles("%x: f32[B,S,8], %mask: bool[S,T]", sizes + ", T = mask.1 in 1.."),
            "B batch, S length, T, tokens = B*S");
}

// Of an encoder's mask or a cache's that stands before the ids.
TEST(SizeRoles, ids_that_outputs_are_computed_for) {
  auto order = [](const std::string& text) {
    auto graph = ir::parse(text, "test");
    EXPECT_TRUE(graph) << graph.error().message;
    tell_roles(*graph, {});
    return graph->size_with(SizeRole::length)->name;
  };
  EXPECT_EQ(
      order(
          "graph @g(%mask: i64[B,E], %ids: i64[B,S]) symbols(B = mask.0 in 1.., E = mask.1 in 1.., S = ids.1 in 1..) {\n"
          "  %y = pointwise(%ids) {body = (i,j,k) => f32(%ids[i,j])} : f32[B,S,4]\n  return y = %y\n}\n"),
      "S");
  EXPECT_EQ(
      order(
          "graph @g(%mask: i64[B,E], %ids: i64[B,S]) symbols(B = mask.0 in 1.., E = mask.1 in 1.., S = ids.1 in 1..) {\n"
          "  %y = pointwise(%ids) {body = (i) => f32(%ids[i,0])} : f32[B]\n  return y = %y\n}\n"),
      "E")
      << "the first";
}

TEST(SizeRoles, reals) {
  EXPECT_EQ(roles("%x: f32[B,S,64]", "B = x.0 in 1.., S = x.1 in 1.."),
            "B batch, S length, tokens = B*S");
  EXPECT_EQ(roles("%x: f32[B,80,T]", "B = x.0 in 1.., T = x.2 in 1.."),
            "B batch, T length, tokens = B*T")
      << "channels before time";
  EXPECT_EQ(roles("%x: f32[B,S,4,16]", "B = x.0 in 1.., S = x.1 in 1.."),
            "B batch, S length, tokens = B*S");
  EXPECT_EQ(roles("%x: f32[B,64]", "B = x.0 in 1.."), "B batch") << "features are no tokens";
  EXPECT_EQ(roles("%image: f32[B,3,224,224]", "B = image.0 in 1.."), "B batch");
  EXPECT_EQ(
      roles("%image: f32[B,3,H,W]", "B = image.0 in 1.., H = image.2 in 1.., W = image.3 in 1.."),
      "B batch, H, W");
  EXPECT_EQ(roles("%q: f32[B,8,S,64], %k: f32[B,8,T,64], %mask: f32[S,T]",
                  "B = q.0 in 1.., S = q.2 in 1.., T = k.2 in 1.."),
            "B batch, S length, T, tokens = B*S");
  EXPECT_EQ(roles("%wave: f32[B,T], %x: f32[B,16]", "B = wave.0 in 1.., T = wave.1 in 1.."),
            "B batch, T length, tokens = B*T");
  EXPECT_EQ(roles("%x: f32[N]", "N = x.0 in 1.."), "N batch");
  EXPECT_EQ(roles("%x: f32[B,S,C]", "B = x.0 in 1.., S = x.1 in 1.., C = x.2 in 1.."),
            "B batch, S length, C, tokens = B*S");
}

TEST(SizeRoles, caches) {
  const std::string cache = "%ids: i64[B,S], %mask: i64[B,N], %key: f32[B,8,P,64]";
  EXPECT_EQ(roles(cache, "B = ids.0 in 1.., S = ids.1 in 1.., N = mask.1 in 1.., P = key.2 in 0.."),
            "B batch, S length, N context, P past, tokens = B*S");
  EXPECT_EQ(roles(cache, "B = ids.0 in 1.., S = ids.1 in 1.., N = mask.1 in 1.., P = key.2 in 1.."),
            "B batch, S length, N, P, tokens = B*S")
      << "a size that may not be 0 is no past";
  EXPECT_EQ(roles("%key: f32[B,8,P,64], %x: f32[B,S,32]",
                  "B = key.0 in 1.., P = key.2 in 0.., S = x.1 in 1.."),
            "B batch, P past, S length, tokens = B*S");
  EXPECT_EQ(roles("%key: f32[B,P,8,64], %x: f32[B,S,32]",
                  "B = key.0 in 1.., P = key.1 in 0.., S = x.1 in 1.."),
            "B batch, P past, S length, tokens = B*S");
}

TEST(SizeRoles, tokens_have_a_name_and_a_range) {
  EXPECT_EQ(roles("%ids: i64[B,tokens]", "B = ids.0 in 1.., tokens = ids.1 in 1.."),
            "B batch, tokens length, tokens_ = B*tokens");
  // A size of the model that its range fixed is no symbol any more: its range is not that of the
  // tokens.
  EXPECT_EQ(roles("%ids: i64[B,S]", "B = ids.0 in 1.., S = ids.1 in 1..", {{"tokens", {32, 32}}}),
            "B batch, S length, tokens_ = B*S");
  auto graph = ir::parse(
      "graph @g(%ids: i64[B,S]) symbols(B = ids.0 in 2.., S = ids.1 in 3..) {\n  return\n}\n",
      "test");
  ASSERT_TRUE(graph);
  tell_roles(*graph, {{"tokens", {1, 400}}});
  EXPECT_EQ(graph->pool().range("tokens").min, 6);
  EXPECT_EQ(graph->pool().range("tokens").max, 400);
}

}  // namespace
}  // namespace tfcc::frontend
