// SPDX-License-Identifier: Apache-2.0
// linear_attention: heads that no tile holds are refused in one line; a running sum over tokens x
// features is no memory; spans are as short as the blocks of a sequence allow.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "codegen/lower.h"
#include "ir/ir.h"
#include "passes/passes.h"

namespace tfcc::codegen {
namespace {

Result<Lowered> lowered(int head, const char* target) {
  auto graph = ir::parse(fmt::format(
      "graph @g(%q: f16[B,S,{0}], %k: f16[B,S,{0}], %v: f16[B,S,600]) symbols(B = q.0 in 1.., S = q.1 in 1..) {{\n"
      "  %y = linear_attention(%q, %k, %v) {{causal = true, heads = 1, kv_heads = 1}} : f16[B,S,600]\n  return y = %y\n}}\n",
      head));
  EXPECT_TRUE(graph) << graph.error().message;
  WeightPool weights;
  return lower(*graph, class_of(target), weights);
}

TEST(LinearAttention, HeadsThatNoTileHoldsAreRefused) {
  for (const char* target : {"cpu", "sm_80", "sm_90"}) {
    const auto wide = lowered(513, target);
    ASSERT_FALSE(wide) << target;
    EXPECT_NE(wide.error().message.find("heads of 513 are over 512"), std::string::npos)
        << wide.error().message;
    const auto widest = lowered(512, target);  // values of any width are taken by blocks
    ASSERT_TRUE(widest) << widest.error().message;
    for (const runtime::Kernel& kernel : widest->plan.kernels)
      EXPECT_LE(kernel.shared_bytes, class_of(target).shared_bytes) << target;
  }
}

int64_t arena_bytes(const runtime::Plan& plan, int64_t length) {
  const std::vector<int64_t> sizes{1, length, length};
  int64_t bytes = 0;
  for (const runtime::SizeExpr& slot : plan.slots)
    bytes += slot.evaluate(sizes).value_or(1LL << 60);
  return bytes;
}

// The sums k v^T of all tokens would be 64 * 64 numbers a token and head.
TEST(LinearAttention, MemoryGrowsWithTokensAndNotWithFeaturesSquared) {
  constexpr int64_t heads = 8, size = 64;
  const auto text = fmt::format(
      "graph @g(%x: f32[B,S,{0},{1}]) symbols(B = x.0 in 1.., S = x.1 in 1..) {{\n"
      "  %q = pointwise(%x) {{body = (i,j,k,l) => max(%x[i,j,k,l], 0.0)}} : f32[B,S,{0},{1}]\n"
      "  %k = pointwise(%x) {{body = (i,j,k,l) => exp(%x[i,j,k,l])}} : f32[B,S,{0},{1}]\n"
      "  %v = pointwise(%x) {{body = (i,j,k,l) => %x[i,j,k,{1} - 1 - l] * 0.5}} : f32[B,S,{0},{1}]\n"
      "  %kv = pointwise(%k, %v) {{body = (i,j,k,l,m) => %k[i,j,k,l] * %v[i,j,k,m]}} : f32[B,S,{0},{1},{1}]\n"
      "  %s = cumsum(%kv) {{axis = 1, exclusive = false, reverse = false}} : f32[B,S,{0},{1},{1}]\n"
      "  %q5 = pointwise(%q) {{body = (i,j,k,l,m) => %q[i,j,k,m]}} : f32[B,S,{0},1,{1}]\n"
      "  %o = matmul(%q5, %s) {{alpha = 1.0, trans_a = false, trans_b = false}} : f32[B,S,{0},1,{1}]\n"
      "  %y = pointwise(%o) {{body = (i,j,k,l) => %o[i,j,k,0,l] + 1.0}} : f32[B,S,{0},{1}]\n  return y = %y\n}}\n",
      heads, size);
  for (const char* target : {"cpu", "sm_80", "sm_90"}) {
    auto graph = ir::parse(text);
    ASSERT_TRUE(graph) << graph.error().message;
    const auto report = passes::run_passes(*graph, passes::default_pipeline());
    ASSERT_TRUE(report) << report.error().message;
    WeightPool weights;
    const auto lowered = lower(*graph, class_of(target), weights);
    ASSERT_TRUE(lowered) << lowered.error().message;
    for (int64_t length : {1, 64, 4096, 65536}) {
      const int64_t token = heads * (2 * size + 2 * size) * 4;  // q, k, v and the result
      EXPECT_LE(arena_bytes(lowered->plan, length), 2 * length * token + 8192)
          << target << " at " << length;
    }
  }
}

int64_t field(const KernelSource& kernel, const std::string& name) {
  const size_t at = kernel.text.find(name + " = ");
  return at == std::string::npos ? -1 : std::stoll(kernel.text.substr(at + name.size() + 3));
}

struct Spans {
  int64_t longest = -1, spread = -1;
  bool operator==(const Spans&) const = default;
};

Spans spans_of(int heads, const char* batch, const char* tokens, bool padding = false) {
  auto graph = ir::parse(fmt::format(
      "graph @g(%x: f16[B,S,{0}], %mask: i64[B,S]) symbols(B = x.0 in 1..{1}, S = x.1 in 1..{2}) {{\n"
      "  %q = pointwise(%x) {{body = (i,j,k) => %x[i,j,k] * 0.5}} : f16[B,S,{0}]\n"
      "  %a = linear_attention(%q, %q, %q{4}) {{causal = true, heads = {3}, kv_heads = {3}{5}}} : f16[B,S,{0}]\n"
      "  %y = pointwise(%a) {{body = (i,j,k) => %a[i,j,k] * 2.0}} : f16[B,S,{0}]\n  return y = %y\n}}\n",
      64 * heads, batch, tokens, heads, padding ? ", %mask" : "",
      padding ? ", visible = (b,h,t) => %mask[b,t] == 1" : ""));
  EXPECT_TRUE(graph) << graph.error().message;
  WeightPool weights;
  const auto lowered = lower(*graph, class_of("sm_90"), weights);
  EXPECT_TRUE(lowered) << lowered.error().message;
  for (const KernelSource& kernel : lowered->kernels) {
    if (const int64_t span = field(kernel, "span"); span >= 0)
      return {span, field(kernel, "spread")};
  }
  return {};
}

// Blocks share a sequence by spans, at most sixteen of them on this GPU. Of one sequence without a
// mask all tokens are real, so that its length may decide.
TEST(LinearAttention, SpansAreSpreadOverTheBlocksOfASequence) {
  EXPECT_EQ(spans_of(8, "1", ""), (Spans{512, 16}));
  EXPECT_EQ(spans_of(32, "1", ""), (Spans{512, 4}));
  EXPECT_EQ(spans_of(8, "", "2048"), (Spans{512, 0}));
  EXPECT_EQ(spans_of(80, "1", "1024"), (Spans{512, 0}));  // no block is left to share with
}

// The padded length must not decide then. Right padding needs no mask where queries see no later key.
TEST(LinearAttention, SpansOfPaddedSequencesAreAsShortAsPromisedSizesAllow) {
  const auto span = [](int heads, const char* batch, const char* tokens) {
    const Spans spans = spans_of(heads, batch, tokens, true);
    EXPECT_EQ(spans.spread, 0);
    return spans.longest;
  };
  EXPECT_EQ(span(8, "1", "2048"), 128);
  EXPECT_EQ(span(8, "1", "2049"), 256);
  EXPECT_EQ(span(8, "1", "4097"), 512);
  EXPECT_EQ(span(8, "2", "2048"), 256);
  EXPECT_EQ(span(8, "", "2048"), 512);
  EXPECT_EQ(span(8, "1", ""), 512);
  EXPECT_EQ(spans_of(8, "2", "2048"), (Spans{256, 0}));  // no mask
  EXPECT_EQ(span(80, "1", "1024"), 512);
  EXPECT_EQ(span(8, "1", "512"), 512);  // no reason to
}

// Bits depend on it: a sequence has the same ones in buckets of any length.
TEST(LinearAttention, SpansAreTheSameInAllBuckets) {
  auto graph = ir::parse(
      "graph @g(%x: f16[B,S,512]) symbols(B = x.0 in 1..1, S = x.1 in 1..2048 as length) {\n"
      "  %q = pointwise(%x) {body = (i,j,k) => %x[i,j,k] * 0.5} : f16[B,S,512]\n"
      "  %s = attention(%q, %q, %q) {causal = false, heads = 8, key_padding = false, kv_heads = 8, score = (s,b,h,i,j) => s * 0.125, visible = none} : f16[B,S,512]\n"
      "  %a = linear_attention(%s, %q, %q) {causal = true, heads = 8, kv_heads = 8} : f16[B,S,512]\n"
      "  %y = pointwise(%a) {body = (i,j,k) => %a[i,j,k] * 2.0} : f16[B,S,512]\n  return y = %y\n}\n");
  ASSERT_TRUE(graph) << graph.error().message;
  WeightPool weights;
  LowerOptions options;
  options.lengths = {512};
  const auto lowered = lower(*graph, class_of("sm_90"), weights, options);
  ASSERT_TRUE(lowered) << lowered.error().message;
  int kernels = 0;
  for (const KernelSource& kernel : lowered->kernels) {
    if (field(kernel, "span") < 0) continue;
    ++kernels;
    EXPECT_EQ(field(kernel, "span"), 512) << kernel.name;
    EXPECT_EQ(field(kernel, "spread"), 16) << kernel.name;
  }
  EXPECT_EQ(kernels, 2);  // one of them has no team
}

}  // namespace
}  // namespace tfcc::codegen
