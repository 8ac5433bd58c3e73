// SPDX-License-Identifier: Apache-2.0
// softmax and norm: one row at a time, statistics in f32. A norm has a kernel by what its body is:
// a value (templates layer_norm and rms_norm), a sum of two (residual_norm), anything else
// (pointwise_norm).
#include <fmt/format.h>

#include <algorithm>

#include "codegen/emit/emit.h"
#include "ir/norm.h"

namespace tfcc::codegen {
namespace {

// How CUDA shares out a row.
struct RowKernel {
  int64_t vec, per_row, threads;
};

// Widest power-of-two pack of at most 16 bytes that divides the row; 1 where it would be read from
// the caller's memory, which may be misaligned. Templates look at the alignment of what they write
// themselves.
int64_t row_vector(const EmitContext& c, const std::vector<ValueId>& read, DType type,
                   int64_t hidden) {
  if (c.any_of_callers(read)) return 1;
  auto vec = static_cast<int64_t>(16 / size_of(type));
  while (hidden % vec != 0) vec /= 2;
  return std::max<int64_t>(vec, 1);
}

// Threads that share a row: a warp while a lane holds at most 32 values, then more
// (templates/README.md).
int64_t threads_per_row(int64_t hidden, int64_t vec) {
  for (int64_t t = 32; t < 1024; t *= 2) {
    if ((hidden + t * vec - 1) / (t * vec) * vec <= 32) return t;
  }
  return 1024;
}

RowKernel row_kernel(const EmitContext& c, const std::vector<ValueId>& read, DType type,
                     int64_t hidden) {
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
  if (*hidden > 65536 && c.cuda())
    return c.unsupported(o, "rows of more than 65536 elements are not supported on CUDA");
  return *hidden;
}

// "layer_norm__f16_h768": what each norm's launch has in common.
Emission row_launch(const EmitContext& c, const ir::Op& op, Stub stub, DType type, int64_t hidden,
                    const RowKernel& k, int64_t flops) {
  const ValueId y = op.results[0];
  std::string name = fmt::format("{}__{}_h{}", stub.function(), storage_type(type), hidden);
  return Emission::of(
      {std::move(name), std::move(stub), row_size(c, y, k), ir::mul(c.count(y), c.integer(flops))});
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
  ExprRef element =
      c.pool().load(0, c.type(x).dtype, {c.pool().index(0, rows), c.pool().index(1, columns)});
  stub.functor(
      "Value", "idx row, idx column", element, element->type,
      [](int64_t i) { return std::string(i == 0 ? "row" : "column"); },
      [&](int64_t) {
        return std::vector<ExprRef>{rows, columns};
      });
  stub.type("Out", c.type(y).dtype);
  if (c.cuda()) {
    stub.field("registers", wide ? 16 : known ? std::max<int64_t>(1, (*known + 31) / 32) : 8);
    stub.field("threads_per_row", k.per_row);
    stub.field("threads", k.threads);
  }
  stub.field("log", false);
  stub.call({stub.out(), stub.size(columns), stub.object("Value")}, {rows});
  return Emission::of({fmt::format("softmax__{}", c.storage(y)), std::move(stub), row_size(c, y, k),
                       ir::mul(c.count(y), c.integer(5))});
}

namespace {

// What the forms of a norm have in common: weights, statistics, launch.
struct NormLaunch {
  const EmitContext& c;
  const ir::Op& op;
  ir::NormOf norm;
  int64_t hidden;

  ValueId y() const { return op.results[0]; }
  bool has_sum() const { return op.results.size() > 1; }
  Stub begin(const char* form, OpId o, DType in) const {
    Stub stub(c, form, o);
    stub.type("In", in);
    stub.type("Weight", c.type(norm.gamma).dtype);
    stub.type("Out", c.type(y()).dtype);
    return stub;
  }
  // The template for a sum has one type for its terms and itself, and one for the vectors.
  bool has_types_of(const ir::NormedSum& sum) const {
    if (sum.bias && c.type(*sum.bias).dtype != c.type(norm.gamma).dtype) return false;
    return !has_sum() || c.type(op.results[1]).dtype == c.type(sum.x).dtype;
  }
  std::string beta(const Stub& stub) const { return norm.beta ? stub.in(*norm.beta) : "nullptr"; }
};

// The norm of a value.
Result<Emission> plain_norm(const NormLaunch& n, OpId o, ValueId x) {
  const EmitContext& c = n.c;
  const bool rms = n.norm.kind == ir::NormKind::rms;
  const DType in = c.type(x).dtype;
  const RowKernel k = row_kernel(c, n.op.operands, in, n.hidden);
  Stub stub = n.begin(rms ? "rms_norm" : "layer_norm", o, in);
  add_row(stub, c, n.hidden, k);
  if (!rms) stub.field("has_beta", n.norm.beta.has_value());
  stub.field_f32("eps", n.norm.eps);
  if (rms) stub.call({stub.out(), stub.in(x), stub.in(n.norm.gamma)}, {c.rows(n.y())});
  else stub.call({stub.out(), stub.in(x), stub.in(n.norm.gamma), n.beta(stub)}, {c.rows(n.y())});
  return row_launch(c, n.op, std::move(stub), in, n.hidden, k, rms ? 6 : 8);
}

// The norm of a sum of two values, with a bias, and the sum where it is wanted.
Result<Emission> residual_norm(const NormLaunch& n, OpId o, const ir::NormedSum& sum) {
  const EmitContext& c = n.c;
  const DType in = c.type(sum.x).dtype;
  const RowKernel k = row_kernel(c, n.op.operands, in, n.hidden);
  Stub stub = n.begin("residual_norm", o, in);
  add_row(stub, c, n.hidden, k);
  stub.field("rms", n.norm.kind == ir::NormKind::rms);
  stub.field("has_beta", n.norm.beta.has_value());
  stub.field("has_bias", sum.bias.has_value());
  stub.field("has_sum", n.has_sum());
  stub.field_f32("eps", n.norm.eps);
  stub.call(
      {stub.out(), n.has_sum() ? stub.out(1) : "nullptr", stub.in(sum.x), stub.in(sum.residual),
       stub.in(n.norm.gamma), n.beta(stub), sum.bias ? stub.in(*sum.bias) : "nullptr"},
      {c.rows(n.y())});
  return row_launch(c, n.op, std::move(stub), in, n.hidden, k, 10);
}

// The norm of any expression, and its value where it is wanted.
Result<Emission> pointwise_norm(const NormLaunch& n, OpId o) {
  const EmitContext& c = n.c;
  ExprRef body = n.op.as<ir::NormAttrs>().body;
  const auto& dims = c.dims(n.y());
  const DType value = c.type(n.op.results.back()).dtype;  // the type that the body stands for
  const std::vector<ValueId> weights(n.op.operands.begin(),
                                     n.op.operands.begin() + ir::first_loaded(n.op));
  const RowKernel k = row_kernel(c, weights, value, n.hidden);
  const auto rank = static_cast<int64_t>(dims.size());
  Stub stub(c, "pointwise_norm", o);
  stub.row_functor("Value", body, rank - 1, body->type);
  stub.type("In", value);
  stub.type("Weight", c.type(n.norm.gamma).dtype);
  stub.type("Out", c.type(n.y()).dtype);
  stub.field("rank", rank);
  add_row(stub, c, n.hidden, k);
  stub.field("rms", n.norm.kind == ir::NormKind::rms);
  stub.field("has_beta", n.norm.beta.has_value());
  stub.field("has_sum", n.has_sum());
  stub.field_f32("eps", n.norm.eps);
  const std::vector<ExprRef> outer(dims.begin(), dims.end() - 1);
  stub.call({stub.out(), n.has_sum() ? stub.out(1) : "nullptr", stub.sizes(outer),
             stub.object("Value"), stub.in(n.norm.gamma), n.beta(stub)},
            {});
  return row_launch(c, n.op, std::move(stub), c.type(n.y()).dtype, n.hidden, k,
                    static_cast<int64_t>(ir::node_count(body)) + 8);
}

}  // namespace

Result<Emission> emit_norm(const EmitContext& c, OpId o) {
  const ir::Op& op = c.graph.op(o);
  TFCC_TRY(const int64_t hidden, hidden_of(c, o));
  const NormLaunch n{c, op, ir::norm_of(op), hidden};
  if (const auto x = ir::normed_value(c.graph, o); x && !n.has_sum()) return plain_norm(n, o, *x);
  const auto sum = ir::normed_sum(c.graph, o);
  if (sum && n.has_types_of(*sum)) return residual_norm(n, o, *sum);
  return pointwise_norm(n, o);
}

}  // namespace tfcc::codegen
