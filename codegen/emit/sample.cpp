// SPDX-License-Identifier: Apache-2.0
// sample: a block for each row of logits. templates/*/sample.
#include <fmt/format.h>

#include "codegen/emit/emit.h"

namespace tfcc::codegen {

Result<Emission> emit_sample(const EmitContext& c, OpId o) {
  const ir::Op& op = c.graph.op(o);
  constexpr uint32_t kThreads = 1024;
  Stub stub(c, "sample", o);
  stub.type("In", c.type(op.operands[0]).dtype);
  stub.type("Id", c.type(op.operands[1]).dtype);
  if (c.cuda()) stub.field("threads", int64_t{kThreads});
  ExprRef rows = c.dims(op.results[1])[0], width = c.dims(op.operands[0])[2];
  std::vector<std::string> arguments{stub.out(0), stub.out(1)};
  for (ValueId v : op.operands) arguments.push_back(stub.in(v));
  for (ExprRef size : {width, c.dims(op.operands[3])[0], c.dims(op.operands[6])[1]})
    arguments.push_back(stub.size(size));
  if (c.cuda()) arguments.push_back(stub.scratch("u32"));
  stub.call(std::move(arguments), {rows});
  LaunchSize size;
  size.threads = kThreads;
  size.grid = {rows};
  size.work = rows;
  KernelLaunch launch{fmt::format("sample__{}", c.storage(op.operands[0])), std::move(stub),
                      std::move(size), ir::mul(rows, width)};
  if (c.cuda()) launch.scratch = Scratch{DType::i32, ir::mul(rows, width)};
  return Emission::of(std::move(launch));
}

}  // namespace tfcc::codegen
