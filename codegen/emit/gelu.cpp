// SPDX-License-Identifier: Apache-2.0
// gelu and bias_gelu.
#include <fmt/format.h>

#include "codegen/emit/emit.h"

namespace tfcc::codegen {
namespace {

// Neighbours that one thread computes; 1 where memory of the caller may be misaligned.
int64_t pack(const EmitContext& c, const ir::Op& op, int64_t hidden) {
  if (c.any_of_callers(op.operands) || c.callers.has(op.results[0])) return 1;
  int64_t vec = 16 / static_cast<int64_t>(size_of(c.type(op.operands[0]).dtype));
  while (vec > 1 && hidden % vec != 0) vec /= 2;
  return vec;
}

LaunchSize size_of_rows(const EmitContext& c, ValueId y, int64_t vec) {
  LaunchSize size;
  size.grid = {c.ceil_div(c.count(y), 256 * vec)};
  size.work = c.rows(y);
  size.grain = 4;
  return size;
}

constexpr int64_t kFlopsPerElement = 20;

}  // namespace

Result<Emission> emit_gelu(const EmitContext& c, OpId o) {
  const ir::Op& op = c.graph.op(o);
  const ValueId x = op.operands[0], y = op.results[0];
  const auto& d = c.dims(y);
  ExprRef columns = d.empty() ? c.integer(1) : d.back();
  const int64_t vec = pack(c, op, c.known(columns).value_or(1));
  Stub stub(c, "gelu", o);
  stub.type("In", c.type(x).dtype);
  stub.type("Out", c.type(y).dtype);
  stub.field("vec", vec);
  stub.field("tanh", op.as<ir::GeluAttrs>().approx == ir::GeluKind::tanh);
  stub.call({stub.out(), stub.in(x), stub.size(columns)}, {c.rows(y)});
  return Emission::of({fmt::format("gelu__{}", c.storage(x)), std::move(stub), size_of_rows(c, y, vec), ir::mul(c.count(y), c.integer(kFlopsPerElement))});
}

Result<Emission> emit_bias_gelu(const EmitContext& c, OpId o) {
  const ir::Op& op = c.graph.op(o);
  const ValueId x = op.operands[0], bias = op.operands[1], y = op.results[0];
  const auto hidden = c.known(c.dims(y).back());
  if (!hidden) return c.unsupported(o, "the last axis has no size known at compile time");
  const int64_t vec = pack(c, op, *hidden);
  Stub stub(c, "bias_gelu", o);
  stub.type("In", c.type(x).dtype);
  stub.type("Weight", c.type(bias).dtype);
  stub.type("Out", c.type(y).dtype);
  stub.field("hidden", *hidden);
  stub.field("vec", vec);
  stub.field("tanh", op.as<ir::GeluAttrs>().approx == ir::GeluKind::tanh);
  stub.call({stub.out(), stub.in(x), stub.in(bias)}, {c.rows(y)});
  return Emission::of({fmt::format("bias_gelu__{}_h{}", c.storage(x), *hidden), std::move(stub), size_of_rows(c, y, vec),
                      ir::mul(c.count(y), c.integer(kFlopsPerElement))});
}

}  // namespace tfcc::codegen
