// SPDX-License-Identifier: Apache-2.0
// Captured launches on the fake driver: one graph per bucket of shapes gives what plain launches
// give, keeps up with the arena, and leaves a caller's own capture alone.
#include <random>

#include "tests/runtime/cuda/fake_cuda.h"

namespace tfcc {
namespace {

using namespace testing_support;

using CudaGraphTest = CudaBackendTest;

// Long rows too.
void open_ended(pb::Manifest& m) {
  m.clear_checks();
  m.mutable_symbols(0)->clear_max();
  set_bucket_table(m);
}

Shapes shapes_of(int64_t b, int64_t s) { return {{"x", {b, s, kC}}, {"ids", {b, s}}}; }

// run() with the arena full of NaN.
void expect_right_from_poison(Executor& e, int (*poison)(size_t), int64_t b, int64_t s) {
  ASSERT_TRUE(e.prepare(shapes_of(b, s)));
  ASSERT_GE(poison(e.arena_bytes()), 1);
  expect_right(e, {b, s});
}

void set_on_device(Executor& e, SmallCase& c, std::vector<float>& out) {
  TensorRef refs[] = {c.x_ref(), c.ids_ref(), {out.data(), DType::f32, {c.batch, c.length, kO}}};
  const char* names[] = {"x", "ids", "out"};
  for (int i = 0; i < 3; ++i) {
    refs[i].place = Place::device;
    ASSERT_TRUE(e.set(names[i], refs[i]));
  }
}

TEST_F(CudaGraphTest, one_graph_serves_every_shape_of_a_bucket) {
  auto body = [&] {
    Model model = load(open_ended);
    Executor e = *model.executor();
    auto* poison = fake<int(size_t)>("fake_cuda_poison");
    for (auto [b, s] : {std::pair{4, 16}, {1, 9}, {7, 9}, {3, 15}, {2, 11}, {5, 12}}) {
      expect_right_from_poison(e, poison, b, s);
    }
    EXPECT_EQ(e.stats().graphs_made, 1u);
    EXPECT_EQ(e.stats().graph_runs, 6u);
    EXPECT_EQ(e.stats().plain_runs, 0u);
    for (auto [b, s] : {std::pair{1, 17}, {9, 100}, {5, 33}, {4, 16}}) {
      expect_right_from_poison(e, poison, b, s);
    }
    EXPECT_EQ(e.stats().plain_runs, 0u);
  };
  EXPECT_EXIT(in_child(body), testing::ExitedWithCode(0), "");
}

TEST_F(CudaGraphTest, nothing_is_made_after_all_is_prepared) {
  auto body = [&] {
    Model model = load(open_ended);
    Executor e = *model.executor();
    ASSERT_TRUE(e.prepare_all(shapes_of(12, 80)));
    const ExecutorStats before = e.stats();
    EXPECT_GT(before.graphs_made, 10u);
    EXPECT_EQ(before.modules_loaded, 0u);
    std::mt19937 rng(7);
    for (int i = 0; i < 50; ++i) {
      const auto b = 1 + static_cast<int64_t>(rng() % 12);
      const auto s = 1 + static_cast<int64_t>(rng() % 80);
      expect_right(e, {b, s});
    }
    const ExecutorStats after = e.stats();
    EXPECT_EQ(after.graphs_made, before.graphs_made);
    EXPECT_EQ(after.device_allocations, before.device_allocations);
    EXPECT_EQ(after.modules_loaded, 0u);
    EXPECT_EQ(after.graph_runs, 50u);
    EXPECT_EQ(after.plain_runs, 0u);
  };
  EXPECT_EXIT(in_child(body), testing::ExitedWithCode(0), "");
}

// Without shapes, all that the file says it takes.
TEST_F(CudaGraphTest, all_shapes_of_a_file_with_limits) {
  auto body = [&] {
    Model unlimited = load(open_ended);
    auto refused = unlimited.executor()->prepare_all();
    ASSERT_FALSE(refused);
    EXPECT_NE(refused.error().message.find("names no largest batch_size"), std::string::npos)
        << refused.error().message;
    Model model = load([](pb::Manifest& m) {
      open_ended(m);
      m.mutable_symbols(0)->set_max(12);
      m.mutable_symbols(1)->set_max(80);
      m.mutable_symbols(2)->set_max(300);
      set_bucket_table(m, {16, 80});
    });
    Executor e = *model.executor();
    ASSERT_TRUE(e.prepare_all());
    const ExecutorStats before = e.stats();
    EXPECT_EQ(before.graphs_made, 8u) << "to 16: 64, 128, 192; to 80: 64, 128, 192, 256, 300";
    std::mt19937 rng(7);
    for (int i = 0; i < 50; ++i) {
      const auto s = 1 + static_cast<int64_t>(rng() % 80);
      const auto b = 1 + static_cast<int64_t>(rng() % std::min<int64_t>(12, 300 / s));
      expect_right(e, {b, s});
    }
    EXPECT_EQ(e.stats().graphs_made, before.graphs_made);
    EXPECT_EQ(e.stats().device_allocations, before.device_allocations);
    EXPECT_EQ(e.stats().plain_runs, 0u);
  };
  EXPECT_EXIT(in_child(body), testing::ExitedWithCode(0), "");
}

TEST_F(CudaGraphTest, graphs_follow_the_arena) {
  auto body = [&] {
    std::vector<std::string> lines;
    LoadOptions options;
    options.log = [&](std::string_view line) { lines.emplace_back(line); };
    Model model = load(open_ended, options);
    Executor e = *model.executor();
    ASSERT_TRUE(e.prepare(shapes_of(2, 3)));
    EXPECT_TRUE(lines.empty());
    expect_right(e, {8, 40});  // a larger arena: both buckets captured
    EXPECT_EQ(e.stats().graphs_made, 3u);
    ASSERT_EQ(lines.size(), 2u);
    EXPECT_NE(lines[0].find("arena grew"), std::string::npos);
    EXPECT_NE(lines[1].find("captured the launches for up to batch_size = 9"), std::string::npos)
        << lines[1];
    expect_right(e, {2, 3});
    expect_right(e, {8, 40});
    EXPECT_EQ(e.stats().graphs_made, 3u);
    EXPECT_EQ(lines.size(), 2u) << "said once";
    EXPECT_EQ(e.stats().plain_runs, 0u);
  };
  EXPECT_EXIT(in_child(body), testing::ExitedWithCode(0), "");
}

TEST_F(CudaGraphTest, a_captured_stream_gets_plain_launches) {
  auto body = [&] {
    Model model = load(open_ended);
    Executor e = *model.executor();
    ASSERT_TRUE(e.prepare(shapes_of(3, 5)));
    SmallCase c(3, 5);
    std::vector<float> out(c.expected.size(), -1);
    set_on_device(e, c, out);
    int stream = 0;
    void* graph = nullptr;
    fake<int(void*, int)>("cuStreamBeginCapture_v2")(&stream, 0);
    auto queued = e.enqueue(&stream);
    ASSERT_TRUE(queued) << queued.error().message;
    fake<int(void*, void**)>("cuStreamEndCapture")(&stream, &graph);
    EXPECT_EQ(out[0], -1) << "recorded, not run";
    EXPECT_EQ(e.stats().plain_runs, 1u);
    SmallCase other(2, 7);  // other sizes in the block and the arena
    std::vector<float> other_out(other.expected.size());
    set_on_device(e, other, other_out);
    ASSERT_TRUE(e.enqueue(nullptr));
    EXPECT_EQ(other_out, other.expected);
    out.assign(out.size(), -1);
    fake<int(void*, void*)>("cuGraphLaunch")(graph, nullptr);
    EXPECT_EQ(out, c.expected) << "the caller's graph holds its sizes and pointers";
    fake<int(void*)>("cuGraphDestroy")(graph);
    EXPECT_EQ(e.stats().graph_runs, 1u);
  };
  EXPECT_EXIT(in_child(body), testing::ExitedWithCode(0), "");
}

TEST_F(CudaGraphTest, the_graph_follows_the_callers_pointers) {
  auto body = [&] {
    Model model = load();
    Executor e = *model.executor();
    for (int i = 0; i < 3; ++i) {
      SmallCase c(2 + i, 3);
      std::vector<float> out(c.expected.size());
      set_on_device(e, c, out);
      ASSERT_TRUE(e.enqueue(nullptr));
      EXPECT_EQ(out, c.expected);
    }
    EXPECT_EQ(e.stats().graphs_made, 1u);
    EXPECT_EQ(e.stats().graph_runs, 3u);
  };
  EXPECT_EXIT(in_child(body), testing::ExitedWithCode(0), "");
}

TEST_F(CudaGraphTest, a_disturbed_capture_fails_prepare_but_no_run) {
  auto body = [&] {
    std::vector<std::string> lines;
    LoadOptions options;
    options.log = [&](std::string_view line) { lines.emplace_back(line); };
    Model model = load(nullptr, options);
    Executor e = *model.executor();
    fake<void(int)>("fake_cuda_fail_captures")(2);
    auto prepared = e.prepare(shapes_of(2, 3));
    ASSERT_FALSE(prepared);
    EXPECT_NE(prepared.error().message.find("end of a capture"), std::string::npos);
    expect_right(e, {2, 3});
    EXPECT_EQ(e.stats().plain_runs, 1u);
    ASSERT_EQ(lines.size(), 1u);
    EXPECT_NE(lines[0].find("could not capture the launches"), std::string::npos) << lines[0];
    expect_right(e, {2, 3});
    EXPECT_EQ(e.stats().graph_runs, 1u);
  };
  EXPECT_EXIT(in_child(body), testing::ExitedWithCode(0), "");
}

TEST_F(CudaGraphTest, executors_have_graphs_of_their_own) {
  auto body = [&] {
    Model model = load();
    Executor a = *model.executor();
    {
      Executor b = *model.executor();
      for (int i = 1; i < 5; ++i) {
        expect_right(a, {i, 3});
        expect_right(b, {2, i});
      }
      EXPECT_EQ(b.stats().graphs_made, 1u);
    }
    expect_right(a, {4, 4});
    EXPECT_EQ(a.stats().graphs_made, 1u);
    EXPECT_EQ(a.stats().graph_runs, 5u);
  };
  EXPECT_EXIT(in_child(body), testing::ExitedWithCode(0), "");
}

TEST_F(CudaGraphTest, plain_launches_where_graphs_are_off_or_cannot_be) {
  auto batched = [](pb::Manifest& m) {
    m.mutable_plans(0)
        ->clear_bucket_table();  // as codegen leaves it out where a batch depends on the shapes
    auto& launches = *m.mutable_plans(0)->mutable_buckets(0)->mutable_launches();
    pb::MatmulLaunch& g = *launches[1].mutable_matmul();
    for (auto* e : {g.mutable_m(), g.mutable_batch()}) e->clear_code();
    size(g.mutable_m(), {1, 1});
    size(g.mutable_batch(), {1, 0});
    size(g.mutable_stride_a(), {1, 1, 0, kC, 3});
  };
  auto limited = [](pb::Manifest& m) {
    pb::Check* c = m.mutable_plans(0)->add_limits();
    size(c->mutable_value(), {0, 40, 1, 2, 9, 2});  // 40 - tokens >= 0: under every cap
  };
  auto body = [&] {
    LoadOptions off;
    off.graphs = false;
    for (const Model& model : {load(nullptr, off), load(batched), load(limited)}) {
      Executor e = *model.executor();
      ASSERT_TRUE(e.prepare_all(shapes_of(2, 16)));
      for (auto [b, s] : {std::pair{2, 3}, {2, 16}, {1, 1}}) expect_right(e, {b, s});
      EXPECT_EQ(e.stats().graphs_made, 0u);
      EXPECT_EQ(e.stats().plain_runs, 3u);
    }
  };
  EXPECT_EXIT(in_child(body), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace tfcc
