// SPDX-License-Identifier: Apache-2.0
// What several threads may do at once: executors of one model, and loading, preparing and destroying beside runs. Under the
// preset `tsan` these are what the thread sanitizer watches; libgomp is opaque to it, so each executor has one OpenMP thread.
#include <atomic>
#include <optional>
#include <stdexcept>
#include <thread>

#include "tests/runtime/small_model.h"

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
    o.threads = 1;
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
      wrong += !e || !e->prepare(shapes) || !e->workspace_bytes(shapes) || !runs_right(*e, 4, 1 + i % 16);
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

}  // namespace
}  // namespace tfcc
