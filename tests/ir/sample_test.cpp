// SPDX-License-Identifier: Apache-2.0
// sample: its rules, and its definition where the choice is known.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/ir/graph_of.h"
#include "tests/ir/violations.h"

namespace tfcc::ir {
namespace {

const char kText[] =
    "graph @s(%x: f32[1,R,5], %ids: i64[1,T], %wanted: i32[R], %positions: i32[T], %sampling: f32[R,4], %draw: i32[R,4], %seen: i32[R,W]) symbols(R = x.1 in 1.., T = ids.1 in 1.., W = seen.1 in 1..) {\n"
    "  %tokens, %logs = sample(%x, %ids, %wanted, %positions, %sampling, %draw, %seen) : i64[1,R], f32[R]\n"
    "  return tokens = %tokens, logs = %logs\n}\n";

void refused(const std::string& rule, const std::string& from, const std::string& to) {
  std::string text = kText;
  const size_t at = text.find(from);
  ASSERT_NE(at, text.npos) << from;
  text.replace(at, from.size(), to);
  breaks(rule, text);
}

TEST(Sample, RulesAreChecked) {
  refused("Q1", ", %seen)", ")");
  refused("Q2", "%x: f32[1,R,5]", "%x: f32[2,R,5]");
  refused("Q2", "%x: f32[1,R,5]", "%x: f32[1,R,16777216]");
  refused("Q2", "%ids: i64[1,T]", "%ids: u8[1,T]");
  refused("Q2", "%wanted: i32[R]", "%wanted: i64[R]");
  refused("Q2", "%positions: i32[T]", "%positions: i32[R]");
  refused("Q3", "%sampling: f32[R,4]", "%sampling: f32[R,3]");
  refused("Q3", "%draw: i32[R,4]", "%draw: f32[R,4]");
  refused("Q3", "%seen: i32[R,W]", "%seen: i32[5,W]");
  refused("Q4", ": i64[1,R], f32[R]", ": i32[1,R], f32[R]");
  refused("Q4", ": i64[1,R], f32[R]", ": i64[1,R], f16[R]");
}

struct Options {
  double temperature = 0, top_p = 1, min_p = 0, penalty = 1;
  int64_t top_k = 0, seed = 0, position = 0, seen = 0, own = 0;
};

// The token after one row of logits, and its log-probability.
std::pair<int64_t, double> chosen(std::vector<double> logits, const Options& o) {
  const auto ints = [](DType type, std::vector<int64_t> dims, std::vector<int64_t> x) {
    return HostTensor{type, std::move(dims), {}, std::move(x)};
  };
  const auto out =
      eval(graph_of(kText),
           {{"x", {DType::f32, {1, 1, 5}, std::move(logits), {}}},
            {"ids", ints(DType::i64, {1, 1}, {o.own})},
            {"wanted", ints(DType::i32, {1}, {0})},
            {"positions", ints(DType::i32, {1}, {o.position})},
            {"sampling", {DType::f32, {1, 4}, {o.temperature, o.top_p, o.min_p, o.penalty}, {}}},
            {"draw", ints(DType::i32, {1, 4}, {o.top_k, o.seed, 0, 1})},
            {"seen", ints(DType::i32, {1, 1}, {o.seen})}});
  EXPECT_TRUE(out) << out.error().message;
  return {out->at("tokens").ints[0], out->at("logs").reals[0]};
}

constexpr double kNever = -std::numeric_limits<double>::infinity(), kNan = std::nan("");

TEST(Sample, TakesTheLikeliestAndOfEqualOnesTheFirst) {
  EXPECT_EQ(chosen({1, 3, 2, 3, 0}, {}).first, 1);
  EXPECT_EQ(chosen({1, kNan, 2, 3, 0}, {}).first, 3);
  EXPECT_EQ(chosen({kNever, kNan, kNever, kNever, kNever}, {}).first, -1);
  EXPECT_EQ(chosen({0, -kNever, 2, -kNever, 0}, {.temperature = 1}).first, 1);
}

TEST(Sample, PenalisesWhatWasSeen) {
  EXPECT_EQ(chosen({1, 3, 2, 2.5, 0}, {.penalty = 2, .seen = 1 << 1}).first, 3);
  EXPECT_EQ(chosen({1, 3, 2, 2.5, 0}, {.penalty = 2, .seen = 1 << 1 | 1 << 3}).first, 2);
  EXPECT_EQ(chosen({-2, -1, -9, -9, -9}, {.penalty = 3, .seen = 1 << 1, .own = 4}).first, 0);
  EXPECT_EQ(chosen({1, 3, 2, 2.5, 0}, {.penalty = 2, .own = 1}).first, 3) << "its own token";
}

// What check() of a generator refuses, and a caller of the program may give.
TEST(Sample, EveryOptionMeansSomething) {
  const std::vector<double> logits = {1, 3, 2, 2.5, 0};
  for (const double t : {-1.0, kNan, 1e-40, -kNever})
    EXPECT_EQ(chosen(logits, {.temperature = t, .top_p = 0.5}).first, 1) << t;
  for (const double p : {-1.0, 0.0, 1e-40})
    EXPECT_EQ(chosen(logits, {.temperature = 9, .top_p = p}).first, 1) << p;
  for (const double p : {1.0, 2.0})
    EXPECT_EQ(chosen(logits, {.temperature = 9, .min_p = p}).first, 1) << p;
  for (const double p : {-2.0, 0.0, kNan, -kNever})
    EXPECT_EQ(chosen(logits, {.penalty = p, .seen = 1 << 1}).first, 1) << p;
}

// Over many positions each token that is left comes as often as it is likely.
TEST(Sample, DrawsWhatIsLeft) {
  const std::vector<double> logits = {std::log(4.0), std::log(1.0), std::log(3.0), std::log(2.0),
                                      kNever};
  const auto counts = [&](Options o) {
    std::vector<int> n(5);
    o.temperature = 1;
    for (o.position = 0; o.position < 2000; ++o.position)
      ++n[static_cast<size_t>(chosen(logits, o).first)];
    return n;
  };
  const auto near = [](const std::vector<int>& n, std::vector<double> wanted) {
    for (size_t i = 0; i < n.size(); ++i) EXPECT_NEAR(n[i], 2000 * wanted[i], 90) << i;
  };
  near(counts({}), {0.4, 0.1, 0.3, 0.2, 0});
  near(counts({.top_k = 2}), {4. / 7, 0, 3. / 7, 0, 0});
  near(counts({.top_p = 0.75}), {4. / 9, 0, 3. / 9, 2. / 9, 0});
  near(counts({.top_p = 0.7}), {4. / 7, 0, 3. / 7, 0, 0});
  near(counts({.min_p = 0.6}), {4. / 7, 0, 3. / 7, 0, 0});
  near(counts({.top_p = 1e-9}), {1, 0, 0, 0, 0});
}

TEST(Sample, GivesLogProbabilitiesOfTheModelAlone) {
  const std::vector<double> logits = {std::log(4.0), 0, std::log(3.0), std::log(2.0), kNever};
  EXPECT_NEAR(chosen(logits, {}).second, std::log(0.4), 1e-12);
  const auto [token, log] = chosen(logits, {.penalty = 8, .seen = 1});
  EXPECT_EQ(token, 2);
  EXPECT_NEAR(log, std::log(0.3), 1e-12);
  EXPECT_TRUE(std::isnan(chosen({kNan, kNan, kNan, kNan, kNan}, {}).second));
}

}  // namespace
}  // namespace tfcc::ir
