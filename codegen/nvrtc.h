// SPDX-License-Identifier: Apache-2.0
// The CUDA compiler: kernel source to a cubin or PTX by NVRTC, which is opened when first needed.
// No GPU, driver or CUDA header is needed. Called by codegen for every kernel of every CUDA target;
// safe from several threads.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "runtime/result.h"

namespace tfcc::codegen {

/// A compiled kernel.
struct CudaImage {
  std::vector<std::byte> bytes;  ///< cubin, or PTX text with its final NUL
  int registers = 0;             ///< of a thread; 0 for PTX
  int spill_bytes = 0;           ///< stores and loads of spilled registers together
  std::string log;               ///< what the compiler and ptxas said
};

/// Compiles one unit, which may include templates by path ("cuda/norm.cuh"), for an arch:
/// "sm_90" gives a cubin, "compute_80" PTX. `name` is used in messages.
Result<CudaImage> compile_cuda(const std::string& name, const std::string& source,
                               const std::string& arch);

/// "nvrtc 13.0" and the flags that every unit gets, for cache keys; an error that says how to get
/// NVRTC if it is missing.
Result<std::string> cuda_compiler_version();

/// The least version of CUDA, as 13000 for 13.0, whose driver runs what compile_cuda() makes for an
/// arch: PTX needs the compiler's own, a cubin any of the same major version. 0 without NVRTC.
uint32_t least_driver(const std::string& arch);

/// What ptxas -v says in a log; the largest register count and the sum of spills. Exposed for
/// tests.
void read_ptxas_log(const std::string& log, CudaImage& image);

}  // namespace tfcc::codegen
