// SPDX-License-Identifier: Apache-2.0
// A child after fork(): it computes with what the parent had, and with what it loads itself, or it
// gets an error; it never hangs. And a process that gets no threads: it computes with those it has.
#include <grp.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <thread>

#include "tests/runtime/core/small_model.h"

namespace tfcc {
namespace {

using namespace testing_support;

#if defined(__SANITIZE_THREAD__)
constexpr bool kForks = false;  // its runtime ends a child that starts threads
#else
constexpr bool kForks = true;
#endif

class Fork : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_cpu_plugin()) GTEST_SKIP() << "built without the CPU target";
    if (!kForks) GTEST_SKIP() << "not under the thread sanitizer";
    write_small_model(path_);
  }
  void TearDown() override { std::filesystem::remove(path_); }

  Result<Model> load(int threads = 4) const {
    LoadOptions o;
    o.device = "cpu";
    o.threads = threads;
    return Model::load(path_, o);
  }

  static bool runs_right(Executor& e, int64_t batch, int64_t length) {
    SmallCase c(batch, length);
    if (!e.set("x", c.x_ref()) || !e.set("ids", c.ids_ref()) || !e.run()) return false;
    auto out = e.output("out");
    return out && values_of(*out) == c.expected;
  }

  // What `body` returns in a child, or -1 if it has not ended after a minute.
  template <class Body> static int in_child(const Body& body) {
    const pid_t child = fork();
    if (child == 0) _exit(body());
    for (int i = 0; i < 6000; ++i) {
      int status = 0;
      if (waitpid(child, &status, WNOHANG) == child)
        return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    return -1;
  }

  // Everything that a child may want to do; 0 if all of it is right.
  int use_all(const Model& model, Executor& executor) const {
    for (int i = 0; i < 20; ++i) {
      if (!runs_right(executor, 1 + i % 8, 16)) return 1;
    }
    auto second = model.executor();
    if (!second || !runs_right(*second, 8, 16)) return 2;
    auto own = load();
    auto own_executor = own ? own->executor() : Result<Executor>(own.error());
    return own_executor && runs_right(*own_executor, 8, 16) ? 0 : 3;
  }

  std::string path_ = temporary_path("fork.tfcc");
};

TEST_F(Fork, child_of_a_process_that_has_run) {
  auto model = load();
  auto executor = model->executor();
  ASSERT_TRUE(runs_right(*executor, 8, 16));
  EXPECT_EQ(in_child([&] { return use_all(*model, *executor); }), 0);
  EXPECT_EQ(in_child([&] {  // and its child
              if (!runs_right(*executor, 8, 16)) return 10;
              return in_child([&] { return use_all(*model, *executor); });
            }),
            0);
  EXPECT_TRUE(runs_right(*executor, 8, 16));
}

TEST_F(Fork, child_frees_what_the_parent_had) {
  auto model = load();
  auto executor = std::make_unique<Executor>(*model->executor());
  ASSERT_TRUE(runs_right(*executor, 8, 16));
  EXPECT_EQ(in_child([&] {
              executor.reset();
              model = Error{ErrorCode::internal, "gone"};
              return 0;
            }),
            0);
}

// Other threads run and prepare new sizes all the time, so that fork() meets every lock held.
TEST_F(Fork, from_any_thread_while_others_run) {
  auto model = load(2);
  auto idle = model->executor();
  ASSERT_TRUE(runs_right(*idle, 8, 16));
  std::atomic<bool> done{false};
  std::vector<std::thread> busy;
  for (int t = 0; t < 2; ++t) {
    busy.emplace_back([&, t] {
      auto e = model->executor();
      for (int i = t; !done; ++i) {
        if (i % 40 == t) e = load(2)->executor();
        runs_right(*e, 1 + i % 8, 1 + i % 16);
      }
    });
  }
  std::thread forks([&] {
    for (int i = 0; i < 40; ++i) EXPECT_EQ(in_child([&] { return use_all(*model, *idle); }), 0);
  });
  forks.join();
  done = true;
  for (auto& t : busy) t.join();
}

// An executor that another thread used when the process was forked says so in the child.
TEST_F(Fork, executor_in_a_run_is_an_error) {
  auto model = load(2);
  auto executor = model->executor();
  std::atomic<bool> done{false};
  std::thread busy([&] {
    for (int i = 0; !done; ++i) runs_right(*executor, 1 + i % 8, 1 + i % 16);
  });
  for (int i = 0; i < 20; ++i) {
    const int got = in_child([&] {
      SmallCase c(2, 3);
      auto set = executor->set("x", c.x_ref());
      return set || set.error().message.find("in use by another call") != std::string::npos ? 0 : 1;
    });
    EXPECT_EQ(got, 0);
  }
  done = true;
  busy.join();
}

// As in a container whose limit of processes is reached.
TEST_F(Fork, fewer_threads_where_the_system_gives_none) {
  const int got = in_child([&] {
    std::string said;
    LoadOptions o;
    o.device = "cpu";
    o.threads = 8;
    o.log = [&](std::string_view line) { said += line; };
    auto model = Model::load(path_, o);
    const rlimit none = {1, 1};
    if (!model || setrlimit(RLIMIT_NPROC, &none) != 0) return 2;
    if (geteuid() == 0 && (setgroups(0, nullptr) != 0 || setgid(65534) != 0 || setuid(65534) != 0))
      return 3;
    auto executor = model->executor();
    if (!executor || !runs_right(*executor, 8, 16)) return 4;
    return said.find("only 1 of 8 threads could be started") != std::string::npos ? 0 : 5;
  });
  EXPECT_EQ(got, 0);
}

TEST_F(Fork, counts_of_threads_have_a_limit) {
  for (int threads : {-1, -2147483647 - 1, kMaxThreads + 1, 100000, 2147483647}) {
    auto model = load(threads);
    ASSERT_FALSE(model) << threads;
    EXPECT_EQ(model.error().code, ErrorCode::invalid_argument);
    EXPECT_EQ(model.error().message, "LoadOptions::threads is " + std::to_string(threads) +
                                         ", must be from 0 to 4096; 0 is one per physical core");
  }
  auto most = load(300);
  auto executor = most->executor();
  ASSERT_TRUE(executor) << executor.error().message;
  EXPECT_TRUE(runs_right(*executor, 8, 16));
}

}  // namespace
}  // namespace tfcc
