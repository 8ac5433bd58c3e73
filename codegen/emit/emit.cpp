// SPDX-License-Identifier: Apache-2.0
#include "codegen/emit/emit.h"

#include <algorithm>

namespace tfcc::codegen {

Result<Emission> emit(const EmitContext& c, OpId o) {
  const ir::Op& op = c.graph.op(o);
  if (std::any_of(op.results.begin(), op.results.end(),
                  [&](ValueId v) { return c.dims(v).size() > 8; })) {
    return c.unsupported(o, "more than 8 dims are not supported");
  }
  if (row_slice(c.graph, op.results[0])) return Emission{};
  switch (op.kind) {
#define TFCC_OP(name, attrs, summary) \
  case OpKind::name:                  \
    return emit_##name(c, o);
#include "ir/ops.def"
#undef TFCC_OP
  }
  return c.unsupported(o, "no kernel");
}

Result<Emission> emit_constant(const EmitContext&, OpId) { return Emission{}; }

}  // namespace tfcc::codegen
