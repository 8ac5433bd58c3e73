// SPDX-License-Identifier: Apache-2.0
// pack: live and kept as functors, and the size that it makes where kernels find it.
// templates/*/pack.
#include "codegen/emit/emit.h"

namespace tfcc::codegen {

Result<Emission> emit_pack(const EmitContext& c, OpId o) {
  const ir::Op& op = c.graph.op(o);
  const auto& attrs = op.as<ir::PackAttrs>();
  const std::vector<ExprRef>& padded = c.dims(op.results[0]);
  ExprRef rows = c.dims(op.results[5])[0];
  constexpr uint32_t kThreads = 1024;
  Stub stub(c, "pack", o);
  stub.functor("Live", index_parameters(2), attrs.live, Scalar::boolean);
  if (attrs.kept) stub.functor("Kept", index_parameters(2), attrs.kept, Scalar::boolean);
  stub.field("keeps", attrs.kept != nullptr);
  if (c.cuda()) stub.field("threads", int64_t{kThreads});
  std::vector<std::string> arguments;
  for (size_t k = 0; k < op.results.size(); ++k) arguments.push_back(stub.out(k));
  arguments.insert(arguments.end(),
                   {stub.address_of(rows), stub.size(padded[0]), stub.size(padded[1]),
                    stub.object("Live"), attrs.kept ? stub.object("Kept") : "NoneKept{}"});
  stub.call(std::move(arguments), {});
  LaunchSize size;
  size.threads = kThreads;
  size.grid = {c.integer(1)};
  size.work = c.integer(1);
  KernelLaunch launch{"pack", std::move(stub), std::move(size), ir::mul(padded[0], padded[1])};
  launch.makes = rows;
  return Emission::of(std::move(launch));
}

}  // namespace tfcc::codegen
