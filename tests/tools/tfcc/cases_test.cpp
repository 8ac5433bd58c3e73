// SPDX-License-Identifier: Apache-2.0
// The masks that tfcc verify makes up: whether a set element is a token or padding is told by what
// the graph does with it.
#include "tests/tools/tfcc/graphs.h"

namespace tfcc::tools {
namespace {

// A mean over the tokens that the mask keeps, from where the mask is not 0 (or is), at every token.
std::string masked_mean(const std::string& mask, const std::string& keep,
                        const std::string& length = "S") {
  return "graph @mean(%x: f32[B," + length + ",4], " + mask + ") symbols(B = x.0 in 1.." +
         (length == "S" ? ", S = x.1 in 1.." : "") +
         ") {\n"
         "  %z = pointwise(%x, %mask) {body = (i,j,k) => select(" +
         keep + ", %x[i,j,k], 0.0)} : f32[B," + length +
         ",4]\n"
         "  %s = reduce(%z) {body = (i,j,r) => %z[i,r,j], extents = [" +
         length +
         "], kind = sum} : f32[B,4]\n"
         "  %y = pointwise(%x, %s) {body = (i,j,k) => %x[i,j,k] + %s[i,k]} : f32[B," +
         length +
         ",4]\n"
         "  return y = %y\n}\n";
}

TEST(Cases, TheGraphTellsWhatAMaskHides) {
  EXPECT_FALSE(set_is_padding(parsed(masked_mean("%mask: i64[B,S] as mask", "%mask[i,j] == 1"))));
  EXPECT_TRUE(set_is_padding(parsed(masked_mean("%mask: i64[B,S] as mask", "%mask[i,j] == 0"))));
  EXPECT_FALSE(set_is_padding(parsed(masked_mean("%mask: bool[B,S] as mask", "%mask[i,j]"))));
  EXPECT_TRUE(set_is_padding(parsed(masked_mean("%mask: bool[B,S] as mask", "not %mask[i,j]"))));
  EXPECT_TRUE(
      set_is_padding(parsed(masked_mean("%mask: bool[B,7] as mask", "not %mask[i,j]", "7"))));
  EXPECT_FALSE(set_is_padding(
      parsed(masked_mean("%mask: i64[B,S] as mask", "%mask[i,j] < 2"))));  // cannot be told
  EXPECT_FALSE(set_is_padding(parsed(kMlp)));
  // No token depends on another: either value hides.
  EXPECT_FALSE(set_is_padding(parsed(
      "graph @each(%x: f32[B,S], %mask: i64[B,S] as mask) symbols(B = x.0 in 1.., S = x.1 in 1..) {\n"
      "  %y = pointwise(%x, %mask) {body = (i,j) => select(%mask[i,j] == 0, %x[i,j], 0.0)} : f32[B,S]\n"
      "  return y = %y\n}\n")));
}

// A count of set values hides what is behind it: one that is set in the middle hides itself.
TEST(Cases, ACountOfTokensIsNoPadding) {
  EXPECT_FALSE(set_is_padding(parsed(
      "graph @counted(%x: f32[B,S], %mask: i64[B,S] as mask) symbols(B = x.0 in 1.., S = x.1 in 1..) {\n"
      "  %n = reduce(%mask) {body = (i,j) => select(%mask[i,j] == 1, 1, 0), extents = [S], kind = sum} : i64[B]\n"
      "  %s = reduce(%x, %n) {body = (i,j) => select(j < %n[i], %x[i,j], 0.0), extents = [S], kind = sum} : f32[B]\n"
      "  %y = pointwise(%x, %s) {body = (i,j) => %x[i,j] + %s[i]} : f32[B,S]\n"
      "  return y = %y\n}\n")));
}

// Sizes that a check of the graph refuses become smaller, but for those that were asked for.
TEST(Cases, AreOfSizesThatTheGraphTakes) {
  const ir::Graph graph = parsed(
      "graph @within(%x: f32[S], %past: f32[P]) symbols(S = x.0 in 1.., P = past.0 in 0..) {\n"
      "  check P + S <= 20, \"at most 20 together\"\n"
      "  %y = pointwise(%x) {body = (i) => %x[i] + 1.0} : f32[S]\n  return y = %y\n}\n");
  const auto cases = make_cases(graph, {});
  ASSERT_TRUE(cases) << cases.error().message;
  for (const VerifyCase& c : *cases)
    EXPECT_LE(c.inputs.at("x").dims[0] + c.inputs.at("past").dims[0], 20) << c.title;
}

TEST(Cases, PaddingIsSetWhereTheGraphWantsIt) {
  for (const bool set : {false, true}) {
    const ir::Graph graph =
        parsed(masked_mean("%mask: bool[B,S] as mask", set ? "not %mask[i,j]" : "%mask[i,j]"));
    auto cases = make_cases(graph, {});
    ASSERT_TRUE(cases);
    ASSERT_GE(cases->size(), 4u);
    size_t padded = 0;
    for (const VerifyCase& c : *cases) {
      const ir::HostTensor& mask = c.inputs.at("mask");
      for (int64_t i = 0; i < mask.element_count(); ++i) {
        const bool token = (mask.ints[static_cast<size_t>(i)] != 0) != set;
        EXPECT_EQ(c.defined.at({mask.dims[0], mask.dims[1], 1}, i), token) << c.title;
        padded += !token;
        const bool whole =
            i < mask.dims[1] && c.title.find("scattered") == std::string::npos;  // the first row
        EXPECT_TRUE(token || !whole) << c.title;
      }
    }
    EXPECT_GT(padded, 10u);
  }
}

}  // namespace
}  // namespace tfcc::tools
