// SPDX-License-Identifier: Apache-2.0
// Products of 16-bit operands by warpgroups (templates/cuda/matmul_wgmma.cuh), on GPUs that have them.
#include <fmt/format.h>

#include <algorithm>

#include "codegen/matmul/matmul.h"

namespace tfcc::codegen {

uint32_t wgmma_shared_bytes(const std::vector<WgmmaTile>& tiles) {
  int elements = 0;
  for (const WgmmaTile& t : tiles) elements = std::max(elements, t.stages * (t.block_m + t.block_n) * 64);
  return static_cast<uint32_t>(elements * 2 + 1024);
}

Result<Emission> emit_matmul_wgmma(const EmitContext& c, OpId o, const MatmulDesc& x, const MatmulConfig& config) {
  const ir::Op& op = c.graph.op(o);
  const ValueId a = op.operands[0], b = op.operands[1], y = op.results[0];
  const std::vector<WgmmaTile>& tiles = config.tiles;
  WgmmaTile smallest = tiles.front();
  int groups = 0;
  std::string list;
  for (const WgmmaTile& t : tiles) {
    smallest.block_m = std::min(smallest.block_m, t.block_m);
    smallest.block_n = std::min(smallest.block_n, t.block_n);
    groups = std::max(groups, t.block_m / 64);
    list += fmt::format("{}WgmmaTile<{}, {}, {}>", list.empty() ? "" : ", ", t.block_m, t.block_n, t.stages);
  }
  LaunchSize size;
  size.threads = static_cast<uint32_t>(128 * groups + 32);
  size.shared_bytes = wgmma_shared_bytes(tiles);
  size.grid = {ir::min(ir::mul(c.ceil_div(x.n, smallest.block_n), c.ceil_div(x.m, smallest.block_m)), c.integer(c.target.processors))};

  Stub stub = product_stub(c, o, "matmul_wgmma", beside_operands(op));
  add_epilogue(stub, x);
  stub.type("T", x.a);
  stub.type("Out", c.type(y).dtype);
  stub.type("Tiles", "WgmmaTiles<" + list + ">");
  stub.field("early", config.early);
  stub.field("trans_b", x.trans_b);
  stub.require(fmt::format("MatmulWgmmaShape<Spec>::threads == {} && MatmulWgmmaShape<Spec>::shared_bytes == {}", size.threads, size.shared_bytes),
               "the plan has other sizes");
  stub.waits_itself(1, 2);
  stub.call({stub.out(), "m0", "m1", config.early ? stub.early_size(x.m) : stub.late_size(x.m), stub.size(x.n), stub.size(x.k), stub.object("Epilogue")}, {});

  const auto box = [](int n) { return static_cast<uint32_t>(n); };
  const MatrixView weight = x.trans_b ? MatrixView{b, x.n, x.k, 64, 64} : MatrixView{b, x.k, x.n, 64, 64};
  Emission emission = Emission::of({fmt::format("matmul_wgmma__{}_{}x{}", storage_type(x.a), tiles.front().block_m, tiles.front().block_n), std::move(stub), std::move(size),
                                   ir::mul(c.integer(2), ir::mul(ir::mul(x.m, x.n), x.k)), {},
                                   {{a, x.m, x.k, box(smallest.block_m), 64}, weight}, fused_parts(x)});
  note_rows(c, c.graph.value(y).name, x, emission);
  return emission;
}

}  // namespace tfcc::codegen
