// SPDX-License-Identifier: Apache-2.0
// linear_attention: describe() reads the op, choose() gives it a tile, and the stub prints maps,
// conditions, decay and epilogue as functors. templates/cuda/linear_attention.cuh,
// templates/cpu/linear_attention.h.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <optional>

#include "codegen/emit/emit.h"
#include "codegen/emit/linear_functors.h"

namespace tfcc::codegen {
namespace {

/// Tiles of wider heads have no place in shared memory; raise-linear-attention makes none.
constexpr int64_t kLargestHead = 512;

/// What the templates are told of a linear attention.
struct Description {
  DType type = DType::f32, out = DType::f32;
  int64_t head = 0, v_head = 0;
  std::array<RowSlice, 3>
      parts;  // q, k, v: tensors of their own, or slices of one that are read in place
  ExprRef batch, queries, keys;
  bool aligned = true;      // rows of q, k and v begin at multiples of 16 bytes
  bool out_aligned = true;  // and those of the result
  bool normalises = false;  // the epilogue asks for z
  bool causal = false, decays = false, maps = false, softmax = false;
  bool padded = false;  // some tokens may be padding, said by the op or not
  int64_t heads = 0;
};

Result<Description> describe(const EmitContext& c, OpId o) {
  const ir::Op& op = c.graph.op(o);
  const auto& attrs = op.as<ir::LinearAttentionAttrs>();
  Description x;
  x.type = c.type(op.operands[0]).dtype;
  x.out = c.type(op.results[0]).dtype;
  const auto of_query = ir::linear_attention_extents(c.graph, op, "q_map"),
             of_key = ir::linear_attention_extents(c.graph, op, "k_map");
  x.causal = attrs.causal;
  x.decays = attrs.decay != nullptr;
  x.maps = attrs.q_map || attrs.k_map || attrs.softmax;
  x.softmax = attrs.softmax.has_value();
  x.heads = attrs.heads;
  x.batch = of_query[ir::kBatch];
  x.padded = attrs.packed.empty() &&
             (attrs.visible || (attrs.k_map && attrs.k_map->has_load) || c.promised(x.batch) != 1);
  x.queries = of_query[ir::kToken];
  x.keys = of_key[ir::kToken];
  const auto bytes = static_cast<int64_t>(size_of(x.type));
  for (size_t k = 0; k < 3; ++k) {
    const ValueId v = op.operands[k];
    const auto width = c.known(c.dims(v)[2]);
    if (!width || *width == 0) return c.unsupported(o, "head sizes are not known at compile time");
    x.parts[k] = row_slice(c.graph, v).value_or(RowSlice{v, 0, *width});
    x.aligned &= !c.callers.has(x.parts[k].base) && x.parts[k].offset * bytes % 16 == 0 &&
                 x.parts[k].stride * bytes % 16 == 0;
  }
  x.head = *c.known(c.dims(op.operands[0])[2]) / attrs.heads;
  x.v_head = *c.known(c.dims(op.operands[2])[2]) / attrs.kv_heads;
  if (x.head > kLargestHead)
    return c.unsupported(o, fmt::format("heads of {} are over {}", x.head, kLargestHead));
  x.aligned &= x.head * bytes % 16 == 0 && x.v_head * bytes % 16 == 0;
  x.out_aligned =
      !c.callers.has(op.results[0]) && x.v_head * static_cast<int64_t>(size_of(x.out)) % 16 == 0;
  x.normalises = ir::normalises(attrs);
  return x;
}

struct Tile {
  int64_t columns;  // channels of v of a block
  uint32_t threads = 0, shared_bytes = 0;
  int line = 0;             // where it was chosen
  int64_t stages = 0;       // CUDA, tensor cores: chunks on their way or in use; 0: FMA units
  int64_t chunk = 0;        // CUDA, FMA units: tokens
  bool warpgroups = false;  // CUDA: products of warpgroups, of what TMA brings
  bool pairs = false;       // those: two blocks, a cluster, have half of the features each
  int64_t span = 0;         // those: tokens whose keys are summed by themselves
  int64_t spread =
      0;  // those: blocks for which spans of sequences that are not long become shorter
  int64_t sharing = 0;  // those: so many blocks may share sequences where these are few; 0: none do
};

int64_t round_up(int64_t v, int64_t to) { return (v + to - 1) / to * to; }
/// Blocks of at most `most` channels, all of one width, a multiple of `step`.
int64_t even_columns(int64_t all, int64_t most, int64_t step) {
  const int64_t blocks = (all + most - 1) / most;
  return round_up((all + blocks - 1) / blocks, step);
}

/// As LinearMmaShape counts them.
uint32_t mma_bytes(int64_t d, int64_t columns, int64_t stages) {
  const auto stride = [](int64_t n) { return n + (n % 64 == 0 ? 0 : 8); };
  const int64_t stage = 64 * (2 * stride(d) + stride(columns));
  return static_cast<uint32_t>(2 * (stages * stage + d * stride(columns) + d * 8) +
                               4 * (stages * 64 + 8));
}
uint32_t fma_bytes(int64_t d, int64_t columns, int64_t chunk) {
  return static_cast<uint32_t>(4 * (2 * chunk * (d + 4) + chunk * columns + d * columns +
                                    chunk * (chunk + 1) + 2 * d + 2 * chunk));
}

/// As LinearWgmmaShape counts them.
uint32_t wgmma_bytes(int64_t d, int64_t columns, int64_t stages) {
  const int64_t floats = stages * 64 + 4 * (d > 64 ? 2 : 1) + 2 + 2 * d;
  return static_cast<uint32_t>(1024 + stages * 2 * 64 * (2 * d + columns) +
                               2 * (2 * d * columns + 2 * d * 8) + 4 * floats);
}

/// Tokens of a sequence that one block has alone (LinearWgmmaShape::alone).
constexpr int64_t kAlone = 512;

constexpr int64_t kLongestSpan = 512;
/// Blocks among which the spans of a sequence are spread, where it is known how many sequences there
/// may be: those that one of them has. Longer spans go less often through memory, which is faster
/// where sequences are long or many.
int64_t choose_spread(const EmitContext& c, const Description& x, int64_t blocks) {
  const auto batch = c.promised(x.batch);
  if (!batch) return 0;
  const int64_t teams = std::max<int64_t>(*batch, 1) * blocks,
                most = std::min<int64_t>(c.target.processors / teams, c.target.processors / 8);
  return most > 1 ? most : 0;
}
/// Where there may be padding, bits must not depend on how much of it there is: one span for all
/// sequences, the least with which promised ones are taken at once.
int64_t choose_span(const EmitContext& c, const Description& x, int64_t spread) {
  const auto tokens = c.promised(x.causal ? x.queries : x.keys);
  if (!c.promised(x.batch) || !tokens || *tokens <= kAlone) return kLongestSpan;
  for (int64_t span : {128, 256}) {
    if (*tokens <= span * spread) return span;
  }
  return kLongestSpan;
}

// Where heads alone do not fill the GPU, blocks share a sequence, if it may be long enough. That
// takes half as much work again. Of few heads narrower blocks fill more of it, at 8192 tokens.
std::optional<Tile> choose_warpgroups(const EmitContext& c, const Description& x) {
  const bool pairs = x.head == 512;
  if (pairs && x.softmax) return {};  // a block has half of the features
  const int64_t d = pairs ? x.head / 2 : x.head;
  if (!c.target.has_wgmma || !x.aligned || !(d == 64 || d == 128 || (d == 256 && !x.decays)) ||
      x.v_head % 64 != 0)
    return {};
  const bool few_registers = !x.out_aligned || (x.decays && (d == 64 || x.maps));
  const bool narrow = d > 128 || few_registers || x.v_head % 128 != 0 ||
                      x.heads * (x.v_head / 64) * 16 <= c.target.processors;
  const int64_t columns = narrow ? 64 : 128,
                blocks = x.heads * ((x.v_head + columns - 1) / columns);
  const auto longest = c.largest(x.causal ? x.queries : x.keys);
  const bool shares =
      !pairs && 2 * blocks <= c.target.processors && !(longest && *longest <= kAlone);
  const int64_t spread = choose_spread(c, x, blocks);
  for (int64_t stages = 6; stages >= 2; --stages) {
    const uint32_t bytes = wgmma_bytes(d, columns, stages);
    if (bytes <= c.target.shared_bytes)
      return Tile{columns,
                  512,
                  bytes,
                  __LINE__,
                  stages,
                  0,
                  true,
                  pairs,
                  x.padded && !pairs ? choose_span(c, x, spread) : kLongestSpan,
                  x.padded || pairs ? 0 : spread,
                  shares ? c.target.processors : 0};
  }
  return {};
}

// A thread has registers for 64 numbers of the state. The next chunk is on its way while one is
// used where shared memory has place for both.
Tile choose(const EmitContext& c, const Description& x) {
  if (!c.cuda()) return {std::min<int64_t>(64, round_up(x.v_head, 16)), 0, 0, __LINE__};
  const auto most = static_cast<uint32_t>(c.target.shared_bytes);
  if (size_of(x.type) == 2) {
    if (const auto tile = choose_warpgroups(c, x)) return *tile;
    const int64_t d = round_up(x.head, 64);
    for (int64_t width = d <= 128 ? 128 : 32; width >= 32; width /= 2) {
      const int64_t columns = even_columns(x.v_head, width, 32);
      for (int64_t stages : {2, 1}) {
        if (const uint32_t bytes = mma_bytes(d, columns, stages); bytes <= most)
          return {columns, 256, bytes, __LINE__, stages, 0};
      }
    }
  }
  const int64_t d = round_up(x.head, 16);
  const int64_t chunk = d <= 128 ? 32 : 16, columns = even_columns(x.v_head,
                                                                   d <= 64    ? 64
                                                                   : d <= 128 ? 32
                                                                   : d <= 256 ? 16
                                                                              : 8,
                                                                   4);
  return {columns, 256, fma_bytes(d, columns, chunk), __LINE__, 0, chunk};
}

// The map of a part among those of the launch; slices of one tensor share theirs.
size_t add_map(const EmitContext& c, std::vector<MatrixView>& maps, const RowSlice& part) {
  const auto same = std::find_if(maps.begin(), maps.end(),
                                 [&](const MatrixView& m) { return m.value == part.base; });
  if (same != maps.end()) return static_cast<size_t>(same - maps.begin());
  maps.push_back({part.base, rows_of(c, part.base), c.integer(part.stride), 64, 64});
  return maps.size() - 1;
}

// What the template is told of the op and of its tile.
void add_spec(Stub& stub, const EmitContext& c, const ir::LinearAttentionAttrs& attrs,
              const Description& x, const Tile& tile) {
  stub.type("T", x.type);
  stub.type("Out", x.out);
  for (const auto& [name, value] : {std::pair{"heads", attrs.heads},
                                    {"kv_heads", attrs.kv_heads},
                                    {"head_dim", x.head},
                                    {"v_dim", x.v_head},
                                    {"q_stride", x.parts[0].stride},
                                    {"k_stride", x.parts[1].stride},
                                    {"v_stride", x.parts[2].stride},
                                    {"out_stride", x.v_head * attrs.heads},
                                    {"columns", tile.columns}}) {
    stub.field(name, value);
  }
  for (const auto& [name, value] : {std::pair{"causal", attrs.causal},
                                    {"decays", x.decays},
                                    {"normalises", x.normalises},
                                    {"q_softmax", attrs.q_softmax()},
                                    {"k_softmax", attrs.k_softmax()}})
    stub.field(name, value);
  if (c.cuda()) {
    stub.field("aligned", x.aligned);
    stub.field("out_aligned", x.out_aligned);
    stub.field("warpgroups", tile.warpgroups);
    stub.field("tensor_cores", tile.stages > 0);
    if (tile.warpgroups) {
      stub.field("pairs", tile.pairs);
      stub.field("span", tile.span);
      stub.field("spread", tile.spread);
      stub.field("sharing", tile.sharing);
      for (size_t k = 0; k < 3; ++k)
        stub.field(fmt::format("{}_offset", "qkv"[k]), x.parts[k].offset);
    }
    if (tile.stages > 0) stub.field("stages", tile.stages);
    else stub.field("chunk", tile.chunk);
    stub.require(
        fmt::format("LinearShape<Spec>::threads == {} && LinearShape<Spec>::shared_bytes == {}",
                    tile.threads, tile.shared_bytes),
        "the plan has other sizes");
  }
}

// The template's arguments: q, k and v by address or by tensor map, sizes, functors, rows.
void call_kernel(Stub& stub, const EmitContext& c, const ir::Op& op, const Description& x,
                 const Tile& tile, const std::vector<std::string>& functors,
                 std::vector<MatrixView>& maps) {
  const auto& attrs = op.as<ir::LinearAttentionAttrs>();
  std::vector<std::string> arguments{stub.out()}, parts;
  for (const RowSlice& part : x.parts)
    parts.push_back(tile.warpgroups ? fmt::format("m{}", add_map(c, maps, part))
                                    : stub.in(part.base, part.offset));
  stub.maps(maps.size());
  if (tile.warpgroups) {
    parts.push_back(tile.sharing ? stub.scratch("f32") : "nullptr");
    parts.push_back(tile.sharing ? stub.counters() : "nullptr");
  }
  if (c.cuda())
    parts = {fmt::format("{}{{{}}}", tile.warpgroups ? "RowMaps" : "RowPointers<Spec::T>",
                         fmt::join(parts, ", "))};
  arguments.insert(arguments.end(), parts.begin(), parts.end());
  arguments.push_back(stub.size(x.batch));
  arguments.insert(arguments.end(), functors.begin(), functors.end());
  const auto in = [&](size_t i) { return stub.in(op.operands[i]); };
  arguments.push_back(attrs.packed.empty() ? fmt::format("PaddedRows{{(idx)({}), (idx)({})}}",
                                                         stub.size(x.queries), stub.size(x.keys))
                                           : fmt::format("PackedRows{{{}, {}, {}, {}}}", in(3),
                                                         in(4), in(5), in(6)));
  stub.call(std::move(arguments), {});
}

// A block for some channels of a head of a sequence; in warpgroups teams of them, in one dimension.
LaunchSize launch_size(const EmitContext& c, const Description& x, const Tile& tile) {
  LaunchSize size;
  size.threads = tile.threads;
  size.shared_bytes = tile.shared_bytes;
  ExprRef blocks = c.integer((x.v_head + tile.columns - 1) / tile.columns),
          heads = c.integer(x.heads);
  size.grid = {blocks, heads, x.batch};
  if (tile.warpgroups)
    size.grid = {ir::max(ir::mul(ir::mul(x.batch, heads), blocks), c.integer(tile.sharing))};
  if (tile.pairs) {
    size.grid.insert(size.grid.end(), {c.integer(1), c.integer(2)});
    size.cluster = 2;
  }
  size.work = ir::mul(ir::mul(x.batch, heads), blocks);
  return size;
}

}  // namespace

Result<Emission> emit_linear_attention(const EmitContext& c, OpId o) {
  const ir::Op& op = c.graph.op(o);
  const auto& attrs = op.as<ir::LinearAttentionAttrs>();
  if (attrs.state || attrs.beta) return emit_linear_attention_step(c, o);
  TFCC_TRY(const Description x, describe(c, o));
  const Tile tile = choose(c, x);

  std::vector<ValueId> reads;
  const auto read = [&](ValueId v) {
    if (std::find(reads.begin(), reads.end(), v) == reads.end()) reads.push_back(v);
  };
  for (const RowSlice& part : x.parts) {
    if (!tile.warpgroups) read(part.base);
  }
  for (size_t i = 3; i < op.operands.size(); ++i) read(op.operands[i]);
  Stub stub(c, "linear_attention", op.operands, reads, {op.results[0]});
  if (tile.stages > 0) stub.compute_fast();
  std::vector<std::string> functors = linear_functors(stub, attrs);
  functors.pop_back();  // beta
  add_spec(stub, c, attrs, x, tile);
  std::vector<MatrixView> maps;
  call_kernel(stub, c, op, x, tile, functors, maps);
  ExprRef tokens = ir::mul(ir::mul(x.batch, c.integer(attrs.heads)), ir::add(x.queries, x.keys));
  const std::string grouped =
      attrs.kv_heads == attrs.heads ? "" : fmt::format("_h{}_kv{}", attrs.heads, attrs.kv_heads);
  Emission emission = Emission::of(
      {fmt::format("linear_attention__{}_d{}{}", storage_type(x.type), x.head, grouped),
       std::move(stub),
       launch_size(c, x, tile),
       ir::mul(tokens, c.integer(2 * x.head * x.v_head)),
       {},
       std::move(maps)});
  if (tile.sharing) {  // slots of teams of at least two blocks, with one more each: LinearWgmmaShape::slot_numbers
    auto& launch = std::get<KernelLaunch>(emission.launches[0]);
    launch.scratch =
        Scratch{DType::f32, c.integer(tile.sharing * 3 / 2 *
                                      (x.head * tile.columns + (x.normalises ? x.head : 0) + 4))};
    launch.counters = static_cast<uint32_t>(1 + tile.sharing / 2);
  }
  emission.reason =
      Reason{fmt::format("linear_attention {}{} of heads of {} and {}\nblocks of {} channels of v",
                         tfcc::to_string(x.type), attrs.packed.empty() ? "" : " of packed rows",
                         x.head, x.v_head, tile.columns),
             "codegen/emit/linear_attention.cpp", tile.line};
  return emission;
}

}  // namespace tfcc::codegen
