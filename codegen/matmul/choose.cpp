// SPDX-License-Identifier: Apache-2.0
// Which arm executes a product, and with what tile. Every choice is made here.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <span>

#include "codegen/matmul/matmul.h"
#include "ir/attrs.h"

namespace tfcc::codegen {
namespace {

constexpr int64_t kSomeRowsEach = 48;  // of each matrix of a grouped_matmul
constexpr int64_t kLongSum = 8192;     // of its rows
constexpr int64_t kAnyRows = std::numeric_limits<int64_t>::max();

constexpr const char* kComputed =
    "B is an expression, and not one of bytes and what neighbours share";

/// Why the packed panels of the CPU do not serve; empty if they do.
std::string no_panel(const MatmulDesc& x) {
  const auto n = ir::as_int(x.n), k = ir::as_int(x.k);
  if (x.a != DType::f32 || x.b != DType::f32 || x.d != DType::f32) return "not all of f32";
  if (!x.weight) return "B is no weight, which could be packed";
  if (x.computed && !x.packed && !x.narrow) return kComputed;
  if (x.trans_a || !ir::is_int(x.batch, 1)) return "rows of A do not lie one behind the other";
  if (!n || !k || *k == 0) return "n or k is not known at compile time";
  if (panel_of(*n) == 0) return "n is no multiple of 16";
  return "";
}

/// Why the packed panels of bytes do not serve; empty if they do.
std::string no_bytes(const MatmulDesc& x) {
  const auto n = ir::as_int(x.n), k = ir::as_int(x.k);
  if ((x.a != DType::u8 && x.a != DType::i8) || x.b != DType::i8)
    return "not bytes by signed bytes";
  if (x.d == DType::i64) return "the sum has 64 bits";
  if (!x.weight) return "B is no weight, which could be packed";
  if (x.trans_a || !ir::is_int(x.batch, 1)) return "rows of A do not lie one behind the other";
  if (!n || !k || *k == 0 || *k % 4 != 0) return "k is no multiple of 4 known at compile time";
  if (panel_of(*n) == 0) return "n is no multiple of 16";
  return x.epilogue == Epilogue::other ? "the epilogue reads what does not stand beside the sum"
                                       : "";
}

/// Small tiles: few rows leave few blocks, and each has a multiprocessor to itself. Where k allows
/// it, 128 of it at a time: each wait of a step then counts half (docs/performance.md).
const std::vector<WgmmaTile> kFewRowsTiles = {{64, 64, 8}};
const std::vector<WgmmaTile> kFewRowsTilesDeep = {{64, 64, 5, 128}};
/// Where B is stored by columns, half of them: products of few columns are in twice the blocks.
const std::vector<WgmmaTile> kFewRowsTilesOfColumns = {{64, 64, 8}, {64, 32, 12}};
const std::vector<WgmmaTile> kFewRowsTilesOfColumnsDeep = {{64, 64, 5, 128}, {64, 32, 7, 128}};
/// Large tiles ask for the fewest bytes, smaller ones leave fewer processors idle in the last
/// round. A kernel has at most so many of these.
constexpr size_t kMostTiles = 5;
constexpr int kWidths[] = {64, 80, 96, 112, 128, 144, 160, 192, 224, 256};
/// Sums of more columns move further in the end of every tile of the kernel, which is what a
/// GELU makes long. Runs of BERT-base whose `up` took 256 where 192 do as well were 1% slower.
constexpr int kWidestCostly = 192;
/// Of B stored by rows TMA brings 64 columns at a time.
constexpr int kWidthOfRows = 64;
/// Longer sums are in too few blocks that take one tile after the other: a run with 3072 left to
/// the library is faster. And an epilogue of its own costs little beside them.
constexpr int64_t kLongestSum = 1024;

bool few_rows(const MatmulDesc& x) { return x.most_rows && *x.most_rows <= kFewRows; }
/// A norm is a part of the product, which saves its launch.
bool norms(const MatmulDesc& x) { return x.norm || x.scaled; }
/// Where this arm pays at many rows: it leaves padding out, or saves the launch of an epilogue.
bool pays_at_many(const MatmulDesc& x) {
  const bool after = x.epilogue == Epilogue::beside || x.epilogue == Epilogue::gate;
  return x.made_rows ||
         ((x.token_rows || x.most_rows) && after && ir::as_int(x.k).value_or(0) <= kLongestSum);
}
/// All launches around it are of ours: made rows are those of a chain of products that all are.
bool some_rows(const MatmulDesc& x) {
  return x.made_rows && x.most_rows && *x.most_rows <= kSomeRows;
}
/// Those that are the fastest at some number of rows.
std::vector<WgmmaTile> taken_of_few(const std::vector<WgmmaTile>& tiles, const MatmulDesc& x,
                                    int64_t processors) {
  const size_t of_half = fastest_tile(tiles, kFewRows / 2, x, processors),
               of_all = fastest_tile(tiles, kFewRows, x, processors);
  return of_half == of_all ? std::vector{tiles[of_all]} : tiles;
}
std::vector<WgmmaTile> wgmma_tiles(const MatmulDesc& x, const TargetClass& target) {
  const int64_t n = *ir::as_int(x.n), k = *ir::as_int(x.k);
  const bool deep = k % 128 == 0;
  if (few_rows(x)) {
    if (x.trans_b && x.epilogue != Epilogue::gate)  // a gate was not timed in narrower tiles
      return taken_of_few(deep ? kFewRowsTilesOfColumnsDeep : kFewRowsTilesOfColumns, x,
                          target.processors);
    return deep ? kFewRowsTilesDeep : kFewRowsTiles;
  }
  std::vector<WgmmaTile> all;
  const bool costly = is_costly(x);
  for (int width : kWidths) {
    const int of = !x.trans_b ? kWidthOfRows : x.scaled ? ir::kMomentColumns : 1;
    if (width % of == 0 && !(costly && width > kWidestCostly)) all.push_back({128, width, 0});
  }
  if (some_rows(x)) all.push_back({64, 64, 0, deep ? 128 : 64});
  TileUse use{n,
              k,
              kFewRows,
              x.most_rows.value_or(kAnyRows),
              target.processors,
              target.shared_bytes,
              x.reads_matrix,
              kMostTiles,
              x.scaled != nullptr};
  if (x.made_rows && !some_rows(x)) use.more_rows = kSomeRows;  // else another form has the run
  return best_tiles(all, use);
}

/// Why no kernel of ours for 16 bits serves; empty if they may.
std::string no_16_bits(const MatmulDesc& x) {
  const auto n = ir::as_int(x.n), k = ir::as_int(x.k);
  if ((x.a != DType::f16 && x.a != DType::bf16) || x.b != x.a || (x.d != x.a && x.d != DType::f32))
    return "not of 16 bits, or stored in the other type of 16 bits";
  if (x.trans_a || !ir::is_int(x.batch, 1)) return "rows of A do not lie one behind the other";
  if (!n || !k || *n % 8 != 0 || *k % 8 != 0)
    return "n and k are no multiples of 8 known at compile time";
  if (*n < 64 || *k < 64) return "n or k is less than a tile";
  return "";
}

/// Why no kernel of ours keeps sums in order; empty if one does.
std::string no_ordered(const MatmulDesc& x, bool by_codes = false) {
  if (x.b != x.a || (x.d != x.a && x.d != DType::f32)) return "its types differ";
  if (x.computed && !by_codes)
    return "B is an expression, which it would compute for each block of rows";
  if (x.trans_a || !x.trans_b || !ir::is_int(x.batch, 1))
    return "rows of A and columns of B do not lie one behind the other";
  if (!ir::as_int(x.n) || !ir::as_int(x.k)) return "n or k is not known at compile time";
  return "";
}

constexpr const char* kNoWeight = "B is no weight, which could be asked for early";

bool fewest_rows(const MatmulDesc& x) { return x.most_rows && *x.most_rows <= kStreamRows; }
/// Why the weight does not stream past the rows; empty if it does. Only where the rows are few is
/// anything said.
std::string no_stream(const MatmulDesc& x, const TargetClass& target) {
  if (const std::string why = no_16_bits(x); !why.empty()) return why;
  if (!x.weight) return kNoWeight;
  if (x.computed) return "B is an expression, which another kernel computes";
  if (!x.trans_b || *ir::as_int(x.k) % 64 != 0)
    return "the weight is not stored by columns of a multiple of 64";
  if (!target.has_wgmma) return "the GPU has no products of warpgroups";  // last, as below
  if (stream_shared_bytes(stream_tile(x, target.processors)) > target.shared_bytes)
    return "its ring does not fit";
  return "";
}

/// Why the fewest rows are not multiplied by codes as they are read; empty if they are.
std::string no_coded(const MatmulDesc& x, const TargetClass& target) {
  if (!x.packed) return x.computed ? kComputed : "B is no weight in codes";
  if (x.a != DType::f16 && x.a != DType::bf16) return "not of 16 bits";
  if (const std::string why = no_ordered(x, true); !why.empty()) return why;
  if (*ir::as_int(x.n) == 0 || *ir::as_int(x.k) == 0) return "the weight is empty";
  const CodedTile tile = coded_tile(x, target);
  if (coded_shared_bytes(x.a, *x.packed, tile) > target.shared_bytes)
    return "its ring does not fit";
  return "";
}

/// Pairs of eights are not cut: the multiprocessor with most to do may have more of them, which
/// costs more than the launch that a gate saves.
bool gate_costs_more(const MatmulDesc& x, int64_t processors) {
  MatmulDesc plain = x;
  plain.epilogue = Epilogue::none;
  const auto most = [&](const MatmulDesc& d) {
    const int64_t size = stream_tile(d, processors).block_n,
                  tiles = (*ir::as_int(d.n) + size - 1) / size;
    return (tiles + processors - 1) / processors * size;
  };
  constexpr int64_t kFortieth = 40;
  return x.epilogue == Epilogue::gate && most(x) > most(plain) + most(plain) / kFortieth;
}

/// Why warpgroups do not serve; empty if they do.
std::string no_wgmma(const MatmulDesc& x, const TargetClass& target) {
  if (const std::string why = no_16_bits(x); !why.empty()) return why;
  if (!x.weight && !x.in_order) return kNoWeight;
  if (x.computed) return "B is an expression, which it would compute for each block of rows";
  const auto k = ir::as_int(x.k);
  if (!few_rows(x) && norms(x) && !x.made_rows)
    return "of many rows, norms are parts of products where padding is left out";
  if (!few_rows(x) && !pays_at_many(x) && !x.in_order) return "the library is faster at many rows";
  if (few_rows(x) && *k > kLongestSum && !x.in_order && !norms(x) && !x.made_rows)
    return "k is long, and the library splits it over blocks";
  if (!target.has_wgmma)
    return "the GPU has no products of warpgroups";  // last: plans that differ in words alone would not be shared
  return "";
}

/// Whether a kernel of ours multiplies f32 on tensor cores; steps of generation stay as they are.
bool in_tf32(const MatmulDesc& x) { return x.f32 == F32Products::tf32x3 && !x.in_order; }

/// Tiles by rows of the bucket, of f32 and of 16 bits: few rows wait for their weight, of which many
/// blocks then have a few columns each; the more rows, the more of them share what a block reads.
struct RowsAndTiles {
  int64_t most_rows;
  OrderedTiles tiles;
};
const RowsAndTiles kOrderedTiles[] = {
    {4, {{4, 16, 1, 2}, {}, 128, 32, 4}},
    {kStreamRows, {{16, 16, 4, 2}, {}, 128, 32, 4}},
    {kFewRows, {{32, 32, 8, 4}, {}, 128, 16, 4}},
    {kAnyRows, {{64, 64, 8, 8}, {}, 256, 8, 4}},
};
const RowsAndTiles kOrderedTilesOf16Bits[] = {
    {kStreamRows, {{16, 16, 1, 2}, {}, 128, 256, 4}},
    {kFewRows, {{32, 32, 1, 2}, {}, 128, 64, 6}},
    {kAnyRows, {{64, 64, 1, 4}, {128, 128, 4, 4}, 256, 32, 4}},
};
/// Of more than kFewRows rows.
const OrderedTiles kOrderedTilesOfTf32 = {{64, 64, 2, 2}, {128, 128, 4, 4}, 256, 32, 4};
/// Shared memory of a block is less on GPUs for desktops.
const OrderedTiles kTf32OfLittleMemory = {{64, 64, 2, 2}, {128, 64, 2, 4}, 256, 32, 3};
OrderedTiles ordered_tiles(const MatmulDesc& x, const TargetClass& target) {
  if (in_tf32(x)) {
    OrderedTiles t = kOrderedTilesOfTf32;
    if (ordered_shared_bytes(x.a, t) > target.shared_bytes) t = kTf32OfLittleMemory;
    t.tf32 = static_cast<int>(x.f32);
    return t;
  }
  std::span<const RowsAndTiles> all = kOrderedTilesOf16Bits;
  if (x.a == DType::f32) all = kOrderedTiles;
  const int64_t rows = x.most_rows.value_or(kAnyRows);
  return std::find_if(all.begin(), all.end(), [&](const auto& t) { return rows <= t.most_rows; })
      ->tiles;
}

}  // namespace

OrderedTiles grouped_tiles(DType type, std::optional<int64_t> rows, int64_t k, bool coded,
                           uint32_t shared_bytes) {
  // Few rows wait for their matrices, of which long rows make few blocks; many for products. Measured:
  // docs/performance.md.
  static const OrderedTiles kLongRows = {{16, 32, 1, 2}, {}, 128, 128, 6};
  static const RowsAndTiles kTilesOf16Bits[] = {
      {kStreamRows, {{16, 64, 1, 4}, {}, 128, 64, 6}},
      {kSomeRowsEach, {{32, 128, 1, 4}, {}, 256, 64, 4}},
      {kAnyRows, {{128, 128, 4, 4}, {}, 256, 64, 3}},
  };
  // A step of codes is a quarter of its bytes or less, so that more of them are on their way.
  static const RowsAndTiles kTilesOfCodes[] = {
      {kStreamRows, {{16, 32, 1, 2}, {}, 128, 128, 3, 0, 6}},
      {kSomeRowsEach, {{32, 128, 1, 4}, {}, 256, 64, 4, 0, 4}},
      {kAnyRows, {{64, 128, 2, 4}, {}, 256, 64, 3, 0, 2}},
  };
  std::span<const RowsAndTiles> all = coded ? kTilesOfCodes : kTilesOf16Bits;
  if (type == DType::f32) all = kOrderedTiles;
  OrderedTiles tiles = std::ranges::find_if(all, [&](const RowsAndTiles& t) {
                         return rows.value_or(kAnyRows) <= t.most_rows;
                       })->tiles;
  if (type != DType::f32 && rows && *rows <= kStreamRows && k >= kLongSum && !coded)
    tiles = kLongRows;
  while (tiles.stages > 2 && ordered_shared_bytes(type, tiles) > shared_bytes) --tiles.stages;
  return tiles;
}

namespace {

// Each of these makes c its choice and returns true, or says in c.rejected why it does not.

MatmulConfig of_integers(const MatmulDesc& x, const TargetClass& target) {
  MatmulConfig c;
  const std::string why = target.cuda() ? "" : no_bytes(x);
  if (!target.cuda() && why.empty()) {
    c.arm = Arm::bytes;
    c.panel = panel_of(*ir::as_int(x.n));
    c.line = __LINE__;
    c.reason =
        "four products a lane where the CPU has VNNI, two elsewhere, of a weight that is packed when the model is compiled";
    c.rejected = {{Arm::integer, "reads both factors by their own indices"}};
    return c;
  }
  c.arm = Arm::integer;
  c.reason = "products of integers are exact";
  c.line = __LINE__;
  if (!target.cuda()) c.rejected = {{Arm::bytes, why}};
  return c;
}

bool takes_panel(const MatmulDesc& x, MatmulConfig& c) {
  const std::string why = no_panel(x);
  if (why.empty()) {
    c.arm = Arm::panel;
    c.panel = panel_of(*ir::as_int(x.n));
    c.line = __LINE__;
    c.reason = "a weight is packed when the model is compiled";
    c.rejected = {{Arm::library, "reads the weight as it lies, and takes no epilogue but a bias"}};
    return true;
  }
  c.rejected = {{Arm::panel, why}};
  return false;
}

/// Of a larger factor one thread would read rows far apart, for each of few rows.
constexpr int64_t kLargestInOrder = int64_t{1} << 20;
/// A token has the same bits beside any others, and the library sums few rows in another order than
/// many, on some CPUs.
bool keeps_order(const MatmulDesc& x) {
  const auto n = ir::as_int(x.n), k = ir::as_int(x.k);
  const bool rows_of_tokens = x.in_order || x.made_rows || x.token_rows;
  return rows_of_tokens && x.a == DType::f32 && x.b == DType::f32 && x.d == DType::f32 &&
         !x.computed && !x.trans_a && !x.trans_b && ir::is_int(x.batch, 1) && n && k &&
         *n * *k <= kLargestInOrder;
}

bool takes_heads(const MatmulDesc& x, MatmulConfig& c) {
  if (!x.side_by_side && !keeps_order(x)) return false;
  c.arm = Arm::heads;
  c.line = __LINE__;
  c.reason = x.side_by_side ? "rows of all heads, each sum in order" : "each sum in order";
  c.rejected.push_back({Arm::library, "sums few rows in another order than many"});
  return true;
}

bool takes_coded(const MatmulDesc& x, const TargetClass& target, MatmulConfig& c) {
  const std::string why = norms(x) ? "it takes no norm" : no_coded(x, target);
  if (why.empty()) {
    c.arm = Arm::coded;
    c.coded = coded_tile(x, target);
    c.early = !x.made_rows;
    c.line = __LINE__;
    c.reason = "each warp computes its weight from codes where it multiplies";
    c.rejected = {{Arm::library, "reads a weight that a launch has computed"}};
    return true;
  }
  c.rejected = {{Arm::coded, why}};
  return false;
}

bool takes_stream(const MatmulDesc& x, const TargetClass& target, MatmulConfig& c) {
  const std::string why = norms(x) ? "it takes no norm" : no_stream(x, target);
  if (why.empty()) {
    c.arm = Arm::stream;
    c.stream = stream_tile(x, target.processors);
    c.splits_gate = gate_costs_more(x, target.processors);
    c.line = __LINE__;
    c.reason =
        "the weight is asked for before the launches before it have ended, a few columns by each multiprocessor";
    c.rejected = {
        {Arm::wgmma, "its tiles of 64 rows and columns are too few for all multiprocessors"},
        {Arm::library, "waits for the launches before it, and may split sums"}};
    return true;
  }
  c.rejected.push_back({Arm::stream, why});
  return false;
}

bool takes_wgmma(const MatmulDesc& x, const TargetClass& target, MatmulConfig& c) {
  std::string why = no_wgmma(x, target);
  if (why.empty()) c.tiles = wgmma_tiles(x, target);
  if (why.empty() &&
      (c.tiles.empty() ||
       wgmma_shared_bytes(c.tiles, x.reads_matrix) + kWgmmaEndBytes > target.shared_bytes))
    why = "its tiles do not fit the memory of a block";
  if (why.empty()) {
    c.arm = Arm::wgmma;
    c.early = x.weight;
    c.line = __LINE__;
    const bool counted = x.made_rows && !few_rows(x);
    c.reason = fmt::format(
        "{}{}{}the epilogue costs no launch",
        c.early ? "the weight is asked for before the launches before it have ended, " : "",
        counted ? "it reads the number of rows where the run has counted them, " : "",
        c.early || counted ? "and " : "");
    c.rejected.push_back(
        {Arm::library, counted ? "would compute as many rows as there are with padding"
                       : few_rows(x)
                           ? "takes no epilogue but a bias, and waits for the launches before it"
                           : "takes no epilogue but a bias"});
    return true;
  }
  c.rejected.push_back({Arm::wgmma, why});
  return false;
}

/// Small tiles: few rows leave few blocks.
const std::vector<Tf32Tile> kFewRowsTf32 = {{64, 64}};
const std::vector<Tf32Tile> kManyRowsTf32 = {{128, 128}, {128, 64}, {64, 64}};

/// Why warpgroups do not multiply f32; empty if they do.
std::string no_tf32(const MatmulDesc& x, const TargetClass& target) {
  if (x.d != DType::f32) return "its types differ";
  if (const std::string why = no_ordered(x); !why.empty()) return why;
  if (*ir::as_int(x.n) % 8 != 0 || *ir::as_int(x.k) % 4 != 0)
    return "n is no multiple of 8, or k none of 4";
  if (!target.has_wgmma) return "the GPU has no products of warpgroups";  // last, as above
  return "";
}

bool takes_tf32(const MatmulDesc& x, const TargetClass& target, MatmulConfig& c) {
  const std::string why = no_tf32(x, target);
  if (why.empty()) {
    c.arm = Arm::tf32;
    c.tf32 = few_rows(x) ? kFewRowsTf32 : kManyRowsTf32;
    c.early = x.weight && (few_rows(x) || some_rows(x));
    c.line = __LINE__;
    c.reason = "tensor cores multiply f32 as sums of two numbers";
    c.rejected.push_back({Arm::library, "has no products of three in TF32"});
    return true;
  }
  c.rejected.push_back({Arm::tf32, why});
  return false;
}

bool takes_ordered(const MatmulDesc& x, const TargetClass& target, MatmulConfig& c) {
  const std::string why = norms(x) ? "it takes no norm" : no_ordered(x);
  if (why.empty()) {
    c.arm = Arm::ordered;
    c.ordered = ordered_tiles(x, target);
    c.early = x.weight && !x.made_rows;
    c.line = __LINE__;
    c.reason = in_tf32(x) ? "tensor cores multiply f32 as sums of two numbers"
                          : "each sum has one order, whatever the tile and the rows";
    c.rejected.push_back({Arm::library, x.in_order ? "sums in an order that changes with the rows"
                                                   : "has no products of three in TF32"});
    return true;
  }
  c.rejected.push_back({Arm::ordered, why});
  return false;
}

}  // namespace

int panel_of(int64_t n) {
  for (int panel : {64, 48, 32, 16}) {
    if (n % panel == 0) return panel;
  }
  return 0;
}

bool takes(Arm arm, Epilogue e) {
  switch (arm) {
#define TFCC_ARM(name, epilogues) \
  case Arm::name:                 \
    return epilogues;
#include "codegen/matmul/arms.def"
#undef TFCC_ARM
  }
  return false;
}

bool takes_epilogue(const MatmulConfig& c, const MatmulDesc& x) {
  return takes(c.arm, x.epilogue) && !c.splits_gate;
}

bool takes_factor(Arm arm, const MatmulDesc& x) {
  return !x.computed || (x.packed && (arm == Arm::panel || arm == Arm::coded)) ||
         (x.narrow && arm == Arm::panel);
}

MatmulConfig choose(const MatmulDesc& x, const TargetClass& target) {
  if (!is_float(x.a)) return of_integers(x, target);
  MatmulConfig c;
  if (!target.cuda() && (takes_panel(x, c) || takes_heads(x, c))) return c;
  if (target.cuda() && fewest_rows(x) && x.packed && takes_coded(x, target, c)) return c;
  if (target.cuda() && fewest_rows(x) && takes_stream(x, target, c)) return c;
  if (target.cuda() && takes_wgmma(x, target, c)) return c;
  if (target.cuda() && in_tf32(x) && takes_tf32(x, target, c)) return c;
  if (target.cuda() && (x.in_order || (in_tf32(x) && !few_rows(x))) && takes_ordered(x, target, c))
    return c;
  c.reason = "no kernel of ours takes this product";
  c.line = __LINE__;
  return c;
}

std::string print(const MatmulConfig& c) {
  std::string s = std::string(kArmNames[static_cast<int>(c.arm)]);
  for (size_t i = 0; i < c.tiles.size(); ++i) {
    const WgmmaTile& t = c.tiles[i];
    s += fmt::format("{} of {} x {}, {} stages", i == 0 ? "" : ", or", t.block_m, t.block_n,
                     t.stages);
    if (t.block_k != 64) s += fmt::format(" of {}", t.block_k);
  }
  if (c.tiles.size() > 1) s += ", whichever the rows of a run are best for";
  for (size_t i = 0; i < c.tf32.size(); ++i)
    s += fmt::format("{} of {} x {}", i == 0 ? "" : ", or", c.tf32[i].block_m, c.tf32[i].block_n);
  if (c.tf32.size() > 1) s += ", whichever the rows of a run are best for";
  if (c.stream.block_n)
    s += fmt::format(" of {} columns, {} of k at a time, {} stages", c.stream.block_n,
                     c.stream.block_k, c.stream.stages);
  if (c.coded.block_n)
    s += fmt::format(" of {} columns, {} of k at a time, {} stages{}", c.coded.block_n,
                     c.coded.block_k, c.coded.stages, c.coded.turns == 2 ? ", in turns" : "");
  if (c.ordered.threads) {
    s += fmt::format(" of {} x {}", c.ordered.tile.block_m, c.ordered.tile.block_n);
    if (c.ordered.large.block_m)
      s += fmt::format(", or {} x {} where those fill the multiprocessors", c.ordered.large.block_m,
                       c.ordered.large.block_n);
    s += fmt::format(", {} of k at a time, {} stages", c.ordered.block_k, c.ordered.stages);
    if (c.ordered.tf32) s += fmt::format(", {} products in TF32 for one", c.ordered.tf32);
  }
  if (c.panel) s += fmt::format(" of {} columns", c.panel);
  s += ": " + c.reason;
  for (const auto& [arm, why] : c.rejected)
    s += fmt::format("\nnot {}: {}", kArmNames[static_cast<int>(arm)], why);
  return s;
}

}  // namespace tfcc::codegen
