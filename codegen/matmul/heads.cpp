// SPDX-License-Identifier: Apache-2.0
// Products of heads that stand side by side, on the CPU (templates/cpu/matmul_heads.h). GPUs have the
// library compute them.
#include <fmt/format.h>

#include <algorithm>

#include "codegen/matmul/matmul.h"

namespace tfcc::codegen {
namespace {

constexpr int64_t kBlockRows = 32;       // as in the template
constexpr int64_t kItemFlops = 4 << 20;  // what makes a work item worth a thread
constexpr int64_t kSomeColumns = 256;    // where their number is no constant

}  // namespace

Result<Emission> emit_matmul_heads(const EmitContext& c, OpId o, const MatmulDesc& x,
                                   const MatmulConfig&) {
  const ir::Op& op = c.graph.op(o);
  const ValueId a = op.operands[0], b = op.operands[1];
  const int64_t k = *c.known(x.k), n = c.known(x.n).value_or(kSomeColumns);
  Stub stub = product_stub(c, o, "matmul_heads", {a, b});
  stub.field("heads", *c.known(x.batch));
  stub.field("k", k);
  stub.call({stub.out(), stub.in(a), stub.in(b), stub.size(x.m), stub.size(x.n),
             fmt::format("{:#.9g}f", x.alpha)},
            {});
  LaunchSize size;
  size.work = ir::mul(c.ceil_div(x.m, kBlockRows), x.batch);
  size.grain = static_cast<uint32_t>(
      std::max<int64_t>(1, kItemFlops / (2 * kBlockRows * std::max<int64_t>(n * k, 1))));
  return Emission::of({fmt::format("matmul_heads__{}x{}", *c.known(x.batch), k), std::move(stub),
                       std::move(size),
                       ir::mul(ir::mul(c.integer(2), x.batch), ir::mul(ir::mul(x.m, x.n), x.k))});
}

}  // namespace tfcc::codegen
