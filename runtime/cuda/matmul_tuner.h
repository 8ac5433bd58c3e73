// SPDX-License-Identifier: Apache-2.0
// Times the algorithms that cuBLASLt offers for a product, on operands of its own. Included only
// where TFCC_CUDA is defined.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "runtime/core/backend.h"
#include "runtime/cuda/driver.h"
#include "runtime/result.h"

namespace tfcc::runtime {

/// Runs candidate `i` on these operands.
using RunCandidate =
    std::function<Result<void>(size_t i, const MatmulOperands& operands, void* stream)>;

/// Microseconds that a run of each of `candidates` takes; not above 0: it fails. B is read from
/// memory each time, as a weight is. The context must be current. Errors: device (all fail), memory.
Result<std::vector<double>> time_candidates(const CudaDriver& cuda, const MatmulShape& shape,
                                            size_t candidates, const RunCandidate& run);
/// The fastest of them: an earlier one unless a later one is 2% faster.
size_t fastest_of(std::span<const double> us);

}  // namespace tfcc::runtime
