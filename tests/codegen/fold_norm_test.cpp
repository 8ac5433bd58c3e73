// SPDX-License-Identifier: Apache-2.0
// codegen/fold_norm: what a graph means does not change, by the evaluator's definition of both; and
// every condition has its miss.
#include "codegen/fold_norm.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>

#include "codegen/lower.h"
#include "codegen/matmul/matmul.h"
#include "codegen/plan/weights.h"
#include "ir/constant.h"
#include "ir/ir.h"
#include "ir/norm.h"

namespace tfcc::codegen {
namespace {

struct Texts {
  std::string beta = ", @c1", has_beta = "true", kind = "layer", up = "tanh(s + @b_up[j])";
  std::string gamma = "f16[256] = f32[256] random(3) |> cast(f16)";
  std::string second =
      "%h2 = norm(@g2, @c1, %h1, %d) {body = (i,j) => %h1[i,j] + %d[i,j], eps = 1e-05, has_beta = true, kind = layer} : f16[S,256]";
  std::string residual = "%c", more = "", reads = "%h2", outputs = "q = %out";
  int width = 256;
};

// A norm after a sum with an input, one after a sum with what the first gives, and a product of
// what the second gives.
ir::Graph graph_of(const Texts& t) {
  const std::string text = fmt::format(
      "graph @main(%x: f16[S,{0}], %r: f16[S,{0}]) symbols(S = x.0 in 1.. as tokens) {{\n"
      "  const @w : f16[{0},{0}] = f32[{0},{0}] random(1) |> cast(f16)\n  const @w_up : f16[384,{0}] = f32[384,{0}] random(2) |> cast(f16)\n"
      "  const @w_down : f16[384,{0}] = f32[384,{0}] random(7) |> cast(f16)\n  const @w_q : f16[{0},128] = f32[{0},128] random(8) |> cast(f16)\n"
      "  const @g1 : {1}\n  const @g2 : f16[{0}] = f32[{0}] random(4) |> cast(f16)\n  const @c1 : f16[{0}] = f32[{0}] random(5) |> cast(f16)\n"
      "  const @d1 : f16[{0}] = f32[{0}] random(6) |> cast(f16)\n  const @b_up : f16[384] = f32[384] random(9) |> cast(f16)\n"
      "  %c = pointwise(%r) {{body = (i,j) => %r[i,j] + 0.0}} : f16[S,{0}]\n  %a = pointwise(%x) {{body = (i,j) => %x[i,j] * 4.0}} : f16[S,{0}]\n"
      "  %p = matmul(%a, @w) {{alpha = 8.0, trans_a = false, trans_b = false}} : f16[S,{0}]\n"
      "  %h1 = norm(@g1{2}, {10}, %p, @d1) {{body = (i,j) => {10}[i,j] + %p[i,j] + @d1[j], eps = 1e-05, has_beta = {3}, kind = {4}}} : f16[S,{0}]\n"
      "  %u = matmul(%h1, @w_up, @b_up) {{alpha = 2.0, epilogue = (s,i,j) => {5}, trans_a = false, trans_b = true}} : f16[S,384]\n"
      "  %d = matmul(%u, @w_down) {{alpha = 1.0, trans_a = false, trans_b = false}} : f16[S,{0}]\n  {6}\n{7}"
      "  %q = matmul({9}, @w_q) {{alpha = 1.0, trans_a = false, trans_b = false}} : f16[S,128]\n"
      "  %out = pointwise(%q) {{body = (i,j) => %q[i,j] + 0.0}} : f32[S,128]\n  return {8}\n}}\n",
      t.width, t.gamma, t.beta, t.has_beta, t.kind, t.up, t.second, t.more, t.outputs, t.reads,
      t.residual);
  auto graph = ir::parse(text);
  EXPECT_TRUE(graph) << (graph ? "" : graph.error().message) << "\n" << text;
  return *std::move(graph);
}

const TargetClass& hopper() {
  for (const TargetClass& c : target_classes()) {
    if (c.has_wgmma) return c;
  }
  ADD_FAILURE() << "no class of GPU has products of warpgroups";
  return target_classes().front();
}

ir::HostTensor values(int64_t rows, int64_t columns, double mean) {
  ir::HostTensor t;
  t.dtype = DType::f16;
  t.dims = {rows, columns};
  for (int64_t i = 0; i < rows * columns; ++i)
    t.reals.push_back(mean + std::sin(static_cast<double>(i * i % 1013)));
  return t;
}

int folded(ir::Graph& g, int64_t most_tokens = kFewRows, const TargetClass& target = hopper()) {
  const auto n = fold_norms(g, target, most_tokens);
  EXPECT_TRUE(n);
  for (const ir::Violation& v : ir::verify(g))
    ADD_FAILURE() << v.rule << ": " << v.text << "\n" << ir::print(g);
  return n ? *n : -1;
}

void expect_same(const Texts& t, int norms, double mean = 0.5) {
  const ir::Graph before = graph_of(t);
  ir::Graph after = graph_of(t);
  ASSERT_EQ(folded(after), norms) << ir::print(after);
  const auto reparsed = ir::parse(ir::print(after));
  ASSERT_TRUE(reparsed) << reparsed.error().message << "\n" << ir::print(after);
  EXPECT_EQ(ir::print(*reparsed), ir::print(after));
  const std::map<std::string, ir::HostTensor> inputs = {{"x", values(3, t.width, 0)},
                                                        {"r", values(3, t.width, mean)}};
  const auto want = ir::eval(before, inputs), got = ir::eval(after, inputs);
  ASSERT_TRUE(want && got);
  double square = 0, apart = 0;
  for (size_t i = 0; i < want->at("q").reals.size(); ++i) {
    square += std::pow(want->at("q").reals[i], 2);
    apart += std::pow(want->at("q").reals[i] - got->at("q").reals[i], 2);
  }
  // Sums over the columns of weights are constants of f32.
  EXPECT_LT(std::sqrt(apart / square), 1e-5) << ir::print(after);
}

TEST(FoldNorm, MeansTheSame) {
  expect_same({}, 2);
  expect_same({.beta = "", .has_beta = "false", .kind = "rms"}, 2);
  expect_same({.beta = "", .has_beta = "false"}, 2);
  expect_same({.up = "s * s + @b_up[j]"}, 2);  // no function of s + b alone
  expect_same({.up = "s + s + @b_up[j]"}, 2);
  expect_same({}, 2, 1000);  // a mean far from 0
}

TEST(FoldNorm, NormOfAPlainSumThatIsReadToo) {
  Texts t;
  t.second =
      "%h2, %s2 = norm(@g2, @c1, %a, %d) {body = (i,j) => %a[i,j] + %d[i,j], eps = 1e-05, has_beta = true, kind = layer} : f16[S,256], f16[S,256]";
  t.outputs = "q = %out, s = %s2";
  expect_same(t, 2);
}

TEST(FoldNorm, TheLastNormIsReadByNoProduct) {
  Texts t;
  t.outputs = "q = %h2";
  ir::Graph g = graph_of(t);
  EXPECT_EQ(folded(g), 1);  // the first; the sum before the second is its product's
  const auto second = std::find_if(g.order().begin(), g.order().end(), [&](ir::OpId o) {
    return g.op(o).kind == ir::OpKind::norm && ir::normed_value(g, o);
  });
  ASSERT_NE(second, g.order().end()) << ir::print(g);
  expect_same(t, 1);
}

TEST(FoldNorm, TheLastNormIsStoredInAnotherType) {
  Texts t;
  t.second =
      "%h2 = norm(@g2, @c1, %h1, %d) {body = (i,j) => %h1[i,j] + %d[i,j], eps = 1e-05, has_beta = true, kind = layer} : f32[S,256]";
  t.more = "  %n = pointwise(%h2) {body = (i,j) => %h2[i,j]} : f16[S,256]\n";
  t.reads = "%n";
  t.outputs = "q = %h2";
  expect_same(t, 1);
}

// A gate is all that its product does with its sums: a norm before it has a launch.
TEST(FoldNorm, NotBeforeAGate) {
  Texts t;
  t.more =
      "  const @gw : f16[256,256] = f32[256,256] random(11) |> cast(f16)\n"
      "  %y = matmul(%h2, @gw) {alpha = 1.0, gate = (s,t,i,j) => max(s, 0.0) * t, trans_a = false, trans_b = true} : f16[S,128]\n"
      "  %o = pointwise(%y) {body = (i,j) => %y[i,j] + 0.0} : f32[S,128]\n";
  t.outputs = "q = %out, o = %o";
  expect_same(t, 1);
}

TEST(FoldNorm, WhatOthersReadStays) {
  Texts t;
  t.more = "  %other = pointwise(%h1) {body = (i,j) => %h1[i,0]} : f16[S,256]\n";
  t.outputs = "q = %out, o = %other";
  ir::Graph g = graph_of(t);
  EXPECT_EQ(folded(g), 1);  // the second
  t.more = "";
  t.outputs = "q = %out, o = %h1";
  g = graph_of(t);
  EXPECT_EQ(folded(g), 1);
  t.outputs = "q = %out, o = %p";  // a product for two
  g = graph_of(t);
  EXPECT_EQ(folded(g), 1);
}

// What is stored is no larger than the sum, whatever gamma is, and no smaller than its last bits
// allow.
TEST(FoldNorm, GammaOfAnySize) {
  for (double largest : {0.0, 1.0, -64.0, 50000.0, 0.0005}) {
    Texts t;
    t.gamma = "f16[256] = [";
    for (int i = 0; i < 255; ++i) t.gamma += fmt::format("{:#}, ", largest / (1 + i % 4));
    t.gamma += fmt::format("{:#}]", largest);
    expect_same(t, 2);
    ir::Graph g = graph_of(t);
    folded(g);
    const ir::ValueId gamma = g.find_value("g1.scaled");
    EXPECT_EQ(gamma.valid(), largest != 0 && largest != 1) << largest;
    if (!gamma.valid()) continue;
    const auto bytes = ir::materialize(*g.constant(gamma));
    ASSERT_TRUE(bytes);
    double most = 0;
    for (size_t i = 0; i < 256; ++i)
      most = std::max(most, std::abs(ir::read_real(DType::f32, bytes->data(), i)));
    EXPECT_LE(most, 1);
    EXPECT_GT(most, 0.5);
  }
}

TEST(FoldNorm, NoCallersMemory) {
  ir::Graph g = graph_of({.residual = "%r"});
  EXPECT_EQ(folded(g), 1);  // the second
}

TEST(FoldNorm, FewRowsOfHopperAlone) {
  ir::Graph g = graph_of({});
  EXPECT_EQ(folded(g, 0), 0);
  EXPECT_EQ(folded(g, kSomeRows), 0);
  for (const TargetClass& c : target_classes()) {
    if (!c.has_wgmma) {
      EXPECT_EQ(folded(g, kFewRows, c), 0) << c.name;
    }
  }
  EXPECT_EQ(folded(g), 2);
  EXPECT_EQ(folded(g), 0);  // once
}

// A token's bits are those that it has in any chunk, whatever form of the graph the chunk is for.
TEST(FoldNorm, NotInAStepOfGeneration) {
  const auto graph = [](const std::string& outputs) {
    auto g = ir::parse(
        "graph @main(%x: f16[1,T,64], %slots: i32[T], %kc: f16[P,2,64,16], %vc: f16[P,2,64,16]) symbols(T = x.1 in 1.. as tokens, P = kc.0 in 1..) {\n"
        "  const @w : f16[64,64] = f32[64,64] random(1) |> cast(f16)\n  const @u : f16[128,64] = f32[128,64] random(2) |> cast(f16)\n  const @g : f16[64] = f32[64] random(3) |> cast(f16)\n"
        "  %a = pointwise(%x) {body = (i,j,k) => %x[i,j,k] * 2.0} : f16[1,T,64]\n  %p = matmul(%a, @w) {alpha = 1.0, trans_a = false, trans_b = false} : f16[1,T,64]\n"
        "  %h = norm(@g, %p) {body = (i,j,k) => %p[i,j,k], eps = 1e-05, has_beta = false, kind = rms} : f16[1,T,64]\n  %qkv = matmul(%h, @u) {alpha = 1.0, trans_a = false, trans_b = true} : f16[1,T,128]\n"
        "  %k = pointwise(%qkv) {body = (i,j,k) => %qkv[i,j,k + 64]} : f16[1,T,32]\n  %v = pointwise(%qkv) {body = (i,j,k) => %qkv[i,j,k + 96]} : f16[1,T,32]\n"
        "  %keys, %values = kv_append(%kc, %vc, %k, %v, %slots) : f16[P,2,64,16], f16[P,2,64,16]\n  return " +
        outputs + "\n}\n");
    EXPECT_TRUE(g) << (g ? "" : g.error().message);
    return *std::move(g);
  };
  ir::Graph step = graph("y = %qkv, kc = %keys, vc = %values");
  EXPECT_EQ(folded(step), 0);
  ir::Graph alone = graph("y = %k");
  alone.clean();
  EXPECT_EQ(folded(alone), 1);
}

/// Rows without padding, two products of these, and what follows.
ir::Graph packed(const std::string& rest) {
  auto g = ir::parse(fmt::format(
      "graph @main(%x: f16[B,S,256], %mask: i64[B,S]) symbols(B = x.0 in 1.. as batch, S = x.1 in 1.. as length, tokens = (B*S) in 1.. as tokens, T <= (B*S) in 1.. as packed) {{\n"
      "  flag 0 \"a packed row lies outside\"\n  const @w : f16[256,256] = f32[256,256] random(1) |> cast(f16)\n  const @u : f16[256,1536] = f32[256,1536] random(2) |> cast(f16)\n"
      "  const @v : f16[1536,256] = f32[1536,256] random(3) |> cast(f16)\n  const @g : f16[256] = f32[256] random(4) |> cast(f16)\n"
      "  %row, %cu, %keys, %order, %seq, %pos = pack(%mask) {{live = (i,j) => %mask[i,j] == 1}} : i32[B,S], i32[B + 1], i32[B], i32[B], i32[T], i32[T]\n"
      "  %h = pointwise(%x, %seq, %pos) {{body = (i,j,k) => %x[bounded(%seq[j], B, 0),bounded(%pos[j], S, 0),k]}} : f16[1,T,256]\n{}}}\n",
      rest));
  EXPECT_TRUE(g) << (g ? "" : g.error().message);
  return *std::move(g);
}

constexpr const char* kPlainSum =
    "  %z = matmul(%y, @v) {alpha = 1.0, trans_a = false, trans_b = false} : f16[1,T,256]\n";
/// With padding the library has products of few rows and long sums.
constexpr const char* kSumAndTanh =
    "  %z = matmul(%y, @v, %h) {alpha = 1.0, epilogue = (s,i,j,k) => tanh(s + %h[i,j,k]), trans_a = false, trans_b = false} : f16[1,T,256]\n";

TEST(FoldNorm, OfRowsWithoutPaddingInAllForms) {
  const std::string before =
      "  %p = matmul(%h, @w) {alpha = 1.0, trans_a = false, trans_b = false} : f16[1,T,256]\n  %n = norm(@g, %p) {body = (i,j,k) => %p[i,j,k], eps = 1e-05, has_beta = false, kind = rms} : f16[1,T,256]\n"
      "  %y = matmul(%n, @u) {alpha = 1.0, trans_a = false, trans_b = false} : f16[1,T,1536]\n";
  const std::string after =
      "  %o = pointwise(%row, %z) {body = (i,j,k) => select(0 <= %row[i,j], %z[0,bounded(%row[i,j], T, 0),k], 0.0)} : f16[B,S,256]\n  return o = %o\n";
  for (const char* sum : {kPlainSum, kSumAndTanh}) {
    WeightPool weights;
    const auto lowered = lower(packed(before + sum + after), hopper(), weights, {});
    ASSERT_TRUE(lowered) << lowered.error().message;
    std::set<size_t> counts;
    int folded = 0;
    for (const auto& b : lowered->plan.buckets) {
      counts.insert(b.launches.size());
      folded += std::ranges::any_of(b.launches, [](const auto& l) {
        return std::ranges::find(l.ops, "moments") != l.ops.end();
      });
    }
    EXPECT_EQ(folded, static_cast<int>(lowered->plan.buckets.size()));
    EXPECT_EQ(counts, std::set<size_t>{6});  // pack, h, p, y, z, o
  }
}

TEST(FoldNorm, OfLargeWeightsForFewTokensAlone) {
  const auto buckets = [](int width) {
    auto g = ir::parse(fmt::format(
        "graph @main(%x: f16[B,S,256], %mask: i64[B,S]) symbols(B = x.0 in 1.. as batch, S = x.1 in 1.. as length, tokens = (B*S) in 1.. as tokens, T <= (B*S) in 1.. as packed) {{\n"
        "  flag 0 \"a packed row lies outside\"\n  const @w : f16[256,256] = f32[256,256] random(1) |> cast(f16)\n  const @u : f16[256,{0}] = f32[256,{0}] random(2) |> cast(f16)\n"
        "  const @g : f16[256] = f32[256] random(4) |> cast(f16)\n"
        "  %row, %cu, %keys, %order, %seq, %pos = pack(%mask) {{live = (i,j) => %mask[i,j] == 1}} : i32[B,S], i32[B + 1], i32[B], i32[B], i32[T], i32[T]\n"
        "  %h = pointwise(%x, %seq, %pos) {{body = (i,j,k) => %x[bounded(%seq[j], B, 0),bounded(%pos[j], S, 0),k]}} : f16[1,T,256]\n"
        "  %p = matmul(%h, @w) {{alpha = 1.0, trans_a = false, trans_b = false}} : f16[1,T,256]\n  %n = norm(@g, %p) {{body = (i,j,k) => %p[i,j,k], eps = 1e-05, has_beta = false, kind = rms}} : f16[1,T,256]\n"
        "  %y = matmul(%n, @u) {{alpha = 1.0, trans_a = false, trans_b = false}} : f16[1,T,{0}]\n"
        "  %o = pointwise(%row, %y) {{body = (i,j,k) => select(0 <= %row[i,j], %y[0,bounded(%row[i,j], T, 0),k], 0.0)}} : f16[B,S,{0}]\n  return o = %o\n}}\n",
        width));
    EXPECT_TRUE(g) << (g ? "" : g.error().message);
    WeightPool weights;
    const auto lowered = lower(*g, hopper(), weights, {});
    EXPECT_TRUE(lowered) << (lowered ? "" : lowered.error().message);
    std::set<size_t> counts;
    for (const auto& b : lowered->plan.buckets) counts.insert(b.launches.size());
    return counts;
  };
  EXPECT_EQ(buckets(16384), (std::set<size_t>{5}));     // 4 Mi
  EXPECT_EQ(buckets(16400), (std::set<size_t>{5, 6}));  // and n beyond 128 tokens
}

TEST(FoldNorm, WhereTheOtherFormsHaveAllLaunches) {
  // Of few rows the library has the product of f32, with its tanh behind it; of more, TF32 has both.
  const auto folds = [](const char* last) {
    auto g = ir::parse(fmt::format(
        "graph @main(%h: f16[B,S,256]) symbols(B = h.0 in 1.. as batch, S = h.1 in 1.. as length, tokens = (B*S) in 1.. as tokens) {{\n"
        "  const @w : f16[256,256] = f32[256,256] random(1) |> cast(f16)\n  const @u : f16[256,256] = f32[256,256] random(2) |> cast(f16)\n  const @v : f32[2,256] = random(3)\n"
        "  const @g : f16[256] = f32[256] random(4) |> cast(f16)\n  %h1 = pointwise(%h) {{body = (i,j,k) => 0.5 * %h[i,j,k]}} : f16[B,S,256]\n"
        "  %p = matmul(%h1, @w) {{alpha = 1.0, trans_a = false, trans_b = false}} : f16[B,S,256]\n  %n = norm(@g, %p) {{body = (i,j,k) => %p[i,j,k], eps = 1e-05, has_beta = false, kind = rms}} : f16[B,S,256]\n"
        "  %y = matmul(%n, @u) {{alpha = 1.0, trans_a = false, trans_b = false}} : f16[B,S,256]\n  %yf = pointwise(%y) {{body = (i,j,k) => f32(%y[i,j,k])}} : f32[B,S,256]\n"
        "  %z = matmul(%yf, @v) {{alpha = 1.0, {}trans_a = false, trans_b = true}} : f32[B,S,2]\n  return z = %z\n}}\n",
        last));
    EXPECT_TRUE(g) << (g ? "" : g.error().message);
    WeightPool weights;
    LowerOptions options;
    options.precision = runtime::kTf32x3;
    const auto lowered = lower(*g, hopper(), weights, options);
    EXPECT_TRUE(lowered) << (lowered ? "" : lowered.error().message);
    return std::ranges::any_of(lowered->plan.buckets, [](const auto& b) {
      return std::ranges::any_of(b.launches, [](const auto& l) {
        return std::ranges::find(l.ops, "moments") != l.ops.end();
      });
    });
  };
  EXPECT_TRUE(folds(""));
  EXPECT_FALSE(folds("epilogue = (s,i,j,k) => tanh(s), "));
}

}  // namespace
}  // namespace tfcc::codegen
