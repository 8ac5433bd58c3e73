// SPDX-License-Identifier: Apache-2.0
// Products of 16-bit operands by warpgroups (templates/cuda/matmul_wgmma.cuh), on GPUs that have them.
#include <fmt/format.h>

#include <algorithm>

#include "codegen/matmul/matmul.h"

namespace tfcc::codegen {

uint32_t wgmma_shared_bytes(const WgmmaTile& t) {
  const int elements = std::max(t.stages * (t.block_m + t.block_n), t.wide_stages * (t.block_m + t.wide_n)) * 64;
  return static_cast<uint32_t>(elements * 2 + 1024);
}

Result<Emission> emit_matmul_wgmma(const EmitContext& c, OpId o, const MatmulDesc& x, const MatmulConfig& config) {
  const ir::Op& op = c.graph.op(o);
  const ValueId a = op.operands[0], b = op.operands[1], y = op.results[0];
  const WgmmaTile& tile = config.tile;
  LaunchSize size;
  size.threads = static_cast<uint32_t>(2 * tile.block_m + 32);
  size.shared_bytes = wgmma_shared_bytes(tile);
  size.grid = {ir::min(ir::mul(c.ceil_div(x.n, tile.block_n), c.ceil_div(x.m, tile.block_m)), c.integer(c.target.processors))};

  Stub stub = product_stub(c, o, "matmul_wgmma", beside_operands(op));
  add_epilogue(stub, x);
  stub.type("T", x.a);
  stub.type("Out", c.type(y).dtype);
  stub.field("block_m", int64_t{tile.block_m});
  stub.field("block_n", int64_t{tile.block_n});
  stub.field("stages", int64_t{tile.stages});
  stub.field("wide_n", int64_t{tile.wide_n});
  stub.field("wide_stages", int64_t{tile.wide_stages});
  stub.field("trans_b", x.trans_b);
  stub.require(fmt::format("MatmulWgmmaShape<Spec>::threads == {} && MatmulWgmmaShape<Spec>::shared_bytes == {}", size.threads, size.shared_bytes),
               "the plan has other sizes");
  stub.waits_itself(1, 2);
  stub.call({stub.out(), "m0", "m1", stub.late_size(x.m), stub.size(x.n), stub.size(x.k), stub.object("Epilogue")}, {});

  const auto box = [](int n) { return static_cast<uint32_t>(n); };
  const MatrixView weight = x.trans_b ? MatrixView{b, x.n, x.k, 64, 64} : MatrixView{b, x.k, x.n, 64, 64};
  Emission emission = Emission::of({fmt::format("matmul_wgmma__{}_{}x{}", storage_type(x.a), tile.block_m, tile.block_n), std::move(stub), std::move(size),
                                   ir::mul(c.integer(2), ir::mul(ir::mul(x.m, x.n), x.k)), {},
                                   {{a, x.m, x.k, box(tile.block_m), 64}, weight}, fused_parts(x)});
  note_rows(c, c.graph.value(y).name, x, emission);
  return emission;
}

}  // namespace tfcc::codegen
