// SPDX-License-Identifier: Apache-2.0
// Elementwise ops that are a GELU, of a value or of a value and a bias: kernels of their own
// (templates/*/gelu, bias_gelu).
#include <fmt/format.h>

#include <algorithm>

#include "codegen/emit/emit.h"
#include "ir/gelu.h"

namespace tfcc::codegen {
namespace {

// Neighbours that one thread computes; 1 where memory of the caller may be misaligned.
int64_t pack(const EmitContext& c, const ir::Op& op, ValueId x, int64_t hidden) {
  const ValueId y = op.results[0];
  if (c.any_of_callers(op.operands) || c.callers.has(y)) return 1;
  const size_t widest = std::max(size_of(c.type(x).dtype), size_of(c.type(y).dtype));
  int64_t vec = 16 / static_cast<int64_t>(widest);
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

/// GELU(x), or GELU(x + bias) with a bias along the last axis.
struct GeluOp {
  ir::GeluKind kind;
  ValueId x;
  std::optional<ValueId> bias;
};

std::optional<ValueId> operand_at(const EmitContext& c, const ir::Op& op, ExprRef e,
                                  const std::vector<ExprRef>& at,
                                  const std::vector<ExprRef>& dims) {
  if (e->kind != ir::ExprKind::load || e->args != at) return std::nullopt;
  const ValueId v = op.operands[static_cast<size_t>(e->value)];
  return c.dims(v) == dims && is_float(c.type(v).dtype) ? std::optional(v) : std::nullopt;
}

std::optional<GeluOp> gelu_op(const EmitContext& c, const ir::Op& op) {
  const ValueId y = op.results[0];
  const auto& dims = c.dims(y);
  const auto gelu = ir::as_gelu(op.as<ir::PointwiseAttrs>().body);
  if (!gelu) return std::nullopt;
  const std::vector<ExprRef> at = ir::indices_of(c.graph, y);
  if (const auto x = operand_at(c, op, gelu->x, at, dims))
    return GeluOp{gelu->kind, *x, std::nullopt};
  if (gelu->x->kind != ir::ExprKind::fadd || dims.empty() || !c.known(dims.back()))
    return std::nullopt;
  for (size_t i : {0, 1}) {
    const auto x = operand_at(c, op, gelu->x->args[i], at, dims);
    const auto bias = operand_at(c, op, gelu->x->args[1 - i], {at.back()}, {dims.back()});
    if (x && bias && dims.size() > 1) return GeluOp{gelu->kind, *x, bias};
  }
  return std::nullopt;
}

}  // namespace

std::optional<Emission> gelu_kernel(const EmitContext& c, OpId o) {
  const ir::Op& op = c.graph.op(o);
  const auto gelu = gelu_op(c, op);
  if (!gelu) return std::nullopt;
  const ValueId y = op.results[0];
  const auto& d = c.dims(y);
  ExprRef columns = d.empty() ? c.integer(1) : d.back();
  const auto hidden = c.known(columns);
  const int64_t vec = pack(c, op, gelu->x, hidden.value_or(1));
  Stub stub(c, gelu->bias ? "bias_gelu" : "gelu", o);
  stub.type("In", c.type(gelu->x).dtype);
  if (gelu->bias) stub.type("Weight", c.type(*gelu->bias).dtype);
  stub.type("Out", c.type(y).dtype);
  if (gelu->bias) stub.field("hidden", *hidden);
  stub.field("vec", vec);
  stub.field("tanh", gelu->kind == ir::GeluKind::tanh);
  stub.call({stub.out(), stub.in(gelu->x), gelu->bias ? stub.in(*gelu->bias) : stub.size(columns)},
            {c.rows(y)});
  std::string name = fmt::format("{}__{}", stub.function(), c.storage(gelu->x));
  if (gelu->bias) name += fmt::format("_h{}", *hidden);
  return Emission::of({std::move(name), std::move(stub), size_of_rows(c, y, vec),
                       ir::mul(c.count(y), c.integer(kFlopsPerElement))});
}

}  // namespace tfcc::codegen
