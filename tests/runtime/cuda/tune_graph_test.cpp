// SPDX-License-Identifier: Apache-2.0
// tune_graph on the fake driver, where every tile and every algorithm takes a time that is known.
#include "runtime/core/tune_graph.h"

#include <gtest/gtest.h>

#include "runtime/core/tile_table.h"
#include "tests/runtime/cuda/fake_cuda.h"

namespace tfcc::runtime {
namespace {

using namespace testing_support;

// The last launch has three tiles, of which the model takes the first.
void with_tiles(pb::Manifest& m) {
  pb::Plan& plan = *m.mutable_plans(0);
  pb::KernelLaunch& launch = *plan.mutable_buckets(0)->mutable_launches(2)->mutable_kernel();
  plan.mutable_kernels(static_cast<int>(launch.kernel()))->set_name("add_one_tiled");
  pb::TileChoice& choice = *launch.mutable_tiles();
  size(choice.mutable_rows(), {1, 2});
  choice.set_columns(64);
  for (int i = 0; i < 3; ++i) {
    pb::Tile& t = *choice.add_tiles();
    t.set_rows(64), t.set_columns(64), t.set_round_cycles(static_cast<float>(1 + i));
  }
  choice.set_what("wgmma f32 f32; 64x4; 64x64 64x64 64x64");
}

TileChoice choice_of_tiles() {
  TileChoice c;
  c.what = "wgmma f32 f32; 64x4; 64x64 64x64 64x64";
  return c;
}

class TuneGraphTest : public TuningTest {
 protected:
  // By a run of these sizes.
  Result<GraphTuning> tuned(Executor& e, SmallCase&& c) { return tuned(e, c); }
  Result<GraphTuning> tuned(Executor& e, SmallCase& c) {
    TFCC_TRY_VOID(e.set("x", c.x_ref()));
    TFCC_TRY_VOID(e.set("ids", c.ids_ref()));
    return tune_graph(e);
  }
  // The same where it must not fail.
  GraphTuning found(Executor& e, SmallCase& c) {
    const auto t = tuned(e, c);
    EXPECT_TRUE(t) << t.error().message;
    return t ? *t : GraphTuning();
  }
  TimingCache::Entry entry(int64_t rows) {
    TimingCache cache;
    EXPECT_TRUE(cache.load(cache_));
    const auto found = cache.find(tile_key("fake GPU", choice_of_tiles(), rows));
    EXPECT_TRUE(found) << rows << " rows";
    return found.value_or(TimingCache::Entry());
  }
};

// Alone algorithm 3 is the fastest, and in a graph 4 is.
TEST_F(TuneGraphTest, TakesWhatIsFastestInsideTheGraph) {
  auto body = [&] {
    fake_lt<void(bool)>("fake_cublaslt_timed")(true);
    fake_lt<void(int)>("fake_cublaslt_slow_in_graphs")(3);
    auto* runs = fake_lt<int(int)>("fake_cublaslt_runs");
    auto* tiles = fake<int(int)>("fake_cuda_tiles");
    SmallCase c{4, 16};
    {
      Model model = load(with_tiles, options(true));
      Executor e = *model.executor();
      const GraphTuning t = found(e, c);
      EXPECT_EQ(t.measured, 2u);
      EXPECT_EQ(t.changed, 2u);
      // 4 ms and 8 before, 2 and 5 now, beside the same for the marks of both.
      EXPECT_NEAR(t.before_us - t.after_us, 5000, 1);
      const int before = tiles(1);
      expect_right(e, c);
      EXPECT_EQ(tiles(1), before + 1) << "the executor that was tuned";
      const auto again = tuned(e, c);
      ASSERT_TRUE(again);
      EXPECT_EQ(again->measured, 0u) << "what is known";
    }
    EXPECT_EQ(entry(64).algorithm[0], 2u) << "1 + the tile";
    Model model = load(with_tiles, options(false));
    Executor e = *model.executor();
    const int before[] = {runs(3), runs(4), tiles(0), tiles(1)};
    expect_right(e, c);
    EXPECT_EQ(runs(3), before[0]);
    EXPECT_EQ(runs(4), before[1] + 1);
    EXPECT_EQ(tiles(0), before[2]);
    EXPECT_EQ(tiles(1), before[3] + 1);
    expect_right(e, {8, 16});
    EXPECT_EQ(tiles(0), before[2] + 1) << "of 128 rows nothing is known";
  };
  EXPECT_EXIT(in_child(body), testing::ExitedWithCode(0), "");
}

// Of runs that do not fill their bucket, too: the entry is of the bucket.
TEST_F(TuneGraphTest, TheRunsThatWereMeasuredTakeIt) {
  auto body = [&] {
    auto* tiles = fake<int(int)>("fake_cuda_tiles");
    SmallCase c{3, 15};
    {
      Model model = load(with_tiles, options(true));
      Executor e = *model.executor();
      const GraphTuning t = found(e, c);
      EXPECT_GE(t.changed, 1u);
    }
    EXPECT_EQ(entry(64).algorithm[0], 2u);
    Model model = load(with_tiles, options(false));
    Executor e = *model.executor();
    const int before[] = {tiles(0), tiles(1)};
    expect_right(e, c);
    EXPECT_EQ(tiles(0), before[0]);
    EXPECT_EQ(tiles(1), before[1] + 1);
  };
  EXPECT_EXIT(in_child(body), testing::ExitedWithCode(0), "");
}

// Numbers that the model flags are measured like others.
TEST_F(TuneGraphTest, ValuesThatTheModelRefusesAreNoError) {
  auto body = [&] {
    Model model = load(with_tiles, options(true));
    Executor e = *model.executor();
    SmallCase c{4, 16};
    SmallCase good = c;
    c.ids[7] = 1000;
    const GraphTuning t = found(e, c);
    EXPECT_GE(t.measured, 1u);
    expect_right(e, good);  // nothing is left of it
  };
  EXPECT_EXIT(in_child(body), testing::ExitedWithCode(0), "");
}

TEST_F(TuneGraphTest, LeavesWhatSavesLittle) {
  auto body = [&] {
    auto* set = fake<void(int, double)>("fake_cuda_tile_ms");
    set(0, 100), set(1, 98.9), set(2, 120);
    auto* tiles = fake<int(int)>("fake_cuda_tiles");
    SmallCase c{4, 16};
    Model model = load(with_tiles, options(true));
    Executor e = *model.executor();
    const GraphTuning t = found(e, c);
    EXPECT_GE(t.measured, 1u);
    EXPECT_EQ(t.changed, 0u);
    EXPECT_EQ(t.before_us, t.after_us);
    EXPECT_EQ(entry(64).algorithm[0], 0u) << "measured, and not beaten";
    const int before = tiles(0);
    expect_right(e, c);
    EXPECT_EQ(tiles(0), before + 1);
    EXPECT_LE(tiles(2), 2 * (1 + 5)) << "what is much slower is given up after the first rounds";
  };
  EXPECT_EXIT(in_child(body), testing::ExitedWithCode(0), "");
}

TEST_F(TuneGraphTest, NeedsARunThatHasAGraph) {
  auto body = [&] {
    Model model = load(with_tiles, options(true));
    Executor e = *model.executor();
    const auto empty = tuned(e, {0, 5});
    ASSERT_FALSE(empty);
    EXPECT_EQ(empty.error().code, ErrorCode::invalid_argument);
    LoadOptions plain = options(true);
    plain.graphs = false;
    Model other = load(with_tiles, plain);
    Executor without = *other.executor();
    const auto none = tuned(without, {4, 16});
    ASSERT_TRUE(none) << none.error().message;
    EXPECT_EQ(none->measured, 0u);
    EXPECT_TRUE(runs_of_buckets(without, {{"x", {4, 16, kC}}, {"ids", {4, 16}}})->empty());
  };
  EXPECT_EXIT(in_child(body), testing::ExitedWithCode(0), "");
}

// Tokens are rounded up by themselves: rows of the longest length seldom make exactly as many.
TEST_F(TuneGraphTest, RunsFillTheBucketsThatTheyAreOf) {
  auto body = [&] {
    Model model = load(with_tiles, options(false));
    Executor e = *model.executor();
    const auto runs = runs_of_buckets(e, {{"x", {8, 16, kC}}, {"ids", {8, 16}}});
    ASSERT_TRUE(runs) << runs.error().message;
    std::set<std::pair<int64_t, int64_t>> seen;  // the cap of the length, and of the tokens
    for (const auto& sizes : *runs) {
      ASSERT_EQ(sizes.size(), 2u);
      const int64_t batch = sizes.begin()->second, length = sizes.rbegin()->second;
      int64_t cap = 4;
      while (cap < length) cap *= 2;
      const int64_t tokens = (batch * length + 63) / 64 * 64;
      EXPECT_TRUE(seen.emplace(cap, tokens).second) << batch << " x " << length;
      int64_t most = 0;  // of all runs of that bucket
      for (int64_t b = 1; b <= kMaxBatch; ++b) {
        for (int64_t l = cap == 4 ? 1 : cap / 2 + 1; l <= cap; ++l) {
          if (b * l <= tokens && b * l > tokens - 64) most = std::max(most, b * l);
        }
      }
      EXPECT_EQ(batch * length, most) << batch << " x " << length;
    }
    EXPECT_TRUE(seen.contains({16, 128}));
  };
  EXPECT_EXIT(in_child(body), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace tfcc::runtime
