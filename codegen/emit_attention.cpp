// SPDX-License-Identifier: Apache-2.0
// attention: chooses the tile, splits what is visible into a condition on keys (tiles without a live key are skipped) and
// the rest, and prints score and conditions as functors. templates/cuda/attention.cuh, templates/cpu/attention.h.
#include <fmt/format.h>

#include <algorithm>

#include "codegen/lowering.h"

namespace tfcc::codegen {
namespace {

std::string index_name(int64_t k) {
  static constexpr const char* kNames[] = {"b", "h", "i", "j"};
  return kNames[k];
}

// Conjuncts over batch and key alone, and the others. What causality and windows say the templates know by themselves.
struct Visibility {
  ExprRef live = nullptr, rest = nullptr;
};

Visibility split(const ir::AttentionAttrs& attrs, ExprRef queries, ExprRef keys) {
  Visibility v;
  ExprRef visible = attrs.visible;
  if (!visible) return v;
  std::vector<ExprRef> conjuncts = visible->kind == ir::ExprKind::band ? visible->args : std::vector<ExprRef>{visible};
  for (ExprRef c : conjuncts) {
    const auto band = ir::band_of(c, queries, keys);
    if (band && (band->left ? attrs.window_left == band->size : (attrs.causal ? 0 : attrs.window_right.value_or(-1)) == band->size)) continue;
    const bool keys_alone = !ir::uses_index(c, ir::kHead) && !ir::uses_index(c, ir::kQuery);
    ExprRef& part = keys_alone ? v.live : v.rest;
    part = part ? ir::logical_and(part, c) : c;
  }
  return v;
}

struct Tile {
  int block_m, block_n, threads;
  uint32_t shared_bytes;
};

int64_t round_up(int64_t v, int64_t to) { return (v + to - 1) / to * to; }

// The table of templates/README.md: at most 99 KiB of shared memory, so that one plan serves every GPU from sm_80 on.
// Functors take registers, so they get smaller tiles; few queries waste least in few rows.
Tile cuda_tile(DType t, int64_t d, int64_t dv, bool functors, std::optional<int64_t> queries) {
  const int64_t wide = std::max(d, dv);
  if (t == DType::f32) {
    d = round_up(d, 16);
    dv = round_up(dv, 16);
    const int block_m = wide <= 128 ? 64 : 32, block_n = wide <= 64 ? 64 : wide <= 128 ? 32 : 16;
    const int64_t bytes = 4 * (block_m * (d + 4) + block_n * (d + 4) + block_n * dv + block_m * (block_n + 4));
    return {block_m, block_n, wide <= 128 ? 256 : 128, static_cast<uint32_t>(bytes)};
  }
  auto padded = [](int64_t x) {
    x = round_up(x, 16);
    return x % 64 == 0 ? x : x + 8;
  };
  const int block_m = queries && *queries <= 16 ? 16 : queries && *queries <= 32 ? 32 : 64;
  const int block_n = functors ? (wide <= 64 ? 64 : wide <= 128 ? 32 : 16) : (wide <= 128 ? 64 : 32);
  const int64_t bytes = 2 * (block_m * std::max(padded(d), padded(dv)) + 2 * block_n * (padded(d) + padded(dv)));
  return {block_m, block_n, 2 * block_m, static_cast<uint32_t>(bytes)};
}

constexpr int kCpuBlockM = 32, kCpuBlockN = 64;

}  // namespace

Result<void> emit_attention(Lowering& l, OpId o) {
  const ir::Op& op = l.graph.op(o);
  const auto& attrs = op.as<ir::AttentionAttrs>();
  const ValueId q = op.operands[0], k = op.operands[1], v = op.operands[2], y = op.results[0];
  const int64_t q_width = l.known(l.dims(q)[2]).value_or(0), k_width = l.known(l.dims(k)[2]).value_or(0), v_width = l.known(l.dims(v)[2]).value_or(0);
  if (q_width == 0 || k_width == 0 || v_width == 0) return l.unsupported(o, "head sizes are not known at compile time");
  const int64_t d = q_width / attrs.heads, dv = v_width / attrs.kv_heads;
  // q, k and v are tensors of their own, or slices of one that are read in place.
  std::vector<ValueId> reads;
  auto read = [&](ValueId x) {
    if (std::find(reads.begin(), reads.end(), x) == reads.end()) reads.push_back(x);
  };
  Lowering::RowSlice parts[3] = {{q, 0, q_width}, {k, 0, k_width}, {v, 0, v_width}};
  for (Lowering::RowSlice& part : parts) {
    if (auto slice = l.row_slice(part.base)) part = *slice;
    read(part.base);
  }
  for (size_t i = 3; i < op.operands.size(); ++i) read(op.operands[i]);
  l.begin(o, reads, {y});
  auto pointer = [&](const Lowering::RowSlice& part) {
    const std::string p = l.pointer(l.arg_of(part.base));
    return part.offset ? fmt::format("{} + {}", p, part.offset) : p;
  };
  const Visibility seen = split(attrs, l.dims(q)[1], l.dims(k)[1]);

  // A plain scale needs no functor.
  double scale = 0;
  if (attrs.score->kind == ir::ExprKind::param) scale = 1;
  if (attrs.score->kind == ir::ExprKind::fmul && attrs.score->args[0]->kind == ir::ExprKind::param) scale = ir::as_real(attrs.score->args[1]).value_or(0);
  if (attrs.score->kind == ir::ExprKind::fmul && attrs.score->args[1]->kind == ir::ExprKind::param) scale = ir::as_real(attrs.score->args[0]).value_or(0);
  const bool scaled = scale > 0;

  std::string text = l.include("attention");
  std::string score = "NoScore{}", visible = "AllVisible{}", live = "AllLive{}";
  if (!scaled) {
    text += l.functor("Score", "f32 s, idx b, idx h, idx i, idx j", attrs.score, Scalar::f32, index_name);
    score = l.functor_value("Score");
  }
  if (seen.rest) {
    text += l.functor("Visible", "idx b, idx h, idx i, idx j", seen.rest, Scalar::boolean, index_name);
    visible = l.functor_value("Visible");
  }
  if (seen.live) {
    text += l.functor("Live", "idx b, idx j", seen.live, Scalar::boolean, index_name);
    live = l.functor_value("Live");
  }

  const std::string t = l.storage(q);
  LaunchSize s;
  ExprRef batch = l.dims(q)[0], queries = l.dims(q)[1], keys = l.dims(k)[1];
  const std::string problem = fmt::format("static constexpr int heads = {}, kv_heads = {}, head_dim = {}, v_dim = {}", attrs.heads, attrs.kv_heads, d, dv);
  std::string call = fmt::format("attention<Spec>({}, {}, {}, {}, {}, {}, {}, {}, {}, {}", l.pointer(reads.size()), pointer(parts[0]),
                                 pointer(parts[1]), pointer(parts[2]), l.size(batch), l.size(queries), l.size(keys), score, visible, live);
  Tile tile{kCpuBlockM, kCpuBlockN, 0, 0};
  if (l.cuda()) tile = cuda_tile(l.type(q).dtype, d, dv, !scaled || seen.rest, l.largest(queries));
  bool aligned = !l.is_io(reads.size());
  for (const Lowering::RowSlice& part : parts) {
    const int64_t bytes = static_cast<int64_t>(size_of(l.type(q).dtype));
    aligned &= !l.is_io(l.arg_of(part.base)) && part.offset * bytes % 16 == 0 && part.stride * bytes % 16 == 0;
  }
  text += fmt::format("struct Spec {{ using T = {}; {};\n  static constexpr int q_stride = {}, k_stride = {}, v_stride = {}, out_stride = {}, block_m = {}, block_n = {};\n"
                      "  static constexpr int window_left = {}, window_right = {};\n  static constexpr bool aligned = {}, causal = {}, scaled = {}; static constexpr f32 score_scale = {}; }};\n",
                      t, problem, parts[0].stride, parts[1].stride, parts[2].stride, dv * attrs.heads, tile.block_m, tile.block_n,
                      attrs.window_left.value_or(-1), attrs.window_right.value_or(-1), aligned, attrs.causal, scaled,
                      cpp_expr(l.pool().real(scaled ? scale : 1), CppNames{}));
  if (l.cuda()) {
    text += fmt::format("static_assert(AttentionShape<Spec>::threads == {} && AttentionShape<Spec>::shared_bytes == {}, \"the plan has other sizes\");\n", tile.threads, tile.shared_bytes);
    s.threads = static_cast<uint32_t>(tile.threads);
    s.shared_bytes = tile.shared_bytes;
    s.grid = {l.ceil_div(queries, tile.block_m), l.integer(attrs.heads), batch};
  } else {
    s.work = ir::mul(ir::mul(batch, l.integer(attrs.heads)), l.ceil_div(queries, kCpuBlockM));
  }
  text += l.header(static_cast<uint32_t>(tile.threads)) + call + (l.cuda() ? "" : ", begin, end") + ");\n}\n";
  ExprRef pairs = ir::mul(ir::mul(batch, l.integer(attrs.heads)), ir::mul(queries, keys));
  const std::string grouped = attrs.kv_heads == attrs.heads ? "" : fmt::format("_h{}_kv{}", attrs.heads, attrs.kv_heads);
  const size_t first = l.launch_count();
  l.launch(fmt::format("attention__{}_d{}{}", t, d, grouped), "attention", text, s, ir::mul(pairs, l.integer(2 * (d + dv))));
  l.explain(first, fmt::format("attention {} of heads of {} and {}, {}{}\nblocks of {} queries x {} keys: {}", t, d, dv, scaled ? "a plain scale" : "a score with a functor",
                               seen.rest ? ", a condition on queries and keys" : "", tile.block_m, tile.block_n,
                               l.cuda() ? "as large as the shared memory of every GPU and the registers of functors allow, and no more rows than queries" : "what the caches hold"),
            "codegen/emit_attention.cpp", __LINE__);
  return {};
}

}  // namespace tfcc::codegen
