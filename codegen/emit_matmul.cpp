// SPDX-License-Identifier: Apache-2.0
// matmul: described, then by the arm that is chosen for it (codegen/matmul).
#include "codegen/matmul/matmul.h"

namespace tfcc::codegen {

Result<void> emit_matmul(Lowering& l, OpId o) {
  const MatmulDesc desc = describe(l.graph, o);
  const MatmulConfig config = choose(desc, l.target);
  TFCC_CHECK(takes(config.arm, desc.epilogue) && "legalise splits off what an arm does not take");
  switch (config.arm) {
    case Arm::library: return emit_matmul_library(l, o, desc);
    case Arm::panel: return emit_matmul_panel(l, o, desc, config);
    case Arm::integer: return emit_matmul_integer(l, o);
  }
  return l.unsupported(o, "no arm of execution");
}

}  // namespace tfcc::codegen
