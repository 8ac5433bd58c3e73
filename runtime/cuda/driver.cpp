// SPDX-License-Identifier: Apache-2.0
// Opening of the CUDA driver.
#ifdef TFCC_CUDA
#include "runtime/cuda/driver.h"

#include <dlfcn.h>

#include "runtime/core/shared_library.h"

#define TFCC_TEXT_(x) #x
#define TFCC_TEXT(x) TFCC_TEXT_(x)

namespace tfcc::runtime {
namespace {

constexpr const char* kWayOut = "install the NVIDIA driver, or use device cpu";

Result<CudaDriver> open_driver() {
  TFCC_TRY(void* library, open_library({"libcuda.so.1"}, kWayOut));
  CudaDriver d;
#define TFCC_FIND(name) TFCC_TRY_VOID(find_function(library, TFCC_TEXT(name), d.name, kWayOut));
  TFCC_CUDA_DRIVER(TFCC_FIND)
#undef TFCC_FIND
  d.cuTensorMapEncodeTiled = reinterpret_cast<decltype(d.cuTensorMapEncodeTiled)>(
      dlsym(library, "cuTensorMapEncodeTiled"));
  if (CUresult code = d.cuInit(0); code != CUDA_SUCCESS) {
    return Error{ErrorCode::device, "the NVIDIA driver does not start: " + d.text(code) +
                                        "; check nvidia-smi, or use device cpu"};
  }
  return d;
}

}  // namespace

std::string CudaDriver::text(CUresult code) const {
  const char* out = nullptr;
  if (cuGetErrorString(code, &out) == CUDA_SUCCESS && out != nullptr) return out;
  return "error " + std::to_string(static_cast<int>(code));
}

Result<const CudaDriver*> cuda_driver() {
  static const Result<CudaDriver> driver = open_driver();
  if (!driver) return driver.error();
  return &*driver;
}

}  // namespace tfcc::runtime
#endif
