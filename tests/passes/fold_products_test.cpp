// SPDX-License-Identifier: Apache-2.0
// The limits of fold-products: what would take the compiler long or much memory stays, and is a
// miss. tests/passes/fold_products.tfir has what it does; golden files evaluate their graphs.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "ir/ir.h"
#include "passes/passes.h"

namespace tfcc::passes {
namespace {

std::string graph_of(const std::string& lines, const std::string& sum) {
  return "graph @g(%x: f32[B,1024]) symbols(B = x.0 in 1..) {\n" + lines + "  %y = " + sum +
         " : f32[B,1024]\n  return y = %y\n}\n";
}

PassReport fold(const std::string& text) {
  Result<ir::Graph> g = ir::parse(text);
  EXPECT_TRUE(g) << g.error().message;
  PassReport report = find_pass("fold-products")->run(*g);
  g->clean();
  EXPECT_TRUE(ir::verify(*g).empty());
  return report;
}

TEST(FoldProducts, LeavesWhatTakesLong) {
  const PassReport report = fold(graph_of(
      "  const @p : f32[1024,65536] = random(1)\n  const @w : f32[65536,1024] = random(2)\n"
      "  %t = matmul(@p, @w) {alpha = 1.0, trans_a = false, trans_b = false} : f32[1024,1024]\n",
      "pointwise(%x, %t) {body = (i,j) => %x[i,j] + %t[7,j]}"));
  EXPECT_EQ(report.rewrites, 0u);
  ASSERT_EQ(report.misses.size(), 1u);
  EXPECT_EQ(report.misses[0].reason, "takes long to compute");
}

TEST(FoldProducts, CountsWhatIsSharedOnce) {
  std::string lines =
      "  const @w : f32[64,64] = random(1)\n  const @x0 : f32[512,64] = random(2)\n";
  for (int i = 0; i < 20; ++i)
    lines += fmt::format(
        "  %x{1} = matmul({2}x{0}, @w, {2}x{0}) {{alpha = 1.0, epilogue = (s,i,j) => s + "
        "{2}x{0}[i,j], trans_a = false, trans_b = false}} : f32[512,64]\n",
        i, i + 1, i == 0 ? "@" : "%");
  const PassReport report =
      fold(graph_of(lines, "pointwise(%x, %x20) {body = (i,j) => %x[i,j] + %x20[7,j % 64]}"));
  EXPECT_EQ(report.rewrites, 1u) << "20 products of 2e6, each read twice by the next";
}

TEST(FoldProducts, TablesHave256MiBInAll) {
  std::string lines, operands = "%x", sum = "%x[i,j]";
  for (int i = 0; i < 17; ++i) {
    lines += fmt::format(
        "  const @p{0} : f32[4096,1] = random(1)\n  const @w{0} : f32[1,1024] = random(2)\n"
        "  %t{0} = matmul(@p{0}, @w{0}) {{alpha = 1.0, trans_a = false, trans_b = false}} : "
        "f32[4096,1024]\n",
        i);
    operands += fmt::format(", %t{}", i), sum += fmt::format(" + %t{}[7,j]", i);
  }
  const PassReport report =
      fold(graph_of(lines, "pointwise(" + operands + ") {body = (i,j) => " + sum + "}"));
  EXPECT_EQ(report.rewrites, 16u);
  ASSERT_EQ(report.misses.size(), 1u);
  EXPECT_EQ(report.misses[0].reason, "is beside many large constants");
}

TEST(FoldProducts, LeavesWhatReadsAConstantOfVeryManyElements) {
  const PassReport report = fold(graph_of(
      "  const @p : f32[100000000] = random(1)\n  const @w : f32[16,1024] = random(2)\n"
      "  %q = pointwise(@p) {body = (i,j) => @p[16*i + j]} : f32[8,16]\n"
      "  %t = matmul(%q, @w) {alpha = 1.0, trans_a = false, trans_b = false} : f32[8,1024]\n",
      "pointwise(%x, %t) {body = (i,j) => %x[i,j] + %t[7,j]}"));
  EXPECT_EQ(report.rewrites, 0u);
  ASSERT_EQ(report.misses.size(), 1u);
  EXPECT_EQ(report.misses[0].reason, "takes long to compute");
}

}  // namespace
}  // namespace tfcc::passes
