// SPDX-License-Identifier: Apache-2.0
// softmax and norm: one row at a time, statistics in f32, or f64 of doubles (templates/*/softmax,
// norm).
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

// Widest power-of-two pack of at most 16 bytes that divides the row, of the widest of `types`; 1
// where weights are read from the caller's memory, which may be misaligned.
int64_t row_vector(const EmitContext& c, const std::vector<ValueId>& weights,
                   const std::vector<DType>& types, int64_t hidden) {
  if (c.any_of_callers(weights)) return 1;
  int64_t vec = 16;
  for (DType t : types) vec = std::min(vec, static_cast<int64_t>(16 / size_of(t)));
  while (hidden % vec != 0) vec /= 2;
  return vec;
}

// Threads that share a row: a warp while a lane holds at most 32 values, then more
// (templates/README.md).
int64_t threads_per_row(int64_t hidden, int64_t vec) {
  for (int64_t t = 32; t < 1024; t *= 2) {
    if ((hidden + t * vec - 1) / (t * vec) * vec <= 32) return t;
  }
  return 1024;
}

LaunchSize row_size(const EmitContext& c, ValueId y, const RowKernel& k) {
  LaunchSize size;
  size.threads = static_cast<uint32_t>(k.threads);
  size.grid = {c.ceil_div(c.rows(y), k.threads / k.per_row)};
  size.work = c.rows(y);
  size.grain = 4;
  return size;
}

Reason why_rows(const RowKernel& k, const char* why, int line) {
  return {fmt::format("{} threads for a row, {} a block, {} element{} at a time: {}", k.per_row,
                      k.threads, k.vec, k.vec == 1 ? "" : "s", why),
          "codegen/emit/norm.cpp", line};
}

Result<int64_t> hidden_of(const EmitContext& c, OpId o) {
  const auto hidden = c.known(c.dims(c.graph.op(o).results[0]).back());
  if (!hidden) return c.unsupported(o, "the normalised axis has no size known at compile time");
  if (*hidden == 0 && c.cuda()) return c.unsupported(o, "a norm of rows without elements");
  if (*hidden > 65536 && c.cuda())
    return c.unsupported(o, "rows of more than 65536 elements are not supported on CUDA");
  return *hidden;
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
  Emission e = Emission::of({fmt::format("softmax__{}", c.storage(y)), std::move(stub),
                             row_size(c, y, k), ir::mul(c.count(y), c.integer(5))});
  if (c.cuda())
    e.reason = why_rows(k,
                        wide ? "rows beyond 1024 elements have a block each"
                             : "a warp has a row, and meets no barrier",
                        __LINE__);
  return e;
}

Result<Emission> emit_norm(const EmitContext& c, OpId o) {
  const ir::Op& op = c.graph.op(o);
  const ir::NormOf norm = ir::norm_of(op);
  const ValueId y = op.results[0];
  TFCC_TRY(const int64_t hidden, hidden_of(c, o));
  ExprRef body = op.as<ir::NormAttrs>().body;
  const std::vector<ValueId> weights(op.operands.begin(),
                                     op.operands.begin() + ir::first_loaded(op));
  std::vector<DType> types;
  for (ValueId v : op.results) types.push_back(c.type(v).dtype);
  for (size_t k = weights.size(); k < op.operands.size(); ++k) {
    if (is_float(c.type(op.operands[k]).dtype)) types.push_back(c.type(op.operands[k]).dtype);
  }
  const int64_t vec = row_vector(c, weights, types, hidden), per_row = threads_per_row(hidden, vec);
  const RowKernel k{vec, per_row, per_row == 32 ? 128 : per_row};
  const auto rank = static_cast<int64_t>(c.dims(y).size());
  Stub stub(c, "norm", o);
  stub.row_functor("Value", body, rank - 1, vec);
  stub.type("Real", body->type == ir::Scalar::f64 ? DType::f64 : DType::f32);
  stub.field("rank", rank);
  stub.field("hidden", hidden);
  if (c.cuda()) {
    stub.field("vec", vec);
    stub.field("threads_per_row", k.per_row);
    stub.field("threads", k.threads);
  }
  stub.field("rms", norm.kind == ir::NormKind::rms);
  stub.field_f32("eps", norm.eps);
  const std::vector<ExprRef> outer(c.dims(y).begin(), c.dims(y).end() - 1);
  const bool early = c.cuda() && c.made_before_last(outer, op.operands);
  if (c.cuda()) {
    const auto unit =
        std::find_if(outer.begin(), outer.end(), [](ExprRef d) { return !ir::is_int(d, 1); });
    const auto units = unit - outer.begin();
    stub.field("units", std::min<int64_t>(units, std::max<int64_t>(rank - 2, 0)));
    stub.field("early", early);
    stub.constants_near();
    if (early) stub.waits_itself(), stub.reads_early();
  }
  stub.call(
      {stub.out(), op.results.size() > 1 ? stub.out(1) : "nullptr",
       early ? stub.sizes_before_wait("outer", outer) : stub.sizes(outer), stub.object("Value"),
       stub.in(norm.gamma), norm.beta ? stub.in(*norm.beta) : "nullptr"},
      {});
  const auto flops = static_cast<int64_t>(ir::node_count(body)) + 8;
  Emission e = Emission::of({fmt::format("norm__{}_h{}", c.storage(y), hidden), std::move(stub),
                             row_size(c, y, k), ir::mul(c.count(y), c.integer(flops))});
  if (c.cuda())
    e.reason = why_rows(k,
                        "the widest load that rows and vectors allow, and as few threads as hold "
                        "a row in registers",
                        __LINE__);
  return e;
}

}  // namespace tfcc::codegen
