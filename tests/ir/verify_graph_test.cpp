// SPDX-License-Identifier: Apache-2.0
// The verifier on graphs that no text can describe: order, use lists, symbols, dims, expressions of
// other pools, constants.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "ir/computed.h"
#include "ir/ir.h"
#include "tests/ir/violations.h"

namespace tfcc::ir {
namespace {

struct VerifyGraph : testing::Test {
  Graph g;
  Type vec{DType::f32, {g.pool().integer(4)}};
  ValueId x = g.add_input("x", vec);
  ExprRef i = g.pool().index(0, vec.dims[0]);
  ExprRef body = g.pool().load(0, Scalar::f32, {i});

  void expect(const std::string& label) {
    const std::string found = all(verify(g));
    EXPECT_NE(found.find("(" + label + ")"), std::string::npos) << label << ": " << found;
  }
};

TEST_F(VerifyGraph, WellFormed) {
  g.outputs = {{"y", g.add_pointwise({x}, body, vec, "y")}};
  EXPECT_EQ(all(verify(g)), "");
}

TEST_F(VerifyGraph, OrderAndOutputs) {
  const ValueId a = g.add_pointwise({x}, body, vec, "a"), b = g.add_pointwise({x}, body, vec, "b");
  g.set_operands(g.value(a).def, {b});
  g.outputs = {{"y", a}};
  expect("G1");
  g.clean();
  EXPECT_EQ(all(verify(g)), "");
  g.outputs.push_back({"y", a});
  expect("G3");
  g.outputs = {{"y", ValueId{}}};
  expect("G3");
}

TEST_F(VerifyGraph, UseLists) {
  const ValueId a = g.add_pointwise({x}, body, vec, "a");
  g.op(g.value(a).def).operands.push_back(x);
  expect("G6");
}

TEST_F(VerifyGraph, Symbols) {
  g.symbols = {{"N", 0, 0}};
  expect("G4");
  g.symbols = {{"N", 0, 7}};
  expect("G4");
  g.add_input("z", {DType::f32, {g.pool().symbol("select")}});
  g.symbols = {{"select", 1, 0}};
  expect("G4");
  g.symbols.clear();
  expect("G5");
}

TEST_F(VerifyGraph, MultiplesOfASize) {
  const ExprRef n = g.pool().symbol("N");
  g.add_input("z", {DType::f32, {mul(g.pool().integer(4), n)}});
  SizeSymbol parts{"N", 1, 0};
  g.symbols = {parts};
  expect("G4");
  parts.multiple = 4;
  g.symbols = {parts};
  EXPECT_TRUE(verify(g).empty());
  parts.multiple = 0;
  g.symbols = {parts};
  expect("G4");
}

TEST_F(VerifyGraph, RolesAndComputedSizes) {
  const ExprRef n = g.pool().symbol("N"), m = g.pool().symbol("M");
  g.add_input("z", {DType::f32, {n, m}});
  const SizeSymbol rows{"N", 1, 0, SizeRole::batch}, columns{"M", 1, 1, SizeRole::length};
  const auto computed = [&](ExprRef formula) {
    return SizeSymbol{"T", 0, 0, SizeRole::tokens, formula};
  };
  g.symbols = {rows, columns, computed(mul(n, m))};
  EXPECT_TRUE(verify(g).empty());
  g.symbols = {rows, {"M", 1, 1, SizeRole::batch}};
  expect("G4");
  g.symbols = {rows, computed(mul(n, m)), columns};
  expect("G4");
  g.symbols = {rows, columns, computed(mul(n, g.pool().symbol("T")))};
  expect("G5");
  g.symbols = {
      rows, columns, computed(n), {"U", 0, 0, SizeRole::none, mul(n, g.pool().symbol("T"))}};
  expect("G5");
  g.symbols = {rows, columns, computed(i)};
  expect("G5");
  ExprPool other;
  g.symbols = {rows, columns, computed(other.symbol("N"))};
  expect("G5");
  // The runtime need not know of it, and holds it to nothing but its largest value.
  g.symbols = {rows, columns, computed(mul(n, m))};
  const ValueId t = g.add_pointwise({}, g.pool().symbol("T"), {DType::i64, {}}, "t");
  g.outputs.push_back({"t", t});
  expect("E5");
}

TEST_F(VerifyGraph, DimsAndChecks) {
  g.set_type(x, {DType::f32, {i}});
  expect("G5");
  g.set_type(x, {DType::f32, {g.pool().real(2.5)}});
  expect("G5");
  g.set_type(x, vec);
  g.checks = {{lt(i, g.pool().integer(2)), "no"}};
  expect("G5");
}

TEST_F(VerifyGraph, Expressions) {
  const ValueId y = g.add_pointwise({x}, body, vec, "y");
  auto& attrs = g.op(g.value(y).def).as<PointwiseAttrs>();
  ExprPool other;
  attrs.body = transfer(body, other);
  expect("E1");
  attrs.body = g.pool().load(0, Scalar::f32, {g.pool().index(0, g.pool().integer(3))});
  expect("E2");
  attrs.body = g.pool().load(0, Scalar::f32, {g.pool().index(1, vec.dims[0])});
  expect("E2");
  attrs.body = g.pool().load(0, Scalar::f64, {i});
  expect("E3");
  attrs.body = g.pool().load(1, Scalar::f32, {i});
  expect("E3");
  attrs.body = g.pool().param("s", Scalar::f32);
  expect("E5");
  attrs.body = convert(g.pool().symbol("M"), Scalar::f32);
  expect("E5");
  attrs.body = nullptr;
  expect("P1");
}

TEST_F(VerifyGraph, Constants) {
  const ValueId c =
      g.add_constant("c", constant_from_bytes(DType::f32, {4}, std::vector<std::byte>(16)));
  EXPECT_EQ(all(verify(g)), "");
  auto& constant = g.op(g.value(c).def).as<ConstantAttrs>().constant;
  constant.bytes = std::make_shared<const std::vector<std::byte>>(12);
  expect("K3");
  constant.source = Constant::Source::file;
  expect("K3");
  constant.source = Constant::Source::random;
  EXPECT_EQ(all(verify(g)), "");
  constant.dtype = DType::i32;
  expect("K3");
  expect("K2");
  g.set_operands(g.value(c).def, {x});
  expect("K1");
}

TEST_F(VerifyGraph, ConstantsThatAGraphComputes) {
  const auto graph_of = [](const std::string& text) {
    Result<Graph> made = parse("graph @made() {\n" + text + "\n}");
    EXPECT_TRUE(made) << made.error().message;
    return std::make_shared<const ComputedConstant>(*std::move(made));
  };
  const auto two = graph_of("const @a : f32[2] = random(1) return c = @a");
  const ValueId c = g.add_constant("c", constant_of(two));
  EXPECT_EQ(all(verify(g)), "");
  auto& constant = g.op(g.value(c).def).as<ConstantAttrs>().constant;
  constant.computed = nullptr;
  expect("K3");
  constant.computed = graph_of("const @a : f32[3] = random(1) return c = @a");
  expect("K3");
  constant.computed = graph_of("const @a : f16[2] = random(1) return c = @a");
  expect("K3");
  constant.computed = graph_of("flag 0 \"no\" const @a : f32[2] = random(1) return c = @a");
  expect("K3");
  constant.computed = graph_of(
      "const @a : f32[2] = random(1) %b = pointwise(@a) {body = (i) => @a[i + 1]} : f32[2] "
      "return c = %b");
  expect("K3");  // reads an element that is not there
  constant = concat_constants({constant_of(two), constant_of(two)}, 0);
  g.set_type(c, {DType::f32, {g.pool().integer(4)}});
  EXPECT_EQ(all(verify(g)), "") << "computed parts may be joined";
  constant.parts[1].computed = nullptr;
  expect("K3");
  for (const char* type : {"f32[2,2]", "f16[2]"}) {  // that do not fit
    constant.parts[1] =
        constant_of(graph_of(fmt::format("const @a : {} = random(1) return c = @a", type)));
    expect("K3");
  }
  constant.parts[1] = constant.parts[0];
  constant.parts.push_back(constant.parts[0]);  // more than there is room for
  expect("K3");
  constant.axis = 1;
  expect("K3");
  constant = constant_of(two);
  g.set_type(c, {DType::f32, {g.pool().integer(2)}});
  Graph within = two->graph();
  within.outputs[0].value = within.add_constant("inner", concat_constants({constant_of(two)}, 0));
  constant.computed = std::make_shared<const ComputedConstant>(std::move(within));
  expect("K3");
}

}  // namespace
}  // namespace tfcc::ir
