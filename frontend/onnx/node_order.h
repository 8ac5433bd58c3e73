// SPDX-License-Identifier: Apache-2.0
// The order of nodes. ONNX wants every value made before it is read; files that tools have changed
// do not always keep to it.
#pragma once

#include <vector>

#include "frontend/onnx/onnx_reader.h"

namespace tfcc::frontend {

/// Puts every node behind those that make what it reads, its bodies' reads included, and otherwise
/// keeps the order of the file. Returns whether it moved any. Nodes of a cycle, and what reads
/// them, come last: the walk says which value is missing. O(n log n).
bool order_nodes(std::vector<Node>& nodes);

}  // namespace tfcc::frontend
