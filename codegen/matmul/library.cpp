// SPDX-License-Identifier: Apache-2.0
// Products by the target's library: the one launch that is no kernel of ours.
#include <fmt/format.h>

#include "codegen/matmul/matmul.h"

namespace tfcc::codegen {
namespace {

// What a product is for k = 0, where the runtime leaves the library's launch out: zeros, or the
// bias. A launch of no work for any other k.
KernelLaunch sum_over_nothing(const EmitContext& c, OpId o, const MatmulDesc& x) {
  const ir::Op& op = c.graph.op(o);
  const ValueId y = op.results[0];
  const Scalar type = ir::scalar_of(x.d);
  const bool has_bias = x.epilogue == Epilogue::bias;
  const auto at = ir::indices_of(c.pool(), c.dims(y));
  Stub stub = product_stub(
      c, o, "pointwise", has_bias ? std::vector<ValueId>{op.operands[2]} : std::vector<ValueId>{});
  KernelLaunch k = pointwise_launch(
      c, fmt::format("sum_over_nothing__{}_r{}", c.storage(y), at.size()), std::move(stub), y,
      has_bias ? c.pool().load(2, type, {at.back()}) : c.pool().real(0, type));
  ExprRef nothing = ir::max(c.integer(0), ir::sub(c.integer(1), x.k));
  for (ExprRef* e : {&k.size.grid[0], &k.size.work, &k.flops}) *e = ir::mul(*e, nothing);
  return k;
}

}  // namespace

Result<Emission> emit_matmul_library(const EmitContext& c, OpId o, const MatmulDesc& x,
                                     const MatmulConfig&) {
  const ir::Op& op = c.graph.op(o);
  const bool has_bias = x.epilogue == Epilogue::bias;
  Emission emission;
  note_rows(c, c.graph.value(op.results[0]).name, x, emission);
  emission.launches.emplace_back(LibraryLaunch{
      op.operands[0], op.operands[1], op.results[0],
      has_bias ? std::optional(op.operands[2]) : std::nullopt, x.m, x.n, x.k, x.batch, x.stride_a,
      x.stride_b, x.trans_a, x.trans_b, x.in_order, x.side_by_side, x.alpha});
  if (!ir::prove_ge0(ir::sub(x.k, c.integer(1))))
    emission.launches.emplace_back(sum_over_nothing(c, o, x));
  return emission;
}

}  // namespace tfcc::codegen
