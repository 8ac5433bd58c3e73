// SPDX-License-Identifier: Apache-2.0
// How a score is split: what comes of the product, what is added, and whether that is a function of
// the distance.
#include <gtest/gtest.h>

#include "codegen/attention/attention.h"
#include "ir/ir.h"

namespace tfcc::codegen {
namespace {

class ScoreTest : public testing::Test {
 protected:
  ExprRef score(const std::string& text) {
    const std::string graph =
        "graph @g(%q: f32[B,S,64], %k: f32[B,T,64], %v: f32[B,T,64], %m: f32[B,T], %p: f32[S,T], %w: f32[9,2]) symbols(B = q.0 in 1.., S = q.1 in 1.., T = k.1 in 1..) {\n"
        "  %a = attention(%q, %k, %v, %m, %p, %w) {causal = false, heads = 2, key_padding = false, kv_heads = 2, score = (s,b,h,i,j) => " +
        text + ", visible = none} : f32[B,S,64]\n  return a = %a\n}\n";
    auto parsed = ir::parse(graph);
    EXPECT_TRUE(parsed) << parsed.error().message;
    graphs_.push_back(std::make_unique<ir::Graph>(std::move(*parsed)));
    const ir::Graph& g = *graphs_.back();
    return g.op(g.order().back()).as<ir::AttentionAttrs>().score;
  }
  ScoreParts split(const std::string& text) { return split_score(score(text)); }
  // The distance put back in: what was added.
  static bool is_of_distance(const ScoreParts& parts) {
    if (!parts.by_distance) return false;
    ExprRef i = nullptr, j = nullptr;
    ir::for_each_node(parts.added, [&](ExprRef n) {
      if (n->kind != ir::ExprKind::index) return;
      if (n->value == ir::kQuery) i = n;
      if (n->value == ir::kKey) j = n;
    });
    ExprRef back = ir::substitute_indices(
        parts.by_distance, {nullptr, nullptr, nullptr, ir::add(ir::sub(j, i), parts.most_before)});
    EXPECT_EQ(ir::print(back), ir::print(parts.added));
    return true;
  }
  std::vector<std::unique_ptr<ir::Graph>> graphs_;
};

TEST_F(ScoreTest, WhatIsAddedIsOnItsOwn) {
  for (const char* text : {"s * 0.125 + %p[i,j]", "%p[i,j] + s * 0.125", "s * 0.125 - %p[i,j]",
                           "tanh(s) * 5.0 + %m[b,j]", "s * %p[i,j] + %m[b,j]",
                           "s * 0.125 + %m[b,j] + %p[i,j]", "%m[b,j] + (s - %p[i,j])"}) {
    const ScoreParts parts = split(text);
    ASSERT_TRUE(parts.added) << text;
    int products = 0;
    ir::for_each_node(parts.added, [&](ExprRef n) { products += n->kind == ir::ExprKind::param; });
    EXPECT_EQ(products, 0) << text;
    EXPECT_FALSE(is_of_distance(parts)) << text;
  }
}

TEST_F(ScoreTest, WhatIsNoSumStays) {
  for (const char* text : {"s * 0.125", "s * %p[i,j]", "tanh(s + %p[i,j])", "%p[i,j] - s",
                           "%m[b,j] - (s - %p[i,j])", "s * 0.125 + 3.0", "s + %w[0,h]"})
    EXPECT_FALSE(split(text).added) << text;
}

TEST_F(ScoreTest, DistancesAreFound) {
  for (const char* text :
       {"s * 0.125 + f32(j - i) * 0.5", "s - f32(i - j) * %w[0,h]",
        "s + %w[bounded(min(abs(i - j), 8), 9, 0),h]", "s + select(j <= i, 1.0, f32(j - i))"})
    EXPECT_TRUE(is_of_distance(split(text))) << text;
}

TEST_F(ScoreTest, PlacesAreNoDistances) {
  for (const char* text : {"s + f32(j) * 0.5", "s + f32(i + j)", "s + f32(j - 2 * i)",
                           "s + f32(j - i) * %m[b,j]", "s + %p[i,j]"}) {
    const ScoreParts parts = split(text);
    EXPECT_TRUE(parts.added) << text;
    EXPECT_FALSE(parts.by_distance) << text;
  }
}

}  // namespace
}  // namespace tfcc::codegen
