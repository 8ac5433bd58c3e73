// SPDX-License-Identifier: Apache-2.0
// Products of few rows by a weight in codes, which each warp computes where it multiplies
// (templates/cuda/matmul_coded.cuh).
#include <fmt/format.h>

#include <algorithm>

#include "codegen/matmul/matmul.h"

namespace tfcc::codegen {
namespace {

constexpr int kUnit = 16;        // columns
constexpr int kMostWarps = 12;   // that multiply, but for turns
constexpr int kFewUnits = 3;     // of a block: two warps take turns at each, and steps are short
constexpr int kManyUnits = 8;    // whose codes are more than four warps load in time
constexpr int kRing = 96 << 10;  // two blocks fit a multiprocessor
constexpr int kLeastStages = 4, kMostStages = 8;
constexpr int kSumBytes = 64;  // of a column, on their way from one warp to the other

int chunks_of(const PackedFactor& packed, const CodedTile& t) {
  return t.block_k / static_cast<int>(packed.chunk);
}
// Bytes of a step in the ring.
int slot_bytes(const PackedFactor& packed, const CodedTile& t) {
  return static_cast<int>(kStreamRows) * (t.block_k * 2 + 16) +
         t.block_n * (chunks_of(packed, t) * 16 + 16);
}
int share_bytes(DType type, const PackedFactor& packed, const CodedTile& t) {
  const bool pairs = packed.scale && type == DType::f16;
  const int pitch = (t.block_n + 1) * (pairs ? 8 : static_cast<int>(packed.shared_bytes()));
  const int sums = t.turns == 2 ? t.block_n * kSumBytes : 0;
  return (2 * t.ahead * chunks_of(packed, t) * pitch + pitch + 15) / 16 * 16 + sums;
}

}  // namespace

CodedTile coded_tile(DType type, const PackedFactor& packed, int64_t columns, int64_t products,
                     const TargetClass& target, uint32_t shared_bytes) {
  const int64_t units = (columns + kUnit - 1) / kUnit, processors = processors_of(target),
                own = std::min(units, (units * products + processors - 1) / processors);
  // A multiprocessor has its columns in one block, or in as few as the warps and the memory of one allow.
  for (int64_t blocks = (own + kMostWarps - 1) / kMostWarps;; ++blocks) {
    const auto each = static_cast<int>((own + blocks - 1) / blocks);
    CodedTile t{kUnit * each};
    t.block_k = static_cast<int>(std::min<int64_t>(packed.chunk * 8, 256));
    t.turns = each <= kFewUnits ? 2 : 1;
    t.ahead = each <= kFewUnits ? 4 : 2;
    t.loaders = each > kManyUnits ? 8 : 4;
    t.stages = std::clamp(kRing / slot_bytes(packed, t), kLeastStages, kMostStages);
    const auto fits = [&] { return coded_shared_bytes(type, packed, t) <= shared_bytes; };
    while (t.stages > 3 && !fits()) --t.stages;
    if (fits() || each == 1) return t;
  }
}

CodedTile coded_tile(const MatmulDesc& x, const TargetClass& target) {
  return coded_tile(x.a, *x.packed, *ir::as_int(x.n), 1, target, target.shared_bytes);
}

uint32_t coded_shared_bytes(DType type, const PackedFactor& packed, const CodedTile& t) {
  return static_cast<uint32_t>(share_bytes(type, packed, t) + t.stages * slot_bytes(packed, t));
}

void add_coded_fields(Stub& stub, int64_t copy, const CodedTile& t) {
  for (const auto& [name, value] : {std::pair{"threads", t.threads()},
                                    {"loaders", t.loaders},
                                    {"block_n", t.block_n},
                                    {"turns", t.turns},
                                    {"block_k", t.block_k},
                                    {"stages", t.stages},
                                    {"ahead", t.ahead}})
    stub.field(name, int64_t{value});
  stub.field("copy", copy);
}

Result<Emission> emit_matmul_coded(const EmitContext& c, OpId o, const MatmulDesc& x,
                                   const MatmulConfig& config) {
  const ir::Op& op = c.graph.op(o);
  const ValueId a = op.operands[0], b = op.operands[x.packed->slot], y = op.results[0];
  const CodedTile& tile = config.coded;
  LaunchSize size;
  size.threads = static_cast<uint32_t>(tile.threads());
  size.shared_bytes = coded_shared_bytes(x.a, *x.packed, tile);
  size.grid = {c.ceil_div(x.n, tile.block_n)};

  std::vector<ValueId> reads = beside_operands(op);
  for (ValueId v : {b, a}) {
    std::erase(reads, v);
    reads.insert(reads.begin(), v);
  }
  Stub stub = product_stub(c, o, "matmul_coded", std::move(reads));
  stub.reads_early();
  const bool gated = x.epilogue == Epilogue::gate;
  add_epilogue(stub, x, x.body, "Epilogue", gated ? "f32 s, f32 t" : "");
  stub.type("T", x.a);
  stub.type("Out", c.type(y).dtype);
  stub.field("gated", gated);
  stub.field("early", config.early);
  add_coded_fields(stub, c.any_of_callers({a}) ? 2 : copied_bytes(x.a, *c.known(x.k)), tile);
  add_weight(stub, *x.packed);
  stub.require(fmt::format("CodedTileShape<Spec>::shared_bytes == {}", size.shared_bytes),
               "the plan has another size");
  stub.waits_itself();
  stub.call({stub.out(), stub.in(a), stub.in(b), stub.early_size(x.m), stub.size(x.n),
             stub.size(x.k), stub.object("Epilogue"), stub.object("Weight")},
            {});
  Emission emission = Emission::of(
      {fmt::format("matmul_coded__{}_w{}_{}", storage_type(x.a), 8 / x.packed->per, tile.block_n),
       std::move(stub),
       std::move(size),
       ir::mul(c.integer(2), ir::mul(ir::mul(x.m, x.n), x.k)),
       {},
       {},
       fused_parts(x)});
  note_rows(c, c.graph.value(y).name, x, emission);
  return emission;
}

}  // namespace tfcc::codegen
