// SPDX-License-Identifier: Apache-2.0
// The compiler's threads: what a job throws is the caller's, and where no thread is to be had the
// work is done all the same.
#include "codegen/parallel.h"

#include <grp.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <stdexcept>

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
}  // namespace tfcc::codegen
