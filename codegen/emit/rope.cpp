// SPDX-License-Identifier: Apache-2.0
// rope: x is read in place where it is a slice of a wider product. templates/cuda/rope.cuh,
// templates/cpu/rope.h.
#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "codegen/emit/emit.h"

namespace tfcc::codegen {

void add_head_norm(Stub& stub, const ir::RopeAttrs& attrs, int64_t units, int64_t of_row) {
  stub.field("normalises", attrs.eps.has_value());
  if (!attrs.eps) return;
  stub.field_f32("eps", *attrs.eps);
  stub.field("in_lanes", std::has_single_bit(static_cast<uint64_t>(units)) && units <= 32 &&
                             of_row % units == 0);
}

Result<Emission> emit_rope(const EmitContext& c, OpId o) {
  const ir::Op& op = c.graph.op(o);
  const auto& attrs = op.as<ir::RopeAttrs>();
  const ValueId x = op.operands[0], cos = op.operands[1], sin = op.operands[2], y = op.results[0];
  const int64_t width = c.known(c.dims(x)[2]).value_or(0), dim = width / attrs.heads,
                half = attrs.rotary / 2;
  const RowSlice part = row_slice(c.graph, x).value_or(RowSlice{x, 0, width});
  std::vector<ValueId> reads{part.base};
  for (size_t i = 1; i < op.operands.size(); ++i) {
    const ValueId v = op.operands[i];
    if (std::find(reads.begin(), reads.end(), v) == reads.end()) reads.push_back(v);
  }
  int64_t vec = c.any_of_callers(reads) || c.callers.has(y)
                    ? 1
                    : 16 / static_cast<int64_t>(size_of(c.type(x).dtype));
  while (half % vec != 0 || dim % vec != 0 || part.stride % vec != 0 || part.offset % vec != 0)
    vec /= 2;
  ExprRef rows = c.rows(y), tables = ir::is_int(c.dims(cos)[0], 1) ? c.dims(cos)[1] : rows;
  Stub stub(c, "rope", op.operands, reads, {y});
  stub.type("T", c.type(x).dtype);
  stub.type("Table", c.type(cos).dtype);
  stub.field("heads", attrs.heads);
  stub.field("dim", dim);
  stub.field("rotary", attrs.rotary);
  stub.field("x_stride", part.stride);
  stub.field("vec", vec);
  stub.field("interleaved", attrs.interleaved);
  stub.field("wide", ir::is_int(c.dims(cos)[2], attrs.rotary));
  const int64_t units = (dim - half) / vec;
  add_head_norm(stub, attrs, units, units * attrs.heads);
  stub.call({stub.out(), stub.in(part.base, part.offset), stub.in(cos), stub.in(sin),
             attrs.eps ? stub.in(op.operands[3]) : "NoGamma{}", stub.size(tables)},
            {rows});
  LaunchSize size;
  size.grid = {c.ceil_div(ir::mul(rows, c.integer(attrs.heads * units)), 256)};
  size.work = rows;
  size.grain = 4;
  return Emission::of(
      {fmt::format("rope__{}_d{}{}", c.storage(x), dim, attrs.interleaved ? "_pairs" : ""),
       std::move(stub), std::move(size), ir::mul(c.count(y), c.integer(3))});
}

}  // namespace tfcc::codegen
