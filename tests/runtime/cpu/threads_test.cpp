// SPDX-License-Identifier: Apache-2.0
// What several threads may do at once: executors of one model, and loading, preparing and
// destroying beside runs. Under the preset `tsan` these are what the thread sanitizer watches.
#include <atomic>
#include <optional>
#include <stdexcept>
#include <thread>

#include "tests/runtime/core/small_model.h"

namespace tfcc {
namespace {

using namespace testing_support;

class Threads : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_cpu_plugin()) GTEST_SKIP() << "built without the CPU target";
    write_small_model(path_);
  }
  void TearDown() override { unlink(path_.c_str()); }

  static LoadOptions options() {
    LoadOptions o;
    o.device = "cpu";
    o.threads = 3;
    return o;
  }
  Model load() {
    auto m = Model::load(path_, options());
    if (!m) throw std::runtime_error(m.error().message);
    return *m;
  }

  static bool runs_right(Executor& e, int64_t batch, int64_t length) {
    SmallCase c(batch, length);
    if (!e.set("x", c.x_ref()) || !e.set("ids", c.ids_ref()) || !e.run()) return false;
    auto out = e.output("out");
    return out && values_of(*out) == c.expected;
  }

  std::string path_ = temporary_path("threads.tfcc");
};

TEST_F(Threads, two_executors_of_one_model) {
  Model model = load();
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      auto e = model.executor();
      if (!e) return void(++wrong);
      for (int i = 0; i < 60; ++i) wrong += !runs_right(*e, 1 + (i + t) % 8, 1 + (i * 5 + t) % 16);
    });
  }
  for (auto& t : threads) t.join();
  EXPECT_EQ(wrong, 0);
}

TEST_F(Threads, loading_preparing_and_destroying_beside_runs) {
  std::optional<Model> model = load();
  std::atomic<int> wrong{0};
  std::atomic<bool> done{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&, m = *model] {  // outlives the first model's name
      auto e = m.executor();
      for (int i = 0; e && !done; ++i) wrong += !runs_right(*e, 1 + i % 8, 1 + i % 16);
      wrong += !e;
    });
  }
  threads.emplace_back([&, m = *model] {  // executors of the shared model that come and go
    for (int i = 0; i < 30; ++i) {
      auto e = m.executor();
      const Shapes shapes = {{"x", {4, 1 + i % 16, kC}}, {"ids", {4, 1 + i % 16}}};
      wrong += !e || !e->prepare(shapes) || !e->workspace_bytes(shapes) ||
               !runs_right(*e, 4, 1 + i % 16);
    }
  });
  threads.emplace_back([&] {  // models of the same file that come and go
    for (int i = 0; i < 15; ++i) {
      auto m = Model::load(path_, options());
      auto e = m ? m->executor() : Result<Executor>(m.error());
      m = Error{ErrorCode::internal, "gone"};
      wrong += !e || !runs_right(*e, 2, 3);
    }
    done = true;
  });
  model.reset();
  for (auto& t : threads) t.join();
  EXPECT_EQ(wrong, 0);
}

// Every second call at the same time is refused, in each function that touches the executor; what
// is not refused is right.
TEST_F(Threads, one_executor_in_two_threads_is_an_error) {
  Model model = load();
  auto e = model.executor();
  ASSERT_TRUE(e) << e.error().message;
  SmallCase c(8, 16);
  std::atomic<int> wrong{0}, refused{0};
  std::atomic<bool> done{false};
  auto call = [&](auto&& result) {
    if (result) return true;
    const std::string& m = result.error().message;
    if (m.find("in use by another call") != std::string::npos) {
      ++refused;
      EXPECT_EQ(result.error().code, ErrorCode::invalid_argument);
    } else if (m.find("there is no result") == std::string::npos &&
               m.find("is not set") == std::string::npos) {
      ++wrong;
      ADD_FAILURE() << m;
    }
    return false;
  };
  auto work = [&](int) {
    for (int i = 0; i < 100000 && !done; ++i) {
      call(e->set("x", c.x_ref()));
      call(e->set("ids", c.ids_ref()));
      call(e->prepare({{"x", {8, 16, kC}}, {"ids", {8, 16}}}));
      call(e->run());
      call(e->output_shape("out"));
      call(e->output("out"));
      call(e->status());
      call(e->workspace_bytes({{"x", {8, 16, kC}}, {"ids", {8, 16}}}));
      wrong += e->stats().plain_runs > 10000000 || e->arena_bytes() > (size_t{1} << 30);
      if (refused > 50) done = true;
    }
  };
  std::thread other(work, 1);
  work(0);
  other.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(refused, 0);
  EXPECT_TRUE(runs_right(*e, 3, 5));  // and the executor is none the worse for it
}

// More executors than the limit has room for, over all shapes: each computes what it should.
TEST_F(Threads, executors_share_a_small_cache) {
  LoadOptions o = options();
  o.cache_bytes = size_t{256} << 10;
  auto model = Model::load(path_, o);
  ASSERT_TRUE(model) << model.error().message;
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      auto e = model->executor();
      for (int i = 0; e && i < 128; ++i)
        wrong += !runs_right(*e, 1 + (i + t * 32) % 128 / 16, 1 + i % 16);
      wrong += !e;
    });
  }
  for (auto& t : threads) t.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace tfcc
