// SPDX-License-Identifier: Apache-2.0
// Buckets of shapes: that every shape lies under its caps, and what keeps a plan out of them.
#include "runtime/caps.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace tfcc::runtime {
namespace {

using Sizes = std::vector<int64_t>;

SizeExpr program(std::initializer_list<int64_t> code) { return {code, ""}; }

// batch, length, tokens; one product of `tokens` rows.
struct CapsTest : testing::Test {
  CapsTest() {
    manifest.inputs.resize(1);
    manifest.inputs[0].dims = {program({1, 0}), program({1, 1})};
    manifest.symbols = {{"B", 1, 0, 0, 0, {}}, {"S", 1, 512, 0, 1, {}}};
    manifest.symbols.push_back({"tokens", 0, 0, 0, 0, program({1, 0, 1, 1, 3})});
    plan.family = "cuda";
    plan.slots = {program({1, 2, 0, 768, 3})};
    Launch launch;
    launch.gemm.emplace();
    launch.gemm->m = program({1, 2});
    launch.gemm->n = launch.gemm->k = program({0, 768});
    launch.gemm->batch = program({0, 1});
    plan.buckets.resize(1);
    plan.buckets[0].launches.push_back(launch);
    Launch kernel;
    kernel.kernel.emplace();
    kernel.kernel->grid = {program({1, 2, 0, 7, 2, 0, 8, 4})};
    plan.buckets[0].launches.push_back(kernel);
  }
  GemmLaunch& gemm() { return *plan.buckets[0].launches[0].gemm; }
  bool possible() const { return Caps(manifest, plan).possible(); }

  Manifest manifest;
  Plan plan;
};

TEST(TokenCap, steps_of_64_then_an_eighth) {
  EXPECT_EQ(token_cap(1), 64);
  EXPECT_EQ(token_cap(64), 64);
  EXPECT_EQ(token_cap(65), 128);
  EXPECT_EQ(token_cap(512), 512);
  EXPECT_EQ(token_cap(513), 640);
  EXPECT_EQ(token_cap(1024), 1024);
  EXPECT_EQ(token_cap(1025), 1280);
  EXPECT_EQ(token_cap(16384), 16384);
}

TEST(NeverDecreases, by_form) {
  EXPECT_TRUE(never_decreases(program({})));
  EXPECT_TRUE(never_decreases(program({1, 0, 0, 255, 2, 0, 256, 4})));
  EXPECT_TRUE(never_decreases(program({1, 0, 1, 1, 3, 0, 8, 6})));
  EXPECT_FALSE(never_decreases(program({1, 0, 0, -1, 2}))) << "a negative number";
  EXPECT_FALSE(never_decreases(program({0, 100, 1, 0, 4}))) << "a divisor that grows";
  EXPECT_FALSE(never_decreases(program({1, 0, 9}))) << "negated";
  EXPECT_FALSE(never_decreases(program({1, 0, 0, 1, 0, 2, 8}))) << "a choice";
}

TEST_F(CapsTest, covers_every_shape_of_a_bucket) {
  const Caps caps(manifest, plan);
  ASSERT_TRUE(caps.possible());
  const auto all = caps.up_to(Sizes{70, 512, 70 * 512});
  EXPECT_LT(all.size(), 250u);
  Sizes found;
  for (int64_t b = 1; b <= 70; ++b) {
    for (int64_t s = 1; s <= 512; s += s < 70 ? 1 : 37) {
      ASSERT_TRUE(caps.find(Sizes{b, s, b * s}, found));
      ASSERT_GE(found[0], b);
      ASSERT_GE(found[1], s);
      ASSERT_GE(found[2], b * s);
      ASSERT_LE(found[1], std::max<int64_t>(4, 2 * s - 1));
      ASSERT_LE(found[2], std::max<int64_t>(b * s + 63, b * s * 5 / 4)) << b << " " << s;
      ASSERT_NE(std::find(all.begin(), all.end(), found), all.end()) << b << " x " << s;
    }
  }
}

TEST_F(CapsTest, keeps_within_the_largest_sizes_of_symbols) {
  manifest.symbols[0].max = 8;
  manifest.symbols[1].max = 100;
  const Caps caps(manifest, plan);
  Sizes found;
  ASSERT_TRUE(caps.find(Sizes{2, 80, 160}, found));
  EXPECT_EQ(found, (Sizes{2, 100, 192}));          // 2 = 192 / 65
  ASSERT_TRUE(caps.find(Sizes{8, 3, 24}, found));
  EXPECT_EQ(found, (Sizes{8, 4, 64}));
}

TEST_F(CapsTest, lengths_that_the_file_names) {
  plan.lengths = {24, 100, 384};
  manifest.symbols[1].max = 384;
  manifest.symbols[2].max = 1000;
  const Caps caps(manifest, plan);
  Sizes found;
  ASSERT_TRUE(caps.find(Sizes{2, 10, 20}, found));
  EXPECT_EQ(found, (Sizes{64, 24, 64}));
  ASSERT_TRUE(caps.find(Sizes{2, 25, 50}, found));
  EXPECT_EQ(found, (Sizes{2, 100, 64})) << "2 = 64 / 25";
  ASSERT_TRUE(caps.find(Sizes{9, 101, 909}, found));
  EXPECT_EQ(found, (Sizes{9, 384, 1000})) << "no more tokens than the file takes";
  const auto all = caps.up_to(Sizes{1000, 384, 1000});
  for (const Sizes& b : all) {
    EXPECT_TRUE(b[1] == 24 || b[1] == 100 || b[1] == 384);
    EXPECT_LE(b[2], 1000);
  }
  for (int64_t s : {1, 24, 25, 100, 101, 384}) {
    for (int64_t b = 1; b * s <= 1000; ++b) {
      ASSERT_TRUE(caps.find(Sizes{b, s, b * s}, found));
      ASSERT_NE(std::find(all.begin(), all.end(), found), all.end()) << b << " x " << s;
    }
  }
}

TEST_F(CapsTest, sequence_first_inputs) {
  std::swap(manifest.symbols[0].axis, manifest.symbols[1].axis);
  manifest.symbols[1].axis = 0;
  manifest.symbols[0].axis = 1;
  const Caps caps(manifest, plan);
  ASSERT_TRUE(caps.possible());
  Sizes found;
  ASSERT_TRUE(caps.find(Sizes{100, 2, 200}, found));
  EXPECT_EQ(found, (Sizes{128, 3, 256}));
}

TEST_F(CapsTest, no_symbol_or_one) {
  gemm().m = program({0, 4});
  plan.slots = {program({0, 64})};
  plan.buckets[0].launches[1].kernel->grid = {program({0, 1})};
  manifest.symbols.clear();
  Sizes found{1};
  ASSERT_TRUE(Caps(manifest, plan).find(Sizes{}, found));
  EXPECT_EQ(found, Sizes{});
  EXPECT_EQ(Caps(manifest, plan).up_to(Sizes{}).size(), 1u);
  manifest.symbols = {{"B", 1, 100, 0, 0, {}}};
  const Caps one(manifest, plan);
  ASSERT_TRUE(one.find(Sizes{5}, found));
  EXPECT_EQ(found, Sizes{5});
  ASSERT_TRUE(one.find(Sizes{33}, found));
  EXPECT_EQ(found, Sizes{40});
  ASSERT_TRUE(one.find(Sizes{99}, found));
  EXPECT_EQ(found, Sizes{100});
  EXPECT_EQ(one.up_to(Sizes{40}).size(), 16u + 4 + 1);
}

TEST_F(CapsTest, ends_at_the_largest_size) {
  manifest.symbols[1].max = 16;
  EXPECT_EQ(Caps(manifest, plan).up_to(Sizes{1, int64_t{1} << 30, int64_t{1} << 30}).size(), 3u) << "lengths to 4, 8, 16";
  manifest.symbols[1].max = INT64_MAX;
  EXPECT_EQ(Caps(manifest, plan).up_to(Sizes{0, INT64_MAX, 0}).size(), 0u);
  gemm().m = program({0, 4});
  plan.slots = {program({0, 64})};
  plan.buckets[0].launches[1].kernel->grid = {program({0, 1})};
  manifest.symbols = {{"B", 1, 10, 0, 0, {}}};
  EXPECT_EQ(Caps(manifest, plan).up_to(Sizes{int64_t{1} << 60}).size(), 10u);
}

TEST_F(CapsTest, leaves_out_plans_that_more_rows_would_change) {
  ASSERT_TRUE(possible());
  const Plan good = plan;
  gemm().n = program({1, 1});
  EXPECT_FALSE(possible()) << "columns by length";
  plan = good;
  gemm().batch = program({1, 0});
  EXPECT_FALSE(possible()) << "a batch of products";
  plan = good;
  gemm().batch = program({0, 12});
  EXPECT_FALSE(possible()) << "rows between the products of a batch";
  plan = good;
  gemm().trans_a = true;
  EXPECT_FALSE(possible()) << "rows that are the columns of A";
  plan = good;
  plan.slots[0] = program({1, 2, 0, -1, 2});
  EXPECT_FALSE(possible()) << "a slot that might shrink";
  plan = good;
  plan.buckets[0].launches[1].kernel->grid[0] = program({1, 2, 9});
  EXPECT_FALSE(possible()) << "a grid that shrinks";
  plan = good;
  Buffer buffer;
  buffer.place = BufferClass::arena;
  buffer.dims = {program({1, 2})};
  buffer.offset = program({1, 2, 0, -1, 3});
  plan.buffers = {buffer};
  EXPECT_FALSE(possible()) << "a buffer that moves down";
  plan.buffers[0].offset = program({});
  EXPECT_TRUE(possible());
  plan.buffers[0].dims = {program({1, 2, 0, -1, 2})};
  EXPECT_FALSE(possible()) << "a buffer that might shrink";
  plan = good;
  manifest.symbols[2].value = program({1, 0, 1, 1, 2});
  EXPECT_FALSE(possible()) << "another derived size than the product";
}

TEST_F(CapsTest, refuses_caps_beyond_the_limits_of_the_plan) {
  plan.limits.push_back({program({0, 100, 1, 2, 9, 2}), false, "at most 100 tokens"});
  const Caps caps(manifest, plan);
  Sizes found;
  EXPECT_TRUE(caps.find(Sizes{4, 16, 64}, found));
  EXPECT_FALSE(caps.find(Sizes{5, 16, 80}, found)) << "its bucket ends at 128";
  EXPECT_EQ(caps.up_to(Sizes{6, 16, 96}).size(), 3u) << "lengths to 4, 8, 16";
}

TEST_F(CapsTest, launches_fit_the_shape_too) {
  plan.buckets.insert(plan.buckets.begin(), plan.buckets[0]);
  plan.buckets[0].limits.push_back({program({1, 1, 0, -10, 2}), false, "length of 10 or more"});
  const Caps caps(manifest, plan);
  Sizes found;
  EXPECT_TRUE(caps.find(Sizes{1, 12, 12}, found));
  EXPECT_FALSE(caps.find(Sizes{1, 9, 9}, found)) << "the caps' launches are not for 9";
}

}  // namespace
}  // namespace tfcc::runtime
