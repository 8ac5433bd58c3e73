// SPDX-License-Identifier: Apache-2.0
// attention: describe() reads the op, choose() gives it a tile, and the stub prints score and conditions as functors.
// templates/cuda/attention.cuh, templates/cpu/attention.h.
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

/// What the templates are told of an attention.
struct Description {
  DType type = DType::f32;
  int64_t head = 0, v_head = 0;                   // sizes of a head
  std::array<RowSlice, 3> parts;                  // q, k, v: tensors of their own, or slices of one that are read in place
  ExprRef batch, queries, keys;
  std::optional<double> scale;                    // the score is a plain scale, which needs no functor
  ExprRef live = nullptr, rest = nullptr;         // conjuncts of visible over batch and key alone, and the others
  bool packed = false;                            // rows are those that a pack left
  bool aligned = true;                            // rows of q, k, v and of the result begin at multiples of 16 bytes
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

// What causality and windows say the templates know by themselves. Tiles without a live key are skipped. Among packed rows a key has
// a number and a position, and conditions are on positions: there none is told apart, for its keys are those that live(b, j) left.
void split_visible(const ir::AttentionAttrs& attrs, Description& x) {
  ExprRef visible = attrs.visible;
  if (!visible) return;
  const std::vector<ExprRef> conjuncts = visible->kind == ir::ExprKind::band ? visible->args : std::vector<ExprRef>{visible};
  for (ExprRef c : conjuncts) {
    const auto band = ir::band_of(c, x.queries, x.keys);
    if (band && (band->left ? attrs.window_left == band->size : (attrs.causal ? 0 : attrs.window_right.value_or(-1)) == band->size)) continue;
    const bool keys_alone = !x.packed && !ir::uses_index(c, ir::kHead) && !ir::uses_index(c, ir::kQuery);
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
  x.aligned = !c.callers.has(op.results[0]);
  const auto bytes = static_cast<int64_t>(size_of(x.type));
  for (size_t k = 0; k < 3; ++k) {
    const ValueId v = op.operands[k];
    const auto width = c.known(c.dims(v)[2]);
    if (!width || *width == 0) return c.unsupported(o, "head sizes are not known at compile time");
    x.parts[k] = row_slice(c.graph, v).value_or(RowSlice{v, 0, *width});
    x.aligned &= !c.callers.has(x.parts[k].base) && x.parts[k].offset * bytes % 16 == 0 && x.parts[k].stride * bytes % 16 == 0;
  }
  x.head = *c.known(c.dims(op.operands[0])[2]) / attrs.heads;
  x.v_head = *c.known(c.dims(op.operands[2])[2]) / attrs.kv_heads;
  x.packed = !attrs.packed.empty();
  x.scale = plain_scale(attrs.score);
  split_visible(attrs, x);
  return x;
}

struct Tile {
  int64_t block_m, block_n;
  uint32_t threads = 0, shared_bytes = 0;
  int line = 0;                                   // where it was chosen
};

int64_t round_up(int64_t v, int64_t to) { return (v + to - 1) / to * to; }

Tile tile_of_f32(int64_t d, int64_t dv) {
  const int64_t wide = std::max(d, dv);
  d = round_up(d, 16);
  dv = round_up(dv, 16);
  const int64_t block_m = wide <= 128 ? 64 : 32, block_n = wide <= 64 ? 64 : wide <= 128 ? 32 : 16;
  const int64_t bytes = 4 * (block_m * (d + 4) + block_n * (d + 4) + block_n * dv + block_m * (block_n + 4));
  return {block_m, block_n, wide <= 128 ? 256u : 128u, static_cast<uint32_t>(bytes), __LINE__};
}

// The table of templates/README.md: at most 99 KiB of shared memory, so that one tile serves every GPU from sm_80 on.
// Functors take registers, so they get smaller tiles; few queries waste least in few rows.
Tile choose(const EmitContext& c, const Description& x) {
  if (!c.cuda()) return {32, 64, 0, 0, __LINE__};
  if (x.type == DType::f32) return tile_of_f32(x.head, x.v_head);
  const auto padded = [](int64_t n) { return round_up(n, 16) + (round_up(n, 16) % 64 == 0 ? 0 : 8); };
  const int64_t wide = std::max(x.head, x.v_head);
  const int64_t queries = c.largest(x.queries).value_or(64), block_m = queries <= 16 ? 16 : queries <= 32 ? 32 : 64;
  const bool functors = !x.scale || x.rest;
  const int64_t block_n = functors ? (wide <= 64 ? 64 : wide <= 128 ? 32 : 16) : (wide <= 128 ? 64 : 32);
  const int64_t bytes = 2 * (block_m * std::max(padded(x.head), padded(x.v_head)) + 2 * block_n * (padded(x.head) + padded(x.v_head)));
  return {block_m, block_n, static_cast<uint32_t>(2 * block_m), static_cast<uint32_t>(bytes), __LINE__};
}

std::string print(const EmitContext& c, const Description& x, const Tile& tile) {
  return fmt::format("attention {}{} of heads of {} and {}, {}{}\nblocks of {} queries x {} keys: {}", tfcc::to_string(x.type), x.packed ? " of packed rows" : "", x.head, x.v_head,
                     x.scale ? "a plain scale" : "a score with a functor", x.rest ? ", a condition on queries and keys" : "", tile.block_m,
                     tile.block_n,
                     c.cuda() ? "as large as the shared memory of every GPU and the registers of functors allow, and no more rows than queries"
                              : "what the caches hold");
}

void add_spec(Stub& stub, const ir::AttentionAttrs& attrs, const Description& x, const Tile& tile) {
  stub.type("T", x.type);
  for (const auto& [name, value] : {std::pair{"heads", attrs.heads}, {"kv_heads", attrs.kv_heads}, {"head_dim", x.head}, {"v_dim", x.v_head},
                                    {"q_stride", x.parts[0].stride}, {"k_stride", x.parts[1].stride}, {"v_stride", x.parts[2].stride},
                                    {"out_stride", x.v_head * attrs.heads}, {"block_m", tile.block_m}, {"block_n", tile.block_n},
                                    {"window_left", attrs.window_left.value_or(-1)}, {"window_right", attrs.window_right.value_or(-1)}}) {
    stub.field(name, value);
  }
  stub.field("aligned", x.aligned);
  stub.field("causal", attrs.causal);
  stub.field("scaled", x.scale.has_value());
  stub.field_f32("score_scale", x.scale.value_or(1));
}

// Score and conditions, as functors or as what says that there is none.
std::vector<std::string> add_functors(Stub& stub, const ir::AttentionAttrs& attrs, const Description& x) {
  std::vector<std::string> objects = {"NoScore{}", "AllVisible{}", "AllLive{}"};
  if (!x.scale) {
    stub.functor("Score", "f32 s, idx b, idx h, idx i, idx j", attrs.score, Scalar::f32, attention_index);
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

std::vector<ValueId> values_read(const ir::Op& op, const Description& x) {
  std::vector<ValueId> reads;
  const auto read = [&](ValueId v) {
    if (std::find(reads.begin(), reads.end(), v) == reads.end()) reads.push_back(v);
  };
  for (const RowSlice& part : x.parts) read(part.base);
  for (size_t i = 3; i < op.operands.size(); ++i) read(op.operands[i]);
  return reads;
}

}  // namespace

Result<Emission> emit_attention(const EmitContext& c, OpId o) {
  const ir::Op& op = c.graph.op(o);
  const auto& attrs = op.as<ir::AttentionAttrs>();
  TFCC_TRY(const Description x, describe(c, o));
  const Tile tile = choose(c, x);
  const Reason reason{print(c, x, tile), "codegen/emit/attention.cpp", tile.line};

  Stub stub(c, "attention", op.operands, values_read(op, x), {op.results[0]});
  const std::vector<std::string> functors = add_functors(stub, attrs, x);
  add_spec(stub, attrs, x, tile);
  if (c.cuda()) {
    stub.require(fmt::format("AttentionShape<Spec>::threads == {} && AttentionShape<Spec>::shared_bytes == {}", tile.threads, tile.shared_bytes),
                 "the plan has other sizes");
  }
  std::vector<std::string> arguments{stub.out()};
  for (const RowSlice& part : x.parts) arguments.push_back(stub.in(part.base, part.offset));
  for (ExprRef size : {x.batch, x.queries, x.keys}) arguments.push_back(stub.size(size));
  arguments.insert(arguments.end(), functors.begin(), functors.end());
  if (!attrs.packed.empty()) {
    const auto in = [&](size_t i) { return stub.in(op.operands[i]); };
    arguments.push_back(fmt::format("PackedRows{{{}, {}, {}, {}}}", in(3), in(4), in(5), in(6)));
  }
  stub.call(std::move(arguments), {});

  LaunchSize size;
  size.threads = tile.threads;
  size.shared_bytes = tile.shared_bytes;
  ExprRef blocks = c.ceil_div(x.queries, tile.block_m);
  size.grid = {blocks, c.integer(attrs.heads), x.batch};
  size.work = ir::mul(ir::mul(x.batch, c.integer(attrs.heads)), blocks);
  ExprRef pairs = ir::mul(ir::mul(x.batch, c.integer(attrs.heads)), ir::mul(x.queries, x.keys));
  const std::string grouped = attrs.kv_heads == attrs.heads ? "" : fmt::format("_h{}_kv{}", attrs.heads, attrs.kv_heads);
  Emission emission = Emission::of({fmt::format("attention__{}_d{}{}", storage_type(x.type), x.head, grouped), std::move(stub), std::move(size),
                                   ir::mul(pairs, c.integer(2 * (x.head + x.v_head)))});
  emission.reason = reason;
  return emission;
}

}  // namespace tfcc::codegen
