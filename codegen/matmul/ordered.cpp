// SPDX-License-Identifier: Apache-2.0
// Products whose sums have one order (templates/cuda/matmul_ordered.cuh): for generation, where a
// token has the same bits in every batch.
#include <fmt/format.h>

#include <algorithm>

#include "codegen/matmul/matmul.h"

namespace tfcc::codegen {
namespace {

// Parts of k, whose sums are added at the end: a chain of multiply-adds for each k is long. Tensor
// cores have none.
int64_t parts_of(DType type, const OrderedTiles& t) {
  return type == DType::f32 && t.tf32 == 0 ? 4 : 1;
}

}  // namespace

int64_t copied_bytes(DType type, int64_t k) {
  const int64_t row = k * static_cast<int64_t>(size_of(type));
  int64_t bytes = 16;
  while (row % bytes != 0) bytes /= 2;
  return bytes;
}

uint32_t ordered_shared_bytes(DType type, const OrderedTiles& t) {
  const size_t parts = static_cast<size_t>(parts_of(type, t)),
               pitch = static_cast<size_t>(t.block_k) * size_of(type) + 16;
  const int rows = std::max(t.tile.block_m + t.tile.block_n, t.large.block_m + t.large.block_n);
  return static_cast<uint32_t>(static_cast<size_t>(t.stages * rows) * parts * pitch);
}

namespace {

// The tile of a launch, and the one that is large.
void add_tiles(Stub& stub, const OrderedTiles& tiles) {
  const auto tile = [&](const std::string& prefix, const OrderedTile& t) {
    for (const auto& [name, n] : {std::pair{prefix.empty() ? "block_m" : "m", t.block_m},
                                  {prefix.empty() ? "block_n" : "n", t.block_n},
                                  {"own_m", t.own_m},
                                  {"own_n", t.own_n}})
      stub.field(prefix + name, int64_t{n});
  };
  tile("", tiles.tile);
  tile("large_", tiles.large);
  stub.field("block_k", int64_t{tiles.block_k});
  stub.field("stages", int64_t{tiles.stages});
}

}  // namespace

void add_ordered_fields(Stub& stub, const EmitContext& c, DType type, int64_t copy,
                        const OrderedTiles& tiles) {
  stub.field("threads", int64_t{tiles.threads});
  stub.field("parts", parts_of(type, tiles));
  stub.field("tf32", int64_t{tiles.tf32});
  add_tiles(stub, tiles);
  stub.field("processors", processors_of(c.target));
  stub.field("copy", copy);
}

Result<Emission> emit_matmul_ordered(const EmitContext& c, OpId o, const MatmulDesc& x,
                                     const MatmulConfig& config) {
  const ir::Op& op = c.graph.op(o);
  const ValueId a = op.operands[0], b = op.operands[1], y = op.results[0];
  const OrderedTiles& tiles = config.ordered;
  const int64_t copied = copied_bytes(x.a, *c.known(x.k));
  LaunchSize size;
  size.threads = static_cast<uint32_t>(tiles.threads);
  size.shared_bytes = ordered_shared_bytes(x.a, tiles);
  size.grid = {ir::mul(c.ceil_div(x.m, tiles.tile.block_m), c.ceil_div(x.n, tiles.tile.block_n))};

  std::vector<ValueId> reads = beside_operands(op);
  for (ValueId v : {b, a}) {
    std::erase(reads, v);
    reads.insert(reads.begin(), v);
  }
  Stub stub = product_stub(c, o, "matmul_ordered", std::move(reads));
  stub.reads_early();
  const bool gated = x.epilogue == Epilogue::gate;
  add_epilogue(stub, x, x.body, "Epilogue", gated ? "f32 s, f32 t" : "");
  stub.type("T", x.a);
  stub.type("Out", c.type(y).dtype);
  stub.field("gated", gated);
  stub.field("early", config.early);
  add_ordered_fields(stub, c, x.a, copied, tiles);
  stub.require(fmt::format("MatmulOrderedShape<Spec>::shared_bytes == {}", size.shared_bytes),
               "the plan has another size");
  // Two blocks have too few registers where copies of less than 16 bytes are many. Of f32 they have
  // too little shared memory before Hopper, and code for later GPUs spills.
  const bool two = tiles.threads > 128 && copied == 16 &&
                   (x.a != DType::f32 || (c.target.has_wgmma && tiles.tf32 == 0));
  stub.waits_itself(), stub.resident(two ? 2 : 1);
  stub.call({stub.out(), stub.in(a), stub.in(b), stub.early_size(x.m), stub.size(x.n),
             stub.size(x.k), stub.object("Epilogue")},
            {});
  Emission emission = Emission::of({fmt::format("matmul_ordered__{}_{}x{}", storage_type(x.a),
                                                tiles.tile.block_m, tiles.tile.block_n),
                                    std::move(stub),
                                    std::move(size),
                                    ir::mul(c.integer(2), ir::mul(ir::mul(x.m, x.n), x.k)),
                                    {},
                                    {},
                                    fused_parts(x)});
  if (tiles.tf32) std::get<KernelLaunch>(emission.launches[0]).f32 = x.f32;
  note_rows(c, c.graph.value(y).name, x, emission);
  return emission;
}

}  // namespace tfcc::codegen
