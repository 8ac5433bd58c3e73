// SPDX-License-Identifier: Apache-2.0
// The threads of one executor on the CPU. They are our own and not OpenMP's: libgomp ends the
// process where it gets no thread, and its threads do not survive fork(). Here fewer threads do the
// same work, at worst the caller's alone, and in a child after fork() threads are started anew.
// Internal to libtfcc_cpu.so.
//
// A job is split into shares, one for each thread that takes part. The caller does share 0 and then
// every share whose thread has not begun it, so that it never waits for a thread that is asleep or
// was not given a CPU. Threads spin for a short while after a job, since the kernels of a run
// follow each other, and then sleep until the next.
#pragma once

#include <memory>

#include "runtime/tfcc.h"

namespace tfcc::cpu {

/// A team of threads for one caller at a time.
class ThreadPool {
 public:
  /// Starts threads - 1 threads (`threads` in 1..tfcc::kMaxThreads), or as many as the system
  /// gives.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  /// Threads that there are, the caller's among them.
  int threads() const;

  /// Computes one part of a job; must not throw.
  using Part = void (*)(void* context, int part);
  /// Calls fn(context, i) once for each i below `parts`, at the same time where there are threads,
  /// and waits for all.
  void run(int parts, Part fn, void* context);

 private:
  struct Team;
  void start();
  bool forget_lost_team();

  int wanted_;
  std::unique_ptr<Team> team_;  // of this process, or of the one that called fork()
};

}  // namespace tfcc::cpu
