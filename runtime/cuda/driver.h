// SPDX-License-Identifier: Apache-2.0
// The functions of libcuda.so.1 that the runtime uses, typed by cuda.h and found with dlsym on
// first use. Included only where TFCC_CUDA is defined.
#pragma once

#include <cuda.h>

#include <string>

#include "runtime/result.h"

namespace tfcc::runtime {

// cuda.h maps some names to versioned ones (cuMemAlloc to cuMemAlloc_v2); the macro arguments below
// are expanded, so that type, member and the name for dlsym all follow it.
// clang-format off
#define TFCC_CUDA_DRIVER(X) \
  X(cuInit) X(cuDriverGetVersion) X(cuDeviceGetCount) X(cuDeviceGet) X(cuDeviceGetName) \
  X(cuDeviceGetAttribute) X(cuDevicePrimaryCtxRetain) X(cuDevicePrimaryCtxRelease) \
  X(cuCtxPushCurrent) X(cuCtxPopCurrent) X(cuCtxSynchronize) X(cuMemGetInfo) X(cuMemAlloc) \
  X(cuMemFree) X(cuMemAllocHost) X(cuMemFreeHost) X(cuMemcpyHtoD) X(cuMemcpyHtoDAsync) \
  X(cuMemcpyDtoH) X(cuMemcpyDtoHAsync) X(cuMemsetD8) X(cuMemsetD8Async) X(cuMemsetD32) \
  X(cuEventCreate) X(cuEventDestroy) X(cuEventRecord) X(cuEventSynchronize) \
  X(cuStreamCreate) X(cuStreamDestroy) X(cuStreamSynchronize) X(cuModuleLoadDataEx) \
  X(cuModuleUnload) X(cuModuleGetFunction) X(cuFuncSetAttribute) X(cuLaunchKernelEx) \
  X(cuStreamBeginCapture) X(cuStreamEndCapture) X(cuStreamIsCapturing) \
  X(cuGraphInstantiateWithFlags) X(cuGraphUpload) X(cuGraphLaunch) X(cuGraphDestroy) \
  X(cuGraphExecDestroy) X(cuGetErrorString)
// clang-format on

/// Table of driver functions: `cuda->cuMemAlloc(&p, bytes)`.
struct CudaDriver {
#define TFCC_MEMBER(name) decltype(&::name) name = nullptr;
  TFCC_CUDA_DRIVER(TFCC_MEMBER)
#undef TFCC_MEMBER
  /// Null before CUDA 12.0: no plan for an older GPU needs it.
  decltype(&::cuTensorMapEncodeTiled) cuTensorMapEncodeTiled = nullptr;

  /// "out of memory", for messages.
  std::string text(CUresult code) const;
};

/// The driver, opened and initialised once. Errors: device (no driver, no GPU), with the way out.
Result<const CudaDriver*> cuda_driver();

}  // namespace tfcc::runtime
