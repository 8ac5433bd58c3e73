// SPDX-License-Identifier: Apache-2.0
// Points of time on a GPU stream, for profiles. Its driver functions are found by their ABI names
// on first use: a run needs none of them, and the names that cuda.h maps them to are younger than
// the oldest driver that runs. Included only where TFCC_CUDA is defined.
#pragma once

#include <cuda.h>

#include <atomic>
#include <memory>
#include <vector>

#include "runtime/result.h"

namespace tfcc::runtime {

/// Events on a stream, and a gate before them. The context must be current.
class CudaTimer {
 public:
  /// Errors: device.
  static Result<std::unique_ptr<CudaTimer>> make();
  ~CudaTimer();
  CudaTimer(const CudaTimer&) = delete;
  CudaTimer& operator=(const CudaTimer&) = delete;

  /// Work that follows on the stream waits for open_gate(), at most a fifth of a second: the host
  /// runs ahead, and launches stand back to back.
  Result<void> close_gate(CUstream stream);
  void open_gate() { gate_open_ = true; }

  Result<void> mark(CUstream stream);
  /// Waits; milliseconds between the marks since the last call.
  Result<void> marked(std::vector<double>& ms);

  Result<void> copy(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream);

 private:
  CudaTimer() = default;

  std::vector<CUevent> events_;  // the first `used_` are marks
  size_t used_ = 0;
  std::atomic<bool> gate_open_ = true;
};

}  // namespace tfcc::runtime
