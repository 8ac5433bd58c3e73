// SPDX-License-Identifier: Apache-2.0
// The compiler's threads: what a job throws is the caller's, and where no thread is to be had the
// work is done all the same. Values that are made ahead come in order, within their memory.
#include "codegen/parallel.h"

#include <grp.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <stdexcept>
#include <vector>

namespace tfcc::codegen {
namespace {

TEST(Parallel, every_job_is_done_once) {
  for (size_t count : {0u, 1u, 2u, 7u, 100u}) {
    for (int threads : {-1, 0, 1, 3, 50}) {
      std::vector<std::atomic<int>> hits(count);
      parallel_for(count, threads, [&](size_t i) { ++hits[i]; });
      for (auto& h : hits) EXPECT_EQ(h, 1);
    }
  }
}

TEST(Parallel, an_exception_is_the_callers) {
  for (int threads : {1, 4}) {
    std::atomic<size_t> begun{0};
    EXPECT_THROW(parallel_for(100000, threads,
                              [&](size_t i) {
                                ++begun;
                                if (i >= 20) throw std::bad_alloc();
                              }),
                 std::bad_alloc);
    EXPECT_LT(begun, 100000u);  // no other begins
  }
}

TEST(Parallel, works_where_no_thread_is_to_be_had) {
  const pid_t child = fork();
  if (child == 0) {
    const rlimit none = {1, 1};
    if (setrlimit(RLIMIT_NPROC, &none) != 0) _exit(2);
    if (geteuid() == 0 && (setgroups(0, nullptr) != 0 || setgid(65534) != 0 || setuid(65534) != 0))
      _exit(3);
    std::atomic<int> sum{0};
    parallel_for(100, 8, [&](size_t i) { sum += static_cast<int>(i); });
    _exit(sum == 4950 ? 0 : 4);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
using Values = MakeAhead<std::vector<int>>;

std::vector<int> of(size_t i) { return std::vector<int>(i + 1, static_cast<int>(i)); }

TEST(MakeAhead, GivesValuesInOrderOnAnyNumberOfThreads) {
  for (int threads : {0, 1, 2, 7}) {
    for (uint64_t most : {uint64_t{0}, uint64_t{20}, uint64_t{1000000}}) {
      Values values(
          50, threads, most, [](size_t i) { return i + 1; }, of);
      for (size_t i = 0; i < 50; ++i) ASSERT_EQ(values.take(), of(i)) << threads << " " << most;
    }
  }
}

TEST(MakeAhead, HoldsNoMoreThanItMay) {
  std::atomic<int> begun{0};
  const std::vector<uint64_t> sizes = {10, 10, 500, 10, 10};
  Values values(
      5, 3, 50, [&](size_t i) { return sizes[i]; },
      [&](size_t i) {
        ++begun;
        return of(i);
      });
  const auto settles_at = [&](int wanted) {
    for (int i = 0; i < 2000 && begun < wanted; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    return begun == wanted;
  };
  EXPECT_TRUE(settles_at(2)) << "the third does not fit beside them";
  EXPECT_EQ(values.take(), of(0));
  EXPECT_TRUE(settles_at(2));
  EXPECT_EQ(values.take(), of(1));
  EXPECT_TRUE(settles_at(3)) << "alone it may";
  EXPECT_EQ(values.take(), of(2));
  EXPECT_TRUE(settles_at(5));
  EXPECT_EQ(values.take(), of(3));
  EXPECT_EQ(values.take(), of(4));
}

TEST(MakeAhead, ThrowsWhereAValueIsTakenThatThrew) {
  for (int threads : {0, 3}) {
    Values values(
        10, threads, 1000, [](size_t) { return 1; },
        [](size_t i) {
          if (i == 4) throw std::runtime_error("four");
          return of(i);
        });
    for (size_t i = 0; i < 4; ++i) EXPECT_EQ(values.take(), of(i));
    EXPECT_THROW(values.take(), std::runtime_error);
  }
}

TEST(MakeAhead, EndsWithValuesThatNobodyTook) {
  std::atomic<int> made{0};
  {
    Values values(
        1000, 3, 5, [](size_t) { return 1; },
        [&](size_t i) {
          ++made;
          return of(i);
        });
    values.take();
  }
  EXPECT_LE(made, 6 + 3);
}

}  // namespace tfcc::codegen
