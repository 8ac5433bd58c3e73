// SPDX-License-Identifier: Apache-2.0
// Ranges of NVTX for LoadOptions::ranges: timelines of Nsight Systems then name runs and launches.
// Needs nvtx3, headers of the CUDA Toolkit, which call nothing where no profiler is attached (and
// look for one in the environment: that is why the library does not).
#pragma once

#include <nvtx3/nvToolsExt.h>

#include "runtime/tfcc.h"

namespace tfcc {

inline RangeHooks nvtx_ranges() {
  return {[](const char* name) { nvtxRangePushA(name); }, [] { nvtxRangePop(); }};
}

}  // namespace tfcc
