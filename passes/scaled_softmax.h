// SPDX-License-Identifier: Apache-2.0
// A sink that is spelled behind the product with the values, as the share that it leaves to the keys.
#pragma once

#include "passes/match.h"

namespace tfcc::passes {

/// If op o is
///   %lse = log(sum(exp(%x))); %y = (softmax(%x) %v) * sigmoid(%lse - sink)
/// then it is the softmax of rows with one more column, sink, which no value belongs to:
///   %c = concat(%x, sink); %y = softmax(%c)[.., :-1] %v
/// and takes its place. The logarithm may be shifted by what is the same for a row. Requires: the
/// product has no other use, and there is a column at least.
bool take_sink(Graph& graph, OpId o);

}  // namespace tfcc::passes
