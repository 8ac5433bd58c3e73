// SPDX-License-Identifier: Apache-2.0
// The evaluator: blocks against the scalar interpreter, every op against numbers worked out apart,
// errors.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <chrono>
#include <cmath>

#include "ir/ir.h"
#include "tests/ir/random_expr.h"

namespace tfcc::ir {
namespace {

using Tensors = std::map<std::string, HostTensor>;

HostTensor reals(std::vector<int64_t> dims, std::vector<double> v, DType t = DType::f32) {
  return {t, std::move(dims), std::move(v), {}};
}
HostTensor ints(std::vector<int64_t> dims, std::vector<int64_t> v, DType t = DType::i64) {
  return {t, std::move(dims), {}, std::move(v)};
}

Graph graph_of(const std::string& text) {
  auto g = parse(text);
  EXPECT_TRUE(g) << g.error().message;
  if (!g) return Graph();
  for (const Violation& problem : verify(*g)) ADD_FAILURE() << to_string(problem);
  return *std::move(g);
}

HostTensor run(const std::string& text, const Tensors& inputs, EvalOptions options = {}) {
  const auto out = eval(graph_of(text), inputs, options);
  EXPECT_TRUE(out) << out.error().message;
  return out && out->count("y") ? out->at("y") : HostTensor{};
}

void expect_near(const HostTensor& t, const std::vector<double>& want, double tolerance = 1e-12) {
  ASSERT_EQ(t.reals.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(t.reals[i], want[i], tolerance) << i;
}

TEST(Eval, BlocksAgreeWithTheScalarInterpreter) {
  constexpr int64_t kN = 7;
  HostTensor x = reals({kN, 5}, {}), k = ints({kN}, {}), c = ints({}, {1}, DType::boolean);
  std::mt19937 random(5);
  for (int i = 0; i < kN * 5; ++i)
    x.reals.push_back(static_cast<float>(static_cast<int>(random() % 2001) - 1000) / 128.0f);
  x.reals[3] = NAN, x.reals[4] = INFINITY, x.reals[5] = -INFINITY, x.reals[6] = -0.0;
  for (int i = 0; i < kN; ++i) k.ints.push_back(static_cast<int64_t>(random() % 21) - 10);

  for (uint32_t seed = 0; seed < 3000; ++seed) {
    Graph g;
    g.pool().set_range("N", {1, std::nullopt});
    ExprRef n = g.pool().symbol("N"), five = g.pool().integer(5);
    g.symbols = {{"N", 0, 0}};
    g.flags = {"flagged"};
    const std::vector<ValueId> operands = {g.add_input("x", {DType::f32, {n, five}}),
                                           g.add_input("k", {DType::i64, {n}}),
                                           g.add_input("c", {DType::boolean, {}})};
    RandomExpr make(g.pool(), seed);
    const int depth = 1 + static_cast<int>(seed % 5), type = static_cast<int>(seed % 3);
    ExprRef body = type == 0   ? make.integer(depth)
                   : type == 1 ? make.real(depth)
                               : make.condition(depth);
    if (poison_of(body) != Poison::none) continue;
    const DType dtype = type == 0 ? DType::i64 : type == 1 ? DType::f32 : DType::boolean;
    const ValueId y = g.add_pointwise(operands, body, {dtype, {n, five}}, "y");
    g.outputs = {{"y", y}};
    c.ints[0] = seed & 1;
    const auto out = eval(g, {{"x", x}, {"k", k}, {"c", c}});

    bool flagged = false;
    ScalarEnv env;
    env.symbol = [](std::string_view) { return kN; };
    env.flag = [&](int64_t) { flagged = true; };
    env.load = [&](int64_t slot, std::span<const int64_t> at, int64_t& i, double& r) {
      if (slot == 0) r = x.reals[static_cast<size_t>(at[0] * 5 + at[1])];
      if (slot == 1) i = k.ints[static_cast<size_t>(at[0])];
      if (slot == 2) i = c.ints[0];
    };
    std::vector<ScalarValue> want;
    for (int64_t i = 0; i < kN; ++i) {
      for (int64_t j = 0; j < 5; ++j) {
        const int64_t at[] = {i, j};
        env.indices = at;
        want.push_back(eval_expr(body, env));
      }
    }
    // band and bor need not look at every operand in the scalar interpreter, so it may raise fewer
    // flags.
    if (!out) {
      EXPECT_EQ(out.error().message, "flagged") << print(body);
      continue;
    }
    EXPECT_FALSE(flagged) << print(body);
    const HostTensor& got = out->at("y");
    for (size_t e = 0; e < want.size(); ++e) {
      if (type != 1) {
        ASSERT_EQ(got.ints[e], want[e].i) << seed << " " << e << ": " << print(body);
      } else if (std::isnan(want[e].r)) {
        ASSERT_TRUE(std::isnan(got.reals[e])) << seed << " " << e << ": " << print(body);
      } else {
        ASSERT_EQ(got.reals[e], want[e].r) << seed << " " << e << ": " << print(body);
      }
    }
  }
}

// 0.25 - 7e-10 eight times is 2 in f32; the buckets of relative positions stand at such edges.
TEST(Eval, DecisionsAreTakenAsTheTypeHoldsTheValue) {
  const auto text = [](const std::string& type, const std::string& d) {
    return "graph @edge(%x: " + type +
           "[3]) {\n"
           "  %f = pointwise(%x) {body = (i) => floor(%x[i] * 8.0" +
           d + ")} : " + type +
           "[3]\n"
           "  %c = pointwise(%x) {body = (i) => ceil(%x[i] * 8.0" +
           d + ")} : " + type +
           "[3]\n"
           "  %i = pointwise(%x) {body = (i) => i64(%x[i] * 8.0" +
           d +
           ")} : i64[3]\n"
           "  %l = pointwise(%x) {body = (i) => %x[i] * 8.0" +
           d + " < 2.0" + d +
           "} : bool[3]\n"
           "  %e = pointwise(%x) {body = (i) => %x[i] * 8.0" +
           d + " == 2.0" + d +
           "} : bool[3]\n"
           "  return f = %f, c = %c, i = %i, l = %l, e = %e\n}\n";
  };
  const std::vector<double> x = {0.25 - 7e-10, 0.25 + 7e-10, 0.24};
  for (const bool wide : {false, true}) {
    const std::string source = wide ? text("f64", "d") : text("f32", "");
    auto graph = parse(source);
    ASSERT_TRUE(graph) << graph.error().message;
    auto out = eval(*graph, {{"x", reals({3}, x, wide ? DType::f64 : DType::f32)}});
    ASSERT_TRUE(out) << out.error().message;
    EXPECT_EQ((*out)["f"].reals,
              wide ? std::vector<double>({1, 2, 1}) : std::vector<double>({2, 2, 1}));
    EXPECT_EQ((*out)["c"].reals,
              wide ? std::vector<double>({2, 3, 2}) : std::vector<double>({2, 2, 2}));
    EXPECT_EQ((*out)["i"].ints,
              wide ? std::vector<int64_t>({1, 2, 1}) : std::vector<int64_t>({2, 2, 1}));
    EXPECT_EQ((*out)["l"].ints,
              wide ? std::vector<int64_t>({1, 0, 1}) : std::vector<int64_t>({0, 0, 1}));
    EXPECT_EQ((*out)["e"].ints,
              wide ? std::vector<int64_t>({0, 0, 0}) : std::vector<int64_t>({1, 1, 0}));
  }
}

TEST(Eval, ScalarsRoundIfAsked) {
  ExprPool pool;
  ExprRef third = div(pool.param("s", Scalar::f32), pool.real(3.0));
  ScalarEnv env;
  env.param = [](std::string_view) { return 1.0; };
  EXPECT_EQ(eval_expr(third, env).r, 1.0 / 3);
  EXPECT_EQ(eval_expr(third, env, true).r, static_cast<double>(1.0f / 3));
  ExprRef n = pool.symbol("N");
  EXPECT_EQ(eval_size(add(mul(n, n), pool.integer(1)), [](std::string_view) { return int64_t{5}; }),
            26);
}

TEST(Eval, SharedExpressionsAreNotRepeated) {
  ExprPool pool;
  ExprRef e = pool.param("s", Scalar::f32);
  for (int i = 0; i < 200; ++i) e = unary(ExprKind::tanh, add(e, e));  // 2^200 paths
  ScalarEnv env;
  env.param = [](std::string_view) { return 0.25; };
  EXPECT_TRUE(std::isfinite(eval_expr(e, env).r));
}

TEST(Eval, SelectIsLazy) {
  const std::string text = R"(graph @g(%x: f32[N], %k: i64[N]) symbols(N = x.0 in 1..) {
    flag 0 "k: out of range"
    %y = pointwise(%x, %k) {body = (i) => select(i <= 0, -1.0, %x[i - 1]) + select(%k[i] < 0, 0.0, %x[bounded(%k[i], N, 0)])} : f32[N]
    return y = %y
  })";
  std::vector<double> x(600);
  std::vector<int64_t> k(600, -5);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<double>(i);
  k[7] = 599;
  const HostTensor y = run(text, {{"x", reals({600}, x)}, {"k", ints({600}, k)}});
  ASSERT_EQ(y.reals.size(), 600u);
  EXPECT_EQ(y.reals[0], -1);
  EXPECT_EQ(y.reals[7], 6 + 599);
  EXPECT_EQ(y.reals[599], 598);
  k[300] = 600;
  const auto bad = eval(graph_of(text), {{"x", reals({600}, x)}, {"k", ints({600}, k)}});
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().code, ErrorCode::invalid_argument);
  EXPECT_EQ(bad.error().message, "k: out of range");
}

TEST(Eval, LoadsOutOfRangeAreErrors) {
  auto g = parse(
      "graph @g(%x: f32[4]) {\n %y = pointwise(%x) {body = (i) => %x[i + 1]} : f32[4]\n return y = "
      "%y\n}");
  ASSERT_TRUE(g);
  EXPECT_FALSE(verify(*g).empty());
  const auto out = eval(*g, {{"x", reals({4}, {1, 2, 3, 4})}});
  ASSERT_FALSE(out);
  EXPECT_EQ(out.error().message, "%y = pointwise: %0[i0 + 1] lies outside a tensor of dims [4]");
}

TEST(Eval, Reduce) {
  const auto reduced = [](const char* kind, std::vector<double> x, int64_t columns) {
    const int64_t rows = columns ? static_cast<int64_t>(x.size()) / columns : 2;
    return run(fmt::format(R"(graph @g(%x: f32[R,C]) symbols(R = x.0 in 0.., C = x.1 in 0..) {{
      %y = reduce(%x) {{body = (i,j) => %x[i,j], extents = [C], kind = {}}} : f32[R]
      return y = %y
    }})",
                           kind),
               {{"x", reals({rows, columns}, std::move(x))}});
  };
  expect_near(reduced("sum", {1, 2, 3, 4, 5, 6}, 3), {6, 15});
  expect_near(reduced("mean", {1, 2, 3, 4, 5, 6}, 3), {2, 5});
  expect_near(reduced("max", {1, 9, 3, -4, -5, -6}, 3), {9, -4});
  expect_near(reduced("min", {1, 9, 3, -4, -5, -6}, 3), {1, -6});
  expect_near(reduced("prod", {1, 9, 3, -4, -5, -6}, 3), {27, -120});
  expect_near(reduced("sum", {}, 0), {0, 0});
  EXPECT_EQ(reduced("max", {}, 0).reals, (std::vector<double>{-INFINITY, -INFINITY}));
  EXPECT_TRUE(std::isnan(reduced("max", {1, NAN, 3}, 3).reals[0]));
  const std::vector<double> many(3 * 1000, 0.5);
  expect_near(reduced("sum", many, 1000), {500, 500, 500});
  const HostTensor y = run(R"(graph @g(%x: i32[2,3]) {
    %y = reduce(%x) {body = (i,j) => %x[i,j], extents = [3], kind = max} : i32[2]
    return y = %y
  })",
                           {{"x", ints({2, 3}, {1, 5, 2, -7, -3, -9}, DType::i32)}});
  EXPECT_EQ(y.ints, (std::vector<int64_t>{5, -3}));
}

TEST(Eval, Cumsum) {
  const auto summed = [](const char* exclusive, const char* reverse) {
    return run(fmt::format(R"(graph @g(%x: i64[2,3,2]) {{
      %y = cumsum(%x) {{axis = 1, exclusive = {}, reverse = {}}} : i64[2,3,2]
      return y = %y
    }})",
                           exclusive, reverse),
               {{"x", ints({2, 3, 2}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12})}})
        .ints;
  };
  EXPECT_EQ(summed("false", "false"),
            (std::vector<int64_t>{1, 2, 4, 6, 9, 12, 7, 8, 16, 18, 27, 30}));
  EXPECT_EQ(summed("true", "false"), (std::vector<int64_t>{0, 0, 1, 2, 4, 6, 0, 0, 7, 8, 16, 18}));
  EXPECT_EQ(summed("false", "true"),
            (std::vector<int64_t>{9, 12, 8, 10, 5, 6, 27, 30, 20, 22, 11, 12}));
}

TEST(Eval, MatmulInEveryOrientation) {
  std::mt19937 random(2);
  const auto tensor = [&](std::vector<int64_t> dims) {
    HostTensor t = reals(std::move(dims), {});
    for (int64_t i = 0; i < t.element_count(); ++i)
      t.reals.push_back(static_cast<double>(random() % 17) - 8);
    return t;
  };
  constexpr int64_t m = 9, n = 515, k = 67;  // off every block of the product
  for (const bool ta : {false, true}) {
    for (const bool tb : {false, true}) {
      const HostTensor a =
          tensor(ta ? std::vector<int64_t>{2, 1, k, m} : std::vector<int64_t>{2, 1, m, k});
      const HostTensor b =
          tensor(tb ? std::vector<int64_t>{3, n, k} : std::vector<int64_t>{3, k, n});
      const HostTensor bias = tensor({n});
      const HostTensor y =
          run(fmt::format(R"(graph @g(%a: f32[2,1,{},{}], %b: f32[3,{},{}], %c: f32[{}]) {{
        %y = matmul(%a, %b, %c) {{alpha = 0.5, epilogue = (s,i,j,k,l) => s + %c[l], trans_a = {}, trans_b = {}}} : f32[2,3,{},{}]
        return y = %y
      }})",
                          a.dims[2], a.dims[3], b.dims[1], b.dims[2], n, ta, tb, m, n),
              {{"a", a}, {"b", b}, {"c", bias}});
      ASSERT_EQ(y.reals.size(), static_cast<size_t>(6 * m * n));
      for (int64_t z = 0; z < 6; ++z) {
        for (int64_t i = 0; i < m; ++i) {
          for (int64_t j = 0; j < n; ++j) {
            double sum = 0;
            for (int64_t p = 0; p < k; ++p) {
              sum += a.reals[static_cast<size_t>(z / 3 * m * k + (ta ? p * m + i : i * k + p))] *
                     b.reals[static_cast<size_t>(z % 3 * k * n + (tb ? j * k + p : p * n + j))];
            }
            ASSERT_EQ(y.reals[static_cast<size_t>((z * m + i) * n + j)],
                      0.5 * sum + bias.reals[static_cast<size_t>(j)]);
          }
        }
      }
    }
  }
}

// Of each head two columns by three: those of the second head stand behind those of the first.
TEST(Eval, HeadsStandSideBySide) {
  std::vector<double> a, b, want;
  for (int i = 0; i < 8; ++i) a.push_back(i + 1);
  for (int i = 0; i < 12; ++i) b.push_back(i * i - 7);
  for (int i = 0; i < 2; ++i) {
    for (int h = 0; h < 2; ++h) {
      for (int j = 0; j < 3; ++j) {
        double sum = 0;
        for (int p = 0; p < 2; ++p)
          sum += a[static_cast<size_t>(4 * i + 2 * h + p)] *
                 b[static_cast<size_t>(3 * (2 * h + p) + j)];
        want.push_back(0.5 * sum);
      }
    }
  }
  const auto y = run(R"(graph @g(%a: f32[1,2,4], %b: f32[4,3]) {
    %y = matmul(%a, %b) {alpha = 0.5, heads = 2, trans_a = false, trans_b = false} : f32[1,2,6]
    return y = %y
  })",
                     {{"a", reals({1, 2, 4}, a)}, {"b", reals({4, 3}, b)}});
  expect_near(y, want);
}

// Three rows of x, of which each has two of the result; row i of the result takes matrix i % 2.
TEST(Eval, RowsChooseTheirMatrices) {
  const auto y =
      run(R"(graph @g(%x: f32[3,2], %w: f32[2,1,2]) {
    %y = grouped_matmul(%x, %w) {which = (i,j) => j} : f32[3,2,1]
    return y = %y
  })",
          {{"x", reals({3, 2}, {1, 2, 3, 4, 5, 6})}, {"w", reals({2, 1, 2}, {1, 10, 100, 1000})}});
  expect_near(y, {21, 2100, 43, 4300, 65, 6500});
}

// Columns 0 to 7 and 16 to 23 are sums s, those behind them sums t.
TEST(Eval, AGateHasTwoSums) {
  std::vector<double> b, want;
  for (int i = 0; i < 32; ++i) b.push_back(i);
  for (int j = 0; j < 16; ++j) {
    const int first = j / 8 * 16 + j % 8;
    want.push_back(2 * first - 100 * 2 * (first + 8));
  }
  const auto y = run(R"(graph @g(%a: f32[1,1], %b: f32[1,32]) {
    %y = matmul(%a, %b) {alpha = 2.0, gate = (s,t,i,j) => s - 100.0 * t, trans_a = false, trans_b = false} : f32[1,16]
    return y = %y
  })",
                     {{"a", reals({1, 1}, {1})}, {"b", reals({1, 32}, b)}});
  expect_near(y, want);
}

TEST(Eval, MatmulOfIntegersIsExactAndWraps) {
  const char* text = R"(graph @g(%a: u8[2,2], %b: i8[3,2], %c: i32[1,2]) {
    %y = matmul(%a, %b) {alpha = 1.0, trans_a = false, trans_b = true} : i32[2,3]
    %z = matmul(%c, %c) {alpha = 1.0, trans_a = true, trans_b = false} : i32[2,2]
    return y = %y, z = %z
  })";
  const auto out = eval(graph_of(text), {{"a", ints({2, 2}, {255, 1, 0, 200}, DType::u8)},
                                         {"b", ints({3, 2}, {-128, 127, 1, -1, 0, 5}, DType::i8)},
                                         {"c", ints({1, 2}, {1 << 20, 3}, DType::i32)}});
  ASSERT_TRUE(out);
  EXPECT_EQ(out->at("y").ints, (std::vector<int64_t>{-32513, 254, 5, 25400, -200, 1000}));
  EXPECT_EQ(out->at("z").ints, (std::vector<int64_t>{0, 3 << 20, 3 << 20, 9}));
}

TEST(Eval, SoftmaxAndNorms) {
  const Tensors x = {{"x", reals({2, 3}, {1, 2, 3, 1000, 1000, -1e30})}};
  const double e = std::exp(1.0), sum = 1 + e + e * e;
  expect_near(run("graph @g(%x: f32[2,3]) { %y = softmax(%x) : f32[2,3] return y = %y }", x),
              {1 / sum, e / sum, e * e / sum, 0.5, 0.5, 0});
  const Tensors z = {{"x", reals({1, 4}, {1, 2, 3, 6})},
                     {"g", reals({4}, {1, 2, 1, 1})},
                     {"b", reals({4}, {0, 0, 10, 0})}};
  const double s = std::sqrt(3.5 + 0.5), r = std::sqrt(12.5 + 0.5);
  const char* head = "graph @g(%x: f32[1,4], %g: f32[4], %b: f32[4]) {";
  expect_near(
      run(fmt::format(
              "{} %y = norm(%g, %b, %x) {{body = (i,j) => %x[i,j], eps = 0.5, has_beta = true, kind = layer}} : f32[1,4] return y = %y }}",
              head),
          z),
      {-2 / s, -2 / s, 10, 3 / s});
  expect_near(
      run(fmt::format(
              "{} %y = norm(%g, %x) {{body = (i,j) => %x[i,j], eps = 0.5, has_beta = false, kind = rms}} : f32[1,4] return y = %y }}",
              head),
          z),
      {1 / r, 4 / r, 3 / r, 6 / r});
}

TEST(Eval, ResidualNormIsNormOfTheSum) {
  const Tensors in = {{"x", reals({1, 4}, {1, 0, 1, 2})},
                      {"r", reals({1, 4}, {0, 1, 1, 3})},
                      {"g", reals({4}, {1, 2, 1, 1})},
                      {"b", reals({4}, {0, 0, 10, 0})},
                      {"c", reals({4}, {0, 1, 1, 1})}};
  const std::string text =
      R"(graph @g(%x: f32[1,4], %r: f32[1,4], %g: f32[4], %b: f32[4], %c: f32[4]) {
    %z, %s = norm(%g, %b, %x, %r, %c) {body = (i,j) => %x[i,j] + %r[i,j] + %c[j], eps = 0.5, has_beta = true, kind = layer} : f32[1,4], f32[1,4]
    %n = norm(%g, %b, %s) {body = (i,j) => %s[i,j], eps = 0.5, has_beta = true, kind = layer} : f32[1,4]
    %y = pointwise(%z, %n) {body = (i,j) => %z[0,j] - %n[0,j]} : f32[1,4]
    return y = %y, s = %s
  })";
  const auto out = eval(graph_of(text), in);
  ASSERT_TRUE(out) << out.error().message;
  expect_near(out->at("s"), {1, 2, 3, 6});
  expect_near(out->at("y"), {0, 0, 0, 0});
}

TEST(Eval, PointwiseNormIsNormOfTheExpression) {
  const Tensors in = {{"x", reals({2, 4}, {1, 0, 1, 2, 5, 6, 7, 9})},
                      {"g", reals({4}, {1, 2, 1, 1})},
                      {"b", reals({4}, {0, 0, 10, 0})}};
  const std::string text = R"(graph @g(%x: f32[2,4], %g: f32[4], %b: f32[4]) {
    %z, %s = norm(%g, %b, %x) {body = (i,j) => %x[i,j] * 2.0, eps = 0.5, has_beta = true, kind = layer} : f32[2,4], f32[2,4]
    %n = norm(%g, %b, %s) {body = (i,j) => %s[i,j], eps = 0.5, has_beta = true, kind = layer} : f32[2,4]
    %y = pointwise(%z, %n) {body = (i,j) => %z[i,j] - %n[i,j]} : f32[2,4]
    %r = norm(%g, %x) {body = (i,j) => %x[i,j], eps = 0.5, has_beta = false, kind = rms} : f32[2,4]
    %q = norm(%g, %x) {body = (i,j) => %x[i,j], eps = 0.5, has_beta = false, kind = rms} : f32[2,4]
    %d = pointwise(%r, %q) {body = (i,j) => %r[i,j] - %q[i,j]} : f32[2,4]
    return y = %y, s = %s, d = %d
  })";
  const auto out = eval(graph_of(text), in);
  ASSERT_TRUE(out) << out.error().message;
  expect_near(out->at("s"), {2, 0, 2, 4, 10, 12, 14, 18});
  expect_near(out->at("y"), {0, 0, 0, 0, 0, 0, 0, 0});
  expect_near(out->at("d"), {0, 0, 0, 0, 0, 0, 0, 0});
}

TEST(Eval, Rope) {
  const Tensors in = {{"x", reals({1, 2, 5}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10})},
                      {"c", reals({1, 2, 2}, {0.5, 2, 3, -1})},
                      {"s", reals({1, 2, 2}, {10, 100, -10, 7})}};
  const char* head = "graph @g(%x: f32[1,2,5], %c: f32[1,2,2], %s: f32[1,2,2]) {";
  const auto turned = [&](const char* attributes) {
    return run(fmt::format("{} %y = rope(%x, %c, %s) {{{}}} : f32[1,2,5] return y = %y }}", head,
                           attributes),
               in);
  };
  expect_near(turned("heads = 1, interleaved = false, rotary = 4"),
              {0.5 - 30, 4 - 400, 1.5 + 10, 8 + 200, 5, 18 + 80, -7 - 63, 24 - 60, -9 + 49, 10});
  expect_near(turned("heads = 1, interleaved = true, rotary = 4"),
              {0.5 - 20, 1 + 10, 6 - 400, 8 + 300, 5, 18 + 70, 21 - 60, -8 - 63, -9 + 56, 10});
  // Heads are divided by their root mean square first, 5 and 10, and multiplied by 2 and 3.
  const auto normalised = run(
      "graph @g(%x: f32[1,1,4], %c: f32[1,1,1], %s: f32[1,1,1], %g: f32[2]) {"
      " %y = rope(%x, %c, %s, %g) {eps = 1.0, heads = 2, interleaved = false, rotary = 2} : f32[1,1,4] return y = %y }",
      {{"x", reals({1, 1, 4}, {4, std::sqrt(32.0), 9, -std::sqrt(117.0)})},
       {"c", reals({1, 1, 1}, {0})},
       {"s", reals({1, 1, 1}, {1})},
       {"g", reals({2}, {2, 3})}});
  expect_near(normalised, {-3 * std::sqrt(32.0) / 5, 2 * 4 / 5.0, 3 * std::sqrt(117.0) / 10, 1.8});
  // One value for each channel of a pair.
  expect_near(turned("heads = 1, interleaved = false, rotary = 2"),
              {0.5 - 20, 4 + 100, 3, 4, 5, 18 + 70, -7 + 42, 8, 9, 10});
}

/// Attention by its formula, one element at a time.
double attention_at(const HostTensor& q, const HostTensor& k, const HostTensor& v, int64_t heads,
                    int64_t kv_heads, const std::function<double(double, int64_t, int64_t)>& score,
                    const std::function<bool(int64_t, int64_t)>& visible, int64_t i, int64_t h,
                    int64_t d, double sink = -INFINITY) {
  const int64_t width = q.dims[2] / heads, out_width = v.dims[2] / kv_heads,
                g = h / (heads / kv_heads);
  double total = std::exp(sink), out = 0;
  for (int64_t j = 0; j < k.dims[1]; ++j) {
    if (!visible(i, j)) continue;
    double dot = 0;
    for (int64_t e = 0; e < width; ++e) {
      dot += q.reals[static_cast<size_t>(i * q.dims[2] + h * width + e)] *
             k.reals[static_cast<size_t>(j * k.dims[2] + g * width + e)];
    }
    const double w = std::exp(score(dot, i, j));
    total += w;
    out += w * v.reals[static_cast<size_t>(j * v.dims[2] + g * out_width + d)];
  }
  return total == 0 ? 0 : out / total;
}

TEST(Eval, AttentionWithASinkOfEachHead) {
  const std::string text = R"(graph @g(%q: f32[2,2,4], %k: f32[2,3,4], %s: f32[2,2]) {
    %y = attention(%q, %k, %k, %s) {causal = true, heads = 2, key_padding = false, kv_heads = 2, score = (s,b,h,i,j) => s, sink = (b,h) => %s[b,h] * 2.0, visible = (b,h,i,j) => j <= i and 0 < i} : f32[2,2,4]
    return y = %y
  })";
  const HostTensor q = reals({2, 2, 4}, {1, 2, -1, 3, 2, 0, 1, 1, -2, 1, 1, 0, 3, 1, 0, 2}),
                   k = reals({2, 3, 4}, {1, 0, 2, 1, -1, 1, 1, 3, 2, 2, 1, 1,
                                         1, 1, 1, 1, 2,  0, 1, 2, 1, 3, 0, 1});
  const HostTensor y = run(text, {{"q", q}, {"k", k}, {"s", reals({2, 2}, {0.5, -1, 2, 0})}});
  const auto score = [](double s, int64_t, int64_t) { return s; };
  const auto visible = [](int64_t i, int64_t j) { return i == 1 && j <= 1; };
  const double sinks[] = {1, -2, 4, 0};
  for (int64_t b = 0; b < 2; ++b) {
    const auto part = [&](const HostTensor& t, int64_t rows) {
      const auto from = t.reals.begin() + b * rows * 4;
      return reals({1, rows, 4}, std::vector<double>(from, from + rows * 4));
    };
    const HostTensor own_q = part(q, 2), own_k = part(k, 3);
    for (int64_t c = 0; c < 4; ++c) {
      EXPECT_EQ(y.reals[static_cast<size_t>(b * 8 + c)], 0);  // it sees no key
      EXPECT_NEAR(y.reals[static_cast<size_t>(b * 8 + 4 + c)],
                  attention_at(own_q, own_k, own_k, 2, 2, score, visible, 1, c / 2, c % 2,
                               sinks[b * 2 + c / 2]),
                  1e-12);
    }
  }
}

TEST(Eval, AttentionWithScoreMaskAndGroups) {
  const std::string text =
      R"(graph @g(%q: f32[1,3,8], %k: f32[1,300,4], %v: f32[1,300,6], %m: i64[1,300], %p: f32[300]) {
    %y = attention(%q, %k, %v, %m, %p) {causal = false, heads = 4, key_padding = true, kv_heads = 2, score = (s,b,h,i,j) => s * 0.5 + %p[j], visible = (b,h,i,j) => %m[b,j] == 1 and i + 1 <= j} : f32[1,3,12]
    return y = %y
  })";
  std::mt19937 random(4);
  const auto tensor = [&](std::vector<int64_t> dims) {
    HostTensor t = reals(std::move(dims), {});
    for (int64_t i = 0; i < t.element_count(); ++i)
      t.reals.push_back(static_cast<double>(random() % 100) / 50 - 1);
    return t;
  };
  const HostTensor q = tensor({1, 3, 8}), k = tensor({1, 300, 4}), v = tensor({1, 300, 6}),
                   p = tensor({300});
  HostTensor mask = ints({1, 300}, {});
  for (int i = 0; i < 300; ++i) mask.ints.push_back(random() % 2);
  const HostTensor y = run(text, {{"q", q}, {"k", k}, {"v", v}, {"m", mask}, {"p", p}});
  ASSERT_EQ(y.reals.size(), 36u);
  const auto score = [&](double s, int64_t, int64_t j) {
    return s * 0.5 + p.reals[static_cast<size_t>(j)];
  };
  const auto visible = [&](int64_t i, int64_t j) {
    return mask.ints[static_cast<size_t>(j)] == 1 && i < j;
  };
  for (int64_t i = 0; i < 3; ++i) {
    for (int64_t h = 0; h < 4; ++h) {
      for (int64_t d = 0; d < 3; ++d) {
        EXPECT_NEAR(y.reals[static_cast<size_t>(i * 12 + h * 3 + d)],
                    attention_at(q, k, v, 4, 2, score, visible, i, h, d), 1e-12);
      }
    }
  }
  std::fill(mask.ints.begin(), mask.ints.end(), 0);  // no visible key: zeros
  const HostTensor none = run(text, {{"q", q}, {"k", k}, {"v", v}, {"m", mask}, {"p", p}});
  EXPECT_EQ(none.reals, std::vector<double>(36, 0.0));
}

TEST(Eval, StoresRoundIfAsked) {
  const std::string text = R"(graph @g(%x: f32[1]) {
    %h = pointwise(%x) {body = (i) => %x[0] / 3.0} : f16[1]
    %y = pointwise(%h) {body = (i) => %h[0] * 3.0} : f32[1]
    return y = %y
  })";
  const Tensors in = {{"x", reals({1}, {1.0})}};
  EXPECT_NEAR(run(text, in).reals[0], 1.0, 1e-15);
  EXPECT_EQ(run(text, in, {true}).reals[0], 3 * 0.333251953125);
  const HostTensor wrapped =
      run("graph @g(%x: i64[1]) { %y = pointwise(%x) {body = (i) => %x[0]} : i8[1] return y = %y }",
          {{"x", ints({1}, {300})}});
  EXPECT_EQ(wrapped.ints, (std::vector<int64_t>{44}));
}

TEST(Eval, ConstantsTraceAndEmptyInputs) {
  const Graph g = graph_of(R"(graph @g(%x: f32[B,2]) symbols(B = x.0 in 0..8) {
    const @c : f16[2] = f32[2] [1.5, 2.5] |> cast(f16)
    %y = pointwise(%x, @c) {body = (i,j) => %x[i,j] + @c[j]} : f32[B,2]
    return y = %y, c = @c
  })");
  Tensors trace;
  const auto out = eval(g, {{"x", reals({1, 2}, {1, 2})}}, {}, &trace);
  ASSERT_TRUE(out);
  expect_near(out->at("y"), {2.5, 4.5});
  expect_near(out->at("c"), {1.5, 2.5});
  EXPECT_EQ(trace.size(), 3u);
  const auto empty = eval(g, {{"x", reals({0, 2}, {})}});
  ASSERT_TRUE(empty);
  EXPECT_EQ(empty->at("y").dims, (std::vector<int64_t>{0, 2}));
}

TEST(Eval, InputsAreChecked) {
  const Graph g = graph_of(R"(graph @g(%x: f32[B,2], %k: i64[B]) symbols(B = x.0 in 1..8) {
    check B <= 3, "batch must be at most 3"
    return y = %x
  })");
  const HostTensor x = reals({2, 2}, {1, 2, 3, 4}), k = ints({2}, {0, 1});
  const auto error = [&](const Tensors& in, ErrorCode code) {
    const auto out = eval(g, in);
    EXPECT_FALSE(out);
    if (out) return std::string();
    EXPECT_EQ(out.error().code, code);
    return out.error().message;
  };
  EXPECT_TRUE(eval(g, {{"x", x}, {"k", k}}));
  EXPECT_EQ(error({{"x", x}}, ErrorCode::invalid_argument), "input 'k' is missing");
  EXPECT_EQ(error({{"x", x}, {"k", k}, {"z", k}}, ErrorCode::invalid_argument),
            "the model has no input 'z'");
  EXPECT_EQ(error({{"x", x}, {"k", ints({2}, {0, 1}, DType::i32)}}, ErrorCode::invalid_argument),
            "input 'k' is i32, expected i64");
  EXPECT_EQ(error({{"x", x}, {"k", ints({2, 1}, {0, 1})}}, ErrorCode::shape),
            "input 'k' has rank 2, expected i64[B] of rank 1");
  EXPECT_EQ(error({{"x", x}, {"k", ints({3}, {0, 1, 2})}}, ErrorCode::shape),
            "input 'k' has shape [3], expected i64[B] = [2]");
  EXPECT_EQ(error({{"x", x}, {"k", ints({3}, {0, 1})}}, ErrorCode::invalid_argument),
            "input 'k' has 2 elements, its shape [3] needs 3");
  EXPECT_EQ(error({{"x", reals({4, 2}, std::vector<double>(8))}, {"k", ints({4}, {0, 1, 2, 3})}},
                  ErrorCode::shape),
            "batch must be at most 3");
  EXPECT_EQ(error({{"x", reals({9, 2}, std::vector<double>(18))},
                   {"k", ints({9}, std::vector<int64_t>(9))}},
                  ErrorCode::shape),
            "input 'x': size 9 of axis 0 (B) lies outside 1..8");
}

TEST(Eval, AnAxisIsAMultipleOfASize) {
  const Graph g =
      graph_of(R"(graph @chunks(%x: f32[B,4*N]) symbols(B = x.0 in 1.., N = x.1 / 4 in 1..) {
    %y = pointwise(%x) {body = (i,j,k) => %x[i,4*j + k]} : f32[B,N,4]
    return y = %y
  })");
  EXPECT_EQ(print(g), print(graph_of(print(g).c_str())));
  const auto y = eval(g, {{"x", reals({1, 8}, {0, 1, 2, 3, 4, 5, 6, 7})}});
  ASSERT_TRUE(y) << y.error().message;
  EXPECT_EQ(y->at("y").dims, (std::vector<int64_t>{1, 2, 4}));
  const auto odd = eval(g, {{"x", reals({1, 7}, {0, 1, 2, 3, 4, 5, 6})}});
  ASSERT_FALSE(odd);
  EXPECT_EQ(odd.error().message, "input 'x': size 7 of axis 1 is no multiple of 4");
}

TEST(Eval, ALayerOfBertBaseTakesSeconds) {
  const Graph g = graph_of(R"(graph @layer(%x: f32[1,32,768]) {
    const @w : f32[768,768] = random(1)
    %q = matmul(%x, @w) {alpha = 1.0, trans_a = false, trans_b = false} : f32[1,32,768]
    %a = attention(%q, %q, %q) {causal = false, heads = 12, key_padding = false, kv_heads = 12, score = (s,b,h,i,j) => s * 0.125, visible = none} : f32[1,32,768]
    const @up : f32[768,3072] = random(2)
    %u = matmul(%a, @up) {alpha = 1.0, trans_a = false, trans_b = false} : f32[1,32,3072]
    %g = pointwise(%u) {body = (i,j,k) => %u[i,j,k] * 0.5 * (1.0 + erf(%u[i,j,k] * 0.70710677))} : f32[1,32,3072]
    const @d : f32[3072,768] = random(3)
    %y = matmul(%g, @d) {alpha = 1.0, trans_a = false, trans_b = false} : f32[1,32,768]
    return y = %y
  })");
  const auto start = std::chrono::steady_clock::now();
  ASSERT_TRUE(eval(g, {{"x", reals({1, 32, 768}, std::vector<double>(32 * 768, 0.25))}}));
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  RecordProperty("seconds", std::to_string(seconds));
  EXPECT_LT(seconds, 20);
}

}  // namespace
}  // namespace tfcc::ir
