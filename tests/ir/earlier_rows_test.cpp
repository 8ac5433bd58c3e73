// SPDX-License-Identifier: Apache-2.0
// earlier_rows beside rows of whole sequences, and its rules.
#include <gtest/gtest.h>

#include "tests/ir/graph_of.h"
#include "tests/ir/violations.h"

namespace tfcc::ir {
namespace {

const char kText[] =
    "graph @g(%x: f32[1,T,2], %first: i32[N + 1], %from: i32[N], %to: i32[N], %s: f32[C,1,3,2]) "
    "symbols(T = x.1 in 1.., N = from.0 in 1.., C = s.0 in 1..) {\n"
    "  %y, %after = earlier_rows(%x, %first, %from, %to, %s) : f32[1,T,3,2], f32[C,1,3,2]\n"
    "  return y = %y, s = %after\n}\n";

HostTensor numbers(std::vector<int64_t> values) {
  return {DType::i32, {static_cast<int64_t>(values.size())}, {}, std::move(values)};
}

// Element c of token t of sequence n, which is 0 in front of the first.
double element(int64_t n, int64_t t, int64_t c) {
  return t < 0 ? 0.0 : static_cast<double>(1000 * (n + 1) + 10 * t + c);
}

// Steps of two sequences, of none to many rows, see rows of the whole sequences. A sequence
// alternates between two slots; slot 4 is nobody's.
TEST(EarlierRows, StepsAreTheWhole) {
  const Graph g = graph_of(kText);
  HostTensor state{DType::f32, {5, 1, 3, 2}, std::vector<double>(30, 7.0), {}};
  int64_t done[] = {0, 0}, round = 0;
  for (const auto& [a, b] : {std::pair{2, 3}, {1, 1}, {0, 5}, {1, 0}, {6, 1}}) {
    const int64_t counts[] = {a, b};
    HostTensor x{DType::f32, {1, a + b, 2}, {}, {}};
    for (int64_t n : {0, 1}) {
      for (int64_t i = 0; i < counts[n]; ++i)
        for (int64_t c : {0, 1}) x.reals.push_back(element(n, done[n] + i, c));
    }
    const auto from =
        round == 0 ? numbers({-1, 5}) : numbers({2 * (1 - round % 2), 3 - 2 * (round % 2)});
    const auto out = eval(g, {{"x", x},
                              {"first", numbers({0, a, a + b})},
                              {"from", from},
                              {"to", numbers({2 * (round % 2), 2 * (round % 2) + 1})},
                              {"s", state}});
    ASSERT_TRUE(out) << out.error().message;
    size_t at = 0;
    for (int64_t n : {0, 1}) {
      for (int64_t i = 0; i < counts[n]; ++i)
        for (int64_t l = 0; l < 3; ++l)
          for (int64_t c : {0, 1})
            EXPECT_EQ(out->at("y").reals[at++], element(n, done[n] + i - l - 1, c))
                << n << " " << i;
    }
    state = out->at("s");
    done[0] += a, done[1] += b, ++round;
  }
  for (size_t i = 24; i < 30; ++i) EXPECT_EQ(state.reals[i], 7.0);
}

void breaks_if(const std::string& rule, const std::string& from, const std::string& to) {
  std::string text = kText;
  ASSERT_NE(text.find(from), text.npos) << from;
  for (size_t at = text.find(from); at != text.npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
  breaks(rule, text);
}

TEST(EarlierRows, RulesAreChecked) {
  graph_of(kText);
  breaks_if("R1", ", %to, %s)", ", %s)");
  breaks_if("R2", "f32", "f64");
  breaks_if("R2", "%x: f32[1,T,2]", "%x: f32[T,T,2]");
  breaks_if("R3", "%from: i32[N]", "%from: i64[N]");
  breaks_if("R3", "%first: i32[N + 1]", "%first: i32[N]");
  breaks_if("R4", "f32[C,1,3,2]", "f32[C,3,1,2]");
  breaks_if("R4", "f32[C,1,3,2]", "f16[C,1,3,2]");
  breaks_if("R4", "f32[1,T,3,2]", "f32[1,T,2,3]");
  breaks_if("V4", "s = %after", "r = %after");
}

}  // namespace
}  // namespace tfcc::ir
