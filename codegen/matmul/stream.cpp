// SPDX-License-Identifier: Apache-2.0
// Products of few rows, past which the weight streams (templates/cuda/matmul_stream.cuh), on GPUs
// that have products of warpgroups.
#include <fmt/format.h>

#include <algorithm>

#include "codegen/matmul/matmul.h"

namespace tfcc::codegen {
namespace {

int slot_bytes(const StreamTile& t) {
  return (t.block_n + static_cast<int>(kStreamRows)) * t.block_k * 2;
}

}  // namespace

StreamTile stream_tile(const MatmulDesc& x, int64_t processors) {
  StreamTile best;
  int64_t least = 0;
  const int64_t n = *ir::as_int(x.n);
  const auto sizes = x.epilogue == Epilogue::gate ? std::vector{64, 48, 32, 16}
                                                  : std::vector{64, 56, 48, 40, 32, 24, 16};
  for (const int block_n : sizes) {
    const int64_t tiles = (n + block_n - 1) / block_n,
                  rows = (tiles + processors - 1) / processors * block_n;
    if (best.block_n != 0 && rows >= least) continue;
    least = rows;
    best.block_n = block_n;
  }
  for (const int block_k : {256, 128}) {
    best.block_k = block_k;
    best.stages = kStreamRing / slot_bytes(best);
    if (best.stages >= 4) break;
  }
  return best;
}

uint32_t stream_shared_bytes(const StreamTile& t) {
  constexpr int kLine = 128;
  const int read_behind = (64 - t.block_n) * kLine - static_cast<int>(kStreamRows) * t.block_k * 2;
  return static_cast<uint32_t>(t.stages * slot_bytes(t) + std::max(read_behind, 0) + 2048);
}

Result<Emission> emit_matmul_stream(const EmitContext& c, OpId o, const MatmulDesc& x,
                                    const MatmulConfig& config) {
  const ir::Op& op = c.graph.op(o);
  const ValueId a = op.operands[0], b = op.operands[1], y = op.results[0];
  const StreamTile& tile = config.stream;
  LaunchSize size;
  size.threads = 160;
  size.shared_bytes = stream_shared_bytes(tile);
  size.grid = {c.ceil_div(x.n, tile.block_n)};
  size.resident = 1;

  std::vector<ValueId> reads = beside_operands(op);
  std::erase(reads, b);
  Stub stub = product_stub(c, o, "matmul_stream", std::move(reads));
  stub.reads_early();
  const bool gated = x.epilogue == Epilogue::gate;
  add_epilogue(stub, x, x.body, "Epilogue", gated ? "f32 s, f32 t" : "");
  stub.field("gated", gated);
  stub.type("T", x.a);
  stub.type("Out", c.type(y).dtype);
  stub.field("block_n", int64_t{tile.block_n});
  stub.field("block_k", int64_t{tile.block_k});
  stub.field("stages", int64_t{tile.stages});
  stub.require(
      fmt::format(
          "MatmulStreamShape<Spec>::threads == {} && MatmulStreamShape<Spec>::shared_bytes == {}",
          size.threads, size.shared_bytes),
      "the plan has other sizes");
  stub.waits_itself(), stub.maps(2);
  stub.call({stub.out(), "m0", "m1", stub.early_size(x.m), stub.size(x.n), stub.size(x.k),
             stub.object("Epilogue")},
            {});

  const auto box = [](int n) { return static_cast<uint32_t>(n); };
  Emission emission = Emission::of(
      {fmt::format("matmul_stream__{}_{}x{}", storage_type(x.a), tile.block_n, tile.block_k),
       std::move(stub),
       std::move(size),
       ir::mul(c.integer(2), ir::mul(ir::mul(x.m, x.n), x.k)),
       {},
       {{a, x.m, x.k, 8, box(tile.block_k)}, {b, x.n, x.k, box(tile.block_n), box(tile.block_k)}},
       fused_parts(x)});
  note_rows(c, c.graph.value(y).name, x, emission);
  return emission;
}

}  // namespace tfcc::codegen
