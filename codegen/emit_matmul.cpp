// SPDX-License-Identifier: Apache-2.0
// matmul: described, then by the arm that is chosen for it (codegen/matmul).
#include "codegen/matmul/matmul.h"

namespace tfcc::codegen {

namespace {

Result<void> emit(Lowering& l, OpId o, const MatmulDesc& desc, const MatmulConfig& config) {
  switch (config.arm) {
    case Arm::library: return emit_matmul_library(l, o, desc);
    case Arm::panel: return emit_matmul_panel(l, o, desc, config);
    case Arm::integer: return emit_matmul_integer(l, o);
    case Arm::wgmma: return emit_matmul_wgmma(l, o, desc, config);
  }
  return l.unsupported(o, "no arm of execution");
}

}  // namespace

Result<void> emit_matmul(Lowering& l, OpId o) {
  const MatmulDesc desc = describe(l.graph, o, l.most_tokens());
  const MatmulConfig config = choose(desc, l.target);
  TFCC_CHECK(takes(config.arm, desc.epilogue) && "legalise splits off what an arm does not take");
  const size_t first = l.launch_count();
  TFCC_TRY_VOID(emit(l, o, desc, config));
  l.explain(first, "matmul " + print(desc) + "\n" + print(config), "codegen/matmul/choose.cpp", config.line);
  return {};
}

}  // namespace tfcc::codegen
