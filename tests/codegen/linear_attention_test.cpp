// SPDX-License-Identifier: Apache-2.0
// linear_attention: heads that no tile holds are refused in one line.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "codegen/lower.h"
#include "ir/ir.h"

namespace tfcc::codegen {
namespace {

Result<Lowered> lowered(int head, const char* target) {
  auto graph = ir::parse(fmt::format(
      "graph @g(%q: f16[B,S,{0}], %k: f16[B,S,{0}], %v: f16[B,S,600]) symbols(B = q.0 in 1.., S = q.1 in 1..) {{\n"
      "  %y = linear_attention(%q, %k, %v) {{causal = true, heads = 1, kv_heads = 1}} : f16[B,S,600]\n  return y = %y\n}}\n", head));
  EXPECT_TRUE(graph) << graph.error().message;
  WeightPool weights;
  return lower(*graph, class_of(target), weights);
}

TEST(LinearAttention, HeadsThatNoTileHoldsAreRefused) {
  for (const char* target : {"cpu", "sm_80", "sm_90"}) {
    const auto wide = lowered(513, target);
    ASSERT_FALSE(wide) << target;
    EXPECT_NE(wide.error().message.find("heads of 513 are over 512"), std::string::npos) << wide.error().message;
    const auto widest = lowered(512, target);  // values of any width are taken by blocks
    ASSERT_TRUE(widest) << widest.error().message;
    for (const runtime::Kernel& kernel : widest->plan.kernels) EXPECT_LE(kernel.shared_bytes, class_of(target).shared_bytes) << target;
  }
}

}  // namespace
}  // namespace tfcc::codegen
