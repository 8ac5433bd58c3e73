// SPDX-License-Identifier: Apache-2.0
#ifdef TFCC_CUDA
#include "runtime/cuda/timer.h"

#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include "runtime/core/shared_library.h"

namespace tfcc::runtime {
namespace {

constexpr const char* kWayOut = "update the NVIDIA driver, or leave out the profile";

struct Functions {
  CUresult (*create)(CUevent*, unsigned) = nullptr;
  CUresult (*destroy)(CUevent) = nullptr;
  CUresult (*record)(CUevent, CUstream) = nullptr;
  CUresult (*synchronize)(CUevent) = nullptr;
  CUresult (*elapsed)(float*, CUevent, CUevent) = nullptr;
  CUresult (*host)(CUstream, void (*)(void*), void*) = nullptr;
  CUresult (*copy)(CUdeviceptr, CUdeviceptr, size_t, CUstream) = nullptr;
};

Result<Functions> find() {
  TFCC_TRY(void* library, open_library({"libcuda.so.1"}, kWayOut));
  Functions f;
  TFCC_TRY_VOID(find_function(library, "cuEventCreate", f.create, kWayOut));
  TFCC_TRY_VOID(find_function(library, "cuEventDestroy_v2", f.destroy, kWayOut));
  TFCC_TRY_VOID(find_function(library, "cuEventRecord", f.record, kWayOut));
  TFCC_TRY_VOID(find_function(library, "cuEventSynchronize", f.synchronize, kWayOut));
  TFCC_TRY_VOID(find_function(library, "cuEventElapsedTime", f.elapsed, kWayOut));
  TFCC_TRY_VOID(find_function(library, "cuLaunchHostFunc", f.host, kWayOut));
  TFCC_TRY_VOID(find_function(library, "cuMemcpyDtoDAsync_v2", f.copy, kWayOut));
  return f;
}

const Result<Functions>& functions() {
  static const Result<Functions> f = find();
  return f;
}

Error failure(const char* what, CUresult code) {
  return {ErrorCode::device, std::string("cuda: ") + what + ": error " +
                                 std::to_string(static_cast<int>(code)) +
                                 "; check the GPU with nvidia-smi"};
}

Result<void> done(const char* what, CUresult code) {
  if (code != CUDA_SUCCESS) return failure(what, code);
  return {};
}

// Runs on a thread of the driver. Never waits for good: the queue of launches may be full, and then
// the host waits for the stream.
void wait_at_gate(void* open) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(200);
  while (!*static_cast<std::atomic<bool>*>(open) && std::chrono::steady_clock::now() < end) {
    std::this_thread::yield();
  }
}

}  // namespace

Result<std::unique_ptr<CudaTimer>> CudaTimer::make() {
  if (!functions()) return functions().error();
  return std::unique_ptr<CudaTimer>(new CudaTimer);
}

CudaTimer::~CudaTimer() {
  for (CUevent e : events_) functions()->destroy(e);
}

Result<void> CudaTimer::close_gate(CUstream stream) {
  gate_open_ = false;
  return done("a gate", functions()->host(stream, wait_at_gate, &gate_open_));
}

Result<void> CudaTimer::mark(CUstream stream) {
  if (used_ == events_.size()) {
    CUevent e = nullptr;
    TFCC_TRY_VOID(done("an event", functions()->create(&e, 0)));
    events_.push_back(e);
  }
  return done("an event", functions()->record(events_[used_++], stream));
}

Result<void> CudaTimer::marked(std::vector<double>& ms) {
  ms.clear();
  const size_t count = std::exchange(used_, 0);
  if (count == 0) return {};
  TFCC_TRY_VOID(done("a kernel failed", functions()->synchronize(events_[count - 1])));
  for (size_t i = 1; i < count; ++i) {
    float t = 0;
    TFCC_TRY_VOID(done("an event", functions()->elapsed(&t, events_[i - 1], events_[i])));
    ms.push_back(static_cast<double>(t));
  }
  return {};
}

Result<void> CudaTimer::copy(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return done("a copy on the GPU", functions()->copy(to, from, bytes, stream));
}

}  // namespace tfcc::runtime
#endif
