// SPDX-License-Identifier: Apache-2.0
// Buckets of shapes: what each size is rounded up to, that every shape finds a bucket at least as
// large, and what keeps a plan without.
#include "codegen/plan/bucket_table.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "codegen/lower.h"
#include "codegen/plan/sizes.h"
#include "ir/ir.h"
#include "runtime/core/bucket_finder.h"

namespace tfcc::codegen {
namespace {

using runtime::BucketFinder;
using Values = std::vector<int64_t>;

constexpr size_t kMost = 4096;

// A graph of batch, length and tokens, and the part of a manifest that buckets are found by.
struct BucketTableTest : testing::Test {
  BucketTableTest() {
    range("S", 1, 512);
    auto& p = graph.pool();
    graph.symbols = {{"B", 0, 0, SizeRole::batch},
                     {"S", 0, 1, SizeRole::length},
                     {"tokens", 0, 0, SizeRole::tokens, ir::mul(p.symbol("B"), p.symbol("S"))}};
    plan.buckets.resize(1);
  }

  void range(const char* name, int64_t min, std::optional<int64_t> max) {
    graph.pool().set_range(name, {min, max});
  }

  BucketFinder finder() {
    manifest.symbols.clear();
    std::vector<std::string> names;
    for (const ir::SizeSymbol& s : graph.symbols) names.push_back(s.name);
    for (const ir::SizeSymbol& s : graph.symbols) {
      const auto r = graph.pool().range(s.name);
      runtime::Symbol& x = manifest.symbols.emplace_back();
      x.name = s.name;
      x.min = s.computed() ? 0 : r.min;
      x.max = r.max.value_or(0);
      x.role = s.role;
      if (s.computed()) x.value = size_program(s.formula, names);
    }
    plan.bucket_table = bucket_table(graph, lengths);
    return {manifest, plan};
  }

  ir::Graph graph;
  std::vector<int64_t> lengths;
  runtime::Manifest manifest;
  runtime::Plan plan;
};

TEST_F(BucketTableTest, tokens_in_steps_of_64_then_an_eighth) {
  const auto caps = bucket_table(graph, {}).sizes[2].caps;
  auto cap = [&](int64_t n) { return *std::lower_bound(caps.begin(), caps.end(), n); };
  EXPECT_EQ(cap(1), 64);
  EXPECT_EQ(cap(64), 64);
  EXPECT_EQ(cap(65), 128);
  EXPECT_EQ(cap(512), 512);
  EXPECT_EQ(cap(513), 640);
  EXPECT_EQ(cap(1024), 1024);
  EXPECT_EQ(cap(1025), 1280);
  EXPECT_EQ(cap(16384), 16384);
  EXPECT_EQ(caps.back(), runtime::kLargestCap);
}

TEST_F(BucketTableTest, covers_every_shape_of_a_bucket) {
  const BucketFinder caps = finder();
  ASSERT_TRUE(caps.possible());
  const auto all = caps.up_to(Values{70, 512, 70 * 512}, kMost);
  EXPECT_LT(all.size(), 250u);
  Values found;
  for (int64_t b = 1; b <= 70; ++b) {
    for (int64_t s = 1; s <= 512; s += s < 70 ? 1 : 37) {
      ASSERT_TRUE(caps.find(Values{b, s, b * s}, found));
      ASSERT_GE(found[0], b);
      ASSERT_GE(found[1], s);
      ASSERT_GE(found[2], b * s);
      ASSERT_LE(found[1], std::max<int64_t>(4, 2 * s - 1));
      ASSERT_LE(found[2], std::max<int64_t>(b * s + 63, b * s * 5 / 4)) << b << " " << s;
      ASSERT_NE(std::find(all.begin(), all.end(), found), all.end()) << b << " x " << s;
    }
  }
}

TEST_F(BucketTableTest, keeps_within_the_largest_sizes_of_symbols) {
  range("B", 1, 8);
  range("S", 1, 100);
  const BucketFinder caps = finder();
  Values found;
  ASSERT_TRUE(caps.find(Values{2, 80, 160}, found));
  EXPECT_EQ(found, (Values{2, 100, 192}));  // 2 = 192 / 65
  ASSERT_TRUE(caps.find(Values{8, 3, 24}, found));
  EXPECT_EQ(found, (Values{8, 4, 64}));
}

TEST_F(BucketTableTest, lengths_that_the_file_names) {
  lengths = {24, 100, 384};
  range("S", 1, 384);
  range("tokens", 1, 1000);
  const BucketFinder caps = finder();
  Values found;
  ASSERT_TRUE(caps.find(Values{2, 10, 20}, found));
  EXPECT_EQ(found, (Values{64, 24, 64}));
  ASSERT_TRUE(caps.find(Values{2, 25, 50}, found));
  EXPECT_EQ(found, (Values{2, 100, 64})) << "2 = 64 / 25";
  ASSERT_TRUE(caps.find(Values{9, 101, 909}, found));
  EXPECT_EQ(found, (Values{9, 384, 1000})) << "no more tokens than the file takes";
  const auto all = caps.up_to(Values{1000, 384, 1000}, kMost);
  for (const Values& b : all) {
    EXPECT_TRUE(b[1] == 24 || b[1] == 100 || b[1] == 384);
    EXPECT_LE(b[2], 1000);
  }
  for (int64_t s : {1, 24, 25, 100, 101, 384}) {
    for (int64_t b = 1; b * s <= 1000; ++b) {
      ASSERT_TRUE(caps.find(Values{b, s, b * s}, found));
      ASSERT_NE(std::find(all.begin(), all.end(), found), all.end()) << b << " x " << s;
    }
  }
}

// Of a graph whose tokens come without padding: batch, the longest and all tokens are told apart.
TEST_F(BucketTableTest, covers_every_run_without_padding) {
  auto& p = graph.pool();
  range("T", 1, 10 * 512);
  range("B", 1, 10);
  graph.symbols = {
      {"T", 3, 0, SizeRole::tokens}, {"B", 1, 0, SizeRole::batch}, {"S", 5, 0, SizeRole::length}};
  for (int i = static_cast<int>(InputRole::cu_seqlens); i < kInputRoleCount; ++i) {
    const auto role = static_cast<InputRole>(i);
    const bool rows = role == InputRole::row_sequences || role == InputRole::row_positions;
    ir::ExprRef size = p.symbol(rows ? "T" : role == InputRole::longest ? "S" : "B");
    if (role == InputRole::cu_seqlens) size = ir::add(size, p.integer(1));
    graph.set_role(graph.add_input(std::string(to_string(role)), {DType::i32, {size}}), role);
    runtime::TensorType& t = manifest.inputs.emplace_back();
    t.role = role;
    t.dtype = DType::i32;
    t.dims = {size_program(size, {"T", "B", "S"})};
  }
  const BucketFinder caps = finder();
  ASSERT_TRUE(caps.possible());
  const Values largest{10 * 512, 10, 512};
  const auto all = caps.up_to(largest, kMost);
  EXPECT_LT(all.size(), 150u);
  std::vector<Values> reached;
  Values found;
  for (int64_t b = 1; b <= 10; ++b) {
    for (int64_t s = 1; s <= 512; s += s < 40 ? 1 : 29) {
      for (int64_t t = s + b - 1; t <= b * s; t += t < 300 ? 1 : 97) {
        ASSERT_TRUE(caps.find(Values{t, b, s}, found)) << t << " " << b << " " << s;
        ASSERT_GE(found[0], t);
        ASSERT_LE(found[0], std::max<int64_t>(64, t * 3 / 2));
        ASSERT_GE(found[1], b);
        ASSERT_LE(found[1], std::min<int64_t>(10, 2 * b - 1));
        ASSERT_GE(found[2], s);
        ASSERT_LE(found[2], std::max<int64_t>(16, 2 * s - 1));
        ASSERT_NE(std::find(all.begin(), all.end(), found), all.end()) << t << " " << b << " " << s;
        if (std::find(reached.begin(), reached.end(), found) == reached.end())
          reached.push_back(found);
      }
    }
  }
  for (const Values& b : all)  // at their ends, which the steps above may leave out
    EXPECT_LE(b[2] / 2 + b[1] / 2, b[0]) << "no run has " << b[0] << ", " << b[1] << ", " << b[2];
  EXPECT_GE(reached.size() * 10, all.size() * 9) << "many are never used";
}

TEST_F(BucketTableTest, sizes_in_any_order) {
  std::swap(graph.symbols[0].name, graph.symbols[1].name);
  std::swap(graph.symbols[0].role, graph.symbols[1].role);
  const BucketFinder caps = finder();
  Values found;
  ASSERT_TRUE(caps.find(Values{2, 100, 200}, found));
  EXPECT_EQ(found, (Values{4, 256, 256}));
}

TEST_F(BucketTableTest, no_symbol_or_one) {
  graph.symbols.clear();
  Values found{1};
  ASSERT_TRUE(finder().find(Values{}, found));
  EXPECT_EQ(found, Values{});
  EXPECT_EQ(finder().up_to(Values{}, kMost).size(), 1u);
  graph.symbols = {{"B", 0, 0, SizeRole::batch}};
  range("B", 1, 100);
  const BucketFinder one = finder();
  ASSERT_TRUE(one.find(Values{5}, found));
  EXPECT_EQ(found, Values{5});
  ASSERT_TRUE(one.find(Values{33}, found));
  EXPECT_EQ(found, Values{40});
  ASSERT_TRUE(one.find(Values{99}, found));
  EXPECT_EQ(found, Values{100});
  EXPECT_FALSE(one.find(Values{101}, found));
  EXPECT_EQ(one.up_to(Values{40}, kMost).size(), 16u + 4 + 1);
}

TEST_F(BucketTableTest, ends_at_the_largest_size) {
  range("S", 1, 16);
  EXPECT_EQ(finder().up_to(Values{1, int64_t{1} << 30, int64_t{1} << 30}, kMost).size(), 3u)
      << "lengths to 4, 8, 16";
  range("S", 1, INT64_MAX);
  EXPECT_EQ(finder().up_to(Values{0, INT64_MAX, 0}, kMost).size(), 0u);
  EXPECT_EQ(bucket_table(graph, {}).sizes[1].caps.back(), runtime::kLargestCap);
  graph.symbols = {{"B", 0, 0}};
  range("B", 1, 10);
  EXPECT_EQ(finder().up_to(Values{int64_t{1} << 60}, kMost).size(), 10u);
}

// A step of a decoder is a bucket of its own: no row of it is computed for nothing.
TEST_F(BucketTableTest, decoders_with_a_past) {
  range("P", 0, std::nullopt);
  graph.symbols.insert(graph.symbols.begin() + 2, {"P", 1, 2, SizeRole::past});
  const BucketFinder caps = finder();
  Values found;
  ASSERT_TRUE(caps.find(Values{1, 1, 100, 1}, found));
  EXPECT_EQ(found, (Values{1, 1, 128, 1}));
  ASSERT_TRUE(caps.find(Values{3, 1, 9, 3}, found));
  EXPECT_EQ(found, (Values{4, 1, 16, 4}));
  ASSERT_TRUE(caps.find(Values{1, 100, 0, 100}, found));
  EXPECT_EQ(found, (Values{1, 128, 0, 128})) << "no past is no bucket of any other";
  size_t steps = 0;
  Values before;
  for (int64_t p = 1; p <= 2048; ++p) {
    ASSERT_TRUE(caps.find(Values{1, 1, p, 1}, found));
    ASSERT_GE(found[2], p);
    steps += found != before;
    before = found;
  }
  EXPECT_EQ(steps, 8u) << "16, 32, .. 2048";
  const auto all = caps.up_to(Values{2, 8, 40, 16}, kMost);
  for (int64_t b = 1; b <= 2; ++b) {
    for (int64_t s = 1; s <= 8; ++s) {
      for (int64_t p = 0; p <= 40; ++p) {
        ASSERT_TRUE(caps.find(Values{b, s, p, b * s}, found));
        for (size_t i = 0; i < 4; ++i) ASSERT_GE(found[i], (Values{b, s, p, b * s})[i]);
        ASSERT_NE(std::find(all.begin(), all.end(), found), all.end()) << b << " " << s << " " << p;
      }
    }
  }
}

TEST_F(BucketTableTest, sizes_without_a_role_have_caps_of_their_own) {
  range("F", 0, 100);
  graph.symbols.insert(graph.symbols.begin(), {"F", 1, 1});
  const BucketFinder caps = finder();
  Values found;
  ASSERT_TRUE(caps.find(Values{0, 2, 10, 20}, found));
  EXPECT_EQ(found, (Values{0, 7, 16, 64}));
  ASSERT_TRUE(caps.find(Values{17, 2, 10, 20}, found));
  EXPECT_EQ(found, (Values{20, 7, 16, 64}));
  EXPECT_EQ(caps.up_to(Values{100, 64, 512, 1 << 14}, 10).size(), 10u) << "no more than asked for";
}

// The runtime is not told of a computed size that no program names.
TEST_F(BucketTableTest, leaves_out_multiples_of_one_size) {
  graph.symbols = {{"S", 0, 1, SizeRole::length},
                   {"tokens", 0, 0, SizeRole::tokens,
                    ir::mul(graph.pool().symbol("S"), graph.pool().integer(2))}};
  EXPECT_EQ(codegen::Sizes(graph).names(), std::vector<std::string>{"S"});
  EXPECT_EQ(bucket_table(graph, {}).sizes.size(), 1u);
}

TEST_F(BucketTableTest, refuses_caps_beyond_the_limits_of_the_plan) {
  plan.limits.push_back({{{0, 100, 1, 2, 9, 2}, ""}, false, "at most 100 tokens"});
  const BucketFinder caps = finder();
  Values found;
  EXPECT_TRUE(caps.find(Values{4, 16, 64}, found));
  EXPECT_FALSE(caps.find(Values{5, 16, 80}, found)) << "its bucket ends at 128";
  EXPECT_EQ(caps.up_to(Values{6, 16, 96}, kMost).size(), 3u) << "lengths to 4, 8, 16";
}

TEST_F(BucketTableTest, launches_fit_the_shape_too) {
  plan.buckets.insert(plan.buckets.begin(), plan.buckets[0]);
  plan.buckets[0].limits.push_back({{{1, 1, 0, -10, 2}, ""}, false, "length of 10 or more"});
  const BucketFinder caps = finder();
  Values found;
  EXPECT_TRUE(caps.find(Values{1, 12, 12}, found));
  EXPECT_FALSE(caps.find(Values{1, 9, 9}, found)) << "the caps' launches are not for 9";
}

// ---- what keeps a plan without buckets ----

std::string no_table(const std::string& text) {
  auto graph = ir::parse("graph @g(" + text, "test");
  EXPECT_TRUE(graph) << graph.error().message;
  if (!graph) return "";
  const auto broken = ir::verify(*graph);
  EXPECT_TRUE(broken.empty()) << ir::to_string(broken[0]);
  WeightPool weights;
  auto lowered = lower(*graph, class_of("sm_80"), weights);
  EXPECT_TRUE(lowered) << lowered.error().message;
  if (!lowered) return "";
  EXPECT_EQ(lowered->plan.bucket_table.has_value(), lowered->plan.no_bucket_table.empty());
  return lowered->plan.no_bucket_table;
}

constexpr const char* kSymbols =
    " symbols(B = x.0 in 1.. as batch, S = x.1 in 1..90 as length, tokens = (B*S) in 1.. as tokens) {\n";

TEST(NoBucketTable, rows_of_products_may_follow_the_shapes) {
  EXPECT_EQ(
      no_table(
          std::string("%x: f32[B,S,8], %w: f32[8,4])") + kSymbols +
          "  %a = pointwise(%x) {body = (i,j,k) => %x[i,j,k] + 1.0} : f32[B,S,8]\n  %v = pointwise(%w) {body = (i,j) => %w[i,j] + 1.0} : f32[8,4]\n"
          "  %y = matmul(%a, %v) {alpha = 1.0, trans_a = false, trans_b = false} : f32[B,S,4]\n  return y = %y\n}\n"),
      "");
}

TEST(NoBucketTable, columns_that_follow_the_shapes) {
  EXPECT_EQ(
      no_table(
          std::string("%x: f32[B,S,8])") + kSymbols +
          "  %a = pointwise(%x) {body = (i,j,k) => %x[i,j,k] + 1.0} : f32[B,S,8]\n"
          "  %y = matmul(%a, %a) {alpha = 1.0, trans_a = false, trans_b = true} : f32[B,S,S]\n  return y = %y\n}\n"),
      "product 'y' has a size other than its rows, S, that depends on the shapes");
}

TEST(NoBucketTable, rows_that_are_columns_of_what_is_stored) {
  const std::string why = no_table(
      std::string("%x: f32[8,S])") + " symbols(S = x.1 in 1..90 as length) {\n" +
      "  %a = pointwise(%x) {body = (i,j) => %x[i,j] + 1.0} : f32[8,S]\n  %b = pointwise(%x) {body = (i,j) => %x[i,0] + f32(j)} : f32[8,4]\n"
      "  %y = matmul(%a, %b) {alpha = 1.0, trans_a = true, trans_b = false} : f32[S,4]\n  return y = %y\n}\n");
  EXPECT_EQ(why, "product 'y' has rows that do not lie one behind the other");
}

TEST(NoBucketTable, sizes_that_shrink) {
  EXPECT_EQ(
      no_table(
          std::string("%x: f32[B,S])") + kSymbols +
          "  %a = pointwise(%x) {body = (i,j) => %x[i,0] + f32(j)} : f32[B,100-S]\n  return a = %a\n}\n"),
      "the grid of 'a' is (100*B - tokens + 255) / 256, which may shrink when a size grows");
}

// B*(S - 2) is tokens - 2*B: of more rows and as many tokens there are fewer elements.
TEST(NoBucketTable, less_a_number) {
  const char* const symbols =
      " symbols(B = x.0 in 1.. as batch, S = x.1 in 3..90 as length, tokens = (B*S) in 3.. as tokens) {\n";
  EXPECT_EQ(
      no_table(
          std::string("%x: f32[B,S])") + symbols +
          "  %a = pointwise(%x) {body = (i) => %x[0,i] + f32(i)} : f32[S-2]\n  return a = %a\n}\n"),
      "");
  EXPECT_EQ(
      no_table(
          std::string("%x: f32[B,S])") + symbols +
          "  %a = pointwise(%x) {body = (i,j) => %x[i,j] + f32(j)} : f32[B,S-2]\n  return a = %a\n}\n"),
      "the grid of 'a' is (-2*B + tokens + 255) / 256, which may shrink when a size grows");
}

}  // namespace
}  // namespace tfcc::codegen
