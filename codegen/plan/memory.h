// SPDX-License-Identifier: Apache-2.0
// Memory at compile time: where each buffer of the arena lies. Sizes are expressions, so an offset
// is one too: the largest end of the buffers that live at the same time and were put below. What
// lies below what is decided once, at usual shapes.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "ir/graph.h"

namespace tfcc::codegen {

/// A buffer of the arena: the launches between which it is alive, both included, and its size in
/// bytes.
struct ArenaBuffer {
  int first, last;
  ir::ExprRef bytes;     // over the symbols of the graph
  ir::ExprRef restated;  // the same in the pool of Sizes, where offsets are made
};

/// Shapes at which a layout is judged, values by the name of a symbol; the first is the usual one.
using JudgedShapes = std::array<std::map<std::string, int64_t, std::less<>>, 3>;

struct ArenaLayout {
  /// Of the pool of restated sizes. Where it is null, the buffer has a slot of its own.
  std::vector<ir::ExprRef> offsets;
  ir::ExprRef total;       // bytes of the slot that the others share, restated
  ir::ExprRef live_bytes;  // the most that is alive at once at the usual shape, as an expression
};

/// Offsets and total are made of `pool`, that of the restated sizes. A buffer whose offset, or with
/// which the total, would not satisfy `short_enough` gets a slot of its own: sizes that compare in
/// no way make long programs.
ArenaLayout plan_memory(
    const std::vector<ArenaBuffer>& buffers, const JudgedShapes& shapes, ir::ExprPool& graph_pool,
    ir::ExprPool& pool,
    const std::function<bool(ir::ExprRef offset, ir::ExprRef total)>& short_enough);

/// Bytes rounded up to where the next buffer may begin.
ir::ExprRef aligned_bytes(ir::ExprPool& pool, ir::ExprRef bytes);

}  // namespace tfcc::codegen
