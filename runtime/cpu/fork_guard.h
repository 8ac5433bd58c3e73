// SPDX-License-Identifier: Apache-2.0
// What a child after fork() may count on: only the thread that called fork() lives on in it, so
// that threads have to be started anew, and a lock that another thread held would stay locked for
// ever. libtfcc and libtfcc_cpu.so have one each.
#pragma once

#include <cstdint>
#include <mutex>
#include <shared_mutex>

namespace tfcc::cpu {

/// How many calls of fork() lie between the process that opened the plug-in and this one. Threads
/// that were started at another number are not there.
uint64_t process_number();

/// fork() waits until nobody holds this lock shared. Whoever enters oneDNN's creation of
/// primitives, which takes locks of its own, opens or closes a library (the loader's locks), or
/// takes a lock of ours that several threads share, holds it meanwhile; nobody takes it twice.
std::shared_mutex& fork_mutex();

/// A scope that fork() waits for.
class ForkGuard {
 public:
  ForkGuard() : lock_(fork_mutex()) {}

 private:
  std::shared_lock<std::shared_mutex> lock_;
};

}  // namespace tfcc::cpu
