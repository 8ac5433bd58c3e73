// SPDX-License-Identifier: Apache-2.0
// The timing cache as text, and what products make of it on the fake driver and cuBLASLt.
#include "runtime/core/timing_cache.h"

#include <gtest/gtest.h>

#include "tests/runtime/cuda/fake_cuda.h"

namespace tfcc::runtime {
namespace {

using namespace testing_support;

MatmulShape product(int64_t m) {
  MatmulShape s;
  s.m = m, s.n = 768, s.k = 3072, s.has_bias = true;
  return s;
}

TEST(TimingCache, entries_survive_as_text) {
  TimingCache cache;
  const std::string key = TimingCache::key("NVIDIA H200", 130200, product(128));
  cache.add(key, {{1, 2, 3, 4, 5, 6, 7, ~uint64_t{0}}, 12.5});
  TimingCache copy;
  EXPECT_EQ(copy.read(cache.text()), 1u);
  auto entry = copy.find(key);
  ASSERT_TRUE(entry);
  EXPECT_EQ(entry->algorithm[7], ~uint64_t{0});
  EXPECT_DOUBLE_EQ(entry->us, 12.5);
  EXPECT_EQ(copy.added(), 0u) << "read, not measured";
}

TEST(TimingCache, a_key_holds_all_that_matters) {
  const MatmulShape s = product(128);
  const std::string key = TimingCache::key("NVIDIA H200", 130200, s);
  EXPECT_NE(key, TimingCache::key("NVIDIA H100", 130200, s));
  EXPECT_NE(key, TimingCache::key("NVIDIA H200", 130100, s));
  EXPECT_NE(key, TimingCache::key("NVIDIA H200", 130200, product(64)));
  MatmulShape changed[9] = {s, s, s, s, s, s, s, s, s};
  changed[0].trans_b = true;
  changed[1].has_bias = false;
  changed[2].a = DType::f16;
  changed[3].batch = 2, changed[3].stride_a = 128 * 3072;
  changed[4].trans_a = true;
  changed[5].bias = DType::f16;
  changed[6].in_order = true;
  changed[7].tf32 = true;
  changed[8].side_by_side = true;
  for (const MatmulShape& c : changed) EXPECT_NE(key, TimingCache::key("NVIDIA H200", 130200, c));
}

TEST(TimingCache, skips_what_it_does_not_know) {
  TimingCache cache;
  EXPECT_EQ(cache.read(""), 0u);
  EXPECT_EQ(cache.read("another file\nkey | 1.0 1 2 3 4 5 6 7 8\n"), 0u);
  EXPECT_EQ(cache.read("tfcc timing cache 1\n"
                       "good | 1.0 1 2 3 4 5 6 7 8\n"
                       "\n"
                       "no bar 1 2 3\n"
                       "short | 1.0 1 2 3\n"
                       "long | 1.0 1 2 3 4 5 6 7 8 9\n"
                       "negative | -1.0 1 2 3 4 5 6 7 8\n"
                       "letters | 1.0 1 2 3 4 5 6 7 xyz\n"
                       "last | 2.0 a b c d e f 0 1"),
            2u);
  EXPECT_TRUE(cache.find("good"));
  EXPECT_EQ(cache.find("last")->algorithm[0], 10u);
}

TEST(TimingCache, a_file_that_is_not_there_is_empty) {
  TimingCache cache;
  EXPECT_TRUE(cache.load(temporary_path("no_such_cache")));
  EXPECT_FALSE(cache.load("/")) << "a folder";
  EXPECT_EQ(cache.size(), 0u);
}

const Shapes kShapes = {{"x", {2, 5, kC}}, {"ids", {2, 5}}};

TEST_F(TuningTest, the_fastest_is_kept_and_taken) {
  auto body = [&] {
    fake_lt<void(bool)>("fake_cublaslt_timed")(true);
    auto* runs = fake_lt<int(int)>("fake_cublaslt_runs");
    {
      Model model = load(nullptr, options(true));
      Executor e = *model.executor();
      ASSERT_TRUE(e.prepare(kShapes));
      for (int algorithm = 1; algorithm <= 4; ++algorithm) EXPECT_GT(runs(algorithm), 10);
      expect_right(e, {2, 5});
    }
    TimingCache written;
    ASSERT_TRUE(written.load(cache_));
    EXPECT_GE(written.size(), 1u);
    fake_lt<void(bool)>("fake_cublaslt_timed")(false);
    Model model = load(nullptr, options(false));
    Executor e = *model.executor();
    const int before[] = {runs(1), runs(3)};
    expect_right(e, {2, 5});
    EXPECT_EQ(runs(1), before[0]);
    EXPECT_EQ(runs(3), before[1] + 1) << "the one that takes a millisecond";
  };
  EXPECT_EXIT(in_child(body), testing::ExitedWithCode(0), "");
}

// An earlier one is taken unless a later is clearly faster, and so the one that is taken may have
// the longest time of those that are near it.
TEST_F(TuningTest, one_that_is_nearly_the_fastest_is_kept) {
  auto body = [&] {
    fake_lt<void(bool)>("fake_cublaslt_timed")(true);
    auto* set = fake_lt<void(int, double)>("fake_cublaslt_ms");
    set(1, 10);
    for (int algorithm = 2; algorithm <= 6; ++algorithm) set(algorithm, 5.02 - algorithm * 0.01);
    {
      Model model = load(nullptr, options(true));
      ASSERT_TRUE(model.executor()->prepare(kShapes));
    }
    TimingCache written;
    ASSERT_TRUE(written.load(cache_));
    const auto all = written.starting_with("");
    ASSERT_FALSE(all.empty());
    for (const auto& [key, entry] : all) {
      EXPECT_EQ(entry.algorithm[0], 2u) << key;
      EXPECT_NEAR(entry.us, 5000, 100) << key;
    }
  };
  EXPECT_EXIT(in_child(body), testing::ExitedWithCode(0), "");
}

// The library's own choice, without a word.
TEST_F(TuningTest, an_entry_that_the_library_refuses_is_ignored) {
  auto body = [&] {
    {
      Model model = load(nullptr, options(true));
      ASSERT_TRUE(model.executor()->prepare(kShapes));
    }
    TimingCache cache;
    ASSERT_TRUE(cache.load(cache_));
    std::string text = cache.text();
    for (size_t at = text.find('\n') + 1; at < text.size(); at = text.find('\n', at) + 1) {
      const size_t algorithm = text.find(' ', text.find(" | ", at) + 3) + 1;
      text.replace(algorithm, text.find(' ', algorithm) - algorithm, "ffff");
    }
    std::ofstream(cache_) << text;
    Model model = load(nullptr, options(false));
    Executor e = *model.executor();
    auto* runs = fake_lt<int(int)>("fake_cublaslt_runs");
    const int before = runs(1);
    expect_right(e, {2, 5});
    EXPECT_EQ(runs(1), before + 1);
  };
  EXPECT_EXIT(in_child(body), testing::ExitedWithCode(0), "");
}

TEST_F(TuningTest, tuning_needs_a_file) {
  auto body = [&] {
    LoadOptions o;
    o.tune = true;
    load(nullptr, o);
  };
  EXPECT_EXIT(in_child(body), testing::ExitedWithCode(8), "tuning needs a file to write");
}

}  // namespace
}  // namespace tfcc::runtime
