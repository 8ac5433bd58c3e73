// SPDX-License-Identifier: Apache-2.0
#include "tools/tfcc/ranges.h"

#include <cstdlib>

#ifdef TFCC_NVTX
#include "runtime/nvtx.h"
#endif

namespace tfcc::tools {

RangeHooks profiler_ranges() {
#ifdef TFCC_NVTX
  if (std::getenv("NVTX_INJECTION64_PATH")) return nvtx_ranges();
#endif
  return {};
}

}  // namespace tfcc::tools
