// SPDX-License-Identifier: Apache-2.0
// What proofs took for granted of products of sizes becomes a condition of the run, unless a tensor
// bounds it.
#include "codegen/plan/size_limit.h"

#include <gtest/gtest.h>

#include "ir/ir.h"
#include "ir/range.h"

namespace tfcc::codegen {
namespace {

class SizeLimit : public testing::Test {
 protected:
  // A graph with one input of these dims, read as it is.
  ir::Graph graph(const std::vector<std::string>& dims) {
    std::string type = "f32[", symbols;
    for (size_t k = 0; k < dims.size(); ++k) {
      type += (k ? "," : "") + dims[k];
      symbols += (k ? ", " : "") + dims[k] + " = x." + std::to_string(k) + " in 1..";
    }
    auto g = ir::parse("graph @main(%x: " + type + "]) symbols(" + symbols +
                       ") {\n  return y = %x\n}\n");
    EXPECT_TRUE(bool(g)) << (g ? "" : g.error().message);
    return *std::move(g);
  }
  static ir::ExprRef product(ir::Graph& g, const std::string& letters) {
    ir::ExprRef p = g.pool().integer(1);
    for (char c : letters) p = ir::mul(p, g.pool().symbol(std::string(1, c)));
    return p;
  }
  static bool holds(ir::ExprRef condition, int64_t each) {
    return ir::eval_size(
               ir::select(condition, condition->pool->integer(1), condition->pool->integer(0)),
               [&](std::string_view) { return each; }) == 1;
  }
};

TEST_F(SizeLimit, NothingAssumedNothingChecked) {
  ir::Graph g = graph({"B", "S"});
  EXPECT_TRUE(ir::fits(product(g, "BS")));
  EXPECT_EQ(sizes_fit(g), nullptr);
}

TEST_F(SizeLimit, ProductsOfATensorAreCheckedWithItsElements) {
  ir::Graph g = graph({"B", "S", "T"});
  EXPECT_TRUE(ir::fits(product(g, "BST")));
  EXPECT_EQ(sizes_fit(g), nullptr);
}

TEST_F(SizeLimit, OtherProductsBecomeAConditionOfTheRun) {
  ir::Graph g = graph({"B", "S"});
  EXPECT_TRUE(ir::fits(product(g, "BSSS")));
  const ir::ExprRef condition = sizes_fit(g);
  ASSERT_TRUE(condition);
  EXPECT_TRUE(holds(condition, 4096));
  EXPECT_FALSE(holds(condition, 46341)) << "above 2^62";
}

TEST_F(SizeLimit, ASizeThatMayBeZeroBoundsNothing) {
  ir::Graph g = graph({"B", "S", "P"});
  g.pool().set_range("P", {0, std::nullopt});
  EXPECT_TRUE(ir::fits(ir::mul(product(g, "BS"), g.pool().integer(1 << 20))));
  EXPECT_TRUE(sizes_fit(g)) << "B * S * P is 0 where P is";
}

}  // namespace
}  // namespace tfcc::codegen
