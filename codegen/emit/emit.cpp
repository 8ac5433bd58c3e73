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
  switch (op.kind) {
    case OpKind::constant: return Emission{};
    case OpKind::pointwise:
      return row_slice(c.graph, op.results[0]) ? Emission{} : emit_pointwise(c, o);
    case OpKind::reduce: return emit_reduce(c, o);
    case OpKind::cumsum: return emit_cumsum(c, o);
    case OpKind::matmul: return emit_matmul(c, o);
    case OpKind::softmax: return emit_softmax(c, o);
    case OpKind::norm: return emit_norm(c, o);
    case OpKind::rope: return emit_rope(c, o);
    case OpKind::pack: return emit_pack(c, o);
    case OpKind::kv_append: return emit_kv_append(c, o);
    case OpKind::rope_append: return emit_rope_append(c, o);
    case OpKind::linear_attention: return emit_linear_attention(c, o);
    case OpKind::linear_attention_step: return emit_linear_attention_step(c, o);
    case OpKind::attention: return emit_attention(c, o);
  }
  return c.unsupported(o, "no kernel");
}

}  // namespace tfcc::codegen
