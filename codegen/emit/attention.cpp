// SPDX-License-Identifier: Apache-2.0
// attention: describe() reads the op, choose() gives it a tile, and the stub prints score and
// conditions as functors. templates/cuda/attention.cuh, templates/cuda/attention_wgmma.cuh,
// templates/cpu/attention.h.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "codegen/emit/emit.h"

namespace tfcc::codegen {
namespace {

std::string attention_index(int64_t k) {
  static constexpr const char* kNames[] = {"b", "h", "i", "j"};
  return kNames[k];
}

/// Which sequences a launch is for, by their queries.
enum class Sequences { all, few, many };

/// What the templates are told of an attention.
struct Description {
  DType type = DType::f32;
  int64_t head = 0, v_head = 0;  // sizes of a head
  std::array<RowSlice, 3>
      parts;  // q, k, v: tensors of their own, or slices of one that are read in place
  ExprRef batch, queries, keys;  // extents of indices
  ExprRef most_queries;          // rows of a sequence
  std::optional<double> scale;   // the score is a plain scale, which needs no functor
  ExprRef live = nullptr,
          rest = nullptr;  // conjuncts of visible over batch and key alone, and the others
  bool packed = false;     // rows are those that a pack left
  int64_t kv_heads = 0;
  int64_t page = 0;        // keys and values are in pages of so many tokens; 0: as q is
  bool positions = false;  // and causality or a window asks where they stood
  Sequences sequences = Sequences::all;  // with at most few_queries() queries, or with more
  bool aligned = true;  // rows of q, k, v and of the result begin at multiples of 16 bytes
  F32Products f32 = F32Products::exact;
};

std::optional<double> plain_scale(ExprRef score) {
  if (score->kind == ir::ExprKind::param) return 1;
  if (score->kind != ir::ExprKind::fmul) return std::nullopt;
  for (size_t k : {0, 1}) {
    if (score->args[k]->kind != ir::ExprKind::param) continue;
    const auto scale = ir::as_real(score->args[1 - k]);
    if (scale && *scale > 0 && std::isfinite(*scale)) return scale;
  }
  return std::nullopt;
}

// What causality and windows say the templates know by themselves. Tiles without a live key are
// skipped. Among packed rows a key has a number and a position, and conditions are on positions:
// there none is told apart, for its keys are those that live(b, j) left.
void split_visible(const ir::AttentionAttrs& attrs, Description& x) {
  ExprRef visible = attrs.visible;
  if (!visible) return;
  const std::vector<ExprRef> conjuncts =
      visible->kind == ir::ExprKind::band ? visible->args : std::vector<ExprRef>{visible};
  for (ExprRef c : conjuncts) {
    const auto band = ir::band_of(c, x.queries, x.keys);
    if (band && (band->left ? attrs.window_left == band->size
                            : (attrs.causal ? 0 : attrs.window_right.value_or(-1)) == band->size))
      continue;
    const bool keys_alone =
        !x.packed && !ir::uses_index(c, ir::kHead) && !ir::uses_index(c, ir::kQuery);
    ExprRef& part = keys_alone ? x.live : x.rest;
    part = part ? ir::logical_and(part, c) : c;
  }
}

Result<Description> describe(const EmitContext& c, OpId o) {
  const ir::Op& op = c.graph.op(o);
  const auto& attrs = op.as<ir::AttentionAttrs>();
  Description x;
  x.type = c.type(op.operands[0]).dtype;
  const auto extents = ir::attention_extents(c.graph, op);
  x.batch = extents[ir::kBatch];
  x.queries = extents[ir::kQuery];
  x.keys = extents[ir::kKey];
  x.most_queries = attrs.page ? c.dims(op.operands[0])[1]
                              : x.queries;  // no sequence has more than all have together
  x.aligned = !c.callers.has(op.results[0]);
  const auto bytes = static_cast<int64_t>(size_of(x.type));
  for (size_t k = 0; k < 3; ++k) {
    const ValueId v = op.operands[k];
    if (attrs.page && k > 0) {  // a state, which the runtime has at an aligned address
      x.parts[k] = {v, 0, *c.known(c.dims(v)[3])};
      x.aligned &= x.parts[k].stride * bytes % 16 == 0;
      continue;
    }
    const auto width = c.known(c.dims(v)[2]);
    if (!width || *width == 0) return c.unsupported(o, "head sizes are not known at compile time");
    x.parts[k] = row_slice(c.graph, v).value_or(RowSlice{v, 0, *width});
    x.aligned &= !c.callers.has(x.parts[k].base) && x.parts[k].offset * bytes % 16 == 0 &&
                 x.parts[k].stride * bytes % 16 == 0;
  }
  x.head = *c.known(c.dims(op.operands[0])[2]) / attrs.heads;
  x.v_head = attrs.page ? x.parts[2].stride : *c.known(c.dims(op.operands[2])[2]) / attrs.kv_heads;
  x.packed = !attrs.packed.empty();
  x.page = attrs.page.value_or(0);
  if (x.type == DType::f32 && !x.page)  // over pages it has the same bits in any batch
    x.f32 = c.rules.f32;
  x.kv_heads = attrs.kv_heads;
  x.positions = x.packed && (attrs.causal || attrs.window_left || attrs.window_right);
  x.scale = plain_scale(attrs.score);
  split_visible(attrs, x);
  return x;
}

struct Tile {
  int64_t block_m, block_n;
  uint32_t threads = 0, shared_bytes = 0;
  int line = 0;         // where it was chosen
  int resident = 0;     // by warpgroups alone: blocks of a multiprocessor
  int64_t cluster = 1;  // and blocks
  int64_t warps = 0;    // for few queries over pages: warps that share the keys of a sequence
};

/// Keys over pages that are summed by themselves before they are added to the others: the same for
/// every number of queries, or tokens would depend on how a prompt was cut. A multiple of every
/// tile. 128 keys of all heads keep a small model's multiprocessors busy.
constexpr int64_t kSpanKeys = 128;
/// Wider heads have no registers for the sum of a span beside that of the others: their keys are
/// one sum, in one form for all tokens.
constexpr int64_t kWidestOfSpans = 128;
bool has_spans(DType type, int64_t head, int64_t v_head) {
  return size_of(type) == 2 && std::max(head, v_head) <= kWidestOfSpans;
}
/// Tiles of a warp that are on their way.
constexpr int64_t kDecodeStages = 2;

int64_t round_up(int64_t v, int64_t to) { return (v + to - 1) / to * to; }

Tile tile_of_f32(int64_t d, int64_t dv) {
  const int64_t wide = std::max(d, dv);
  d = round_up(d, 16);
  dv = round_up(dv, 16);
  const int64_t block_m = wide <= 128 ? 64 : 32, block_n = wide <= 64 ? 64 : wide <= 128 ? 32 : 16;
  const int64_t bytes =
      4 * (block_m * (d + 4) + block_n * (d + 4) + block_n * dv + block_m * (block_n + 4));
  return {block_m, block_n, wide <= 128 ? 256u : 128u, static_cast<uint32_t>(bytes), __LINE__};
}

/// The tile of mma.sync with operands of f32; two stages of keys and values.
Tile tile_of_tf32(int64_t d, int64_t dv, bool functors) {
  const int64_t wide = std::max(d, dv),
                block_m = wide <= 64    ? 64
                          : wide <= 128 ? 32
                                        : 16,
                block_n = (wide <= 64    ? 64
                           : wide <= 128 ? 32
                                         : 16) /
                          (functors && wide <= 128 ? 2 : 1);
  d = round_up(d, 16) + 4;
  dv = round_up(dv, 16) + 4;
  const int64_t bytes = 4 * (block_m * std::max(d, dv) + 2 * block_n * (d + dv));
  return {block_m, block_n, static_cast<uint32_t>(2 * block_m), static_cast<uint32_t>(bytes),
          __LINE__};
}

/// What takes registers in the loop over scores: functors, and positions of packed rows.
bool has_functors(const Description& x) { return !x.scale || x.rest || x.positions; }

/// Keys of a tile of the mma.sync form, which the registers of functors make smaller.
int64_t keys_of_tile(const Description& x) {
  const int64_t wide = std::max(x.head, x.v_head);
  if (has_functors(x)) return wide <= 64 ? 64 : wide <= 128 ? 32 : 16;
  return wide <= 128 ? 64 : 32;
}

/// Heads that warpgroups take.
bool fits_warpgroups(DType type, int64_t head, int64_t v_head) {
  const auto wide = [](int64_t d) { return d == 64 || d == 128; };
  return (type == DType::f16 || type == DType::bf16) && wide(head) && wide(v_head);
}

/// Up to so many queries a block has no more rows than there are.
constexpr int64_t kFewQueries[] = {16, 32};
/// Keys of a tile of a warpgroup.
constexpr int64_t kWarpgroupKeys = 64;
/// Up to so many keys the mma.sync form is faster: it begins sooner. 6.0 and 7.2 us for 16
/// sequences of up to 128, 13.5 and 11.2 of up to 256.
constexpr int64_t kFewKeys = 128;

/// Why warpgroups do not serve; empty if they do. A sequence has the same bits in both forms if
/// their tiles have as many keys, or if it fits into one.
std::string no_warpgroups(const EmitContext& c, const Description& x) {
  const auto at_most = [&](ExprRef size, int64_t most) {
    const auto n = c.largest(size);
    return n && *n <= most;
  };
  if (!fits_warpgroups(x.type, x.head, x.v_head))
    return "not of 16 bits, or heads are neither of 64 nor of 128";
  if (!x.aligned) return "memory of the caller is read or written";
  if (x.page) return "keys are in the pages of a cache";
  if (at_most(x.most_queries, kFewQueries[1])) return "few queries waste least in few rows";
  if (at_most(x.keys, kFewKeys) && keys_of_tile(x) == kWarpgroupKeys)
    return "at so few keys it begins sooner";
  if (!c.target.has_wgmma)
    return "the GPU has no products of warpgroups";  // last: plans that differ in words alone would not be shared
  return "";
}

// The more warpgroups a multiprocessor has, the more of their softmax runs beside products of
// others. What limits them are registers: 96 of a thread for heads of 64, about 128 for heads of
// 128, and functors take more. With heads of 128 shared memory has no place for four blocks, so two
// warpgroups share one's keys, unless even the search for live keys would spill.
Tile tile_of_warpgroups(const EmitContext& c, const Description& x) {
  const bool wide = std::max(x.head, x.v_head) > 64, functors = has_functors(x) || (wide && x.live);
  Tile t{64, kWarpgroupKeys, 128, 0, __LINE__};
  t.resident = wide ? 2 : functors ? 3 : 5;
  if (wide && !functors && c.largest(x.most_queries).value_or(INT64_MAX) > 64)
    t.block_m = 128, t.threads = 256;
  t.shared_bytes =
      static_cast<uint32_t>(2 * t.block_m * x.head + 4 * t.block_n * (x.head + x.v_head) + 1024);
  return t;
}

// A cluster begins when all of its blocks can, each in most of a multiprocessor: with 32 key heads
// that kept the next launch from asking for its weight, and a step of LLaMA-2-7B's shape took 4.27
// ms instead of 4.02.
int64_t blocks_of_few(const TargetClass& target, int64_t kv_heads) {
  return !target.has_wgmma || kv_heads > 16 ? 1 : kv_heads > 8 ? 4 : 8;
}

/// Queries whose heads that share keys fill a row tile of the form for few.
int64_t few_queries(const ir::AttentionAttrs& attrs) {
  return std::max<int64_t>(1, 16 / (attrs.heads / attrs.kv_heads));
}

// Few queries over pages: the warps of a block share the keys of 16 rows. Four have the bandwidth
// of a multiprocessor on their way, where shared memory has place for them.
Tile tile_of_decode(const EmitContext& c, const Description& x) {
  Tile t{16, keys_of_tile(x), 0, 0, __LINE__};
  t.warps = c.target.has_wgmma ? 4 : 2;
  if (c.bucket.most_tokens && c.bucket.most_tokens <= kFewestTokens)
    t.cluster = blocks_of_few(c.target, x.kv_heads);
  const auto padded = [](int64_t n) {
    return round_up(n, 16) + (round_up(n, 16) % 64 == 0 ? 0 : 8);
  };
  const int64_t ring = kDecodeStages * t.block_n * (padded(x.head) + padded(x.v_head)),
                part = 16 * (round_up(x.v_head, 32) + 8 + 8);
  t.threads = static_cast<uint32_t>(32 * t.warps);
  t.shared_bytes =
      static_cast<uint32_t>(2 * (16 * padded(x.head) + t.warps * ring) + 4 * t.warps * part);
  return t;
}

// The form for few queries: of all in a step of few tokens, else of the sequences that go on beside
// prompts.
bool decodes(const EmitContext& c, const Description& x) {
  return x.page && x.sequences != Sequences::many &&
         (c.bucket.most_tokens || x.sequences == Sequences::few) &&
         has_spans(x.type, x.head, x.v_head);
}

// The table of templates/README.md: at most 99 KiB of shared memory, so that one tile serves every
// GPU from sm_80 on. Functors take registers, so they get smaller tiles; few queries waste least in
// few rows.
Tile choose(const EmitContext& c, const Description& x) {
  if (!c.cuda()) return {32, 64, 0, 0, __LINE__};
  if (x.f32 != F32Products::exact) return tile_of_tf32(x.head, x.v_head, has_functors(x));
  if (x.type == DType::f32) return tile_of_f32(x.head, x.v_head);
  if (no_warpgroups(c, x).empty()) return tile_of_warpgroups(c, x);
  if (decodes(c, x)) return tile_of_decode(c, x);
  const auto padded = [](int64_t n) {
    return round_up(n, 16) + (round_up(n, 16) % 64 == 0 ? 0 : 8);
  };
  const int64_t queries = c.largest(x.most_queries).value_or(64),
                block_m = queries <= kFewQueries[0]   ? 16
                          : queries <= kFewQueries[1] ? 32
                                                      : 64;
  const int64_t block_n = keys_of_tile(x);
  const int64_t bytes = 2 * (block_m * std::max(padded(x.head), padded(x.v_head)) +
                             2 * block_n * (padded(x.head) + padded(x.v_head)));
  return {block_m, block_n, static_cast<uint32_t>(2 * block_m), static_cast<uint32_t>(bytes),
          __LINE__};
}

std::string print(const EmitContext& c, const Description& x, const Tile& tile) {
  const std::string why = c.cuda() ? no_warpgroups(c, x) : "";
  return fmt::format(
      "attention {}{}{} of heads of {} and {}, {}{}\nblocks of {} queries x {} keys: {}{}",
      x.f32 != F32Products::exact ? to_string(x.f32) : tfcc::to_string(x.type),
      x.page     ? " over pages of a cache"
      : x.packed ? " of packed rows"
                 : "",
      x.sequences == Sequences::all   ? ""
      : x.sequences == Sequences::few ? ", sequences of few queries,"
                                      : ", the other sequences,",
      x.head, x.v_head, x.scale ? "a plain scale" : "a score with a functor",
      x.rest ? ", a condition on queries and keys" : "", tile.block_m, tile.block_n,
      tile.warps
          ? fmt::format("{} warps{} share the keys of a sequence, {} at a time", tile.warps,
                        tile.cluster > 1 ? fmt::format(" of each of {} blocks", tile.cluster) : "",
                        kSpanKeys)
      : !c.cuda() ? "what the caches hold"
      : tile.resident
          ? fmt::format("a warpgroup for 64 queries; {} such blocks share a multiprocessor",
                        tile.resident)
          : "as large as the shared memory of every GPU and the registers of functors allow, and no more rows than queries",
      why.empty() ? "" : "\nnot wgmma: " + why);
}

void add_spec(Stub& stub, const EmitContext& c, const ir::AttentionAttrs& attrs,
              const Description& x, const Tile& tile) {
  stub.type("T", x.type);
  const bool maps = tile.resident != 0;  // which know strides, but not where a slice begins
  for (const auto& [name, value] : {std::pair{"heads", attrs.heads},
                                    {"kv_heads", attrs.kv_heads},
                                    {"head_dim", x.head},
                                    {"v_dim", x.v_head}})
    stub.field(name, value);
  for (size_t k = 0; k < 3; ++k)
    stub.field(fmt::format("{}_{}", "qkv"[k], maps ? "offset" : "stride"),
               maps ? x.parts[k].offset : x.parts[k].stride);
  for (const auto& [name, value] : {std::pair{"out_stride", x.v_head * attrs.heads},
                                    {"block_m", tile.block_m},
                                    {"block_n", tile.block_n},
                                    {"window_left", attrs.window_left.value_or(-1)},
                                    {"window_right", attrs.window_right.value_or(-1)}}) {
    stub.field(name, value);
  }
  if (!maps) stub.field("aligned", x.aligned);
  if (x.page && size_of(x.type) == 2)
    stub.field("span", has_spans(x.type, x.head, x.v_head) ? kSpanKeys : 0);
  if (tile.warps)
    stub.field("warps", tile.warps), stub.field("stages", kDecodeStages),
        stub.field("cluster", tile.cluster);
  if (c.cuda() && x.type == DType::f32) stub.field("tf32", static_cast<int64_t>(x.f32));
  stub.field("causal", attrs.causal);
  stub.field("scaled", x.scale.has_value());
  stub.field_f32("score_scale", x.scale.value_or(1));
}

// Score and conditions, as functors or as what says that there is none.
std::vector<std::string> add_functors(Stub& stub, const ir::AttentionAttrs& attrs,
                                      const Description& x) {
  std::vector<std::string> objects = {"NoScore{}", "AllVisible{}", "AllLive{}"};
  if (!x.scale) {
    stub.functor("Score", "f32 s, idx b, idx h, idx i, idx j", attrs.score, Scalar::f32,
                 attention_index);
    objects[0] = stub.object("Score");
  }
  if (x.rest) {
    stub.functor("Visible", "idx b, idx h, idx i, idx j", x.rest, Scalar::boolean, attention_index);
    objects[1] = stub.object("Visible");
  }
  if (x.live) {
    stub.functor("Live", "idx b, idx j", x.live, Scalar::boolean, attention_index);
    objects[2] = stub.object("Live");
  }
  return objects;
}

// By pointers; `maps`: q, k and v are read by TMA.
std::vector<ValueId> values_read(const ir::Op& op, const Description& x, bool maps) {
  std::vector<ValueId> reads;
  const auto read = [&](ValueId v) {
    if (std::find(reads.begin(), reads.end(), v) == reads.end()) reads.push_back(v);
  };
  for (const RowSlice& part : x.parts) {
    if (!maps) read(part.base);
  }
  for (size_t i = 3; i < op.operands.size(); ++i) read(op.operands[i]);
  return reads;
}

// The map of a part among those of the launch; slices of one tensor share theirs.
size_t add_map(const EmitContext& c, std::vector<MatrixView>& maps, const RowSlice& part,
               int64_t rows) {
  const auto same = std::find_if(maps.begin(), maps.end(), [&](const MatrixView& m) {
    return m.value == part.base && m.box_rows == rows;
  });
  if (same != maps.end()) return static_cast<size_t>(same - maps.begin());
  maps.push_back(
      {part.base, rows_of(c, part.base), c.integer(part.stride), static_cast<uint32_t>(rows), 64});
  return maps.size() - 1;
}

// Where the rows of a sequence stand, if they are packed or in pages; else empty.
std::string packed_rows(const Stub& stub, const EmitContext& c, const ir::Op& op,
                        Sequences sequences, bool early) {
  const auto& attrs = op.as<ir::AttentionAttrs>();
  if (attrs.packed.empty()) return "";
  const auto in = [&](size_t i) { return stub.in(op.operands[i]); };
  std::string rows = fmt::format("PackedRows{{{}, {}, {}, {}}}", in(3), in(4), in(5), in(6));
  if (attrs.page) {
    ExprRef most = c.dims(op.operands[7])[1], pages = c.dims(op.operands[1])[0];
    rows = fmt::format("PagedRows<{}, {}{}>{{{}, {}, {}, {}, {}, (idx)({}), (idx)({})}}",
                       *attrs.page, attrs.kv_heads, early ? ", true" : "", in(3), in(4), in(5),
                       in(6), in(7), stub.size(most), stub.size(pages));
  }
  if (sequences == Sequences::few)
    rows = fmt::format("few_queries<{}>({})", few_queries(attrs), rows);
  if (sequences == Sequences::many)
    rows = fmt::format("many_queries<{}>({}, (idx)({}))", few_queries(attrs), rows,
                       stub.size(attrs.packed[0]));
  return rows;
}

LaunchSize launch_size(const EmitContext& c, const ir::AttentionAttrs& attrs, const Description& x,
                       const Tile& tile) {
  LaunchSize size;
  size.threads = tile.threads;
  size.shared_bytes = tile.shared_bytes;
  ExprRef blocks = c.ceil_div(x.most_queries, tile.block_m);
  size.grid = {blocks, c.integer(attrs.heads), x.batch};
  size.work = ir::mul(ir::mul(x.batch, c.integer(attrs.heads)), blocks);
  if (tile.warps !=
      0) {  // a sequence's rows are those of its heads that share keys; its last tile may not be full
    ExprRef rows_of_heads = ir::mul(x.most_queries, c.integer(attrs.heads / attrs.kv_heads));
    size.grid = {ir::add(c.ceil_div(rows_of_heads, 16), x.batch), c.integer(attrs.kv_heads)};
    if (tile.cluster > 1) {
      size.grid.push_back(c.integer(tile.cluster));
      size.cluster = static_cast<uint32_t>(tile.cluster);
    }
  }
  const int64_t few = few_queries(attrs);
  if (x.sequences == Sequences::few)
    size.grid[0] =
        ir::mul(x.batch, c.integer(round_up(few * (attrs.heads / attrs.kv_heads), 16) / 16));
  if (x.sequences == Sequences::many)  // tiles of all; each has more than a few queries
    size.grid = {ir::add(c.ceil_div(x.most_queries, tile.block_m),
                         ir::min(x.batch, ir::div(x.most_queries, c.integer(few + 1)))),
                 c.integer(attrs.heads)};
  return size;
}

}  // namespace

bool decodes_few_tokens(const Graph& graph, OpId o) {
  const ir::Op& op = graph.op(o);
  if (op.kind == OpKind::linear_attention_step) return true;
  return op.kind == OpKind::attention && op.as<ir::AttentionAttrs>().page &&
         size_of(graph.value(op.operands[0]).type.dtype) == 2;
}

int64_t decode_blocks(const Graph& graph, OpId o, const TargetClass& target, int64_t most_tokens) {
  const ir::Op& op = graph.op(o);
  if (op.kind == OpKind::linear_attention_step) return most_tokens == 0 ? 0 : 1;
  const auto& attrs = op.as<ir::AttentionAttrs>();
  const ir::Type &q = graph.value(op.operands[0]).type, &y = graph.value(op.results[0]).type;
  const auto of_head = [&](const ir::Type& t) {
    return ir::as_int(t.dims[2]).value_or(0) / attrs.heads;
  };
  if (most_tokens == 0 || !has_spans(q.dtype, of_head(q), of_head(y))) return 0;
  return most_tokens <= kFewestTokens ? blocks_of_few(target, attrs.kv_heads) : 1;
}

std::vector<int64_t> attention_lengths(const Graph& graph, OpId o, const TargetClass& target) {
  const ir::Op& op = graph.op(o);
  const auto& attrs = op.as<ir::AttentionAttrs>();
  const ir::Type &q = graph.value(op.operands[0]).type, &v = graph.value(op.operands[2]).type;
  std::vector<int64_t> lengths(std::begin(kFewQueries), std::end(kFewQueries));
  const auto width = ir::as_int(q.dims[2]), v_width = ir::as_int(v.dims[2]);
  if (target.has_wgmma && width && v_width &&
      fits_warpgroups(q.dtype, *width / attrs.heads, *v_width / attrs.kv_heads))
    lengths.push_back(kFewKeys);
  return lengths;
}

namespace {

// Whether it reads where rows and pages are before the launches before it have ended: that was
// there before the run, which begins with a launch that writes sizes and addresses. That one lets
// nothing begin before it has ended, and a launch of the run, which makes q, stands between. Only in the
// form for the fewest tokens: of more there are blocks that wait for a place, and those that have
// nothing to do would keep theirs until then.
bool begins_early(const EmitContext& c, const ir::Op& op) {
  const auto given = [&](ValueId v) { return c.callers.has(v) && !c.graph.def(v); };
  const bool timed = c.target.has_wgmma;  // on Hopper alone; others share the plan of sm_80
  return timed && c.bucket.most_tokens && c.bucket.most_tokens <= kFewestTokens &&
         c.graph.def(op.operands[0]) &&
         std::all_of(op.operands.begin() + 3, op.operands.begin() + 8, given);
}

// What the kernel is called with. By warpgroups q, k and v come by maps, which are added.
std::vector<std::string> arguments_of(Stub& stub, const EmitContext& c, const ir::Op& op,
                                      const Description& x, const Tile& tile,
                                      const std::vector<std::string>& functors, bool early,
                                      std::vector<MatrixView>& maps) {
  std::string rows = packed_rows(stub, c, op, x.sequences, early);
  std::vector<std::string> arguments{stub.out()};
  const auto add = [&](std::initializer_list<std::string> more) {
    arguments.insert(arguments.end(), more);
  };
  const auto made = [&](const char* n) { return fmt::format("[&{}] {{ return {}; }}", n, rows); };
  if (tile.resident) {
    for (size_t k = 0; k < 3; ++k)
      add({fmt::format("m{}", add_map(c, maps, x.parts[k], k == 0 ? tile.block_m : tile.block_n))});
    add({stub.late_size(x.batch)});
    if (rows.empty())
      rows = fmt::format("PaddedRows{{(idx)({}), (idx)({})}}", stub.size(x.queries),
                         stub.size(x.keys));
    add({made("")});
    rows.clear();
    stub.waits_itself(tile.resident, maps.size());
  } else {
    for (const RowSlice& part : x.parts) add({stub.in(part.base, part.offset)});
    if (tile.warps) {
      add({early ? stub.early_size(x.batch) : stub.late_size(x.batch)});
      rows = made(early ? ", n = FreshSizes{n}" : "");
    } else {
      add({stub.size(x.batch), stub.size(x.most_queries), stub.size(x.keys)});
    }
  }
  arguments.insert(arguments.end(), functors.begin(), functors.end());
  if (!rows.empty()) arguments.push_back(rows);
  return arguments;
}

// A launch of those sequences that x says.
KernelLaunch launch_of(const EmitContext& c, OpId o, const Description& x, const Tile& tile) {
  const ir::Op& op = c.graph.op(o);
  const auto& attrs = op.as<ir::AttentionAttrs>();
  const bool warpgroups = tile.resident != 0;
  const bool decodes = tile.warps != 0;
  Stub stub(c,
            warpgroups ? "attention_wgmma"
            : decodes  ? "attention_decode"
                       : "attention",
            op.operands, values_read(op, x, warpgroups), {op.results[0]});
  const bool early = decodes && begins_early(c, op);
  if (early) stub.reads_early(), stub.waits_itself(1, 0);
  const std::vector<std::string> functors = add_functors(stub, attrs, x);
  add_spec(stub, c, attrs, x, tile);
  if (decodes) stub.field("early", early);
  if (c.cuda()) {
    const char* const shape = warpgroups ? "AttentionWgmmaShape"
                              : decodes  ? "DecodeShape"
                                         : "AttentionShape";
    stub.require(fmt::format("{0}<Spec>::threads == {1} && {0}<Spec>::shared_bytes == {2}", shape,
                             tile.threads, tile.shared_bytes),
                 "the plan has other sizes");
  }
  std::vector<MatrixView> maps;
  stub.call(arguments_of(stub, c, op, x, tile, functors, early, maps), {});

  ExprRef pairs =
      ir::mul(ir::mul(x.batch, c.integer(attrs.heads)), ir::mul(x.most_queries, x.keys));
  const std::string grouped =
      attrs.kv_heads == attrs.heads ? "" : fmt::format("_h{}_kv{}", attrs.heads, attrs.kv_heads);
  KernelLaunch launch{
      fmt::format("{}__{}_d{}{}", stub.function(), storage_type(x.type), x.head, grouped),
      std::move(stub),
      launch_size(c, attrs, x, tile),
      ir::mul(pairs, c.integer(2 * (x.head + x.v_head))),
      {},
      std::move(maps)};
  if (x.page)  // keys and values of what there is, once
    launch.of_states = ir::mul(
        ir::mul(x.batch, x.keys),
        c.integer(attrs.kv_heads * (x.head + x.v_head) * static_cast<int64_t>(size_of(x.type))));
  launch.f32 = x.f32;
  return launch;
}

}  // namespace

// Beside prompts, sequences that go on have a launch of their own: a block of the form for many
// queries would read all keys for each head of one query.
Result<Emission> emit_attention(const EmitContext& c, OpId o) {
  TFCC_TRY(Description x, describe(c, o));
  if (c.cuda() && x.page && !c.bucket.most_tokens && has_spans(x.type, x.head, x.v_head)) {
    x.sequences = Sequences::few;
    const Tile few = choose(c, x);
    Emission emission = Emission::of(launch_of(c, o, x, few));
    std::string why = print(c, x, few);
    x.sequences = Sequences::many;
    const Tile many = choose(c, x);
    emission.launches.emplace_back(launch_of(c, o, x, many));
    emission.reason =
        Reason{why + "\n" + print(c, x, many), "codegen/emit/attention.cpp", many.line};
    return emission;
  }
  const Tile tile = choose(c, x);
  Emission emission = Emission::of(launch_of(c, o, x, tile));
  emission.reason = Reason{print(c, x, tile), "codegen/emit/attention.cpp", tile.line};
  return emission;
}

}  // namespace tfcc::codegen
