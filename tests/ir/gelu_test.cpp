// SPDX-License-Identifier: Apache-2.0
// GELU as an expression: its values, and what is taken for one.
#include <gtest/gtest.h>

#include <cmath>

#include "ir/gelu.h"
#include "ir/ir.h"

namespace tfcc::ir {
namespace {

HostTensor gelu_of_numbers(GeluKind kind, DType type, const std::vector<double>& x) {
  Graph g("g");
  ExprPool& pool = g.pool();
  const Type t{type, {pool.integer(static_cast<int64_t>(x.size()))}};
  const ValueId in = g.add_input("x", t);
  ExprRef load = pool.load(0, type, {pool.index(0, t.dims[0])});
  g.outputs.push_back({"y", g.add_pointwise({in}, gelu_of(load, kind), t, "y")});
  HostTensor values;
  values.dtype = type;
  values.dims = {static_cast<int64_t>(x.size())};
  values.reals = x;
  const auto out = eval(g, {{"x", values}});
  EXPECT_TRUE(out) << out.error().message;
  return out->at("y");
}

// Numbers by mpmath, 30 digits. Constants of an f32 graph are rounded to f32.
TEST(Gelu, HasTheValuesOfItsDefinition) {
  const std::vector<double> x = {-1, 0, 2};
  const std::vector<double> erf = {-0.158655253931457, 0, 1.954499736103642},
                            tanh = {-0.158808009391723, 0, 1.954597694087775};
  const HostTensor exact = gelu_of_numbers(GeluKind::erf, DType::f64, x),
                   rounded = gelu_of_numbers(GeluKind::erf, DType::f32, x);
  const HostTensor approximate = gelu_of_numbers(GeluKind::tanh, DType::f64, x);
  for (size_t i = 0; i < x.size(); ++i) {
    EXPECT_NEAR(exact.reals[i], erf[i], 1e-14);
    EXPECT_NEAR(rounded.reals[i], erf[i], 1e-8);
    EXPECT_NEAR(approximate.reals[i], tanh[i], 1e-14);
  }
}

TEST(Gelu, IsFoundInItsOwnSpellingOfAnyArgument) {
  ExprPool pool;
  ExprRef i = pool.index(0, pool.integer(8)), x = pool.load(0, DType::f32, {i}),
          b = pool.load(1, DType::f32, {i});
  for (const GeluKind kind : {GeluKind::erf, GeluKind::tanh}) {
    for (ExprRef argument :
         {x, add(x, b), mul(x, x), mul(x, pool.real(0.5, Scalar::f32)), unary(ExprKind::tanh, x),
          gelu_of(x, GeluKind::erf), gelu_of(x, GeluKind::tanh)}) {
      const auto found = as_gelu(gelu_of(argument, kind));
      ASSERT_TRUE(found);
      EXPECT_EQ(found->x, argument);
      EXPECT_EQ(found->kind, kind);
    }
  }
}

TEST(Gelu, IsNothingElse) {
  ExprPool pool;
  ExprRef i = pool.index(0, pool.integer(8)), x = pool.load(0, DType::f32, {i}),
          b = pool.load(1, DType::f32, {i});
  const auto c = [&](double v) { return pool.real(v, Scalar::f32); };
  ExprRef gelu = gelu_of(x, GeluKind::erf);
  ExprRef tail = add(c(1), unary(ExprKind::erf, mul(x, c(std::sqrt(0.5)))));
  for (ExprRef other : {x, add(gelu, b), mul(gelu, b), mul(mul(c(0.5), b), tail), mul(x, tail),
                        unary(ExprKind::erf, x),
                        mul(mul(c(0.5), x), add(c(1), unary(ExprKind::erf, mul(x, c(0.7)))))}) {
    EXPECT_FALSE(as_gelu(other)) << print(other);
  }
}

}  // namespace
}  // namespace tfcc::ir
