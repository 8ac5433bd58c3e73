// SPDX-License-Identifier: Apache-2.0
// parallel_for: independent jobs, such as compiling units, over a few threads. MakeAhead: values that
// one thread takes in order, such as weights to write, made by others meanwhile.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <new>
#include <optional>
#include <system_error>
#include <thread>
#include <vector>

namespace tfcc::codegen {

/// As many as are wanted; 0: one for each core.
inline int threads_or_all(int wanted) {
  return wanted > 0 ? wanted : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

/// Calls fn(0) ... fn(count-1), each once, on up to `threads` threads (the caller's is one): on
/// those that the system gives. If a call throws, no other begins, and the first exception is the
/// caller's.
template <class F> void parallel_for(size_t count, int threads, const F& fn) {
  std::atomic<size_t> next{0};
  std::exception_ptr failure;
  std::mutex failing;
  auto work = [&] {
    try {
      for (size_t i; (i = next.fetch_add(1)) < count;) fn(i);
    } catch (...) {
      next = count;
      std::lock_guard lock(failing);
      if (!failure) failure = std::current_exception();
    }
  };
  std::vector<std::thread> helpers;
  size_t wanted = std::min<size_t>(count, threads > 0 ? static_cast<size_t>(threads) : 1);
  try {
    helpers.reserve(wanted > 0 ? wanted - 1 : 0);
    while (helpers.size() + 1 < wanted) helpers.emplace_back(work);
  } catch (const std::system_error&) {
  } catch (const std::bad_alloc&) {}
  work();
  for (std::thread& t : helpers) t.join();
  if (failure) std::rethrow_exception(failure);
}

/// Values 0 ... count-1, which up to `threads` threads make while the caller takes them in order.
/// Those made and not taken have no more than `most` bytes together, or are one. Without threads
/// the caller makes them.
template <class T> class MakeAhead {
 public:
  /// `size(i)` is the bytes of value i. Both are called by several threads at once.
  MakeAhead(size_t count, int threads, uint64_t most, std::function<uint64_t(size_t)> size,
            std::function<T(size_t)> make)
      : most_(most),
        size_(std::move(size)),
        make_(std::move(make)),
        values_(count),
        failures_(count) {
    const size_t wanted = std::min(count, static_cast<size_t>(std::max(threads, 0)));
    try {
      helpers_.reserve(wanted);
      while (helpers_.size() < wanted) helpers_.emplace_back([this] { work(); });
    } catch (const std::system_error&) {
    } catch (const std::bad_alloc&) {}
  }
  ~MakeAhead() {
    {
      std::lock_guard lock(mutex_);
      next_ = values_.size();
    }
    room_.notify_all();
    for (std::thread& t : helpers_) t.join();
  }
  MakeAhead(const MakeAhead&) = delete;
  MakeAhead& operator=(const MakeAhead&) = delete;

  /// The next value; throws what making it threw. Call it `count` times at most.
  T take() {
    const size_t i = taken_++;
    if (helpers_.empty()) return make_(i);
    std::unique_lock lock(mutex_);
    made_.wait(lock, [&] { return values_[i] || failures_[i]; });
    held_ -= size_(i);
    room_.notify_one();  // who begins one wakes the next
    if (failures_[i]) std::rethrow_exception(failures_[i]);
    T value = *std::move(values_[i]);
    values_[i].reset();
    return value;
  }

 private:
  bool may_begin() const {
    return next_ < values_.size() && (held_ == 0 || held_ + size_(next_) <= most_);
  }

  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      room_.wait(lock, [&] { return next_ == values_.size() || may_begin(); });
      if (next_ == values_.size()) break;
      const size_t i = next_++;
      held_ += size_(i);
      if (may_begin()) room_.notify_one();
      lock.unlock();
      std::optional<T> value;
      std::exception_ptr failure;
      try {
        value = make_(i);
      } catch (...) {
        failure = std::current_exception();
      }
      lock.lock();
      failures_[i] = failure;
      values_[i] = std::move(value);
      made_.notify_one();
    }
    room_.notify_one();  // the others end too
  }

  const uint64_t most_;
  const std::function<uint64_t(size_t)> size_;
  const std::function<T(size_t)> make_;
  std::mutex mutex_;
  std::condition_variable made_, room_;  // for who takes, for who makes
  std::vector<std::optional<T>> values_;
  std::vector<std::exception_ptr> failures_;
  size_t next_ = 0, taken_ = 0;
  uint64_t held_ = 0;  // bytes of what is made, or being made, and not taken
  std::vector<std::thread> helpers_;
};

}  // namespace tfcc::codegen
