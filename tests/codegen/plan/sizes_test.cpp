// SPDX-License-Identifier: Apache-2.0
// Sizes as programs: where batch * length occurs the program names the size that is computed from
// them, so that a bucket can cap it; whatever else a size is made of, the program computes what the
// expression says.
#include <gtest/gtest.h>

#include <random>

#include "codegen/plan/sizes.h"
#include "ir/ir.h"

namespace tfcc::codegen {
namespace {

class SizesTest : public testing::Test {
 protected:
  SizesTest() {
    graph_.symbols = {{"B", 0, 0, SizeRole::batch},
                      {"S", 0, 1, SizeRole::length},
                      {"tokens", 0, 0, SizeRole::tokens, ir::mul(b_, s_)}};
  }
  ir::ExprRef integer(int64_t v) { return graph_.pool().integer(v); }

  ir::Graph graph_;
  ir::ExprRef b_ = graph_.pool().symbol("B"), s_ = graph_.pool().symbol("S");
};

TEST_F(SizesTest, writes_products_with_tokens) {
  Sizes sizes(graph_);
  ASSERT_EQ(sizes.names(), (std::vector<std::string>{"B", "S", "tokens"}));
  // Values that no shape has show which symbol is read.
  const std::vector<int64_t> n = {3, 5, 16};
  auto value = [&](ir::ExprRef e) { return sizes.program(e).evaluate(n); };
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

TEST_F(SizesTest, agrees_with_the_expression_at_real_shapes) {
  Sizes sizes(graph_);
  const ir::ExprRef e =
      ir::sub(ir::mul(ir::mul(b_, s_), ir::mul(s_, integer(12))), ir::mul(b_, s_));
  for (int64_t b : {1, 2, 7}) {
    for (int64_t s : {1, 16, 33}) {
      const std::vector<int64_t> n = {b, s, b * s};
      EXPECT_EQ(sizes.program(e).evaluate(n), 12 * b * s * s - b * s);
    }
  }
}

TEST_F(SizesTest, restates_below_quotients_and_choices) {
  Sizes sizes(graph_);
  const std::vector<int64_t> n = {3, 5, 16};
  const ir::ExprRef tokens = ir::mul(b_, s_);
  auto value = [&](ir::ExprRef e) { return sizes.program(e).evaluate(n); };
  EXPECT_EQ(value(ir::min(ir::div(tokens, integer(3)), integer(90))), 5);
  EXPECT_EQ(value(ir::select(ir::lt(tokens, integer(16)), b_, tokens)), 16);
  EXPECT_EQ(sizes.program(ir::mul(tokens, integer(2))).text, "2*B*S") << "as the graph has it";
}

TEST_F(SizesTest, names_a_product_of_different_sizes_alone) {
  auto factors = [&](ir::ExprRef formula) {
    return Sizes::factors({"n", 0, 0, SizeRole::tokens, formula}).size();
  };
  EXPECT_EQ(factors(ir::mul(b_, s_)), 2u);
  EXPECT_EQ(factors(ir::mul(ir::mul(b_, s_), graph_.pool().symbol("C"))), 3u);
  EXPECT_EQ(factors(nullptr), 0u) << "read";
  EXPECT_EQ(factors(ir::mul(b_, integer(2))), 0u);
  EXPECT_EQ(factors(ir::mul(ir::mul(b_, s_), integer(2))), 0u);
  EXPECT_EQ(factors(ir::mul(b_, b_)), 0u);
  EXPECT_EQ(factors(ir::add(b_, s_)), 0u);
}

TEST_F(SizesTest, knows_at_the_caps_what_it_knows_of_each_size_alone) {
  Sizes sizes(graph_);
  const ir::ExprRef tokens = ir::mul(b_, s_), rows = ir::mul(b_, integer(4));
  // B * S >= B, since S >= 1; of tokens apart from B nothing is known.
  EXPECT_TRUE(ir::prove_le(b_, tokens));
  EXPECT_FALSE(ir::prove_le(sizes.restate(b_), sizes.restate(tokens)));
  EXPECT_EQ(sizes.restate(sizes.restate(rows)), sizes.restate(rows));
}

// Random sizes over two symbols.
struct RandomSize {
  ir::ExprPool& pool;
  std::mt19937 random;

  ir::ExprRef size(int depth) {
    if (depth == 0) {
      const char* const names[] = {"B", "S"};
      const auto k = random() % 4;
      return k < 2 ? pool.symbol(names[k]) : pool.integer(static_cast<int64_t>(random() % 9) - 4);
    }
    const ir::ExprRef a = size(depth - 1), b = size(depth - 1);
    switch (random() % 7) {
      case 0: return ir::add(a, b);
      case 1: return ir::sub(a, b);
      case 2: return ir::div(a, pool.integer(static_cast<int64_t>(random() % 7) + 1));
      case 3: return ir::min(a, b);
      case 4: return ir::max(a, b);
      case 5: return ir::abs(a);
      default: return ir::select(condition(depth - 1), a, b);
    }
  }

  ir::ExprRef condition(int depth) {
    const int of = std::max(depth - 1, 0);
    switch (depth == 0 ? random() % 2 : random() % 5) {
      case 0: return ir::lt(size(of), size(of));
      case 1: return ir::eq(size(of), size(of));
      case 2: return ir::logical_and(condition(of), condition(of));
      case 3: return ir::logical_or(condition(of), condition(of));
      default: return ir::logical_not(condition(of));
    }
  }
};

TEST_F(SizesTest, computes_what_the_interpreter_computes) {
  Sizes sizes(graph_);
  size_t conditions = 0, programs = 0;
  for (uint32_t seed = 0; seed < 3000; ++seed) {
    const ir::ExprRef e = RandomSize{graph_.pool(), std::mt19937(seed)}.size(4);
    ir::for_each_node(e, [&](ir::ExprRef n) {
      conditions += n->kind == ir::ExprKind::band || n->kind == ir::ExprKind::bor;
    });
    if (!why_no_program(e).empty()) continue;
    const runtime::SizeExpr program = sizes.program(e);
    if (!program.valid(3)) continue;
    ++programs;
    for (int64_t b : {1, 2, 5}) {
      for (int64_t s : {1, 3, 4, 16}) {
        ir::ScalarEnv env;
        env.symbol = [&](std::string_view name) { return name == "B" ? b : s; };
        ASSERT_EQ(program.evaluate(std::vector<int64_t>{b, s, b * s}), ir::eval_expr(e, env).i)
            << ir::print(e) << " seed " << seed;
      }
    }
  }
  EXPECT_GT(conditions, 100u);
  EXPECT_GT(programs, 2900u);
}

TEST_F(SizesTest, says_why_a_size_is_no_program) {
  EXPECT_EQ(why_no_program(ir::select(ir::lt(b_, s_), b_, ir::mul(b_, s_))), "");
  const ir::ExprRef root =
      ir::convert(ir::unary(ir::ExprKind::sqrt, ir::convert(s_, ir::Scalar::f32)), ir::Scalar::i64);
  EXPECT_EQ(why_no_program(ir::add(b_, root)), "goes through floating point");
  EXPECT_EQ(why_no_program(ir::select(
                ir::lt(ir::convert(s_, ir::Scalar::f32), graph_.pool().real(0.5, ir::Scalar::f32)),
                b_, root)),
            "goes through floating point");
  EXPECT_EQ(why_no_program(ir::bit_and(b_, s_)), "masks bits");
  EXPECT_EQ(why_no_program(graph_.pool().load(0, ir::Scalar::i64, {})), "depends on data");
  // Each twice in the next: small as a graph of nodes, without end when written out.
  ir::ExprRef nested = s_;
  for (int i = 0; i < 20; ++i)
    nested = ir::select(ir::eq(ir::mod(nested, integer(i + 2)), b_), ir::add(nested, b_),
                        ir::mul(nested, nested));
  EXPECT_EQ(why_no_program(nested), "is too large an expression");
}

}  // namespace
}  // namespace tfcc::codegen
