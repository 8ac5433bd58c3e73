// SPDX-License-Identifier: Apache-2.0
// linear_attention: the evaluator beside the double sum of its definition, packed rows beside
// padded ones, and its rules.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "tests/ir/graph_of.h"
#include "tests/ir/violations.h"

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
         "  %y = linear_attention(%q, %k, %v" +
         loads + ") {" + attributes + "} : f32[B,S,8]\n  return y = %y\n}\n";
}

// Element e of n numbers, or of their softmax.
double feature(const double* row, int e, bool softmax) {
  if (!softmax) return row[e];
  double sum = 0;
  for (int x = 0; x < kD; ++x) sum += std::exp(row[x]);
  return std::exp(row[e]) / sum;
}

// The sum of the definition, a pair of tokens at a time. `softmax`: nothing, q, k or both.
double by_definition(const std::map<std::string, HostTensor>& in, bool causal, bool masked,
                     bool decays, const std::string& softmax, int64_t b, int64_t h, int64_t i,
                     int64_t m) {
  const HostTensor &q = in.at("q"), &k = in.at("k"), &v = in.at("v"), &a = in.at("a");
  const int64_t tokens = q.dims[1], g = h / (kHeads / kKvHeads);
  const auto at = [](const HostTensor& t, int64_t x, int64_t y, int64_t z) {
    return t.reals[static_cast<size_t>((x * t.dims[1] + y) * t.dims[2] + z)];
  };
  double s = 0, z = 0;
  for (int64_t j = 0; j < tokens; ++j) {
    if (causal && j > i) continue;
    if (masked && in.at("m").ints[static_cast<size_t>(b * tokens + j)] == 0) continue;
    double w = 0, grown = 0;
    const double *query = &q.reals[static_cast<size_t>((b * tokens + i) * q.dims[2] + h * kD)],
                 *key = &k.reals[static_cast<size_t>((b * tokens + j) * k.dims[2] + g * kD)];
    for (int e = 0; e < kD; ++e)
      w += std::max(feature(query, e, softmax == "q" || softmax == "both"), 0.0) *
           std::exp(feature(key, e, softmax == "k" || softmax == "both"));
    for (int64_t t = j + 1; decays && t <= i; ++t) grown += at(a, b, t, h);
    w *= std::exp(grown);
    s += w * at(v, b, j, g * kDv + m);
    z += w;
  }
  return s / (z + 0.25) + static_cast<double>(m);
}

void is_the_definition(bool causal, bool masked, bool decays, const std::string& softmax = "") {
  const Graph g = graph_of(text_of(
      fmt::format(
          "causal = {}{}, epilogue = (s,z,b,h,t,c) => s / (z + 0.25) + f32(c), heads = 4, k_map = (s,b,h,t,c) => exp(s), kv_heads = 2, q_map = (s,b,h,t,c) => max(s, 0.0){}{}",
          causal, decays ? ", decay = (b,h,t) => %a[b,t,h]" : "",
          softmax.empty() ? "" : ", softmax = " + softmax,
          masked ? ", visible = (b,h,t) => %m[b,t] == 1" : ""),
      std::string(decays ? ", %a" : "") + (masked ? ", %m" : "")));
  std::mt19937 random(7);
  std::map<std::string, HostTensor> in;
  for (const auto& [name, width] : {std::pair{"q", 12}, {"k", 6}, {"v", 4}, {"a", 4}})
    in[name] = random_tensor(random, {2, 9, width});
  HostTensor mask{DType::i64, {2, 9}, {}, {}};
  for (int i = 0; i < 18; ++i) mask.ints.push_back(random() % 3 > 0);
  in["m"] = mask;
  auto fed = in;
  if (masked) {  // what is not visible is not read
    for (size_t i = 0; i < 18; ++i) {
      if (!mask.ints[i])
        fed["k"].reals[i * 6] = fed["v"].reals[i * 4] = std::numeric_limits<double>::quiet_NaN();
    }
  }
  const auto out = eval(g, fed);
  ASSERT_TRUE(out) << out.error().message;
  const auto& y = out->at("y").reals;
  for (int64_t x = 0; x < 2 * 9 * 8; ++x)
    EXPECT_NEAR(y[static_cast<size_t>(x)],
                by_definition(in, causal, masked, decays, softmax, x / 72, x / kDv % kHeads,
                              x / 8 % 9, x % kDv),
                1e-12)
        << x;
}

TEST(LinearAttention, IsItsDefinition) {
  for (const bool causal : {true, false}) {
    for (const bool masked : {true, false}) is_the_definition(causal, masked, false);
  }
  is_the_definition(true, false, true);
  is_the_definition(true, true, true);
  for (const char* softmax : {"q", "k", "both"}) is_the_definition(true, true, false, softmax);
}

TEST(LinearAttention, PackedRowsAreThePaddedOnes) {
  const std::string how =
      "epilogue = (s,z,b,h,t,c) => s / (z + 1.0) + f32(t), heads = 4, kv_heads = 2";
  for (const char* causal : {"true", "false"}) {
    const Graph padded = graph_of(text_of(
        fmt::format("causal = {}, {}, visible = (b,h,t) => %m[b,t] == 1", causal, how), ", %m"));
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
    for (const auto& [name, width] : {std::pair{"q", 12}, {"k", 6}, {"v", 4}})
      in[name] = random_tensor(random, {3, 7, width});
    in["m"] = {
        DType::i64, {3, 7}, {}, {1, 1, 1, 0, 0, 0, 0, 0, 0, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1}};
    const auto b = eval(packed, in);
    in["a"] = random_tensor(random, {3, 7, 4});
    const auto a = eval(padded, in);
    ASSERT_TRUE(a && b);
    for (size_t i = 0; i < 21 * 8; ++i) {
      if (in["m"].ints[i / 8]) {
        EXPECT_NEAR(a->at("y").reals[i], b->at("y").reals[i], 1e-12) << i;
      }
    }
  }
}

// With a state and the delta rule, over `tokens` tokens.
std::string state_text(const std::string& attributes, const std::string& state = "f32[B,2,2,3]",
                       const std::string& loads = ", %a") {
  return "graph @g(%q: f32[B,S,12], %k: f32[B,S,6], %v: f32[B,S,4], %s: " + state +
         ", %a: f32[B,S,4]) symbols(B = q.0 in 1.., S = q.1 in 1..) {\n"
         "  %y, %after = linear_attention(%q, %k, %v, %s" +
         loads + ") {" + attributes + ", heads = 4, kv_heads = 2, state = true} : f32[B,S,8], " +
         state + "\n  return y = %y, after = %after\n}\n";
}

// As the equations that the changes u solve, in order: u_i = beta_i (v_i - what k_i reads of the
// state and of k_j u_j for j < i, faded).
TEST(LinearAttention, DeltaRuleIsThatOfItsEquations) {
  const Graph graph = graph_of(state_text(
      "beta = (b,h,t) => %a[b,t,h + 2], causal = true, decay = (b,h,t) => %a[b,t,h / 2]"));
  std::mt19937 random(9);
  std::map<std::string, HostTensor> in;
  constexpr int64_t kTokens = 6;
  for (const auto& [name, width] : {std::pair{"q", 12}, {"k", 6}, {"v", 4}, {"a", 4}})
    in[name] = random_tensor(random, {2, kTokens, width});
  in["s"] = random_tensor(random, {2, 2, kDv, kD});
  const auto out = eval(graph, in);
  ASSERT_TRUE(out) << out.error().message;
  const auto row = [&](const char* name, int64_t b, int64_t t) {
    return in[name].reals.data() + (b * kTokens + t) * in[name].dims[2];
  };
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t g = 0; g < kKvHeads; ++g) {
      // What a key or query of token i reads: of token j's change, or for j = -1 of the state.
      const auto seen = [&](const double* x, int64_t i, int64_t j, int m, const auto& u) {
        double sum = 0, grown = 0;
        for (int e = 0; e < kD; ++e)
          sum +=
              x[e] *
              (j < 0 ? in["s"].reals[static_cast<size_t>(((b * kKvHeads + g) * kDv + m) * kD + e)]
                     : row("k", b, j)[g * kD + e]);
        for (int64_t t = j + 1; t <= i; ++t) grown += row("a", b, t)[g];
        return sum * std::exp(grown) * (j < 0 ? 1.0 : u[j]);
      };
      for (int m = 0; m < kDv; ++m) {
        double u[kTokens];
        for (int64_t i = 0; i < kTokens; ++i) {
          double left = row("v", b, i)[g * kDv + m];
          for (int64_t j = -1; j < i; ++j) left -= seen(row("k", b, i) + g * kD, i, j, m, u);
          u[i] = row("a", b, i)[g + 2] * left;
          for (int64_t h = 2 * g; h < 2 * g + 2; ++h) {
            double y = 0;
            for (int64_t j = -1; j <= i; ++j) y += seen(row("q", b, i) + h * kD, i, j, m, u);
            EXPECT_NEAR(
                out->at("y").reals[static_cast<size_t>((b * kTokens + i) * 8 + h * kDv + m)], y,
                1e-12);
          }
        }
      }
    }
  }
}

// In two runs, the second of which goes on from what the first left, as in one.
TEST(LinearAttention, StatesGoOn) {
  for (const char* how :
       {"beta = (b,h,t) => %a[b,t,h] * 0.3, causal = true, decay = (b,h,t) => %a[b,t,1]",
        "causal = true, decay = (b,h,t) => %a[b,t,h / 2]",
        "causal = true, epilogue = (s,z,b,h,t,c) => s / (z * z + 1.0)"}) {
    const bool sums = std::string(how).find("z *") != std::string::npos;
    const std::string state = sums ? "f32[B,2,3,3]" : "f32[B,2,2,3]", loads = sums ? "" : ", %a";
    const Graph graph = graph_of(state_text(how, state, loads));
    std::mt19937 random(3);
    std::map<std::string, HostTensor> in, first, then;
    for (const auto& [name, width] : {std::pair{"q", 12}, {"k", 6}, {"v", 4}, {"a", 4}}) {
      in[name] = random_tensor(random, {1, 7, width});
      const auto cut = in[name].reals.begin() + 4 * width;
      first[name] = {DType::f32, {1, 4, width}, {in[name].reals.begin(), cut}, {}};
      then[name] = {DType::f32, {1, 3, width}, {cut, in[name].reals.end()}, {}};
    }
    in["s"] = first["s"] = random_tensor(random, {1, 2, sums ? 3 : 2, 3});
    const auto whole = eval(graph, in), begun = eval(graph, first);
    ASSERT_TRUE(whole && begun);
    then["s"] = begun->at("after");
    const auto ended = eval(graph, then);
    ASSERT_TRUE(ended);
    const auto& want = whole->at("y").reals;
    for (size_t i = 0; i < want.size(); ++i) {
      const double got = i < 32 ? begun->at("y").reals[i] : ended->at("y").reals[i - 32];
      EXPECT_NEAR(got, want[i], 1e-12) << how << " " << i;
    }
    for (size_t i = 0; i < whole->at("after").reals.size(); ++i)
      EXPECT_NEAR(ended->at("after").reals[i], whole->at("after").reals[i], 1e-12) << how << i;
  }
}

constexpr int kSlots = 5;

std::string step_text(
    const std::string& attributes =
        "causal = true, epilogue = (s,z,b,h,t,c) => s / (z + 1.0), heads = 4, kv_heads = 2",
    const std::string& loads = ", %a", const std::string& returned = "y = %y, s = %sums") {
  return "graph @g(%q: f32[1,T,12], %k: f32[1,T,6], %v: f32[1,T,4], %first: i32[N + 1], %from: i32[N], %to: i32[N], %s: f32[C,2,3,3], %a: f32[1,T,4]) "
         "symbols(T = q.1 in 1.., N = from.0 in 1.., C = s.0 in 1..) {\n"
         "  %y, %sums = linear_attention_step(%q, %k, %v, %first, %from, %to, %s" +
         loads + ") {" + attributes + "} : f32[1,T,8], f32[C,2,3,3]\n  return " + returned +
         "\n}\n";
}

std::string with(std::string text, std::string_view from, std::string_view to) {
  for (size_t at = text.find(from); at != text.npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
  return text;
}

HostTensor numbers(std::vector<int64_t> values) {
  return {DType::i32, {static_cast<int64_t>(values.size())}, {}, std::move(values)};
}

// Steps of two sequences, of any sizes, are linear_attention of each as a whole. A sequence
// alternates between two slots; slot 4 is nobody's.
TEST(LinearAttention, StepsAreTheWhole) {
  const std::string how =
      "k_map = (s,b,h,t,c) => exp(s), kv_heads = 2, q_map = (s,b,h,t,c) => max(s, 0.0), softmax = k";
  for (const char* rule :
       {"", ", decay = (b,h,t) => %a[b,t,0]", "beta, decay = (b,h,t) => %a[b,t,h / 2]"}) {
    const bool delta = *rule == 'b', decays = *rule != 0;
    const std::string begin =
        delta ? "beta = (b,h,t) => %a[b,t,h + 1] * 0.2, causal = true" + std::string(rule + 4) +
                    ", epilogue = (s,z,b,h,t,c) => s + f32(c), heads = 4, "
              : "causal = true" + std::string(rule) +
                    ", epilogue = (s,z,b,h,t,c) => s / (z + 1.0) + f32(c), heads = 4, ";
    const Graph whole = graph_of(text_of(begin + how, decays ? ", %a" : "")),
                step = graph_of(with(step_text(begin + how, decays ? ", %a" : ""), "f32[C,2,3,3]",
                                     fmt::format("f32[C,2,{},3]", 3 - delta)));
    std::mt19937 random(5);
    std::map<std::string, HostTensor> in;
    for (const auto& [name, width] : {std::pair{"q", 12}, {"k", 6}, {"v", 4}, {"a", 4}})
      in[name] = random_tensor(random, {2, 9, width});
    in["m"] = {DType::i64, {2, 9}, {}, std::vector<int64_t>(18, 1)};
    const auto want = eval(whole, in);
    ASSERT_TRUE(want) << want.error().message;
    HostTensor state = random_tensor(random, {kSlots, 2, 3 - delta, 3});
    const HostTensor before = state;
    int64_t done[] = {0, 0}, round = 0;
    for (const auto& [a, b] : {std::pair{2, 3}, {1, 1}, {0, 4}, {6, 1}}) {
      std::map<std::string, HostTensor> now;
      for (const auto& [name, width] : {std::pair{"q", 12}, {"k", 6}, {"v", 4}, {"a", 4}}) {
        HostTensor& t = now[name] = {DType::f32, {1, a + b, width}, {}, {}};
        for (const auto& [n, count] : {std::pair{0, a}, {1, b}}) {
          const auto from = in[name].reals.begin() + (n * 9 + done[n]) * width;
          t.reals.insert(t.reals.end(), from, from + count * width);
        }
      }
      now["first"] = numbers({0, a, a + b});
      now["from"] = round == 0 ? numbers({-1, kSlots})
                               : numbers({2 * (1 - round % 2), 2 * (1 - round % 2) + 1});
      now["to"] = numbers({2 * (round % 2), 2 * (round % 2) + 1});
      now["s"] = state;
      const auto out = eval(step, now);
      ASSERT_TRUE(out) << out.error().message;
      for (int64_t x = 0; x < (a + b) * 8; ++x) {
        const int64_t n = x / 8 < a ? 0 : 1, row = n == 0 ? x / 8 : x / 8 - a;
        EXPECT_NEAR(out->at("y").reals[static_cast<size_t>(x)],
                    want->at("y").reals[static_cast<size_t>((n * 9 + done[n] + row) * 8 + x % 8)],
                    1e-12)
            << x;
      }
      state = out->at("s");
      done[0] += a, done[1] += b, ++round;
    }
    const auto nobodys = static_cast<std::ptrdiff_t>(4 * before.reals.size() / kSlots);
    EXPECT_TRUE(std::equal(before.reals.begin() + nobodys, before.reals.end(),
                           state.reals.begin() + nobodys));
  }
}

void step_refused(const std::string& rule, const std::string& text) { breaks(rule, text); }

TEST(LinearAttention, RulesOfAStepAreChecked) {
  const std::string normal = ", epilogue = (s,z,b,h,t,c) => s / (z + 1.0), heads = 4, kv_heads = 2";
  const auto with = [](const char* from, const char* to) {
    return ir::with(step_text(), from, to);
  };
  graph_of(step_text());
  step_refused("S1", with("%to, %s, %a)", "%to)"));
  step_refused("S2", step_text("causal = false" + normal));
  step_refused("S2", step_text("causal = true" + normal + ", visible = (b,h,t) => t == 0"));
  step_refused("S3", with("%from: i32[N]", "%from: i64[N]"));
  step_refused("S3", with("%first: i32[N + 1]", "%first: i32[N]"));
  step_refused("S4", step_text("causal = true, heads = 4, kv_heads = 2"));
  step_refused("S4", with("f32[C,2,3,3]", "f16[C,2,3,3]"));
  step_refused("S2", step_text("causal = true" + normal + ", state = true"));
  step_refused("S5", step_text("causal = true, decay = (b,h,t) => %a[b,t,h]" + normal));
  graph_of(step_text("causal = true, decay = (b,h,t) => %a[b,t,h / 2]" + normal));
  step_refused("F8", step_text("beta = (b,h,t) => %a[b,t,h], causal = true" + normal));
  step_refused("V4", step_text("causal = true" + normal, ", %a", "y = %y, r = %sums"));
  step_refused("V4", step_text("causal = true" + normal, ", %s"));
}

void refused(const std::string& rule, const std::string& attributes, const std::string& loads = "",
             const std::string& from = "", const std::string& to = "") {
  std::string text = text_of(attributes, loads);
  if (!from.empty()) text.replace(text.find(from), from.size(), to);
  breaks(rule, text);
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
  refused("F5", "beta = (b,h,t) => f64(%a[b,t,h]), causal = true, heads = 4, kv_heads = 2", ", %a");
  const std::string beta = "beta = (b,h,t) => %a[b,t,h], ";
  graph_of(text_of(beta + plain, ", %a"));
  refused("F8", beta + "causal = false, heads = 4, kv_heads = 2", ", %a");
  refused("F8", beta + plain + ", visible = (b,h,t) => t <= 1", ", %a");
  refused("F8", beta + "causal = true, epilogue = (s,z,b,h,t,c) => s / z, heads = 4, kv_heads = 2",
          ", %a");
  refused("F8", beta + "causal = true, decay = (b,h,t) => %a[b,t,h], heads = 4, kv_heads = 2",
          ", %a");
  refused("F1", plain + ", state = true");
  graph_of(state_text("causal = true"));
  breaks("F9", state_text("causal = false"));
  breaks("F9", state_text("causal = true, decay = (b,h,t) => %a[b,t,h]"));
  breaks("F9", state_text("causal = true", "f32[B,2,3,3]"));
  breaks("F9", state_text("causal = true", "f16[B,2,2,3]"));
  refused("F7", "causal = true, heads = 4, kv_heads = 2, packed = [B,S]", ", %m, %m, %m, %m");
  refused("E4", "causal = true, heads = 4, k_map = (s,b,h,t,c) => s * %a[b,t + 1,h], kv_heads = 2",
          ", %a");
}

}  // namespace
}  // namespace tfcc::ir
