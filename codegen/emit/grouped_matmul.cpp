// SPDX-License-Identifier: Apache-2.0
// grouped_matmul: the choice as a functor of the number of a row.
// templates/*/grouped_matmul.
#include <fmt/format.h>

#include <algorithm>

#include "codegen/emit/emit.h"
#include "codegen/matmul/matmul.h"

namespace tfcc::codegen {
namespace {

constexpr int64_t kBlockColumns = 64;    // of a work item, as in the template of the CPU
constexpr int64_t kItemFlops = 4 << 20;  // what makes a work item worth a thread

// Numbers of rows that a block keeps beside the ring of its tiles: Rows in the template.
uint32_t row_bytes(int block_m, int threads, int64_t groups) {
  return 4 *
         (static_cast<uint32_t>(block_m + threads + threads / 32) + static_cast<uint32_t>(groups));
}
constexpr int kMostBlockM = 128, kMostThreads = 256;
constexpr int64_t kMostGroups = 4096;

}  // namespace

OrderedTiles grouped_tiles(const Graph& graph, OpId o, const TargetClass& target,
                           int64_t most_tokens) {
  const ir::Op& op = graph.op(o);
  const ir::Type &w = graph.value(op.operands[1]).type, &y = graph.value(op.results[0]).type;
  ExprRef rows = graph.pool().integer(1);
  for (size_t d = 0; d + 1 < y.rank(); ++d) rows = ir::mul(rows, y.dims[d]);
  const int64_t groups = *ir::as_int(w.dims[0]);
  std::optional<int64_t> each = largest_rows(graph, rows, most_tokens);
  if (each) each = (*each + groups - 1) / groups;
  return grouped_tiles(w.dtype, each, *ir::as_int(w.dims[2]),
                       target.shared_bytes - row_bytes(kMostBlockM, kMostThreads, groups));
}

Result<Emission> emit_grouped_matmul(const EmitContext& c, OpId o) {
  const ir::Op& op = c.graph.op(o);
  const ValueId x = op.operands[0], w = op.operands[1], y = op.results[0];
  ExprRef rows = c.rows(y);
  const int64_t groups = *c.known(c.dims(w)[0]), n = *c.known(c.dims(w)[1]),
                k = *c.known(c.dims(w)[2]);
  if (n == 0 || k == 0) return c.unsupported(o, "its matrices are empty");
  if (!c.cuda() && (c.type(x).dtype != DType::f32 || c.type(y).dtype != DType::f32))
    return c.unsupported(o, "the CPU multiplies f32 alone");
  const std::vector<ExprRef> of_rows(c.dims(y).begin(), c.dims(y).end() - 1);
  ExprRef share = c.integer(1);  // rows of one of x
  for (size_t d = c.dims(x).size() - 1; d < of_rows.size(); ++d) share = ir::mul(share, of_rows[d]);
  Stub stub(c, "grouped_matmul", o);
  stub.functor("Which", "idx i0",
               ir::substitute_indices(
                   op.as<ir::GroupedMatmulAttrs>().which,
                   ir::reshape_indices(c.pool(), {c.pool().index(0, rows)}, {rows}, of_rows)),
               Scalar::i64);
  stub.field("groups", groups);
  std::vector<std::string> arguments{stub.out(), stub.in(x), stub.in(w), stub.size(rows),
                                     stub.size(c.dims(w)[1])};
  LaunchSize size;
  ExprRef slots = ir::min(rows, c.integer(groups));
  if (c.cuda()) {
    if (groups > kMostGroups) return c.unsupported(o, "it has more than 4096 matrices");
    const OrderedTiles tiles = grouped_tiles(c.graph, o, c.target, c.bucket.most_tokens);
    size.threads = static_cast<uint32_t>(tiles.threads);
    size.shared_bytes = ordered_shared_bytes(c.type(x).dtype, tiles) +
                        row_bytes(tiles.tile.block_m, tiles.threads, groups);
    size.grid = {ir::mul(slots, c.ceil_div(c.dims(w)[1], tiles.tile.block_n))};
    stub.type("T", c.type(x).dtype);
    stub.type("Out", c.type(y).dtype);
    stub.field("gated", false);
    stub.field("early", false);
    // A caller may have misaligned what is its own.
    add_ordered_fields(stub, c, c.type(x).dtype,
                       c.any_of_callers({x, w}) ? static_cast<int64_t>(size_of(c.type(x).dtype))
                                                : copied_bytes(c.type(x).dtype, k),
                       tiles);
    stub.require(fmt::format("GroupedMatmulShape<Spec>::shared_bytes == {}", size.shared_bytes),
                 "the plan has another size");
    arguments.push_back(stub.size(c.dims(w)[2]));
  } else {
    stub.field("k", k);
    size.work = ir::mul(slots, c.ceil_div(c.dims(w)[1], kBlockColumns));
    size.grain = static_cast<uint32_t>(
        std::max<int64_t>(1, kItemFlops / (2 * std::min(n, kBlockColumns) * k)));
  }
  arguments.insert(arguments.end(), {stub.size(share), stub.object("Which")});
  stub.call(std::move(arguments), {});
  KernelLaunch launch{fmt::format("grouped_matmul__{}_{}x{}x{}", c.storage(x), groups, n, k),
                      std::move(stub), std::move(size), ir::mul(c.integer(2 * n * k), rows)};
  if (c.graph.is_constant(w))
    launch.of_constants =
        ir::mul(slots, c.integer(n * k * static_cast<int64_t>(size_of(c.type(w).dtype))));
  return Emission::of(std::move(launch));
}

}  // namespace tfcc::codegen
