// SPDX-License-Identifier: Apache-2.0
// Normalisation over the last axis, as the norm operators of both domains need it.
#pragma once

#include "frontend/import/importer.h"

namespace tfcc::frontend {

/// Statistics of the last axis with that axis kept as 1, in the element type of x; the root mean
/// square where `centred` is false.
struct RowStatistics {
  ValueId mean;               // only if centred
  ValueId inverse_deviation;  // 1 / sqrt(variance + eps)
};
RowStatistics row_statistics(Importer& im, ValueId x, float eps, bool centred);

/// A layer or RMS norm of x over its last axis as an op. Errors: shape, if gamma or beta is no
/// vector of that axis.
Result<ValueId> norm_op(Importer& im, ir::NormKind kind, ValueId x, ValueId gamma,
                        std::optional<ValueId> beta, float eps, std::string name);

/// Whether the node's output i is wanted.
bool wants_output(const Importer& im, size_t i);

}  // namespace tfcc::frontend
