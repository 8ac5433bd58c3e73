// SPDX-License-Identifier: Apache-2.0
// kv_append and rope_append: q, k and v are read in place where they are slices of a wider product.
// templates/*/kv_append, rope_append.
#include <fmt/format.h>

#include <algorithm>

#include "codegen/emit/emit.h"

namespace tfcc::codegen {
namespace {

// What the template is told of the op: of k and v, and q where it is rotated.
void add_spec(Stub& stub, const EmitContext& c, const ir::Op& op, const ir::RopeAttrs& rope,
              const std::vector<RowSlice>& parts, int64_t vec) {
  const bool rotates = op.kind == OpKind::rope_append;
  const std::vector<ExprRef>& state = c.dims(op.results[0]);
  const int64_t kv_heads = *c.known(state[1]), page = *c.known(state[2]), d = *c.known(state[3]),
                dv = *c.known(c.dims(op.results[1])[3]);
  stub.type("T", c.type(op.results[0]).dtype);
  if (rotates) {
    stub.type("Table", c.type(op.operands[6]).dtype);
    for (const auto& [name, value] : {std::pair{"heads", rope.heads},
                                      {"kv_heads", kv_heads},
                                      {"page", page},
                                      {"dim", d},
                                      {"dv", dv},
                                      {"rotary", rope.rotary},
                                      {"q_stride", parts[2].stride}})
      stub.field(name, value);
    stub.field("interleaved", rope.interleaved);
    stub.field("wide", ir::is_int(c.dims(op.operands[6])[2], rope.rotary));
    const int64_t units = (d - rope.rotary / 2) / vec;
    add_head_norm(stub, rope, units, (rope.heads + kv_heads) * units + kv_heads * dv / vec);
  } else {
    for (const auto& [name, value] :
         {std::pair{"heads", kv_heads}, {"page", page}, {"d", d}, {"dv", dv}})
      stub.field(name, value);
  }
  stub.field("k_stride", parts[0].stride);
  stub.field("v_stride", parts[1].stride);
  if (c.cuda()) stub.field("vec", vec);
}

// Elements of an access: 16 bytes where memory of ours is read and written and rows, heads and what is
// rotated are multiples of them, else what divides all of these.
int64_t vector_of(const EmitContext& c, const ir::Op& op, const std::vector<ValueId>& reads,
                  const std::vector<RowSlice>& parts, std::vector<int64_t> divided) {
  const bool rotates = op.kind == OpKind::rope_append;
  const bool aligned =
      !c.any_of_callers(reads) &&
      !(rotates && (c.callers.has(op.results[2]) ||
                    c.any_of_callers({op.operands.begin() + 6, op.operands.end()})));
  int64_t vec = aligned ? 16 / static_cast<int64_t>(size_of(c.type(op.operands[2]).dtype)) : 1;
  for (const RowSlice& p : parts) divided.insert(divided.end(), {p.stride, p.offset});
  for (int64_t n : divided) {
    while (n % vec != 0) vec /= 2;
  }
  return vec;
}

Emission append(const EmitContext& c, OpId o) {
  const ir::Op& op = c.graph.op(o);
  const bool rotates = op.kind == OpKind::rope_append;
  const std::vector<ExprRef>& state = c.dims(op.results[0]);
  const int64_t kv_heads = *c.known(state[1]), d = *c.known(state[3]),
                dv = *c.known(c.dims(op.results[1])[3]);
  const ir::RopeAttrs rope = rotates ? op.as<ir::RopeAttrs>() : ir::RopeAttrs{};
  const auto part = [&](size_t i, int64_t width) {
    return row_slice(c.graph, op.operands[i]).value_or(RowSlice{op.operands[i], 0, width});
  };
  std::vector<RowSlice> parts{part(2, kv_heads * d), part(3, kv_heads * dv)};
  if (rotates) parts.push_back(part(5, rope.heads * d));
  std::vector<ValueId> reads;
  const auto read = [&](ValueId v) {
    if (std::find(reads.begin(), reads.end(), v) == reads.end()) reads.push_back(v);
  };
  for (const RowSlice& p : parts) read(p.base);
  const int64_t vec = vector_of(c, op, reads, parts, {d, dv, rope.rotary / 2});
  read(op.operands[4]);
  for (size_t i = 6; i < op.operands.size(); ++i) read(op.operands[i]);

  Stub stub(c, rotates ? "rope_append" : "kv_append", op.operands, reads, op.results);
  add_spec(stub, c, op, rope, parts, vec);
  ExprRef rows = c.dims(op.operands[2])[1];
  const auto in = [&](const RowSlice& p) { return stub.in(p.base, p.offset); };
  std::vector<std::string> arguments{stub.out(0), stub.out(1)};
  if (rotates) arguments.push_back(stub.out(2));
  arguments.insert(arguments.end(), {in(parts[0]), in(parts[1]), stub.in(op.operands[4])});
  if (rotates)
    arguments.insert(
        arguments.end(),
        {in(parts[2]), stub.in(op.operands[6]), stub.in(op.operands[7]),
         rope.eps ? stub.in(op.operands[8]) : "NoGamma{}",
         rope.eps ? stub.in(op.operands[9]) : "NoGamma{}", stub.size(c.dims(op.operands[6])[1])});
  arguments.push_back(stub.size(state[0]));
  stub.call(std::move(arguments), {rows});

  const int64_t of_head =
      (d - rope.rotary / 2) / vec;  // a pair is one unit; without rotation all is copied
  LaunchSize size;
  size.grid = {c.ceil_div(
      ir::mul(rows, c.integer((rope.rotary ? rope.heads + kv_heads : kv_heads) * of_head +
                              kv_heads * dv / vec)),
      256)};
  size.work = rows;
  size.grain = 4;
  ExprRef flops =
      rotates ? ir::mul(rows, c.integer(3 * (rope.heads + kv_heads) * rope.rotary)) : c.integer(0);
  KernelLaunch launch{fmt::format("{}__{}_d{}{}", stub.function(), c.storage(op.results[0]), d,
                                  rope.interleaved ? "_pairs" : ""),
                      std::move(stub), std::move(size), flops};
  launch.of_states = ir::mul(
      rows, c.integer(kv_heads * (d + dv) *
                      static_cast<int64_t>(size_of(c.type(op.results[0]).dtype))));  // one row each
  return Emission::of(std::move(launch));
}

}  // namespace

Result<Emission> emit_kv_append(const EmitContext& c, OpId o) { return append(c, o); }
Result<Emission> emit_rope_append(const EmitContext& c, OpId o) { return append(c, o); }

}  // namespace tfcc::codegen
