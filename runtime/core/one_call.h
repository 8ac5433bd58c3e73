// SPDX-License-Identifier: Apache-2.0
// Finds out that an object which belongs to one thread at a time is used by two: the second call is
// an error. There is no lock, so that a misuse is neither hidden nor made slow.
#pragma once

#include <atomic>

#include "runtime/result.h"

namespace tfcc::runtime {

/// Whether a call to the object is under way.
class InUse {
 public:
  InUse() = default;
  /// A copy is an object of its own, which nobody uses yet.
  InUse(const InUse&) {}
  InUse& operator=(const InUse&) { return *this; }

 private:
  friend class OneCall;
  std::atomic<bool> taken_{false};
};

/// Holds an object for the time of one call, or finds it held.
class OneCall {
 public:
  explicit OneCall(InUse& object)
      : object_(object), mine_(!object.taken_.exchange(true, std::memory_order_acquire)) {}
  ~OneCall() {
    if (mine_) object_.taken_.store(false, std::memory_order_release);
  }
  OneCall(const OneCall&) = delete;
  OneCall& operator=(const OneCall&) = delete;

  /// Errors: invalid_argument.
  Result<void> error() const {
    if (mine_) return {};
    return Error{
        ErrorCode::invalid_argument,
        "the executor is in use by another call; make one executor per thread with Model::executor()"};
  }

 private:
  InUse& object_;
  const bool mine_;
};

}  // namespace tfcc::runtime
