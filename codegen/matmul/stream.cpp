// SPDX-License-Identifier: Apache-2.0
// Products of few rows, past which the weight streams (templates/cuda/matmul_stream.cuh), on GPUs
// that have products of warpgroups.
#include <fmt/format.h>

#include <algorithm>

#include "codegen/matmul/matmul.h"

namespace tfcc::codegen {
namespace {

// Bytes of a row of the weight in a tile: of stored values, or one line of codes.
constexpr int kLine = 128;
int row_bytes(const MatmulDesc& x, const StreamTile& t) { return x.packed ? kLine : t.block_k * 2; }
int slot_bytes(const MatmulDesc& x, const StreamTile& t) {
  const int shared = x.packed ? t.block_n * (kLine / static_cast<int>(kPackedBytes) + 1) *
                                    static_cast<int>(x.packed->shared_bytes())
                              : 0;
  return t.block_n * row_bytes(x, t) + static_cast<int>(kStreamRows) * t.block_k * 2 + shared;
}
// Values of each row that are computed from codes at a time, four times over.
int unit_values(const StreamTile& t) {
  return std::min(t.block_k, t.block_n <= 16 ? 256 : t.block_n <= 32 ? 128 : 64);
}
int unit_bytes(const MatmulDesc& x, const StreamTile& t) {
  return x.packed ? 4 * t.block_n * unit_values(t) * 2 : 0;
}

}  // namespace

StreamTile stream_tile(const MatmulDesc& x, int64_t processors) {
  StreamTile best;
  int64_t least = 0;
  const int64_t n = *ir::as_int(x.n);
  // A piece of 16 codes for each thread of a group: other sizes leave some without.
  const auto sizes = x.packed                       ? std::vector{64, 32, 16}
                     : x.epilogue == Epilogue::gate ? std::vector{64, 48, 32, 16}
                                                    : std::vector{64, 56, 48, 40, 32, 24, 16};
  for (const int block_n : sizes) {
    const int64_t tiles = (n + block_n - 1) / block_n,
                  rows = (tiles + processors - 1) / processors * block_n;
    if (best.block_n != 0 && rows >= least) continue;
    least = rows;
    best.block_n = block_n;
  }
  const int ring = x.packed ? kPackedRing : kStreamRing;
  const int line = x.packed ? kLine * static_cast<int>(x.packed->per) : 0;
  for (const int block_k : x.packed ? std::vector{line} : std::vector{256, 128}) {
    best.block_k = block_k;
    best.stages = ring / slot_bytes(x, best);
    if (best.stages >= 4) break;
  }
  return best;
}

uint32_t stream_shared_bytes(const MatmulDesc& x, const StreamTile& t) {
  const int behind = x.packed ? 0 : static_cast<int>(kStreamRows) * t.block_k * 2,
            read_behind = (64 - t.block_n) * kLine - behind;
  return static_cast<uint32_t>(t.stages * slot_bytes(x, t) + unit_bytes(x, t) +
                               std::max(read_behind, 0) + 2048);
}

Result<Emission> emit_matmul_stream(const EmitContext& c, OpId o, const MatmulDesc& x,
                                    const MatmulConfig& config) {
  const ir::Op& op = c.graph.op(o);
  const ValueId a = op.operands[0], b = op.operands[x.packed ? x.packed->slot : 1],
                y = op.results[0];
  const StreamTile& tile = config.stream;
  LaunchSize size;
  size.threads = x.packed ? 512 : 160;
  size.shared_bytes = stream_shared_bytes(x, tile);
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
  if (x.packed) add_weight(stub, *x.packed);
  else stub.field("per_code", int64_t{0}), stub.field("shared_size", int64_t{0});
  stub.require(
      fmt::format(
          "MatmulStreamShape<Spec>::threads == {} && MatmulStreamShape<Spec>::shared_bytes == {}",
          size.threads, size.shared_bytes),
      "the plan has other sizes");
  stub.waits_itself(), stub.maps(2);
  stub.resident(x.packed ? 2 : 1);  // the next launch's codes arrive while this one computes
  stub.call({stub.out(), "m0", "m1", stub.early_size(x.m), stub.size(x.n), stub.size(x.k),
             stub.object("Epilogue"), x.packed ? stub.object("Weight") : "StoredWeight{}"},
            {});

  const auto box = [](int n) { return static_cast<uint32_t>(n); };
  Emission emission =
      Emission::of({fmt::format("matmul_stream__{}{}_{}x{}", storage_type(x.a),
                                x.packed ? fmt::format("_w{}", 8 / x.packed->per) : "",
                                tile.block_n, tile.block_k),
                    std::move(stub),
                    std::move(size),
                    ir::mul(c.integer(2), ir::mul(ir::mul(x.m, x.n), x.k)),
                    {},
                    {{a, x.m, x.k, 8, box(tile.block_k)},
                     x.packed ? MatrixView{b, x.n, ir::div(x.k, c.integer(x.packed->per)),
                                           box(tile.block_n), kLine}
                              : MatrixView{b, x.n, x.k, box(tile.block_n), box(tile.block_k)}},
                    fused_parts(x)});
  note_rows(c, c.graph.value(y).name, x, emission);
  return emission;
}

}  // namespace tfcc::codegen
