// SPDX-License-Identifier: Apache-2.0
// softmax, layer_norm, rms_norm, residual_norm and pointwise_norm: one row at a time, statistics in f32.
#include <fmt/format.h>

#include <algorithm>

#include "codegen/emit/emit.h"

namespace tfcc::codegen {
namespace {

// How CUDA shares out a row.
struct RowKernel {
  int64_t vec, per_row, threads;
};

// Widest power-of-two pack of at most 16 bytes that divides the row; 1 where it would be read from the caller's memory, which may be
// misaligned. Templates look at the alignment of what they write themselves.
int64_t row_vector(const EmitContext& c, const std::vector<ValueId>& read, DType type, int64_t hidden) {
  if (c.any_of_callers(read)) return 1;
  auto vec = static_cast<int64_t>(16 / size_of(type));
  while (hidden % vec != 0) vec /= 2;
  return std::max<int64_t>(vec, 1);
}

// Threads that share a row: a warp while a lane holds at most 32 values, then more (templates/README.md).
int64_t threads_per_row(int64_t hidden, int64_t vec) {
  for (int64_t t = 32; t < 1024; t *= 2) {
    if ((hidden + t * vec - 1) / (t * vec) * vec <= 32) return t;
  }
  return 1024;
}

RowKernel row_kernel(const EmitContext& c, const std::vector<ValueId>& read, DType type, int64_t hidden) {
  const int64_t vec = row_vector(c, read, type, hidden), per_row = threads_per_row(hidden, vec);
  return {vec, per_row, per_row == 32 ? 128 : per_row};
}

LaunchSize row_size(const EmitContext& c, ValueId y, const RowKernel& k) {
  LaunchSize size;
  size.threads = static_cast<uint32_t>(k.threads);
  size.grid = {c.ceil_div(c.rows(y), k.threads / k.per_row)};
  size.work = c.rows(y);
  size.grain = 4;
  return size;
}

void add_row(Stub& stub, const EmitContext& c, int64_t hidden, const RowKernel& k) {
  stub.field("hidden", hidden);
  if (!c.cuda()) return;
  stub.field("vec", k.vec);
  stub.field("threads_per_row", k.per_row);
  stub.field("threads", k.threads);
}

Result<int64_t> hidden_of(const EmitContext& c, OpId o) {
  const auto hidden = c.known(c.dims(c.graph.op(o).results[0]).back());
  if (!hidden) return c.unsupported(o, "the normalised axis has no size known at compile time");
  if (*hidden > 65536 && c.cuda()) return c.unsupported(o, "rows of more than 65536 elements are not supported on CUDA");
  return *hidden;
}

// The pointer to an operand that may be left out.
std::string optional_in(const Stub& stub, const ir::Op& op, bool there, size_t i) { return there ? stub.in(op.operands[i]) : "nullptr"; }

// "layer_norm__f16_h768": what each norm's launch has in common.
Emission row_launch(const EmitContext& c, const ir::Op& op, Stub stub, DType type, int64_t hidden, const RowKernel& k, int64_t flops) {
  const ValueId y = op.results[0];
  std::string name = fmt::format("{}__{}_h{}", stub.function(), storage_type(type), hidden);
  return Emission::of({std::move(name), std::move(stub), row_size(c, y, k), ir::mul(c.count(y), c.integer(flops))});
}

}  // namespace

Result<Emission> emit_softmax(const EmitContext& c, OpId o) {
  const ir::Op& op = c.graph.op(o);
  const ValueId x = op.operands[0], y = op.results[0];
  if (c.dims(y).empty()) return c.unsupported(o, "softmax of a scalar");
  ExprRef rows = c.rows(y), columns = c.dims(y).back();
  const auto known = c.known(columns);
  const bool wide = known && *known > 1024;
  const RowKernel k = wide ? RowKernel{1, 256, 256} : RowKernel{1, 32, 128};
  Stub stub(c, "softmax", o);
  ExprRef element = c.pool().load(0, c.type(x).dtype, {c.pool().index(0, rows), c.pool().index(1, columns)});
  stub.functor("Value", "idx row, idx column", element, element->type, [](int64_t i) { return std::string(i == 0 ? "row" : "column"); },
               [&](int64_t) { return std::vector<ExprRef>{rows, columns}; });
  stub.type("Out", c.type(y).dtype);
  if (c.cuda()) {
    stub.field("registers", wide ? 16 : known ? std::max<int64_t>(1, (*known + 31) / 32) : 8);
    stub.field("threads_per_row", k.per_row);
    stub.field("threads", k.threads);
  }
  stub.field("log", false);
  stub.call({stub.out(), stub.size(columns), stub.object("Value")}, {rows});
  return Emission::of({fmt::format("softmax__{}", c.storage(y)), std::move(stub), row_size(c, y, k), ir::mul(c.count(y), c.integer(5))});
}

Result<Emission> emit_layer_norm(const EmitContext& c, OpId o) {
  const ir::Op& op = c.graph.op(o);
  const ValueId x = op.operands[0], gamma = op.operands[1], y = op.results[0];
  const bool has_beta = op.operands.size() > 2;
  TFCC_TRY(const int64_t hidden, hidden_of(c, o));
  const RowKernel k = row_kernel(c, op.operands, c.type(x).dtype, hidden);
  Stub stub(c, "layer_norm", o);
  stub.type("In", c.type(x).dtype);
  stub.type("Weight", c.type(gamma).dtype);
  stub.type("Out", c.type(y).dtype);
  add_row(stub, c, hidden, k);
  stub.field("has_beta", has_beta);
  stub.field_f32("eps", op.as<ir::NormAttrs>().eps);
  stub.call({stub.out(), stub.in(x), stub.in(gamma), optional_in(stub, op, has_beta, 2)}, {c.rows(y)});
  return row_launch(c, op, std::move(stub), c.type(x).dtype, hidden, k, 8);
}

Result<Emission> emit_rms_norm(const EmitContext& c, OpId o) {
  const ir::Op& op = c.graph.op(o);
  const ValueId x = op.operands[0], gamma = op.operands[1], y = op.results[0];
  TFCC_TRY(const int64_t hidden, hidden_of(c, o));
  const RowKernel k = row_kernel(c, op.operands, c.type(x).dtype, hidden);
  Stub stub(c, "rms_norm", o);
  stub.type("In", c.type(x).dtype);
  stub.type("Weight", c.type(gamma).dtype);
  stub.type("Out", c.type(y).dtype);
  add_row(stub, c, hidden, k);
  stub.field_f32("eps", op.as<ir::NormAttrs>().eps);
  stub.call({stub.out(), stub.in(x), stub.in(gamma)}, {c.rows(y)});
  return row_launch(c, op, std::move(stub), c.type(x).dtype, hidden, k, 6);
}

Result<Emission> emit_residual_norm(const EmitContext& c, OpId o) {
  const ir::Op& op = c.graph.op(o);
  const auto& attrs = op.as<ir::ResidualNormAttrs>();
  const ValueId x = op.operands[0], r = op.operands[1], gamma = op.operands[2], y = op.results[0];
  TFCC_TRY(const int64_t hidden, hidden_of(c, o));
  const bool has_sum = op.results.size() > 1;
  const RowKernel k = row_kernel(c, op.operands, c.type(x).dtype, hidden);
  Stub stub(c, "residual_norm", o);
  stub.type("In", c.type(x).dtype);
  stub.type("Weight", c.type(gamma).dtype);
  stub.type("Out", c.type(y).dtype);
  add_row(stub, c, hidden, k);
  stub.field("rms", attrs.kind == ir::NormKind::rms);
  stub.field("has_beta", attrs.has_beta);
  stub.field("has_bias", attrs.has_bias);
  stub.field("has_sum", has_sum);
  stub.field_f32("eps", attrs.eps);
  stub.call({stub.out(), has_sum ? stub.out(1) : "nullptr", stub.in(x), stub.in(r), stub.in(gamma), optional_in(stub, op, attrs.has_beta, 3),
             optional_in(stub, op, attrs.has_bias, attrs.has_beta ? 4 : 3)}, {c.rows(y)});
  return row_launch(c, op, std::move(stub), c.type(x).dtype, hidden, k, 10);
}

Result<Emission> emit_pointwise_norm(const EmitContext& c, OpId o) {
  const ir::Op& op = c.graph.op(o);
  const auto& attrs = op.as<ir::PointwiseNormAttrs>();
  const ValueId gamma = op.operands[0], y = op.results[0];
  TFCC_TRY(const int64_t hidden, hidden_of(c, o));
  const bool has_sum = op.results.size() > 1;
  const DType sum = c.type(op.results.back()).dtype;       // the type that the body stands for
  const std::vector<ValueId> weights(op.operands.begin(), op.operands.begin() + (attrs.has_beta ? 2 : 1));
  const RowKernel k = row_kernel(c, weights, sum, hidden);
  const auto rank = static_cast<int64_t>(c.dims(y).size());
  Stub stub(c, "pointwise_norm", o);
  stub.row_functor("Value", attrs.body, rank - 1, attrs.body->type);
  stub.type("In", sum);
  stub.type("Weight", c.type(gamma).dtype);
  stub.type("Out", c.type(y).dtype);
  stub.field("rank", rank);
  add_row(stub, c, hidden, k);
  stub.field("rms", attrs.kind == ir::NormKind::rms);
  stub.field("has_beta", attrs.has_beta);
  stub.field("has_sum", has_sum);
  stub.field_f32("eps", attrs.eps);
  const std::vector<ExprRef> outer(c.dims(y).begin(), c.dims(y).end() - 1);
  stub.call({stub.out(), has_sum ? stub.out(1) : "nullptr", stub.sizes(outer), stub.object("Value"), stub.in(gamma),
             optional_in(stub, op, attrs.has_beta, 1)}, {});
  return row_launch(c, op, std::move(stub), c.type(y).dtype, hidden, k, static_cast<int64_t>(ir::node_count(attrs.body)) + 8);
}

}  // namespace tfcc::codegen
