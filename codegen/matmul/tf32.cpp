// SPDX-License-Identifier: Apache-2.0
// Products of f32 on tensor cores with nearly the accuracy of f32
// (templates/cuda/matmul_tf32.cuh), on GPUs that have products of warpgroups. Elsewhere they are those of ordered.cpp.
#include <fmt/format.h>

#include <algorithm>

#include "codegen/matmul/matmul.h"

namespace tfcc::codegen {
namespace {

// As Tf32Shape of the template has them.
constexpr uint32_t kThreads = 512, kSharedBytes = 193 << 10;
// Boxes of both operands: rows, and numbers of a row of 128 bytes.
constexpr uint32_t kBoxRows = 64, kBoxColumns = 32;

}  // namespace

Result<Emission> emit_matmul_tf32(const EmitContext& c, OpId o, const MatmulDesc& x,
                                  const MatmulConfig& config) {
  const ir::Op& op = c.graph.op(o);
  const ValueId a = op.operands[0], b = op.operands[1], y = op.results[0];
  int block_m = 128, block_n = 128;  // of the smallest
  std::string list;
  for (const Tf32Tile& t : config.tf32) {
    block_m = std::min(block_m, t.block_m), block_n = std::min(block_n, t.block_n);
    list += fmt::format("{}Tf32Tile<{}, {}>", list.empty() ? "" : ", ", t.block_m, t.block_n);
  }
  LaunchSize size;
  size.threads = kThreads;
  size.shared_bytes = kSharedBytes;
  size.grid = {ir::mul(c.ceil_div(x.n, block_n), c.ceil_div(x.m, block_m))};
  size.resident = 1;

  Stub stub = product_stub(c, o, "matmul_tf32", beside_operands(op));
  stub.reads_early();
  const bool gated = x.epilogue == Epilogue::gate;
  add_epilogue(stub, x, x.body, "Epilogue", gated ? "f32 s, f32 t" : "");
  stub.type("Tiles", "Tf32Tiles<" + list + ">");
  stub.field("gated", gated);
  stub.field("early", config.early);
  stub.require(fmt::format("Tf32Shape::threads == {} && Tf32Shape::shared_bytes == {}", kThreads,
                           kSharedBytes),
               "the plan has other sizes");
  stub.waits_itself(), stub.resident(1), stub.maps(2);
  stub.call({stub.out(), "m0", "m1", config.early ? stub.early_size(x.m) : stub.late_size(x.m),
             stub.size(x.n), stub.size(x.k), stub.object("Epilogue")},
            {});
  Emission emission = Emission::of(
      {fmt::format("matmul_tf32__{}x{}", config.tf32.front().block_m, config.tf32.front().block_n),
       std::move(stub),
       std::move(size),
       ir::mul(c.integer(2), ir::mul(ir::mul(x.m, x.n), x.k)),
       {},
       {MatrixView{a, x.m, x.k, kBoxRows, kBoxColumns},
        MatrixView{b, x.n, x.k, kBoxRows, kBoxColumns}},
       fused_parts(x)});
  std::get<KernelLaunch>(emission.launches[0]).f32 = x.f32;
  note_rows(c, c.graph.value(y).name, x, emission);
  return emission;
}

}  // namespace tfcc::codegen
