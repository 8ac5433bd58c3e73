// SPDX-License-Identifier: Apache-2.0
// emit_attention: the stub prints score and conditions as functors. templates/cuda/attention.cuh,
// templates/cuda/attention_decode.cuh, templates/cuda/attention_wgmma.cuh,
// templates/cpu/attention.h.
#include <fmt/format.h>

#include "codegen/attention/attention.h"

namespace tfcc::codegen {
namespace {

std::string attention_index(int64_t k) {
  static constexpr const char* kNames[] = {"b", "h", "i", "j"};
  return kNames[k];
}

void add_spec(Stub& stub, const EmitContext& c, const ir::AttentionAttrs& attrs,
              const AttentionDesc& x, const AttentionTile& tile) {
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
  stub.field_f32("score_scale", x.scale.value_or(x.score.scale.value_or(1)));
}

// The score as a functor, or as those of a sum.
std::string add_score(Stub& stub, ExprRef score, const AttentionDesc& x, bool warpgroups) {
  const ScoreParts& parts = x.score;
  const char* const params = "f32 s, idx b, idx h, idx i, idx j";
  if (!parts.added) {
    stub.functor("Score", params, score, Scalar::f32, attention_index);
    return stub.object("Score");
  }
  const bool by_distance = warpgroups && parts.by_distance;
  if (by_distance)
    stub.functor("Added", "idx b, idx h, idx d", parts.by_distance, Scalar::f32, [&](int64_t k) {
      return k == ir::kKey ? fmt::format("(d + (idx)({}))", stub.size(parts.most_before))
                           : attention_index(k);
    });
  else
    stub.functor("Added", "idx b, idx h, idx i, idx j", parts.added, Scalar::f32, attention_index);
  std::string type = "ScaledProduct", product;
  if (parts.scale) {
    product = "ScaledProduct{Spec::score_scale}";
  } else {
    stub.functor("Product", params, parts.of_product, Scalar::f32, attention_index);
    type = "AnyProduct<Product>", product = fmt::format("{}{{{}}}", type, stub.object("Product"));
  }
  return fmt::format("{}Score<Added, {}>{{{}, {}}}", by_distance ? "Diagonal" : "Sum", type,
                     stub.object("Added"), product);
}

// Score and conditions, as functors or as what says that there is none.
std::vector<std::string> add_functors(Stub& stub, const ir::AttentionAttrs& attrs,
                                      const AttentionDesc& x, bool warpgroups) {
  std::vector<std::string> objects = {"NoScore{}", "AllVisible{}", "AllLive{}", "NoSink{}"};
  if (!x.scale) objects[0] = add_score(stub, attrs.score, x, warpgroups);
  if (x.rest) {
    stub.functor("Visible", "idx b, idx h, idx i, idx j", x.rest, Scalar::boolean, attention_index);
    objects[1] = stub.object("Visible");
  }
  if (x.live) {
    stub.functor("Live", "idx b, idx j", x.live, Scalar::boolean, attention_index);
    objects[2] = stub.object("Live");
  }
  if (attrs.sink) {
    stub.functor("Sink", "idx b, idx h", attrs.sink, Scalar::f32, attention_index);
    objects[3] = stub.object("Sink");
  }
  return objects;
}

// By pointers; `maps`: q, k and v are read by TMA.
std::vector<ValueId> values_read(const ir::Op& op, const AttentionDesc& x, bool maps) {
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
  std::string rows = fmt::format("{}PackedRows{{{}, {}, {}, {}}}", early ? "Early" : "", in(3),
                                 in(4), in(5), in(6));
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

LaunchSize launch_size(const EmitContext& c, const ir::AttentionAttrs& attrs,
                       const AttentionDesc& x, const AttentionTile& tile) {
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

// The same of a form for many tokens, without pages: sizes, and rows that a pack left. Not for f32:
// its kernels run far longer than they take to start, and those of TF32 have no registers left.
bool knows_rows_early(const EmitContext& c, const ir::Op& op, const AttentionDesc& x) {
  const auto& attrs = op.as<ir::AttentionAttrs>();
  if (!c.cuda() || attrs.page || size_of(x.type) != 2) return false;
  std::vector<ExprRef> sizes = {x.batch, x.most_queries, x.keys};
  for (size_t i = 3; i < 7 && !attrs.packed.empty(); ++i) {
    const ValueId table = op.operands[i];
    const ir::Op* writer = c.graph.def(table);
    if (!writer && c.callers.has(table)) continue;
    if (!writer || writer->kind != OpKind::pack) return false;
    sizes.push_back(c.dims(writer->results[5])[0]);
  }
  return c.made_before_last(sizes, {x.parts[0].base});
}

// What the kernel is called with. By warpgroups q, k and v come by maps, which are added.
std::vector<std::string> arguments_of(Stub& stub, const EmitContext& c, const ir::Op& op,
                                      const AttentionDesc& x, const AttentionTile& tile,
                                      const std::vector<std::string>& functors, bool early,
                                      std::vector<MatrixView>& maps) {
  std::string rows = packed_rows(stub, c, op, x.sequences, early);
  std::vector<std::string> arguments{stub.out()};
  const auto add = [&](std::initializer_list<std::string> more) {
    arguments.insert(arguments.end(), more);
  };
  const auto made = [&](bool fresh) {
    return fmt::format("[&{}] {{ return {}; }}", fresh ? ", n = FreshSizes{n}" : "", rows);
  };
  const auto batch = [&] { return early ? stub.early_size(x.batch) : stub.late_size(x.batch); };
  if (tile.resident) {
    for (size_t k = 0; k < 3; ++k)
      add({fmt::format("m{}", add_map(c, maps, x.parts[k], k == 0 ? tile.block_m : tile.block_n))});
    add({batch()});
    if (rows.empty())
      rows = fmt::format("PaddedRows{{(idx)({}), (idx)({})}}", stub.size(x.queries),
                         stub.size(x.keys));
    add({made(early)});
    rows.clear();
    stub.waits_itself(), stub.resident(tile.resident), stub.maps(maps.size());
  } else {
    for (const RowSlice& part : x.parts) add({stub.in(part.base, part.offset)});
    if (tile.warps) {
      add({batch()});
      rows = made(early);
    } else if (early) {
      const std::string sizes = stub.sizes_before_wait("sizes", {x.batch, x.most_queries, x.keys});
      for (size_t k = 0; k < 3; ++k) add({fmt::format("{}[{}]", sizes, k)});
    } else {
      add({stub.size(x.batch), stub.size(x.most_queries), stub.size(x.keys)});
    }
  }
  arguments.insert(arguments.end(), functors.begin(), functors.end());
  if (!rows.empty()) arguments.push_back(rows);
  return arguments;
}

// A launch of those sequences that x says.
KernelLaunch launch_of(const EmitContext& c, OpId o, const AttentionDesc& x,
                       const AttentionTile& tile) {
  const ir::Op& op = c.graph.op(o);
  const auto& attrs = op.as<ir::AttentionAttrs>();
  const bool warpgroups = tile.resident != 0;
  const bool decodes = tile.warps != 0;
  Stub stub(c,
            warpgroups ? "attention_wgmma"
            : decodes  ? "attention_decode"
                       : "attention",
            op.operands, values_read(op, x, warpgroups), {op.results[0]});
  const bool early = decodes ? begins_early(c, op) : knows_rows_early(c, op, x);
  if (early || warpgroups) stub.reads_early();
  if (early) stub.waits_itself();
  if (early && decodes) stub.resident(1);
  const std::vector<std::string> functors = add_functors(stub, attrs, x, warpgroups);
  add_spec(stub, c, attrs, x, tile);
  if (c.cuda()) {
    stub.field("early", early);
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
  TFCC_TRY(AttentionDesc x, describe_attention(c, o));
  const bool apart =
      c.cuda() && x.page && !c.bucket.most_tokens && has_spans(x.type, x.head, x.v_head);
  if (apart) x.sequences = Sequences::few;
  AttentionTile tile = choose_tile(c, x);
  Emission emission = Emission::of(launch_of(c, o, x, tile));
  Reason reason = explain(c, x, tile);
  if (apart) {
    x.sequences = Sequences::many;
    tile = choose_tile(c, x);
    emission.launches.emplace_back(launch_of(c, o, x, tile));
    const std::string of_few = reason.text + "\n";
    reason = explain(c, x, tile);
    reason.text = of_few + reason.text;
  }
  emission.reason = std::move(reason);
  return emission;
}

}  // namespace tfcc::codegen
