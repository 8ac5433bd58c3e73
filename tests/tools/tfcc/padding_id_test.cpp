// SPDX-License-Identifier: Apache-2.0
// The id that a model without a mask takes for padding, and the cases that tfcc verify makes of it.
#include <fmt/format.h>

#include <algorithm>

#include "passes/passes.h"
#include "tests/tools/tfcc/graphs.h"
#include "tools/tfcc/verify_cases.h"

namespace tfcc::tools {
namespace {

// An encoder of ids 0 .. rows - 1 whose keys are those of which `visible` is true.
ir::Graph encoder(const std::string& visible, int rows, const std::string& batch = "B") {
  return parsed(fmt::format(
      "graph @ids(%ids: i64[{2},S] as ids, %types: i64[{2},S] as types, %w: f32[{1},8], %t: f32[2,8]) symbols({3}S = ids.1 in 1..99 as length) {{\n"
      "  flag 0 \"an id lies outside of its table\"\n"
      "  %h = pointwise(%ids, %w, %types, %t) {{body = (i,j,k) => %w[bounded(%ids[i,j], {1}, 0),k] + %t[bounded(%types[i,j], 2, 0),k]}} : f32[{2},S,8]\n"
      "  %a = attention(%h, %h, %h, %ids, %types) {{causal = false, heads = 2, key_padding = true, kv_heads = 2, score = (s,b,h,i,j) => s * 0.5, visible = (b,h,i,j) => {0}}} : f32[{2},S,8]\n"
      "  %y = pointwise(%a, %h) {{body = (i,j,k) => max(%a[i,j,k], 0.0) + %h[i,j,k]}} : f32[{2},S,8]\n  return y = %y\n}}\n",
      visible, rows, batch, batch == "B" ? "B = ids.0 in 1.. as batch, " : ""));
}

std::optional<PaddingId> found(ir::Graph graph) {
  EXPECT_TRUE(passes::run_passes(graph, {"remove-padding"}));
  return padding_id(graph);
}

TEST(PaddingId, IsThatOfWhichNoKeyIsKept) {
  for (const int rows : {100, 9, 2}) {  // the last two have no room for 64
    const auto one = found(encoder("%ids[b,j] != 1", rows));
    ASSERT_TRUE(one) << rows;
    EXPECT_EQ(one->input, "ids");
    EXPECT_EQ(one->id, 1);
  }
  EXPECT_FALSE(found(encoder("%ids[b,j] != 70", 100)));     // beyond those that are tried
  EXPECT_TRUE(found(encoder("%ids[b,j] != 1", 100, "3")));  // ids 0 to 2
  EXPECT_FALSE(found(encoder("%ids[b,j] != 1", 100, "1")));
  EXPECT_FALSE(found(parsed(kPadded)));
  EXPECT_FALSE(found(parsed(kMlp)));
}

TEST(PaddingId, IsWherePaddingIsInCases) {
  const ir::Graph graph = encoder("%ids[b,j] != 1", 9);
  CaseOptions options;
  options.padding = PaddingId{"ids", 1};
  const auto cases = make_cases(graph, options);
  ASSERT_TRUE(cases) << cases.error().message;
  int64_t padded = 0, tokens = 0;
  for (const VerifyCase& c : *cases) {
    const ir::HostTensor& ids = c.inputs.at("ids");
    for (int64_t i = 0; i < ids.element_count(); ++i) {
      const bool token = ids.ints[static_cast<size_t>(i)] != 1;
      EXPECT_EQ(c.defined.at({ids.dims[0], ids.dims[1], 8}, i * 8), token) << c.title;
      ++(token ? tokens : padded);
    }
    EXPECT_EQ(c.title.ends_with("full"), std::ranges::count(ids.ints, 1) == 0) << c.title;
  }
  EXPECT_GT(padded, 20);
  EXPECT_GT(tokens, padded);
}

}  // namespace
}  // namespace tfcc::tools
