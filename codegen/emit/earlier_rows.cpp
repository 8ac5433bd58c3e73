// SPDX-License-Identifier: Apache-2.0
// earlier_rows. templates/*/earlier_rows.
#include <fmt/format.h>

#include "codegen/emit/emit.h"

namespace tfcc::codegen {

Result<Emission> emit_earlier_rows(const EmitContext& c, OpId o) {
  const ir::Op& op = c.graph.op(o);
  const ValueId x = op.operands[0], state = op.operands[4];
  const int64_t kept = *c.known(c.dims(state)[2]), width = *c.known(c.dims(state)[3]);
  const auto bytes = static_cast<int64_t>(size_of(c.type(x).dtype));
  const std::vector<ValueId> reads(op.operands.begin(), op.operands.end() - 1);
  int64_t vec = c.any_of_callers({x}) || c.callers.has(op.results[0]) ? 1 : 16 / bytes;
  while (width % vec != 0) vec /= 2;
  Stub stub(c, "earlier_rows", op.operands, reads, op.results);
  stub.type("T", c.type(x).dtype);
  stub.field("kept", kept);
  stub.field("width", width);
  if (c.cuda()) stub.field("vec", vec);
  ExprRef rows = c.dims(x)[1], sequences = c.dims(op.operands[2])[0];
  std::vector<std::string> arguments{stub.out(0), stub.out(1)};
  for (ValueId v : reads) arguments.push_back(stub.in(v));
  for (ExprRef n : {rows, sequences, c.dims(state)[0]}) arguments.push_back(stub.size(n));
  stub.call(std::move(arguments), {});
  LaunchSize size;
  size.work = ir::max(rows, sequences);
  size.grid = {c.ceil_div(ir::mul(size.work, c.integer(width / vec)), 256)};
  size.grain = 4;
  KernelLaunch launch{fmt::format("earlier_rows__{}_{}", c.storage(x), kept), std::move(stub),
                      std::move(size), c.integer(0)};
  launch.of_states = ir::mul(sequences, c.integer(2 * kept * width * bytes));
  return Emission::of(std::move(launch));
}

}  // namespace tfcc::codegen
