// SPDX-License-Identifier: Apache-2.0
// Which value after a pass stands for which before it, as far as the two graphs tell; for tfcc
// verify.
#pragma once

#include <unordered_map>

#include "ir/graph.h"

namespace tfcc::tools {

/// By value of the later graph.
using Counterparts = std::unordered_map<ir::ValueId, ir::ValueId>;
/// `after` must have been made from a copy of `before`. Constants and inputs are left out.
Counterparts counterparts(const ir::Graph& before, const ir::Graph& after);

/// Same kind and attributes.
bool same_computation(const ir::Op& a, const ir::Op& b);

}  // namespace tfcc::tools
