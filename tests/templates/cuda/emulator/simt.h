// SPDX-License-Identifier: Apache-2.0
// Runs the threads of one CUDA block on the CPU, one at a time and in random order, so that
// templates for Hopper are tested where there is no GPU: what waits for what, which slot is given
// back when, and which element goes where. Time, caches and memory order are not emulated, nor is
// anything that PTX alone says.
//
// A thread is a fiber. It runs until it waits (yield_until) and is taken up again once its
// condition holds. Copies of TMA happen at a random later time, and products of a warpgroup as late
// as their wait allows: a slot that is written again too soon gives wrong sums.
#pragma once

#include <ucontext.h>

#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace tfcc::test {

/// Dimensions as kernels read them.
struct Dim {
  int x = 0, y = 0, z = 0;
};

class Simt {
 public:
  /// The block that runs; null outside of run().
  static Simt* current() { return current_; }

  /// Runs a block of so many threads to its end. False with error() if all wait for ever, or fail()
  /// was called.
  bool run(int threads, Dim block, Dim grid, unsigned seed, const std::function<void()>& thread);
  const std::string& error() const { return error_; }

  // ---- for the thread that runs ----
  int thread() const { return running_; }
  int lane() const { return running_ % 32; }
  int warp() const { return running_ / 32; }
  Dim block() const { return block_; }
  Dim grid() const { return grid_; }
  void yield_until(const std::function<bool()>& ready);
  /// The block fails; the first message counts.
  void fail(const std::string& message);
  /// All `count` callers of the barrier of this number meet.
  void meet(int barrier, int count);
  /// One of them comes, and goes on: whether it was the last.
  bool arrive(int barrier, int count);
  /// What lane `from` of the warp gives here; all 32 lanes must come.
  unsigned long long shuffle(unsigned long long value, int from) { return exchange(value)[from]; }
  /// What each lane of the warp votes here, as bits; all 32 lanes must come.
  unsigned ballot(bool vote);
  /// At a random later time.
  void later(std::function<void()> work) { pending_.push_back(std::move(work)); }

 private:
  struct Fiber {
    ucontext_t context;
    std::vector<char> stack;
    std::function<bool()> ready;
    bool done = false;
  };
  struct Meeting {
    int arrived = 0;
    long generation = 0;
  };
  struct Exchange {
    int arrived = 0;
    long generation = 0;
    unsigned long long values[2][32];
  };

  static void start();
  const unsigned long long* exchange(
      unsigned long long value);  // of all lanes, until the exchange after the next
  bool step();

  static inline Simt* current_ = nullptr;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  ucontext_t scheduler_;
  std::mt19937 random_;
  std::vector<std::function<void()>> pending_;
  std::map<int, Meeting> meetings_;
  std::map<int, Exchange> exchanges_;
  const std::function<void()>* thread_ = nullptr;
  Dim block_, grid_;
  int running_ = -1;
  std::string error_;
};

}  // namespace tfcc::test
