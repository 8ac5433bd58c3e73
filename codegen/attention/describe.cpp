// SPDX-License-Identifier: Apache-2.0
// describe_attention: what the templates are told of an attention, read off its op.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "codegen/attention/attention.h"

namespace tfcc::codegen {
namespace {

// What causality and windows say the templates know by themselves. Tiles without a live key are
// skipped. Among packed rows a key has a number and a position, and conditions are on positions:
// there none is told apart, for its keys are those that live(b, j) left.
void split_visible(const ir::AttentionAttrs& attrs, AttentionDesc& x) {
  ExprRef visible = attrs.visible;
  if (!visible) return;
  const std::vector<ExprRef> conjuncts =
      visible->kind == ir::ExprKind::band ? visible->args : std::vector<ExprRef>{visible};
  for (ExprRef c : conjuncts) {
    const auto band = ir::band_of(c, x.queries, x.keys);
    if (band && (band->left ? attrs.window_left == band->size
                            : (attrs.causal ? 0 : attrs.window_right.value_or(-1)) == band->size))
      continue;
    const bool keys_alone =
        !x.packed && !ir::uses_index(c, ir::kHead) && !ir::uses_index(c, ir::kQuery);
    ExprRef& part = keys_alone ? x.live : x.rest;
    part = part ? ir::logical_and(part, c) : c;
  }
}

}  // namespace

Result<AttentionDesc> describe_attention(const EmitContext& c, OpId o) {
  const ir::Op& op = c.graph.op(o);
  const auto& attrs = op.as<ir::AttentionAttrs>();
  AttentionDesc x;
  x.type = c.type(op.operands[0]).dtype;
  const auto extents = ir::attention_extents(c.graph, op);
  x.batch = extents[ir::kBatch];
  x.queries = extents[ir::kQuery];
  x.keys = extents[ir::kKey];
  x.most_queries = attrs.page ? c.dims(op.operands[0])[1]
                              : x.queries;  // no sequence has more than all have together
  x.aligned = !c.callers.has(op.results[0]);
  const auto bytes = static_cast<int64_t>(size_of(x.type));
  for (size_t k = 0; k < 3; ++k) {
    const ValueId v = op.operands[k];
    if (attrs.page && k > 0) {  // a state, which the runtime has at an aligned address
      x.parts[k] = {v, 0, *c.known(c.dims(v)[3])};
      x.aligned &= x.parts[k].stride * bytes % 16 == 0;
      continue;
    }
    const auto width = c.known(c.dims(v)[2]);
    if (!width || *width == 0) return c.unsupported(o, "head sizes are not known at compile time");
    x.parts[k] = row_slice(c.graph, v).value_or(RowSlice{v, 0, *width});
    x.aligned &= !c.callers.has(x.parts[k].base) && x.parts[k].offset * bytes % 16 == 0 &&
                 x.parts[k].stride * bytes % 16 == 0;
  }
  x.head = *c.known(c.dims(op.operands[0])[2]) / attrs.heads;
  x.v_head = attrs.page ? x.parts[2].stride : *c.known(c.dims(op.operands[2])[2]) / attrs.kv_heads;
  constexpr int64_t largest_head = 256;  // of the templates
  if (c.cuda() && std::max(x.head, x.v_head) > largest_head)
    return c.unsupported(
        o, fmt::format("heads of {} are over {}", std::max(x.head, x.v_head), largest_head));
  x.packed = !attrs.packed.empty();
  x.page = attrs.page.value_or(0);
  if (x.type == DType::f32 && !x.page)  // over pages it has the same bits in any batch
    x.f32 = c.rules.f32;
  x.kv_heads = attrs.kv_heads;
  x.positions = x.packed && (attrs.causal || attrs.window_left || attrs.window_right);
  x.scale = plain_scale(attrs.score);
  if (!x.scale && c.cuda()) x.score = split_score(attrs.score);
  split_visible(attrs, x);
  return x;
}

}  // namespace tfcc::codegen
