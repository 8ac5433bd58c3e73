// SPDX-License-Identifier: Apache-2.0
// Products of 16-bit operands by warpgroups (templates/cuda/matmul_wgmma.cuh), on GPUs that have
// them.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "codegen/matmul/matmul.h"

namespace tfcc::codegen {
namespace {

/// What the template reads for the epilogue: at most so many matrices like A, and vectors along the
/// columns.
constexpr size_t kBeside = 1, kColumns = 4;

/// Loads that the template does.
struct Taken {
  std::vector<ValueId> beside, columns;
};

bool is_index(ExprRef e, int64_t number) {
  return e->kind == ir::ExprKind::index && e->value == number;
}

/// The body with elements at (row, column) of matrices as the parameter beside, and those along the
/// columns of constant vectors as c0, ...
ExprRef take_loads(const EmitContext& c, const ir::Op& op, const MatmulDesc& x, ExprRef body,
                   Taken& taken) {
  const auto place = [](std::vector<ValueId>& all, size_t most,
                        ValueId v) -> std::optional<size_t> {
    const auto at = std::find(all.begin(), all.end(), v);
    if (at != all.end()) return static_cast<size_t>(at - all.begin());
    if (all.size() == most) return std::nullopt;
    all.push_back(v);
    return all.size() - 1;
  };
  return ir::rewrite(body, [&](ExprRef n) -> ExprRef {
    if (n->kind != ir::ExprKind::load || n->type != Scalar::f32) return nullptr;
    const ValueId v = op.operands[static_cast<size_t>(n->value)];
    if (c.any_of_callers({v})) return nullptr;  // may lie anywhere
    std::optional<size_t> at;
    const bool matrix = n->args.size() == 2 && is_index(n->args[0], 0) && is_index(n->args[1], 1) &&
                        c.type(v).dtype == x.a;
    if (matrix) at = place(taken.beside, kBeside, v);
    else if (n->args.size() == 1 && is_index(n->args[0], 1) && c.graph.is_constant(v))
      at = place(taken.columns, kColumns, v);
    return at ? c.pool().param(matrix ? "beside" : fmt::format("c{}", *at), n->type) : nullptr;
  });
}

/// The launch's MatmulEnd: the result and what it is made of beside the sums.
std::string add_end(const EmitContext& c, Stub& stub, const ir::Op& op, const MatmulDesc& x,
                    Taken& taken) {
  const std::string vectors =
      ", [[maybe_unused]] f32 c0, [[maybe_unused]] f32 c1, [[maybe_unused]] f32 c2, [[maybe_unused]] f32 c3";
  stub.field("gated", x.epilogue == Epilogue::gate);
  if (x.epilogue == Epilogue::gate) {
    add_epilogue(stub, x, x.body, "Epilogue", "f32 s, f32 t");
    stub.type("Columns", "ColumnValues<>");
    stub.field("norm", int64_t{0});
    for (const char* none : {"moments", "sum", "beside"}) stub.field(none, false);
    return fmt::format("MatmulEnd<Spec, Epilogue>{{{}, {}}}", stub.out(), stub.object("Epilogue"));
  }
  std::string params = "f32 s";
  for (const char* p : {"mean", "rstd", "beside"})
    params += fmt::format(", [[maybe_unused]] f32 {}", p);
  add_epilogue(stub, x, take_loads(c, op, x, x.body, taken), "Epilogue", params + vectors);
  if (x.scaled)
    add_epilogue(stub, x, take_loads(c, op, x, x.scaled, taken), "Scaled", "f32 s" + vectors);
  std::string types, columns = "{}";
  for (ValueId v : taken.columns) types += (types.empty() ? "" : ", ") + c.storage(v);
  for (size_t k = taken.columns.size(); k-- > 0;)
    columns = fmt::format("{{{}, {}}}", stub.in(taken.columns[k]), columns);
  stub.type("Columns", "ColumnValues<" + types + ">");
  stub.field("norm", int64_t{x.norm ? *x.norm == ir::NormKind::layer ? 1 : 2 : 0});
  if (x.norm) {
    stub.field("norm_groups", *c.known(c.dims(op.operands.back())[0]));
    stub.field_f32("eps", *op.as<ir::MatmulAttrs>().eps);
  }
  stub.field("moments", x.scaled != nullptr);
  stub.field("sum", op.results.size() > 2);
  stub.field("beside", !taken.beside.empty());
  std::string end =
      fmt::format("MatmulEnd<Spec, Epilogue{}>{{{}, {}, {}", x.scaled ? ", Scaled" : "", stub.out(),
                  stub.object("Epilogue"), columns);
  if (x.scaled || x.norm || !taken.beside.empty()) {
    end += fmt::format(", {}, {}, {}, {}", x.scaled ? stub.object("Scaled") : "{}",
                       x.scaled ? stub.out(1) : "nullptr",
                       op.results.size() > 2 ? stub.out(2) : "nullptr",
                       x.norm ? stub.in(op.operands.back()) : "nullptr");
    for (ValueId v : taken.beside) end += ", " + stub.in(v);
  }
  return end + "}";
}

/// What a kernel has of its tiles, and the maps of the weight: one for the tiles of each width.
struct TileList {
  WgmmaTile smallest;
  int groups = 0;
  std::string types, maps;  // of the tiles, and which map each has
  std::vector<MatrixView> weights;

  TileList(const std::vector<WgmmaTile>& tiles, const MatmulDesc& x, ValueId b)
      : smallest(tiles.front()) {
    for (const WgmmaTile& t : tiles) {
      smallest.block_m = std::min(smallest.block_m, t.block_m);
      smallest.block_n = std::min(smallest.block_n, t.block_n);
      groups = std::max(groups, t.block_m / 64);
      const auto box = static_cast<uint32_t>(x.trans_b ? t.block_n : 64);
      auto map = std::ranges::find(weights, box, &MatrixView::box_rows);
      if (map == weights.end()) {
        weights.push_back(x.trans_b ? MatrixView{b, x.n, x.k, box, 64}
                                    : MatrixView{b, x.k, x.n, 64, 64});
        map = weights.end() - 1;
      }
      maps += fmt::format("{}&m{}", maps.empty() ? "" : ", ", map - weights.begin() + 1);
      types +=
          fmt::format("{}WgmmaTile<{}, {}, {}{}>", types.empty() ? "" : ", ", t.block_m, t.block_n,
                      t.stages, t.block_k == 64 ? "" : fmt::format(", {}", t.block_k));
    }
  }
};

/// The product and its tiles as a timing cache names them: all that their times depend on, and
/// nothing that differs from file to file.
std::string what_tiles(const MatmulDesc& x, const MatmulConfig& config, DType out, bool beside) {
  std::string s = fmt::format("wgmma {} {}; {}x{}{}", tfcc::to_string(x.a), tfcc::to_string(out),
                              *ir::as_int(x.n), *ir::as_int(x.k), x.trans_b ? " bt" : "");
  const std::pair<bool, const char*> parts[] = {{is_costly(x), "costly"},
                                                {beside, "beside"},
                                                {x.epilogue == Epilogue::gate, "gate"},
                                                {x.norm.has_value(), "norm"},
                                                {x.scaled != nullptr, "moments"},
                                                {config.early, "early"}};
  for (const auto& [is, name] : parts) {
    if (is) s += fmt::format(" {}", name);
  }
  s += ';';
  for (const WgmmaTile& t : config.tiles)
    s += fmt::format(" {}x{}x{}x{}", t.block_m, t.block_n, t.block_k, t.stages);
  return s;
}

int64_t tiles_of_few(const std::vector<WgmmaTile>& tiles, const MatmulDesc& x, int64_t processors) {
  int64_t numbers = 0;
  for (int piece : {0, 1})
    numbers |= static_cast<int64_t>(fastest_tile(tiles, (piece + 1) * kFewRows / 2, x, processors))
               << 4 * piece;
  return numbers;
}

}  // namespace

uint32_t wgmma_shared_bytes(const std::vector<WgmmaTile>& tiles, bool beside) {
  int bytes = 0;
  for (const WgmmaTile& t : tiles)
    bytes = std::max(bytes, t.stages * (t.block_m + t.block_n) * t.block_k * 2 +
                                (beside ? t.block_m * ((t.block_n + 31) / 32 * 64 + 16) : 0));
  return static_cast<uint32_t>(bytes + 1024);
}

Result<Emission> emit_matmul_wgmma(const EmitContext& c, OpId o, const MatmulDesc& x,
                                   const MatmulConfig& config) {
  const ir::Op& op = c.graph.op(o);
  const ValueId a = op.operands[0], b = op.operands[1], y = op.results[0];
  const std::vector<WgmmaTile>& tiles = config.tiles;
  TileList list(tiles, x, b);
  LaunchSize size;
  size.threads = static_cast<uint32_t>(
      128 * list.groups +
      96);  // warps beside the groups ask for operands, and prepare the ends of tiles
  size.grid = {
      ir::mul(c.ceil_div(x.n, list.smallest.block_n), c.ceil_div(x.m, list.smallest.block_m))};
  size.resident = 1;

  Stub stub = product_stub(c, o, "matmul_wgmma", beside_operands(op));
  stub.type("T", x.a);
  stub.type("Out", c.type(y).dtype);
  stub.type("Tiles", "WgmmaTiles<" + list.types + ">");
  stub.field("early", config.early);
  stub.field("trans_b", x.trans_b);
  stub.field("costly", is_costly(x));
  const bool few = x.most_rows && *x.most_rows <= kFewRows, by_table = tiles.size() > 1 && !few;
  stub.field("tiles_of_few", few ? tiles_of_few(tiles, x, c.target.processors) : int64_t{-1});
  Taken taken;
  stub.reads_early();
  const std::string end = add_end(c, stub, op, x, taken);
  size.shared_bytes = wgmma_shared_bytes(tiles, !taken.beside.empty());
  stub.require(
      fmt::format(
          "MatmulWgmmaShape<Spec>::threads == {} && MatmulWgmmaShape<Spec>::shared_bytes == {}",
          size.threads, size.shared_bytes),
      "the plan has other sizes");
  stub.waits_itself(), stub.resident(1), stub.maps(1 + list.weights.size());
  std::vector<std::string> arguments = {"m0",           "{" + list.maps + "}", stub.early_size(x.m),
                                        stub.size(x.n), stub.size(x.k),        end};
  if (by_table)
    arguments.push_back(stub.tiles_by_rows(x.most_rows && *x.most_rows <= kSomeRows ? 1 : 4));
  stub.call(std::move(arguments), {});

  std::vector<MatrixView> maps = std::move(list.weights);
  maps.insert(maps.begin(),
              MatrixView{a, x.m, x.k, static_cast<uint32_t>(list.smallest.block_m), 64});
  KernelLaunch launch{fmt::format("matmul_wgmma__{}_{}x{}", storage_type(x.a),
                                  tiles.front().block_m, tiles.front().block_n),
                      std::move(stub),
                      std::move(size),
                      ir::mul(c.integer(2), ir::mul(ir::mul(x.m, x.n), x.k)),
                      {},
                      std::move(maps),
                      fused_parts(x)};
  if (by_table)
    launch.tiles =
        TileChoice{x.m, *c.known(x.n), cycles_of(tiles, *c.known(x.k), x.scaled != nullptr),
                   what_tiles(x, config, c.type(y).dtype, !taken.beside.empty())};
  Emission emission = Emission::of(std::move(launch));
  note_rows(c, c.graph.value(y).name, x, emission);
  return emission;
}

}  // namespace tfcc::codegen
