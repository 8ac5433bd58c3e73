// SPDX-License-Identifier: Apache-2.0
// Ranges for the profiler that a command runs under, if it runs under one.
#pragma once

#include "runtime/tfcc.h"

namespace tfcc::tools {

/// Those of NVTX where a profiler has put itself into the environment (nsys does); else none.
RangeHooks profiler_ranges();

}  // namespace tfcc::tools
