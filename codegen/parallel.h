// SPDX-License-Identifier: Apache-2.0
// parallel_for: independent jobs, such as compiling units, over a few threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <thread>
#include <vector>

namespace tfcc::codegen {

/// Calls fn(0) ... fn(count-1), each once, on up to `threads` threads (the caller's is one). fn must not throw.
template <class F>
void parallel_for(size_t count, int threads, const F& fn) {
  std::atomic<size_t> next{0};
  auto work = [&] {
    for (size_t i; (i = next.fetch_add(1)) < count;) fn(i);
  };
  std::vector<std::thread> helpers;
  size_t wanted = std::min<size_t>(count, threads > 0 ? static_cast<size_t>(threads) : 1);
  for (size_t k = 1; k < wanted; ++k) helpers.emplace_back(work);
  work();
  for (std::thread& t : helpers) t.join();
}

}  // namespace tfcc::codegen
