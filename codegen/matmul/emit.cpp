// SPDX-License-Identifier: Apache-2.0
// matmul: described, then by the arm that is chosen for it.
#include "codegen/matmul/matmul.h"

namespace tfcc::codegen {
namespace {

Result<Emission> emit_arm(const EmitContext& c, OpId o, const MatmulDesc& desc,
                          const MatmulConfig& config) {
  switch (config.arm) {
#define TFCC_ARM(name, epilogues) \
  case Arm::name:                 \
    return emit_matmul_##name(c, o, desc, config);
#include "codegen/matmul/arms.def"
#undef TFCC_ARM
  }
  return c.unsupported(o, "no arm of execution");
}

}  // namespace

Result<Emission> emit_matmul(const EmitContext& c, OpId o) {
  const MatmulDesc desc = describe(c.graph, o, c.bucket.most_tokens, c.rules);
  const MatmulConfig config = choose(desc, c.target);
  TFCC_CHECK(takes_epilogue(config, desc) && takes_factor(config.arm, desc) &&
             "legalise splits off what an arm does not take");
  const auto& attrs = c.graph.op(o).as<ir::MatmulAttrs>();
  TFCC_CHECK(!(attrs.gate && (attrs.norm || attrs.scaled || attrs.epilogue)) &&
             "a gate stands alone");
  if ((attrs.norm || attrs.scaled) &&
      (config.arm != Arm::wgmma || desc.epilogue == Epilogue::other ||
       (attrs.scaled && !desc.scaled))) {
    return c.unsupported(o, "only products of warpgroups have norms");
  }
  TFCC_TRY(Emission emission, emit_arm(c, o, desc, config));
  emission.reason = Reason{"matmul " + print(desc) + "\n" + print(config),
                           "codegen/matmul/choose.cpp", config.line};
  return emission;
}

}  // namespace tfcc::codegen
