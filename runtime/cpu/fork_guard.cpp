// SPDX-License-Identifier: Apache-2.0
#include "runtime/cpu/fork_guard.h"

#include <pthread.h>

#include <atomic>
#include <new>

namespace tfcc::cpu {
namespace {

std::atomic<uint64_t> number{0};

void before() { fork_mutex().lock(); }
void after_in_parent() { fork_mutex().unlock(); }
void after_in_child() {
  number.fetch_add(1, std::memory_order_relaxed);
  // Made anew: its unlock() would compare the number of the thread, which is another in the child.
  // Nobody holds it there.
  new (&fork_mutex()) std::shared_mutex;
}

// When the library is opened, before any thread of ours is there. The plug-in stays open.
__attribute__((constructor)) void watch_forks() {
  pthread_atfork(before, after_in_parent, after_in_child);
}

}  // namespace

uint64_t process_number() { return number.load(std::memory_order_relaxed); }

std::shared_mutex& fork_mutex() {
  static auto& mutex = *new std::shared_mutex;  // outlives every static destructor
  return mutex;
}

}  // namespace tfcc::cpu
