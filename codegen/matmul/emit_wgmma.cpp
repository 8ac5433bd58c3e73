// SPDX-License-Identifier: Apache-2.0
// Products of 16-bit operands by warpgroups (templates/cuda/matmul_wgmma.cuh), on GPUs that have them.
#include <fmt/format.h>

#include <algorithm>

#include "codegen/matmul/matmul.h"

namespace tfcc::codegen {

uint32_t wgmma_shared_bytes(const WgmmaTile& t) { return static_cast<uint32_t>(t.stages * (t.block_m + t.block_n) * 64 * 2 + 1024); }

Result<void> emit_matmul_wgmma(Lowering& l, OpId o, const MatmulDesc& x, const MatmulConfig& config) {
  const ir::Op& op = l.graph.op(o);
  const ValueId y = op.results[0];
  const WgmmaTile& tile = config.tile;
  std::vector<ValueId> reads;
  for (size_t i = 2; i < op.operands.size(); ++i) {
    if (std::find(reads.begin(), reads.end(), op.operands[i]) == reads.end()) reads.push_back(op.operands[i]);
  }
  l.begin(o, reads, {y});
  const uint32_t threads = static_cast<uint32_t>(2 * tile.block_m + 32);
  std::string text = l.include("matmul_wgmma") + epilogue_functor(l, x);
  text += fmt::format("struct Spec {{ using T = {}; using Out = {}; static constexpr int block_m = {}, block_n = {}, stages = {}; static constexpr bool trans_b = {}; }};\n",
                      Lowering::to_cpp(x.a), l.storage(y), tile.block_m, tile.block_n, tile.stages, x.trans_b);
  LaunchSize s;
  s.threads = threads;
  s.shared_bytes = wgmma_shared_bytes(tile);
  s.grid = {l.ceil_div(x.n, tile.block_n), l.ceil_div(x.m, tile.block_m)};
  text += fmt::format("static_assert(MatmulWgmmaShape<Spec>::threads == {} && MatmulWgmmaShape<Spec>::shared_bytes == {}, \"the plan has other sizes\");\n",
                      s.threads, s.shared_bytes);
  text += l.header_with_maps(threads, tile.resident, 2) +
          fmt::format("matmul_wgmma<Spec>({}, m0, m1, [&] {{ return (idx)({}); }}, {}, {}, {});\n}}\n", l.pointer(reads.size()), l.size(x.m), l.size(x.n),
                      l.size(x.k), l.functor_value("Epilogue"));
  const auto box = [](int n) { return static_cast<uint32_t>(n); };
  const uint32_t a = l.buffer_of(op.operands[0]), b = l.buffer_of(op.operands[1]);
  std::vector<runtime::TensorMap> maps{{a, l.encode(x.m), l.encode(x.k), box(tile.block_m), 64}};
  if (x.trans_b) maps.push_back({b, l.encode(x.n), l.encode(x.k), box(tile.block_n), 64});
  else maps.push_back({b, l.encode(x.k), l.encode(x.n), 64, 64});
  note_rows(l, l.graph.value(y).name, x);
  l.launch(fmt::format("matmul_wgmma__{}_{}x{}", Lowering::to_cpp(x.a), tile.block_m, tile.block_n), "matmul_wgmma", text, s,
           ir::mul(l.integer(2), ir::mul(ir::mul(x.m, x.n), x.k)), {}, fused_parts(x), maps);
  return {};
}

}  // namespace tfcc::codegen
