// SPDX-License-Identifier: Apache-2.0
// The graph: use lists, names, copies and clean().
#include "ir/graph.h"

#include <gtest/gtest.h>

#include <chrono>

#include "ir/ir.h"

namespace tfcc::ir {
namespace {

struct GraphTest : testing::Test {
  Graph g{"t"};
  Type vec{DType::f32, {g.pool().integer(4)}};

  ValueId add_one(ValueId v, std::string name = "y") {
    ExprRef x = g.pool().load(0, Scalar::f32, {g.pool().index(0, vec.dims[0])});
    return g.add_pointwise({v}, add(x, g.pool().real(1)), vec, std::move(name));
  }
};

// A pass holds on to an op while it adds others; under the sanitizers a container that moves them
// is found out.
TEST_F(GraphTest, ReferencesStayValidWhenOpsAreAdded) {
  const ValueId x = g.add_input("x", vec), y = add_one(x, "y");
  const Op& op = g.op(g.value(y).def);
  const Value& value = g.value(y);
  for (int k = 0; k < 1000; ++k) add_one(y);
  EXPECT_EQ(&op, &g.op(g.value(y).def));
  EXPECT_EQ(&value, &g.value(y));
  EXPECT_EQ(op.kind, OpKind::pointwise);
  EXPECT_EQ(value.name, "y");
}

TEST_F(GraphTest, KeepsUseListsCurrent) {
  const ValueId x = g.add_input("x", vec);
  const ValueId a = add_one(x, "a"), b = add_one(x, "b");
  const OpId both = g.add_op(OpKind::matmul, {a, a}, MatmulAttrs{}, {vec}, {"c"});
  g.outputs = {{"out", a}};
  EXPECT_EQ(g.value(x).users.size(), 2u);
  EXPECT_EQ(g.use_count(a), 3u);
  g.replace_uses(a, b);
  EXPECT_EQ(g.use_count(a), 0u);
  EXPECT_EQ(g.use_count(b), 3u);
  EXPECT_EQ(g.outputs[0].value, b);
  EXPECT_EQ(g.op(both).operands, (std::vector<ValueId>{b, b}));
  g.set_operands(both, {a, b});
  EXPECT_EQ(g.use_count(a), 1u);
  EXPECT_EQ(g.use_count(b), 2u);
}

TEST_F(GraphTest, MakesNamesUnique) {
  const ValueId x = g.add_input("x", vec);
  const ValueId a = add_one(x, "x"), b = add_one(x, "x"), c = add_one(x, "");
  EXPECT_EQ(g.value(a).name, "x.1");
  EXPECT_EQ(g.value(b).name, "x.2");
  EXPECT_EQ(g.value(c).name, "v");
  EXPECT_EQ(g.find_value("x.2"), b);
  EXPECT_FALSE(g.find_value("nothing").valid());
  g.rename(b, "better");
  EXPECT_EQ(g.find_value("better"), b);
  EXPECT_FALSE(g.find_value("x.2").valid());
  g.rename(a, "x");
  EXPECT_NE(g.value(a).name, "x");
  EXPECT_EQ(g.find_value("x"), x);
}

TEST_F(GraphTest, CopiesDoNotSeeEachOther) {
  const ValueId x = g.add_input("x", vec);
  Graph copy = g;
  const ValueId y = add_one(x, "y");
  EXPECT_TRUE(g.find_value("y").valid());
  EXPECT_FALSE(copy.find_value("y").valid());
  EXPECT_EQ(copy.value_count(), 1u);
  EXPECT_EQ(&copy.pool(), &g.pool());
  EXPECT_EQ(g.value(y).name, "y");
}

TEST_F(GraphTest, CleanRemovesAndOrders) {
  const ValueId x = g.add_input("x", vec), unused = g.add_input("unused", vec);
  const ValueId a = add_one(x, "a"), dead = add_one(a, "dead"), b = add_one(a, "b"),
                late = add_one(x, "late");
  g.set_operands(g.value(b).def, {late});
  g.outputs = {{"b", b}, {"a", a}};
  EXPECT_EQ(g.clean(), 1u);
  std::vector<std::string> names;
  for (OpId o : g.order()) names.push_back(g.value(g.result(o)).name);
  EXPECT_EQ(names, (std::vector<std::string>{"late", "b", "a"}));
  EXPECT_TRUE(g.op(g.value(dead).def).erased);
  EXPECT_EQ(g.use_count(a), 1u);
  EXPECT_EQ(g.inputs(), (std::vector<ValueId>{x, unused}));
  EXPECT_EQ(g.clean(), 0u);
  EXPECT_EQ(g.value(add_one(x, "dead")).name, "dead");  // the name is free again
  g.clean();
  EXPECT_TRUE(verify(g).empty());
}

TEST_F(GraphTest, ChainsOfAHundredThousandOps) {
  const auto start = std::chrono::steady_clock::now();
  ValueId v = g.add_input("x", vec);
  for (int i = 0; i < 100000; ++i) v = add_one(v);
  g.outputs = {{"y", v}};
  EXPECT_EQ(g.clean(), 0u);
  EXPECT_EQ(g.order().size(), 100000u);
  EXPECT_TRUE(verify(g).empty());
  const std::string text = print(g);
  const auto again = parse(text);
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(print(*again), text);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));
}

TEST_F(GraphTest, ConstantsKnowTheirType) {
  Constant c = constant_from_bytes(DType::i64, {2}, std::vector<std::byte>(16));
  c.steps.push_back({ConstantStep::Kind::cast, {}, DType::f16});
  const ValueId v = g.add_constant("c", std::move(c));
  EXPECT_TRUE(g.is_constant(v));
  EXPECT_EQ(to_string(g.value(v).type), "f16[2]");
  EXPECT_EQ(g.constant(g.add_input("x", vec)), nullptr);
  EXPECT_EQ(to_string(OpKind::rope_append), "rope_append");
}

}  // namespace
}  // namespace tfcc::ir
