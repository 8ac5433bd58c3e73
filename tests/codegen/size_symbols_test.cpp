// SPDX-License-Identifier: Apache-2.0
// Sizes as programs: where batch * length occurs the program names their product, so that a bucket can cap it.
#include <gtest/gtest.h>

#include "codegen/emit_expr.h"
#include "ir/ir.h"

namespace tfcc::codegen {
namespace {

class SizeSymbolsTest : public testing::Test {
 protected:
  SizeSymbolsTest() {
    graph_.symbols = {{"B", 0, 0}, {"S", 0, 1}};
  }
  ir::ExprRef integer(int64_t v) { return graph_.pool().integer(v); }

  ir::Graph graph_;
  ir::ExprRef b_ = graph_.pool().symbol("B"), s_ = graph_.pool().symbol("S");
};

TEST_F(SizeSymbolsTest, writes_products_with_tokens) {
  const SizeSymbols symbols = size_symbols(graph_);
  ASSERT_EQ(symbols.names, (std::vector<std::string>{"B", "S", "tokens"}));
  // Values that no shape has show which symbol is read.
  const std::vector<int64_t> n = {3, 5, 16};
  auto value = [&](ir::ExprRef e) { return size_expr(e, symbols).evaluate(n); };
  const ir::ExprRef tokens = ir::mul(b_, s_);
  EXPECT_EQ(value(tokens), 16);
  EXPECT_EQ(value(b_), 3);
  EXPECT_EQ(value(s_), 5);
  EXPECT_EQ(value(ir::mul(tokens, integer(768))), 16 * 768);
  EXPECT_EQ(value(ir::mul(tokens, s_)), 16 * 5);
  EXPECT_EQ(value(ir::mul(tokens, tokens)), 16 * 16);
  EXPECT_EQ(value(ir::mul(ir::mul(b_, b_), s_)), 3 * 16);
  EXPECT_EQ(value(ir::mul(s_, s_)), 25);
  EXPECT_EQ(value(ir::add(ir::mul(tokens, integer(2)), ir::add(b_, integer(7)))), 2 * 16 + 3 + 7);
  EXPECT_EQ(value(ir::div(ir::add(tokens, integer(255)), integer(256))), 1);
  EXPECT_EQ(value(ir::max(ir::mul(tokens, integer(2)), ir::mul(b_, integer(4)))), 32);
}

TEST_F(SizeSymbolsTest, agrees_with_the_expression_at_real_shapes) {
  const SizeSymbols symbols = size_symbols(graph_);
  const ir::ExprRef e = ir::sub(ir::mul(ir::mul(b_, s_), ir::mul(s_, integer(12))), ir::mul(b_, s_));
  for (int64_t b : {1, 2, 7}) {
    for (int64_t s : {1, 16, 33}) {
      const std::vector<int64_t> n = {b, s, b * s};
      EXPECT_EQ(size_expr(e, symbols).evaluate(n), 12 * b * s * s - b * s);
    }
  }
}

TEST_F(SizeSymbolsTest, has_no_tokens_without_both_axes_and_a_name_of_their_own) {
  graph_.symbols = {{"S", 0, 1}};
  EXPECT_FALSE(size_symbols(graph_).has_tokens);
  graph_.symbols = {{"B", 0, 0}};
  EXPECT_EQ(size_symbols(graph_).names, std::vector<std::string>{"B"});
  graph_.symbols = {{"B", 0, 0}, {"tokens", 0, 1}};
  EXPECT_EQ(size_symbols(graph_).names.back(), "tokens_");
}

}  // namespace
}  // namespace tfcc::codegen
