// SPDX-License-Identifier: Apache-2.0
#include "runtime/generate/sampler.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "runtime/generate/numbers.h"

namespace tfcc::generate {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN(),
                kInf = std::numeric_limits<float>::infinity();

int32_t chosen(std::vector<float> logits, const Sampling& s = {}, uint64_t position = 0,
               std::vector<int32_t> history = {}) {
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
  for (uint64_t i = 0; i < 20000; ++i)
    ++counts[static_cast<size_t>(chosen({std::log(1.f), std::log(2.f), std::log(5.f)}, s, i))];
  EXPECT_NEAR(counts[0] / 20000.0, 1 / 8.0, 0.01);
  EXPECT_NEAR(counts[1] / 20000.0, 2 / 8.0, 0.01);
  EXPECT_NEAR(counts[2] / 20000.0, 5 / 8.0, 0.01);
}

TEST(Sampler, DependsOnSeedAndPositionAlone) {
  Sampling s;
  s.temperature = 2;
  for (uint64_t i = 0; i < 50; ++i)
    EXPECT_EQ(chosen({1, 2, 3, 4}, s, i), chosen({1, 2, 3, 4}, s, i));
}

std::vector<int> support(const std::vector<float>& logits, const Sampling& s) {
  std::vector<int> seen(logits.size());
  for (uint64_t i = 0; i < 4000; ++i) seen[static_cast<size_t>(chosen(logits, s, i))] = 1;
  return seen;
}

TEST(Sampler, KeepsTheLikeliest) {
  const std::vector<float> logits{std::log(4.f), std::log(1.f), std::log(3.f),
                                  std::log(2.f)};  // 0.4, 0.1, 0.3, 0.2
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
  EXPECT_EQ(message([](Sampling& s) { s.temperature = -1; }),
            "temperature must be 0 or more, got -1.000000");
  EXPECT_EQ(message([](Sampling& s) { s.temperature = kNan; }),
            "temperature must be 0 or more, got nan");
  EXPECT_EQ(message([](Sampling& s) { s.top_k = -3; }), "top_k must be 0 or more, got -3.000000");
  EXPECT_EQ(message([](Sampling& s) { s.top_p = 0; }),
            "top_p must be more than 0 and at most 1, got 0.000000");
  EXPECT_EQ(message([](Sampling& s) { s.min_p = 2; }), "min_p must be from 0 to 1, got 2.000000");
  EXPECT_EQ(message([](Sampling& s) { s.repetition_penalty = 0; }),
            "repetition_penalty must be more than 0, got 0.000000");
}

TEST(Sampler, FindsTheBestOfManyWhereverItIs) {
  for (const size_t count : {1, 15, 16, 17, 100})
    for (size_t at = 0; at < count; ++at) {
      std::vector<float> logits(count, -3);
      logits[at] = 2;
      if (at + 1 < count) logits[count - 1] = 2;
      EXPECT_EQ(chosen(logits), static_cast<int32_t>(at)) << count;
    }
}

TEST(Numbers, AreThoseOfTheirTypes) {
  const std::pair<uint16_t, float> halves[] = {
      {0x0000, 0.0f},     {0x8000, -0.0f},    {0x0001, 0x1p-24f}, {0x83ff, -0x3ffp-24f},
      {0x0400, 0x1p-14f}, {0x3c00, 1.0f},     {0xc500, -5.0f},    {0x7bff, 65504.0f},
      {0x7c00, INFINITY}, {0xfc00, -INFINITY}};
  std::vector<uint16_t> bits(100, 0x3c00);
  for (const auto& h : halves) bits.push_back(h.first);
  bits.push_back(0x7e01);
  std::vector<float> got(bits.size() - 100);
  numbers_from(bits.data(), DType::f16, 100, got);
  for (size_t i = 0; i < std::size(halves); ++i)
    EXPECT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(halves[i].second)) << i;
  EXPECT_TRUE(std::isnan(got.back()));
  const uint16_t wide[] = {0x3f80, 0xc0a0};
  numbers_from(wide, DType::bf16, 0, std::span(got).first(2));
  EXPECT_EQ(got[0], 1.0f);
  EXPECT_EQ(got[1], -5.0f);
  const double reals[] = {0.5, -2};
  numbers_from(reals, DType::f64, 1, std::span(got).first(1));
  EXPECT_EQ(got[0], -2.0f);
}

}  // namespace
}  // namespace tfcc::generate
