// SPDX-License-Identifier: Apache-2.0
// grouped_matmul: the choice as a functor of the number of a row.
// templates/*/grouped_matmul.
#include <fmt/format.h>

#include <algorithm>

#include "codegen/emit/emit.h"
#include "codegen/matmul/matmul.h"
#include "ir/matmul.h"

namespace tfcc::codegen {
namespace {

constexpr int64_t kBlockColumns = 64;     // of a work item, as in the template of the CPU
constexpr int64_t kItemValues = 1 << 14;  // of a matrix that make a work item worth a thread

// Numbers of rows that a block keeps beside the ring of its tiles: Rows in the template.
uint32_t row_bytes(int block_m, int threads, int64_t groups) {
  return 4 *
         (static_cast<uint32_t>(block_m + threads + threads / 32) + static_cast<uint32_t>(groups));
}
constexpr int kMostBlockM = 128, kMostThreads = 256;
constexpr int64_t kMostGroups = 4096;
constexpr int64_t kLongestRow = 1 << 16;  // that a CPU computes: a thread's stack has one

// Rows of each matrix, on the average, in a form for at most so many tokens.
std::optional<int64_t> rows_each(const Graph& graph, OpId o, int64_t most_tokens) {
  const ir::Op& op = graph.op(o);
  const ir::Type w = ir::matrices_type(graph, op), &y = graph.value(op.results[0]).type;
  ExprRef rows = graph.pool().integer(1);
  for (size_t d = 0; d + 1 < y.rank(); ++d) rows = ir::mul(rows, y.dims[d]);
  const int64_t groups = *ir::as_int(w.dims[0]);
  std::optional<int64_t> each = largest_rows(graph, rows, most_tokens);
  if (each) each = (*each + groups - 1) / groups;
  return each;
}

// The constant from which a CPU has panels; nothing else reads it.
struct Panels {
  int64_t panel;
  size_t slot;
  std::optional<PackedFactor> codes;
};

std::optional<Panels> panels_of(const EmitContext& c, const ir::Op& op) {
  const int64_t panel = panel_of(*c.known(ir::matrices_type(c.graph, op).dims[1]));
  if (c.cuda() || panel == 0) return std::nullopt;
  if (auto codes = packed_matrices(c.graph, op)) return Panels{panel, codes->slot, codes};
  const auto& attrs = op.as<ir::GroupedMatmulAttrs>();
  const auto narrow = narrow_matrices(c.graph, op);
  if (!narrow && (attrs.weight || !c.graph.is_constant(op.operands[1]))) return std::nullopt;
  const size_t slot = narrow ? narrow->slot : 1;
  const auto is_it = [&](ValueId loaded) { return op.operands[loaded.value] == op.operands[slot]; };
  if (op.operands[0] == op.operands[slot] || std::ranges::any_of(ir::loads_of(attrs.which), is_it))
    return std::nullopt;
  return Panels{panel, slot, {}};
}

// How the kernel has the matrices.
struct Matrices {
  std::string object;
  std::string coding;  // in the name of the kernel
  int64_t bytes = 0;   // of constants, of each matrix
  std::vector<PackedWeight> packed = {};
};

// Whether tiles hold whole chunks of codes, which a row of a step has one behind the other.
bool takes_codes(const EmitContext& c, const ir::Op& op, const PackedFactor& packed,
                 const OrderedTiles& tiles) {
  const bool one_part = size_of(c.type(op.operands[0]).dtype) == 2;
  return c.cuda() && one_part && tiles.block_k % packed.chunk == 0;
}

// The tile of few rows by codes on a GPU, if the matrices are such and rows are few.
std::optional<CodedTile> few_rows_of_codes(const EmitContext& c, OpId o) {
  const ir::Op& op = c.graph.op(o);
  const DType t = c.type(op.operands[0]).dtype;
  const auto packed = packed_matrices(c.graph, op);
  const auto rows = rows_each(c.graph, o, c.bucket.most_tokens);
  if (!c.cuda() || !packed || size_of(t) != 2 || !rows || *rows > kStreamRows) return std::nullopt;
  const ir::Type w = ir::matrices_type(c.graph, op);
  const auto& y = c.dims(op.results[0]);
  const int64_t groups = *c.known(w.dims[0]), products = c.known(y[y.size() - 2]).value_or(1);
  const uint32_t memory =
      c.target.shared_bytes - row_bytes(kStreamRows, CodedTile::kMostThreads, groups);
  const CodedTile tile =
      coded_tile(t, *packed, *c.known(w.dims[1]), std::min(products, groups), c.target, memory);
  if (coded_shared_bytes(t, *packed, tile) > memory) return std::nullopt;
  return tile;
}

Matrices in_panels(Stub& stub, const EmitContext& c, const ir::Op& op, const Panels& panels) {
  const ir::Type w = ir::matrices_type(c.graph, op);
  const int64_t n = *c.known(w.dims[1]), k = *c.known(w.dims[2]);
  const int64_t columns = *c.known(w.dims[0]) * n, panel = panels.panel;
  const ValueId v = op.operands[panels.slot];
  stub.field("panel", panel);
  if (panels.codes) {
    const int64_t per = panels.codes->per;
    add_weight(stub, *panels.codes);
    return {fmt::format("PanelMatrices{{PackedPanels<Spec, Weight>{{{}, {}}}}}",
                        stub.packed("Spec::Code", 0), stub.object("Weight")),
            fmt::format("_of_{}_bits", 8 / per),
            n * k / per,
            {codes_in_panels(v, columns, k / per, panel)}};
  }
  const DType stored = c.type(v).dtype;
  stub.type("B", stored);
  return {fmt::format("PanelMatrices{{StoredPanels<Spec>{{{}}}}}", stub.packed("Spec::B", 0)),
          stored == DType::f32 ? "" : fmt::format("_of_{}", to_string(stored)),
          n * k * static_cast<int64_t>(size_of(stored)),
          {weight_in_panels(v, columns, k, panel, true)}};
}

// As they are stored, or computed: on CUDA where a tile reads them, from codes of which a thread has
// a chunk at a time, else one by one.
Matrices as_they_are(Stub& stub, const EmitContext& c, const ir::Op& op, const OrderedTiles& tiles,
                     bool few) {
  const ir::Type w = ir::matrices_type(c.graph, op);
  const int64_t values = *c.known(w.dims[1]) * *c.known(w.dims[2]);
  ExprRef weight = op.as<ir::GroupedMatmulAttrs>().weight;
  const auto narrow = c.cuda() ? std::nullopt : narrow_matrices(c.graph, op);
  if (!weight || narrow) {
    const ValueId v = op.operands[narrow ? narrow->slot : 1];
    const int64_t bytes = values * static_cast<int64_t>(size_of(c.type(v).dtype));
    return {fmt::format("StoredMatrices{}{{{}}}", c.cuda() ? "<Spec::T>" : "", stub.in(v)),
            narrow ? fmt::format("_of_{}", to_string(narrow->stored)) : "",
            c.graph.is_constant(v) ? bytes : 0};
  }
  const auto packed = packed_matrices(c.graph, op);
  if (packed && (few || takes_codes(c, op, *packed, tiles))) {
    add_weight(stub, *packed);
    if (!few) stub.field("ahead", static_cast<int64_t>(tiles.ahead));
    return {fmt::format("{}<Spec, Weight>{{{}, {}}}", few ? "FewRowsOfCodes" : "CodedMatrices",
                        stub.in(op.operands[packed->slot]), stub.object("Weight")),
            fmt::format("_of_{}_bits", 8 / packed->per), values / packed->per};
  }
  stub.functor("Weight", "idx i0, idx i1, idx i2", weight, ir::scalar_of(w.dtype));
  return {fmt::format("ComputedMatrices<Weight>{{{}}}", stub.object("Weight")), "_computed"};
}

// Whether a functor finds values by one number each, which has 32 bits on a GPU.
bool counts_codes(const EmitContext& c, const ir::Op& op) {
  const OpId o = c.graph.value(op.results[0]).def;
  const auto packed = packed_matrices(c.graph, op);
  const OrderedTiles tiles = grouped_tiles(c.graph, o, c.target, c.bucket.most_tokens);
  return !few_rows_of_codes(c, o) && (!packed || !takes_codes(c, op, *packed, tiles));
}

// Why there is no kernel for it; empty if there is.
std::string refusal(const EmitContext& c, const ir::Op& op) {
  const ir::Type w = ir::matrices_type(c.graph, op);
  const int64_t groups = *c.known(w.dims[0]), n = *c.known(w.dims[1]), k = *c.known(w.dims[2]);
  const bool computed = op.as<ir::GroupedMatmulAttrs>().weight;
  if (n == 0 || k == 0) return "its matrices are empty";
  if (c.cuda()) {
    if (groups > kMostGroups) return "it has more than 4096 matrices";
    if (computed && groups * n > INT32_MAX / k && counts_codes(c, op))
      return "its matrices have more values than a kernel of computed ones counts";
    return "";
  }
  const bool by_rows = computed && !panels_of(c, op) && !narrow_matrices(c.graph, op);
  if (by_rows && k > kLongestRow)
    return fmt::format("rows of its matrices are computed, and {} are over {}", k, kLongestRow);
  const bool f32 =
      c.type(op.operands[0]).dtype == DType::f32 && c.type(op.results[0]).dtype == DType::f32;
  return f32 ? "" : "the CPU multiplies f32 alone";
}

// Tiles of a GPU.
struct Tiles {
  OrderedTiles ordered;
  std::optional<CodedTile> coded;  // in their place
  int block_m() const { return coded ? static_cast<int>(kStreamRows) : ordered.tile.block_m; }
  int block_n() const { return coded ? coded->block_n : ordered.tile.block_n; }
  int threads() const { return coded ? coded->threads() : ordered.threads; }
};

// As fields of the Spec; the size of a launch but its grid.
LaunchSize in_tiles(Stub& stub, const EmitContext& c, const ir::Op& op, const Tiles& tiles,
                    const std::string& matrices) {
  const ValueId x = op.operands[0];
  const DType t = c.type(x).dtype;
  const ir::Type w = ir::matrices_type(c.graph, op);
  LaunchSize size;
  size.threads = static_cast<uint32_t>(tiles.threads());
  size.shared_bytes =
      (tiles.coded ? coded_shared_bytes(t, *packed_matrices(c.graph, op), *tiles.coded)
                   : ordered_shared_bytes(t, tiles.ordered)) +
      row_bytes(tiles.block_m(), tiles.threads(), *c.known(w.dims[0]));
  stub.type("Out", c.type(op.results[0]).dtype);
  stub.field("gated", false);
  stub.field("early", false);
  // A caller may have misaligned what is its own.
  const bool callers = c.any_of_callers({x, op.operands[1]});
  const int64_t copy =
      callers ? static_cast<int64_t>(size_of(t)) : copied_bytes(t, *c.known(w.dims[2]));
  if (tiles.coded) {
    stub.field("block_m", kStreamRows);
    add_coded_fields(stub, copy, *tiles.coded);
  } else {
    add_ordered_fields(stub, c, t, copy, tiles.ordered);
  }
  stub.require(fmt::format("GroupedMatmulShape<Spec, {}>::shared_bytes == {}",
                           matrices.substr(0, matrices.find('{')), size.shared_bytes),
               "the plan has another size");
  return size;
}

}  // namespace

OrderedTiles grouped_tiles(const Graph& graph, OpId o, const TargetClass& target,
                           int64_t most_tokens) {
  const ir::Op& op = graph.op(o);
  const ir::Type w = ir::matrices_type(graph, op);
  const int64_t groups = *ir::as_int(w.dims[0]);
  return grouped_tiles(w.dtype, rows_each(graph, o, most_tokens), *ir::as_int(w.dims[2]),
                       packed_matrices(graph, op).has_value(),
                       target.shared_bytes - row_bytes(kMostBlockM, kMostThreads, groups));
}

Result<Emission> emit_grouped_matmul(const EmitContext& c, OpId o) {
  const ir::Op& op = c.graph.op(o);
  const ValueId x = op.operands[0], y = op.results[0];
  const ir::Type w = ir::matrices_type(c.graph, op);
  ExprRef rows = c.rows(y);
  const int64_t groups = *c.known(w.dims[0]), n = *c.known(w.dims[1]), k = *c.known(w.dims[2]);
  if (const std::string why = refusal(c, op); !why.empty()) return c.unsupported(o, why);
  const std::vector<ExprRef> of_rows(c.dims(y).begin(), c.dims(y).end() - 1);
  ExprRef share = c.integer(1);  // rows of one of x
  for (size_t d = c.dims(x).size() - 1; d < of_rows.size(); ++d) share = ir::mul(share, of_rows[d]);
  const auto panels = panels_of(c, op);
  std::vector<ValueId> reads = each_once(op.operands);
  if (panels) std::erase(reads, op.operands[panels->slot]);
  Stub stub(c, "grouped_matmul", op.operands, std::move(reads), op.results);
  stub.functor("Which", "idx i0",
               ir::substitute_indices(
                   op.as<ir::GroupedMatmulAttrs>().which,
                   ir::reshape_indices(c.pool(), {c.pool().index(0, rows)}, {rows}, of_rows)),
               Scalar::i64);
  stub.field("groups", groups);
  if (c.cuda()) stub.type("T", c.type(x).dtype);
  Tiles tiles;
  if (c.cuda())
    tiles = {grouped_tiles(c.graph, o, c.target, c.bucket.most_tokens), few_rows_of_codes(c, o)};
  const Matrices matrices = panels
                                ? in_panels(stub, c, op, *panels)
                                : as_they_are(stub, c, op, tiles.ordered, tiles.coded.has_value());
  std::vector<std::string> arguments{stub.out(), stub.in(x), matrices.object, stub.size(rows)};
  LaunchSize size;
  ExprRef slots = ir::min(rows, c.integer(groups));
  if (c.cuda()) {
    size = in_tiles(stub, c, op, tiles, matrices.object);
    size.grid = {ir::mul(slots, c.ceil_div(w.dims[1], tiles.block_n()))};
    arguments.insert(arguments.end(), {stub.size(w.dims[1]), stub.size(w.dims[2])});
  } else {
    stub.field("n", n);
    stub.field("k", k);
    const int64_t columns = panels ? panels->panel : kBlockColumns;
    size.work = ir::mul(slots, c.ceil_div(w.dims[1], columns));
    size.grain =
        static_cast<uint32_t>(std::max<int64_t>(1, kItemValues / (std::min(n, columns) * k)));
  }
  arguments.insert(arguments.end(), {stub.size(share), stub.object("Which")});
  stub.call(std::move(arguments), {});
  KernelLaunch launch{
      fmt::format("grouped_matmul__{}_{}x{}x{}{}", c.storage(x), groups, n, k, matrices.coding),
      std::move(stub), std::move(size), ir::mul(c.integer(2 * n * k), rows), matrices.packed};
  if (matrices.bytes) launch.of_constants = ir::mul(slots, c.integer(matrices.bytes));
  return Emission::of(std::move(launch));
}

}  // namespace tfcc::codegen
