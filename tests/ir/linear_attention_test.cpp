// SPDX-License-Identifier: Apache-2.0
// linear_attention: the evaluator beside the double sum of its definition, packed rows beside padded ones, and its rules.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "tests/ir/graph_of.h"

namespace tfcc::ir {
namespace {

constexpr int kHeads = 4, kKvHeads = 2, kD = 3, kDv = 2;

HostTensor random_tensor(std::mt19937& random, std::vector<int64_t> dims) {
  HostTensor t{DType::f32, std::move(dims), {}, {}};
  std::uniform_real_distribution<double> uniform(-1, 1);
  for (int64_t i = 0; i < t.element_count(); ++i) t.reals.push_back(uniform(random));
  return t;
}

std::string text_of(const std::string& attributes, const std::string& loads = "") {
  return "graph @g(%q: f32[B,S,12], %k: f32[B,S,6], %v: f32[B,S,4], %m: i64[B,S], %a: f32[B,S,4]) symbols(B = q.0 in 1.., S = q.1 in 1..) {\n"
         "  %y = linear_attention(%q, %k, %v" + loads + ") {" + attributes + "} : f32[B,S,8]\n  return y = %y\n}\n";
}

// The sum of the definition, a pair of tokens at a time.
double by_definition(const std::map<std::string, HostTensor>& in, bool causal, bool masked, bool decays, int64_t b, int64_t h, int64_t i, int64_t m) {
  const HostTensor &q = in.at("q"), &k = in.at("k"), &v = in.at("v"), &a = in.at("a");
  const int64_t tokens = q.dims[1], g = h / (kHeads / kKvHeads);
  const auto at = [](const HostTensor& t, int64_t x, int64_t y, int64_t z) { return t.reals[static_cast<size_t>((x * t.dims[1] + y) * t.dims[2] + z)]; };
  double s = 0, z = 0;
  for (int64_t j = 0; j < tokens; ++j) {
    if (causal && j > i) continue;
    if (masked && in.at("m").ints[static_cast<size_t>(b * tokens + j)] == 0) continue;
    double w = 0, grown = 0;
    for (int64_t e = 0; e < kD; ++e) w += std::max(at(q, b, i, h * kD + e), 0.0) * std::exp(at(k, b, j, g * kD + e));
    for (int64_t t = j + 1; decays && t <= i; ++t) grown += at(a, b, t, h);
    w *= std::exp(grown);
    s += w * at(v, b, j, g * kDv + m);
    z += w;
  }
  return s / (z + 0.25) + static_cast<double>(m);
}

void is_the_definition(bool causal, bool masked, bool decays) {
  const Graph g = graph_of(text_of(
      fmt::format("causal = {}{}, epilogue = (s,z,b,h,t,c) => s / (z + 0.25) + f32(c), heads = 4, k_map = (s,b,h,t,c) => exp(s), kv_heads = 2, q_map = (s,b,h,t,c) => max(s, 0.0){}", causal,
                  decays ? ", decay = (b,h,t) => %a[b,t,h]" : "", masked ? ", visible = (b,h,t) => %m[b,t] == 1" : ""),
      std::string(decays ? ", %a" : "") + (masked ? ", %m" : "")));
  std::mt19937 random(7);
  std::map<std::string, HostTensor> in;
  for (const auto& [name, width] : {std::pair{"q", 12}, {"k", 6}, {"v", 4}, {"a", 4}}) in[name] = random_tensor(random, {2, 9, width});
  HostTensor mask{DType::i64, {2, 9}, {}, {}};
  for (int i = 0; i < 18; ++i) mask.ints.push_back(random() % 3 > 0);
  in["m"] = mask;
  auto fed = in;
  if (masked) {  // what is not visible is not read
    for (size_t i = 0; i < 18; ++i) {
      if (!mask.ints[i]) fed["k"].reals[i * 6] = fed["v"].reals[i * 4] = std::numeric_limits<double>::quiet_NaN();
    }
  }
  const auto out = eval(g, fed);
  ASSERT_TRUE(out) << out.error().message;
  const auto& y = out->at("y").reals;
  for (int64_t x = 0; x < 2 * 9 * 8; ++x) EXPECT_NEAR(y[static_cast<size_t>(x)], by_definition(in, causal, masked, decays, x / 72, x / kDv % kHeads, x / 8 % 9, x % kDv), 1e-12) << x;
}

TEST(LinearAttention, IsItsDefinition) {
  for (const bool causal : {true, false}) {
    for (const bool masked : {true, false}) is_the_definition(causal, masked, false);
  }
  is_the_definition(true, false, true);
  is_the_definition(true, true, true);
}

TEST(LinearAttention, PackedRowsAreThePaddedOnes) {
  const std::string how = "epilogue = (s,z,b,h,t,c) => s / (z + 1.0) + f32(t), heads = 4, kv_heads = 2";
  for (const char* causal : {"true", "false"}) {
    const Graph padded = graph_of(text_of(fmt::format("causal = {}, {}, visible = (b,h,t) => %m[b,t] == 1", causal, how), ", %m"));
    const Graph packed = graph_of(fmt::format(
        "graph @p(%q: f32[B,S,12], %k: f32[B,S,6], %v: f32[B,S,4], %m: i64[B,S]) symbols(B = q.0 in 1.., S = q.1 in 1.., T <= (B*S) in 1.. as packed) {{\n"
        "  flag 0 \"outside\"\n"
        "  %row, %cu, %keys, %order, %seq, %pos = pack(%m) {{live = (i,j) => %m[i,j] == 1}} : i32[B,S], i32[B + 1], i32[B], i32[B], i32[T], i32[T]\n"
        "  %qp = pointwise(%q, %seq, %pos) {{body = (i,j,k) => %q[bounded(%seq[j], B, 0),bounded(%pos[j], S, 0),k]}} : f32[1,T,12]\n"
        "  %kp = pointwise(%k, %seq, %pos) {{body = (i,j,k) => %k[bounded(%seq[j], B, 0),bounded(%pos[j], S, 0),k]}} : f32[1,T,6]\n"
        "  %vp = pointwise(%v, %seq, %pos) {{body = (i,j,k) => %v[bounded(%seq[j], B, 0),bounded(%pos[j], S, 0),k]}} : f32[1,T,4]\n"
        "  %a = linear_attention(%qp, %kp, %vp, %cu, %keys, %order, %pos) {{causal = {}, epilogue = (s,z,b,h,t,c) => s / (z + 1.0) + f32(t), heads = 4, kv_heads = 2, packed = [B,S]}} : f32[1,T,8]\n"
        "  %y = pointwise(%row, %a) {{body = (i,j,k) => select(0 <= %row[i,j], %a[0,bounded(%row[i,j], T, 0),k], 0.0)}} : f32[B,S,8]\n"
        "  return y = %y\n}}\n",
        causal));
    std::mt19937 random(3);
    std::map<std::string, HostTensor> in;
    for (const auto& [name, width] : {std::pair{"q", 12}, {"k", 6}, {"v", 4}}) in[name] = random_tensor(random, {3, 7, width});
    in["m"] = {DType::i64, {3, 7}, {}, {1, 1, 1, 0, 0, 0, 0, 0, 0, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1}};
    const auto b = eval(packed, in);
    in["a"] = random_tensor(random, {3, 7, 4});
    const auto a = eval(padded, in);
    ASSERT_TRUE(a && b);
    for (size_t i = 0; i < 21 * 8; ++i) {
      if (in["m"].ints[i / 8]) { EXPECT_NEAR(a->at("y").reals[i], b->at("y").reals[i], 1e-12) << i; }
    }
  }
}

void refused(const std::string& rule, const std::string& attributes, const std::string& loads = "", const std::string& from = "", const std::string& to = "") {
  std::string text = text_of(attributes, loads);
  if (!from.empty()) text.replace(text.find(from), from.size(), to);
  auto g = parse(text);
  ASSERT_TRUE(g) << g.error().message << "\n" << text;
  const auto problems = verify(*g);
  EXPECT_TRUE(std::any_of(problems.begin(), problems.end(), [&](const Violation& v) { return v.rule == rule; })) << rule << "\n" << text;
}

TEST(LinearAttention, RulesAreChecked) {
  const std::string plain = "causal = true, heads = 4, kv_heads = 2";
  graph_of(text_of(plain));
  refused("F2", plain, "", "%k: f32[B,S,6]", "%k: f16[B,S,6]");
  refused("F2", plain, "", ": f32[B,S,8]", ": i64[B,S,8]");
  refused("F3", plain, "", "%k: f32[B,S,6], %v: f32[B,S,4]", "%k: f32[B,2,6], %v: f32[B,2,4]");
  refused("F3", "causal = false, heads = 4, kv_heads = 2", "", "%v: f32[B,S,4]", "%v: f32[B,2,4]");
  refused("F4", "causal = true, heads = 4, kv_heads = 3");
  refused("F4", plain, "", ": f32[B,S,8]", ": f32[B,S,9]");
  refused("F5", "causal = true, heads = 4, kv_heads = 2, q_map = (s,b,h,t,c) => f64(s)");
  refused("F5", "causal = true, heads = 4, kv_heads = 2, visible = (b,h,t) => h == 0");
  refused("F6", "causal = false, decay = (b,h,t) => %a[b,t,h], heads = 4, kv_heads = 2", ", %a");
  refused("F7", "causal = true, heads = 4, kv_heads = 2, packed = [B,S]", ", %m, %m, %m, %m");
  refused("E4", "causal = true, heads = 4, k_map = (s,b,h,t,c) => s * %a[b,t + 1,h], kv_heads = 2", ", %a");
}

}  // namespace
}  // namespace tfcc::ir
