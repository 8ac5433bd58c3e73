// SPDX-License-Identifier: Apache-2.0
// Times the algorithms that cuBLASLt offers for a product, on operands of its own. Included only
// where TFCC_CUDA is defined.
#pragma once

#include <functional>
#include <memory>

#include "runtime/core/backend.h"
#include "runtime/cuda/driver.h"
#include "runtime/result.h"

namespace tfcc::runtime {

/// A candidate and what one run of it took.
struct Fastest {
  size_t candidate = 0;
  double us = 0;
};

/// Runs candidate `i` on these operands.
using RunCandidate =
    std::function<Result<void>(size_t i, const MatmulOperands& operands, void* stream)>;

/// The fastest of `candidates`; an earlier one unless a later one is 2% faster. A candidate that
/// fails is left out. B is read from memory each time, as a weight is. The context must be current.
/// Errors: device, memory.
Result<Fastest> fastest_candidate(const CudaDriver& cuda, const MatmulShape& shape,
                                  size_t candidates, const RunCandidate& run);

}  // namespace tfcc::runtime
