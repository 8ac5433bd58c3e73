// SPDX-License-Identifier: Apache-2.0
// What each size of a run is rounded up to, so that runs share captured launches
// (runtime/core/bucket_finder.h looks it up).
#pragma once

#include <cstdint>
#include <vector>

#include "ir/graph.h"
#include "runtime/core/manifest.h"

namespace tfcc::codegen {

/// One entry per symbol of the manifest, by its role:
///
/// | role | rounded up to |
/// |---|---|
/// | length | a power of two from 4 (with a past: from 1), or the next of `lengths`, which the user named |
/// | tokens, a product of sizes | steps of 64 up to 512 (with a past: powers of two below 64), then an eighth of the next power of two |
/// | batch | the most sequences of such a length that so many tokens make; without tokens like a size of no role |
/// | past, context | a power of two from 16 |
/// | none | itself up to 16, then an eighth of the next power of two |
///
/// No cap is larger than the range of the symbol allows. A size that may be 0 has 0 as a cap of its
/// own, unless lengths are named; a run with a length of 0 has no cap for its batch, and so no
/// bucket.
runtime::BucketTable bucket_table(const ir::Graph& graph, const std::vector<int64_t>& lengths);

}  // namespace tfcc::codegen
