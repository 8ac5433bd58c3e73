// SPDX-License-Identifier: Apache-2.0
// What backend and queue share of the driver: errors, the current context, and when it may be
// waited for. Included only where TFCC_CUDA is defined.
#pragma once

#include <mutex>
#include <string>

#include "runtime/cuda/driver.h"

namespace tfcc::runtime {

inline CUdeviceptr address(const void* p) { return reinterpret_cast<CUdeviceptr>(p); }

/// `what` failed: "cuda: <what>: <the driver's words>". Errors: memory or device.
inline Error failure(const CudaDriver& cuda, const char* what, CUresult code) {
  ErrorCode kind = code == CUDA_ERROR_OUT_OF_MEMORY ? ErrorCode::memory : ErrorCode::device;
  return {kind, std::string("cuda: ") + what + ": " + cuda.text(code) +
                    "; check the GPU with nvidia-smi"};
}

/// Returns the error of a driver call from the function around it.
#define TFCC_CU(cuda, what, ...)                                   \
  if (CUresult cu_code = (__VA_ARGS__); cu_code != CUDA_SUCCESS) { \
    return failure(cuda, what, cu_code);                           \
  }

/// Makes the context current on the calling thread for a scope; the caller may have its own.
class Current {
 public:
  Current(const CudaDriver& cuda, CUcontext context) : cuda_(cuda) {
    cuda_.cuCtxPushCurrent(context);
  }
  ~Current() {
    CUcontext old = nullptr;
    cuda_.cuCtxPopCurrent(&old);
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  const CudaDriver& cuda_;
};

/// A context must not be waited for while one of its streams is being captured, by whatever thread.
inline std::mutex& capture_mutex() {
  static std::mutex mutex;
  return mutex;
}

inline CUresult synchronize(const CudaDriver& cuda) {
  std::lock_guard lock(capture_mutex());
  return cuda.cuCtxSynchronize();
}

}  // namespace tfcc::runtime
