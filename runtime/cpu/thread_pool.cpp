// SPDX-License-Identifier: Apache-2.0
#include "runtime/cpu/thread_pool.h"

#include <immintrin.h>
#include <omp.h>
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

#include "runtime/cpu/fork_guard.h"
#include "runtime/cpu/physical_cores.h"

namespace tfcc::cpu {
namespace {

// How often a waiting thread looks before it sleeps: some 50 us. Where more of our threads are
// awake than there are CPUs, a thread that spins keeps the one that it waits for from running.
constexpr int kSpins = 2000;
constexpr int kSpinsCrowded = 100;

// Threads of all teams that are awake, in 1/1024. A team of n has n - 1 threads of its own, each of
// which counts for n / (n - 1), so that the caller is counted with them.
std::atomic<int64_t> awake{0};
constexpr int64_t kOne = 1024;

__attribute__((constructor)) void forget_threads_in_children() {
  pthread_atfork(nullptr, nullptr, [] { awake = 0; });
}

int cpus() {
  static const int count = [] {
    cpu_set_t allowed;
    const int most =
        sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? std::max(1, CPU_COUNT(&allowed)) : 1;
    return std::min(most, cpu_quota(most));
  }();
  return count;
}

int spins() {
  return awake.load(std::memory_order_relaxed) > cpus() * kOne ? kSpinsCrowded : kSpins;
}

/// Lets a thread sleep until the word that it watches has changed.
class Bed {
 public:
  /// Returns when ready() holds; whoever makes it hold calls wake() afterwards.
  template <class Ready> void wait(const Ready& ready) {
    std::unique_lock lock(mutex_);
    asleep_.store(true);  // before it looks again: wake() looks at this after the word has changed
    condition_.wait(lock, ready);
    asleep_.store(false, std::memory_order_relaxed);
  }
  void wake() {
    if (!asleep_.load()) return;
    { std::lock_guard lock(mutex_); }
    condition_.notify_one();
  }

 private:
  std::mutex mutex_;
  std::condition_variable condition_;
  std::atomic<bool> asleep_{false};
};

}  // namespace

struct ThreadPool::Team {
  struct alignas(64) Member {
    std::atomic<uint64_t> begun{0};  // the last job whose share somebody began
    Bed bed;
    std::thread thread;
  };

  // The number of a job and in how many shares it is split, in one word, so that a thread reads
  // what belongs together.
  static constexpr int kShareBits = 13;
  static constexpr uint64_t word_of(uint64_t job, int shares) {
    return job << kShareBits | static_cast<uint64_t>(shares);
  }
  static int shares_of(uint64_t word) { return static_cast<int>(word & ((1u << kShareBits) - 1)); }
  static_assert(kMaxThreads < 1 << kShareBits);

  ~Team() {
    stop = true;
    word.store(word_of(++job, 0));
    for (auto& m : members) m->bed.wake();
    for (auto& m : members) m->thread.join();
  }

  // Where no more threads or memory are to be had, those that run already do the work.
  void start(int threads) {
    try {
      members.reserve(static_cast<size_t>(threads - 1));
      for (int share = 1; share < threads; ++share) {
        auto member = std::make_unique<Member>();
        member->thread = std::thread([this, m = member.get(), share, threads] {
          work(*m, share, kOne * threads / (threads - 1));
        });
        members.push_back(std::move(member));
      }
    } catch (const std::system_error&) {
    } catch (const std::bad_alloc&) {}
    // What a thread allocates for itself is there before the first job, not in some later one that
    // it is the first to reach.
    for (int n = ready; n < static_cast<int>(members.size()); n = ready) ready.wait(n);
  }

  void run(int count, Part f, void* c) {
    parts = count;
    fn = f;
    context = c;
    shares = std::min(count, static_cast<int>(members.size()) + 1);
    pending.store(shares, std::memory_order_relaxed);
    word.store(word_of(++job, shares));
    for (int i = 1; i < shares; ++i) members[static_cast<size_t>(i - 1)]->bed.wake();
    finish(0);
    for (int i = 1; i < shares; ++i) {
      if (begin(*members[static_cast<size_t>(i - 1)], job)) finish(i);
    }
    auto over = [this] { return pending.load() == 0; };
    for (int i = spins(); i > 0; --i) {
      if (over()) return;
      _mm_pause();
    }
    bed.wait(over);
  }

  // Whether the share is the calling thread's to do. A share is begun once: `begun` only grows, and
  // a job ends after all its shares, so that a thread that comes late to an old job finds it begun.
  static bool begin(Member& m, uint64_t job) {
    uint64_t last = m.begun.load(std::memory_order_relaxed);
    return last < job && m.begun.compare_exchange_strong(last, job, std::memory_order_acq_rel);
  }

  void finish(int share) {
    for (int i = share; i < parts; i += shares) fn(context, i);
    if (pending.fetch_sub(1) == 1) bed.wake();
  }

  void work(Member& m, int share, int64_t weight) {
    omp_set_num_threads(1);  // oneDNN must not make a team of its own on this thread
    ++ready;
    ready.notify_one();
    uint64_t seen = 0;
    awake += weight;
    for (;;) {
      auto changed = [&] { return word.load() != seen; };
      for (int i = spins(); i > 0 && !changed(); --i) _mm_pause();
      if (!changed()) {
        awake -= weight;
        m.bed.wait(changed);
        awake += weight;
      }
      seen = word.load();
      if (stop) break;
      if (share < shares_of(seen) && begin(m, seen >> kShareBits)) finish(share);
    }
    awake -= weight;
  }

  const uint64_t process = process_number();
  std::atomic<uint64_t> word{0};
  uint64_t job = 0;  // the caller's
  // Of the job that runs: written before `word`, read by those who began a share of it.
  int parts = 0, shares = 0;
  Part fn = nullptr;
  void* context = nullptr;
  alignas(64) std::atomic<int> pending{0};  // shares that are not finished
  std::atomic<bool> stop{false};
  std::atomic<int> ready{0};  // threads that wait for their first job
  Bed bed;                    // the caller's
  std::vector<std::unique_ptr<Member>> members;
};

ThreadPool::ThreadPool(int threads) : wanted_(threads) { start(); }

ThreadPool::~ThreadPool() { forget_lost_team(); }

// Threads of another process cannot be joined, and their locks may be held: such a team is left as
// it lies.
bool ThreadPool::forget_lost_team() {
  if (team_ == nullptr || team_->process == process_number()) return false;
  (void)team_.release();
  return true;
}

void ThreadPool::start() {
  team_.reset(new (std::nothrow) Team);
  if (team_ != nullptr) team_->start(wanted_);
}

int ThreadPool::threads() const {
  return team_ == nullptr ? 1 : static_cast<int>(team_->members.size()) + 1;
}

void ThreadPool::run(int parts, Part fn, void* context) {
  if (parts > 1) {
    if (forget_lost_team()) start();
    if (threads() > 1) return team_->run(parts, fn, context);
  }
  for (int i = 0; i < parts; ++i) fn(context, i);
}

}  // namespace tfcc::cpu
