// SPDX-License-Identifier: Apache-2.0
// parallel_for: independent jobs, such as compiling units, over a few threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

namespace tfcc::codegen {

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

}  // namespace tfcc::codegen
