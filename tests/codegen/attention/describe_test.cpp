// SPDX-License-Identifier: Apache-2.0
// attention: heads that no tile of CUDA holds are refused in one line.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "codegen/lower.h"
#include "ir/ir.h"

namespace tfcc::codegen {
namespace {

TEST(Attention, HeadsThatNoTileHoldsAreRefused) {
  const auto lowered = [](int head, int values, const char* target) {
    auto graph = ir::parse(fmt::format(
        "graph @g(%q: f16[B,S,{0}], %v: f16[B,S,{1}]) symbols(B = q.0 in 1.., S = q.1 in 1..) {{\n"
        "  %y = attention(%q, %q, %v) {{causal = false, heads = 1, key_padding = false, kv_heads = 1, score = (s,b,h,i,j) => s * 0.5, visible = none}} : f16[B,S,{1}]\n"
        "  return y = %y\n}}\n",
        head, values));
    EXPECT_TRUE(graph) << graph.error().message;
    WeightPool weights;
    return lower(*graph, class_of(target), weights);
  };
  for (const char* target : {"sm_80", "sm_90"}) {
    for (const auto& wide : {lowered(257, 64, target), lowered(64, 257, target)}) {
      ASSERT_FALSE(wide) << target;
      EXPECT_NE(wide.error().message.find("heads of 257 are over 256"), std::string::npos)
          << wide.error().message;
    }
    EXPECT_TRUE(lowered(256, 256, target)) << target;
  }
  EXPECT_TRUE(lowered(300, 300, "cpu"));
}

}  // namespace
}  // namespace tfcc::codegen
