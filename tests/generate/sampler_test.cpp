// SPDX-License-Identifier: Apache-2.0
#include "runtime/generate/sampler.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>

namespace tfcc::generate {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();

int32_t chosen(std::vector<float> logits, const Sampling& s = {}, uint64_t position = 0, std::vector<int32_t> history = {}) {
  const auto id = sample(logits, history, s, position);
  EXPECT_TRUE(id) << id.error().message;
  return id ? *id : -1;
}

// The known answer of Random123 for a counter and a key of zeros, and of ones.
TEST(Philox, GivesThePublishedBits) {
  EXPECT_EQ(philox(0, 0), 0x6627e8d5u);
  EXPECT_NE(philox(0, 1), philox(0, 0));
  EXPECT_NE(philox(1, 0), philox(0, 0));
}

TEST(Sampler, GreedyTakesTheLowestOfEqualIds) { EXPECT_EQ(chosen({1, 3, 2, 3}), 1); }

TEST(Sampler, GreedySkipsNan) {
  EXPECT_EQ(chosen({kNan, -5, kNan}), 1);
  EXPECT_EQ(chosen({0, kInf, 1}), 1);
}

TEST(Sampler, SaysWhenNothingIsANumber) {
  std::vector<float> logits{kNan, -kInf};
  EXPECT_EQ(sample(logits, {}, {}, 0).error().message, "the model gave no logit that is a number");
}

TEST(Sampler, FollowsTheProbabilities) {
  Sampling s;
  s.temperature = 1;
  s.seed = 7;
  std::array<int, 3> counts{};
  for (uint64_t i = 0; i < 20000; ++i) ++counts[static_cast<size_t>(chosen({std::log(1.f), std::log(2.f), std::log(5.f)}, s, i))];
  EXPECT_NEAR(counts[0] / 20000.0, 1 / 8.0, 0.01);
  EXPECT_NEAR(counts[1] / 20000.0, 2 / 8.0, 0.01);
  EXPECT_NEAR(counts[2] / 20000.0, 5 / 8.0, 0.01);
}

TEST(Sampler, DependsOnSeedAndPositionAlone) {
  Sampling s;
  s.temperature = 2;
  for (uint64_t i = 0; i < 50; ++i) EXPECT_EQ(chosen({1, 2, 3, 4}, s, i), chosen({1, 2, 3, 4}, s, i));
}

std::vector<int> support(const std::vector<float>& logits, const Sampling& s) {
  std::vector<int> seen(logits.size());
  for (uint64_t i = 0; i < 4000; ++i) seen[static_cast<size_t>(chosen(logits, s, i))] = 1;
  return seen;
}

TEST(Sampler, KeepsTheLikeliest) {
  const std::vector<float> logits{std::log(4.f), std::log(1.f), std::log(3.f), std::log(2.f)};  // 0.4, 0.1, 0.3, 0.2
  Sampling s;
  s.temperature = 1;
  EXPECT_EQ(support(logits, s), (std::vector<int>{1, 1, 1, 1}));
  s.top_k = 2;
  EXPECT_EQ(support(logits, s), (std::vector<int>{1, 0, 1, 0}));
  s.top_k = 0;
  s.top_p = 0.75f;  // 0.4 and 0.3 are less, with 0.2 it is reached
  EXPECT_EQ(support(logits, s), (std::vector<int>{1, 0, 1, 1}));
  s.top_p = 1;
  s.min_p = 0.6f;
  EXPECT_EQ(support(logits, s), (std::vector<int>{1, 0, 1, 0}));
}

TEST(Sampler, MakesWhatWasThereLessLikely) {
  Sampling s;
  s.repetition_penalty = 2;
  EXPECT_EQ(chosen({3, 2, -1}, s, 0, {0, 0}), 1);
  EXPECT_EQ(chosen({-1, -1.5f, -9}, s, 0, {0}), 1);
}

TEST(Sampler, RefusesWhatIsOutOfRange) {
  const auto message = [](auto change) {
    Sampling s;
    change(s);
    return check(s) ? std::string("accepted") : check(s).error().message;
  };
  EXPECT_EQ(message([](Sampling& s) { s.temperature = -1; }), "temperature must be 0 or more, got -1.000000");
  EXPECT_EQ(message([](Sampling& s) { s.temperature = kNan; }), "temperature must be 0 or more, got nan");
  EXPECT_EQ(message([](Sampling& s) { s.top_k = -3; }), "top_k must be 0 or more, got -3.000000");
  EXPECT_EQ(message([](Sampling& s) { s.top_p = 0; }), "top_p must be more than 0 and at most 1, got 0.000000");
  EXPECT_EQ(message([](Sampling& s) { s.min_p = 2; }), "min_p must be from 0 to 1, got 2.000000");
  EXPECT_EQ(message([](Sampling& s) { s.repetition_penalty = 0; }), "repetition_penalty must be more than 0, got 0.000000");
}

}  // namespace
}  // namespace tfcc::generate
