// SPDX-License-Identifier: Apache-2.0
// How a matrix product (GEMM) is executed: describe() -> MatmulDesc -> choose() -> MatmulConfig -> one
// emitter per arm. What decides for an arm, and for its tile, is choose.cpp alone.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "codegen/emit/emit.h"
#include "codegen/matmul/rules.h"

namespace tfcc::codegen {

/// What an arm must be able to do after the sum.
enum class Epilogue : uint8_t {
  none,
  bias,    // s + bias[j], a bias of the result's type
  beside,  // an expression over s and elements that stand beside it: at (i, j), along j, single values; beside integers also along i
  gate,    // an expression over two sums, of columns eight apart
  other,   // elements of other rows or columns, or the indices themselves
};
inline constexpr std::string_view kEpilogueNames[] = {"none", "bias", "beside", "gate", "other"};

/// A weight in bits, which an arm computes where it reads it: B[k, n] is value(code), where code is
/// the element [n, k / per] of an operand, a byte.
struct PackedFactor {
  size_t slot = 0;              // the operand
  DType stored = DType::u8;     // i8: code is the byte + 128
  int64_t per = 1;              // values in a byte
  int64_t chunk = 0;            // values in kPackedBytes: neighbours along k, which share ..
  std::vector<ExprRef> shared;  // .. this: over index 0, the column, and index 1, the chunk
  /// Of a struct of them.
  int64_t shared_bytes() const;
  /// Of four or eight bits, where value is exact in halves up to its one product: (digit - zero) * scale
  /// with a scale that is a half. Expressions over the parameters v0, v1, ..; null: it is not.
  ExprRef scale = nullptr, zero = nullptr;
  ExprRef value =
      nullptr;  // over index 2, the place in the chunk, index 3, the code, and params v0, v1, ..: shared
};
inline constexpr int64_t kPackedBytes = 16;
inline constexpr size_t kMostShared = 4;
/// The weight of this product, if it is an expression and of that form, and k is whole chunks.
std::optional<PackedFactor> packed_factor(const Graph& graph, const ir::Op& product);

/// The same of the matrices of a grouped_matmul, whose columns are those of all matrices, one matrix
/// behind the other.
std::optional<PackedFactor> packed_matrices(const Graph& graph, const ir::Op& grouped);

/// A weight of another type of reals than the sum's: an element of an operand [k, n] or [n, k].
struct NarrowFactor {
  size_t slot = 0;
  DType stored = DType::f16;
};
/// The weight of this product, if it is an expression and of that form.
std::optional<NarrowFactor> narrow_factor(const Graph& graph, const ir::Op& product);
/// The same of the matrices of a grouped_matmul, [groups, n, k].
std::optional<NarrowFactor> narrow_matrices(const Graph& graph, const ir::Op& grouped);

/// D[m,n] = epilogue(alpha A[m,k] B[k,n]), `batch` times. Where all share B, their rows are rows of
/// one product.
struct MatmulDesc {
  DType a = DType::f32, b = DType::f32, d = DType::f32;
  ExprRef batch = nullptr, m = nullptr, n = nullptr, k = nullptr;
  ExprRef stride_a = nullptr,
          stride_b = nullptr;             // elements from one product to the next; 0: shared
  bool trans_a = false, trans_b = false;  // stored [k, m], [n, k]
  bool side_by_side = false;  // heads: a row of A and of D has that of each product of the batch
  bool weight = false;        // B is a constant, or ..
  bool computed = false;      // .. an expression over constants
  std::optional<PackedFactor> packed;  // .. of this form
  std::optional<NarrowFactor> narrow;  // .. or of this one
  std::optional<int64_t> most_rows;    // of m in the bucket that is lowered
  bool token_rows =
      false;  // m is the number of tokens: there are forms of the graph for few and for many
  bool made_rows = false;  // a launch of the run makes m: a library computes its bound
  bool in_order = false;   // a step of generation: a token's bits are the same beside any others
  F32Products f32 = F32Products::exact;  // of operands of f32
  double alpha = 1;
  Epilogue epilogue = Epilogue::none;
  /// beside or bias: the epilogue over index 0, the row of [m], and index 1, the column, with alpha
  /// in it; slots are operands.
  ExprRef body = nullptr;
  /// The dims in which body indexes each operand.
  std::vector<std::vector<ExprRef>> operand_dims;
  /// Norms before and after it that are parts of it (ir/attrs.h): of the rows of A, and what is
  /// stored instead of what its epilogue gives.
  std::optional<ir::NormKind> norm;
  ExprRef scaled = nullptr;
  bool reads_matrix = false;  // body reads what stands at (row, column) of a matrix like A
};

/// Runs have at most `most_tokens` tokens; 0: any number.
MatmulDesc describe(const Graph& graph, OpId product, int64_t most_tokens,
                    const ProductRules& rules = {});
/// Whether the epilogue computes what takes many operations, such as a GELU.
bool is_costly(const MatmulDesc& desc);
/// "f16 [B*S,768] x [768,3072] of a weight -> f16, epilogue bias"
std::string print(const MatmulDesc& desc);

/// Multiprocessors to fill; of a class that has GPUs of many sizes those of a large one of its time.
inline int64_t processors_of(const TargetClass& target) {
  constexpr int64_t kMany = 108;
  return target.processors ? target.processors : kMany;
}

/// A way to execute products.
enum class Arm : uint8_t {
#define TFCC_ARM(name, epilogues) name,
#include "codegen/matmul/arms.def"
#undef TFCC_ARM
};
inline constexpr std::string_view kArmNames[] = {
#define TFCC_ARM(name, epilogues) #name,
#include "codegen/matmul/arms.def"
#undef TFCC_ARM
};

/// Products of no more rows wait for their weights rather than compute: the wgmma arm, which asks
/// for weights early, is for them.
inline constexpr int64_t kFewRows = 128;
/// The stream arm takes no more rows: a step of generation has one for each sequence.
inline constexpr int64_t kStreamRows = 16;
/// Bytes of its ring: two fit a multiprocessor, whose weights arrive while the launch before
/// computes.
inline constexpr int kStreamRing = 112 << 10;
/// A form of a plan is for runs of so many packed rows at most: its products may have tiles of 64
/// rows, and those of TF32 ask for their weights before the launches before them have ended.
inline constexpr int64_t kSomeRows = 1024;

/// Of a block: rows and columns of the result, and parts of block_k of k that are under way at once.
struct WgmmaTile {
  int block_m = 0, block_n = 0, stages = 0, block_k = 64;
  bool operator==(const WgmmaTile&) const = default;
};

/// Of a block of the tf32 arm: rows and columns of the result.
struct Tf32Tile {
  int block_m = 0, block_n = 0;
  bool operator==(const Tf32Tile&) const = default;
};

/// A product whose tiles are looked for.
struct TileUse {
  int64_t n = 0, k = 0;
  int64_t more_rows = 0, most_rows = 0;  // a run has more than the one, and at most the other
  int64_t processors = 0;
  uint32_t shared_bytes = 0;  // that a block may have
  bool beside = false;        // its end reads a matrix that stands beside the sums
  size_t count = 0;           // at most so many tiles
  bool moments = false;       // its end stores those of its rows
};
/// These tiles as the runtime chooses among them (runtime/core/tile_table.h), with their cycles for
/// products of depth k, whose ends store moments or not. Fitted to an H100 (docs/performance.md).
std::vector<runtime::Tile> cycles_of(const std::vector<WgmmaTile>& tiles, int64_t k, bool moments);
/// The number of that of fewest cycles.
size_t fastest_tile(const std::vector<WgmmaTile>& tiles, int64_t rows, const MatmulDesc& desc,
                    int64_t processors);
/// Of the candidates (whose stages are not read) those that lose least, together: the cheapest of
/// them at each number of rows against the cheapest of all.
std::vector<WgmmaTile> best_tiles(const std::vector<WgmmaTile>& candidates, const TileUse& use);

/// Of a block: rows of the weight, and parts of so many of k that are under way at once.
struct StreamTile {
  int block_n = 0, block_k = 0, stages = 0;
  bool operator==(const StreamTile&) const = default;
};

/// Of a block of few rows by codes: columns, how many warps take turns at each 16 of these, parts of so many of k that are under way at once, those for which a thread loads what chunks share
/// together, and warps that load.
struct CodedTile {
  int block_n = 0, turns = 0, block_k = 0, stages = 0, ahead = 0, loaders = 0;
  static constexpr int kMostThreads = 640;
  int threads() const { return 32 * (block_n / 16 * turns + loaders); }
  bool operator==(const CodedTile&) const = default;
};

/// Of a block: rows and columns of the result, and how many units of them each warp has.
struct OrderedTile {
  int block_m = 0, block_n = 0, own_m = 0, own_n = 0;
  bool operator==(const OrderedTile&) const = default;
};
/// The tiles of a launch, and parts of so many of k that are under way at once.
struct OrderedTiles {
  OrderedTile tile, large;  // large: where it fills the multiprocessors; of 0 rows: there is none
  int threads = 0, block_k = 0, stages = 0;
  int tf32 = 0;   // f32 on tensor cores: products there for each of f32
  int ahead = 0;  // of codes: steps that a thread asks for them before it needs them
  bool operator==(const OrderedTiles&) const = default;
};

/// How a product is executed: the arm, and what is its own in each.
struct MatmulKernel {
  Arm arm = Arm::library;
  int panel = 0;                 // columns of a panel
  std::vector<WgmmaTile> tiles;  // several: the rows of a run decide
  StreamTile stream;
  CodedTile coded;
  std::vector<Tf32Tile> tf32;  // several: the rows of a run decide
  OrderedTiles ordered;
  bool early = false;  // wgmma: the weight is asked for before the launches before it have ended
  bool operator==(const MatmulKernel&) const = default;
};

/// That, and why.
struct MatmulConfig : MatmulKernel {
  std::string reason;                                 // why this arm
  int line = 0;                                       // of choose.cpp, where it was chosen
  std::vector<std::pair<Arm, std::string>> rejected;  // the others that were looked at, and why not
  bool splits_gate = false;                           // an op of its own pays: see choose.cpp
};

/// The only place that decides. Depends on what is known at compile time alone.
MatmulConfig choose(const MatmulDesc& desc, const TargetClass& target);
/// Whether the arm computes this epilogue with the sum; legalise splits the others off.
bool takes(Arm arm, Epilogue epilogue);
/// The same of the arm that was chosen for this product, whose gate may pay as an op of its own.
bool takes_epilogue(const MatmulConfig& config, const MatmulDesc& desc);
/// Whether the arm computes B where it reads it, or has nothing to compute; legalise splits B off
/// else.
bool takes_factor(Arm arm, const MatmulDesc& desc);
/// "panel of 48 columns: ...", then a line "not library: ..." for each that was rejected.
std::string print(const MatmulConfig& config);

/// Dynamic shared memory of a block with the largest of these tiles, as MatmulWgmmaShape has it;
/// `beside`: with what stands beside the sums.
uint32_t wgmma_shared_bytes(const std::vector<WgmmaTile>& tiles, bool beside);
/// The most that the kernel has beside that, for the ends of tiles.
inline constexpr uint32_t kWgmmaEndBytes = 16 << 10;

/// The tile by which the multiprocessor with most to do has least, and its shared memory, as
/// MatmulStreamShape has it.
StreamTile stream_tile(const MatmulDesc& desc, int64_t processors);
uint32_t stream_shared_bytes(const StreamTile& tile);

/// The columns that a multiprocessor has to do, in as few blocks as can be, and shared memory as
/// CodedTileShape has it.
CodedTile coded_tile(const MatmulDesc& desc, const TargetClass& target);
/// The same for so many products of as many columns, and of so much memory, if that is enough for a block
/// of 16.
CodedTile coded_tile(DType type, const PackedFactor& packed, int64_t columns, int64_t products,
                     const TargetClass& target, uint32_t shared_bytes);
uint32_t coded_shared_bytes(DType type, const PackedFactor& packed, const CodedTile& tile);
/// The fields of Spec that such a tile has.
void add_coded_fields(Stub& stub, int64_t copy, const CodedTile& tile);

/// Dynamic shared memory of a block, as MatmulOrderedShape has it.
uint32_t ordered_shared_bytes(DType type, const OrderedTiles& tiles);
/// The fields of Spec that matmul_ordered and grouped_matmul share, from the number of threads on.
/// `copy`: bytes at a time, at most copied_bytes().
void add_ordered_fields(Stub& stub, const EmitContext& c, DType type, int64_t copy,
                        const OrderedTiles& tiles);
/// The most that divide rows of k elements, so that a copy is in one of them.
int64_t copied_bytes(DType type, int64_t k);
/// The most rows of a product that has a number of them for each token, or a known number, in a form
/// for at most so many tokens (0: any); nothing if there is no bound.
std::optional<int64_t> largest_rows(const Graph& graph, ExprRef rows, int64_t most_tokens);
/// Tiles of a grouped_matmul of `rows` rows of k a matrix, if that is known, whose ring fits so many
/// bytes. `coded`: matrices are computed from codes.
OrderedTiles grouped_tiles(DType type, std::optional<int64_t> rows, int64_t k, bool coded,
                           uint32_t shared_bytes);
/// Those of an op in a form for at most so many tokens.
OrderedTiles grouped_tiles(const Graph& graph, OpId grouped_matmul, const TargetClass& target,
                           int64_t most_tokens);

/// One emitter per arm.
#define TFCC_ARM(name, epilogues)                                                                 \
  Result<Emission> emit_matmul_##name(const EmitContext& c, OpId product, const MatmulDesc& desc, \
                                      const MatmulConfig& config);
#include "codegen/matmul/arms.def"
#undef TFCC_ARM

/// Columns of a panel of the CPU: the most that divide n, 0 if none do.
int panel_of(int64_t n);
/// How panels have a weight [k, n] or, `transposed`, [n, k]: [n / panel, k, panel].
PackedWeight weight_in_panels(ValueId weight, int64_t n, int64_t k, int64_t panel, bool transposed);
/// How they have codes [n, k] of some values each: [n / panel, k, panel].
PackedWeight codes_in_panels(ValueId codes, int64_t n, int64_t k, int64_t panel);
/// The same of the weight of this product.
PackedWeight packed_panels(ValueId weight, const MatmulDesc& desc, const MatmulConfig& config);
/// Adds the functor `name` to a kernel, called with `params`, by default the sum, and then its row
/// and its column.
void add_epilogue(Stub& stub, const MatmulDesc& desc, ExprRef body,
                  const std::string& name = "Epilogue", const std::string& params = "");
/// Adds the functor Weight and what a template has to know of its codes.
void add_weight(Stub& stub, const PackedFactor& packed);
/// What stands beside the sum, or what a weight is computed of; each value once.
std::vector<ValueId> beside_operands(const ir::Op& product);
/// The stub of a kernel that reads `reads` and computes the product's result: loads of its epilogue
/// have operands of the product.
Stub product_stub(const EmitContext& context, OpId product, const std::string& function,
                  std::vector<ValueId> reads);

/// What a launch says of an epilogue beside "matmul": nothing for a bias, which every product may
/// have.
std::vector<std::string> fused_parts(const MatmulDesc& desc);

/// At the caps of a bucket a product computes more rows than a run has, from what lies behind the
/// last; nobody reads them. Takes note where that would be wrong.
void note_rows(const EmitContext& context, const std::string& name, const MatmulDesc& desc,
               Emission& emission);

}  // namespace tfcc::codegen
