// SPDX-License-Identifier: Apache-2.0
// choose_tile: the form of an attention and its tile, for the sizes and the target at hand.
#include <fmt/format.h>

#include "codegen/attention/attention.h"

namespace tfcc::codegen {
namespace {

AttentionTile tile_of_f32(int64_t d, int64_t dv) {
  const int64_t wide = std::max(d, dv);
  d = round_up(d, 16);
  dv = round_up(dv, 16);
  const int64_t block_m = wide <= 128 ? 64 : 32, block_n = wide <= 64 ? 64 : wide <= 128 ? 32 : 16;
  const int64_t bytes =
      4 * (block_m * (d + 4) + block_n * (d + 4) + block_n * dv + block_m * (block_n + 4));
  return {block_m, block_n, wide <= 128 ? 256u : 128u, static_cast<uint32_t>(bytes), __LINE__};
}

/// The tile of mma.sync with operands of f32; two stages of keys and values.
AttentionTile tile_of_tf32(int64_t d, int64_t dv, bool functors) {
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
bool has_functors(const AttentionDesc& x) { return !x.scale || x.rest || x.positions; }

/// Keys of a tile of the mma.sync form, which the registers of functors make smaller.
int64_t keys_of_tile(const AttentionDesc& x) {
  const int64_t wide = std::max(x.head, x.v_head);
  // A score of rows without padding that asks for positions takes the most registers.
  const bool most = !x.scale && x.positions && !x.page;
  if (has_functors(x)) return wide <= 64 ? 64 : wide <= 128 && !most ? 32 : 16;
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
std::string no_warpgroups(const EmitContext& c, const AttentionDesc& x) {
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
// 128, and functors take more, but what is added by distance a few. With heads of 128 shared memory
// has no place for four blocks, so two warpgroups share one's keys, unless even the search for live
// keys would spill.
AttentionTile tile_of_warpgroups(const EmitContext& c, const AttentionDesc& x) {
  const bool wide = std::max(x.head, x.v_head) > 64, functors = has_functors(x) || (wide && x.live);
  AttentionTile t{64, kWarpgroupKeys, 128, 0, __LINE__};
  const bool by_distance = x.score.by_distance && !x.rest && !x.positions;
  t.resident = wide ? 2 : by_distance ? 4 : functors ? 3 : 5;
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

// Few queries over pages: the warps of a block share the keys of 16 rows. Four have the bandwidth
// of a multiprocessor on their way, where shared memory has place for them.
AttentionTile tile_of_decode(const EmitContext& c, const AttentionDesc& x) {
  AttentionTile t{16, keys_of_tile(x), 0, 0, __LINE__};
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
bool decodes(const EmitContext& c, const AttentionDesc& x) {
  return x.page && x.sequences != Sequences::many &&
         (c.bucket.most_tokens || x.sequences == Sequences::few) &&
         has_spans(x.type, x.head, x.v_head);
}

std::string words(const EmitContext& c, const AttentionDesc& x, const AttentionTile& tile) {
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

}  // namespace

// The table of templates/README.md: at most 99 KiB of shared memory, so that one tile serves every
// GPU from sm_80 on. Functors take registers, so they get smaller tiles; few queries waste least in
// few rows.
AttentionTile choose_tile(const EmitContext& c, const AttentionDesc& x) {
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

Reason explain(const EmitContext& c, const AttentionDesc& x, const AttentionTile& tile) {
  return {words(c, x, tile), "codegen/attention/choose.cpp", tile.line};
}

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

}  // namespace tfcc::codegen
