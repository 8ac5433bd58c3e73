// SPDX-License-Identifier: Apache-2.0
// eliminate-dead-ops: drops what no output needs.
//   before: %a = ...; %b = pointwise(%a) ...; return y = %a
//   after:  %a = ...; return y = %a
#include "passes/passes.h"

namespace tfcc::passes {

PassReport eliminate_dead_ops(ir::Graph& graph) {
  PassReport report;
  report.rewrites = graph.clean();
  return report;
}

}  // namespace tfcc::passes
