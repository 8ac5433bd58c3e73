// SPDX-License-Identifier: Apache-2.0
// Products of bytes by a weight on the CPU (templates/cpu/matmul_bytes.h): the weight is packed by
// its recipe, four neighbours along k for each column, and the epilogue, which turns the sum into a
// real, is applied before it leaves the cache.
#include <fmt/format.h>

#include <algorithm>

#include "codegen/matmul/matmul.h"

namespace tfcc::codegen {
namespace {

constexpr int64_t kBlockRows = 128;       // as in the template
constexpr int64_t kItemSteps = 16 << 20;  // products and sums that make a work item worth a thread

// [n / panel, k / 4, panel, 4]
PackedWeight packed_weight(ValueId v, int64_t n, int64_t k, int64_t panel, bool transposed) {
  return {v, fmt::format("bytes{}{}", panel, transposed ? "t" : ""), [=](ir::Constant& c) {
            using Kind = ir::ConstantStep::Kind;
            const std::vector<int64_t> split =
                transposed ? std::vector<int64_t>{n / panel, panel, k / 4, 4}
                           : std::vector<int64_t>{k / 4, 4, n / panel, panel};
            c.steps.push_back({Kind::reshape, split, {}});
            c.steps.push_back(
                {Kind::transpose,
                 transposed ? std::vector<int64_t>{0, 2, 1, 3} : std::vector<int64_t>{2, 0, 3, 1},
                 {}});
          }};
}

}  // namespace

Result<Emission> emit_matmul_bytes(const EmitContext& c, OpId o, const MatmulDesc& x,
                                   const MatmulConfig& config) {
  const ir::Op& op = c.graph.op(o);
  const ValueId a = op.operands[0], y = op.results[0];
  const int64_t n = *c.known(x.n), k = *c.known(x.k), panel = config.panel;
  std::vector<ValueId> reads = beside_operands(op);
  std::erase(reads, a);
  reads.insert(reads.begin(), a);
  Stub stub = product_stub(c, o, "matmul_bytes", std::move(reads));
  add_epilogue(stub, x, x.body);
  stub.type("A", x.a);
  stub.type("Out", x.d);
  stub.field("n", n);
  stub.field("k", k);
  stub.field("panel", panel);
  stub.call({stub.out(), stub.in(a), stub.packed("i8", 0), stub.size(x.m), stub.object("Epilogue")},
            {});
  LaunchSize size;
  size.work = ir::mul(c.ceil_div(x.m, kBlockRows), c.integer(n / panel));
  size.grain =
      static_cast<uint32_t>(std::max<int64_t>(1, kItemSteps / (2 * kBlockRows * panel * k)));
  return Emission::of({fmt::format("matmul_bytes__{}_{}x{}", c.storage(y), k, n),
                       std::move(stub),
                       std::move(size),
                       ir::mul(c.integer(2 * n * k), x.m),
                       {packed_weight(op.operands[1], n, k, panel, x.trans_b)},
                       {},
                       fused_parts(x)});
}

}  // namespace tfcc::codegen
