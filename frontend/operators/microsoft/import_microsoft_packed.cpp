// SPDX-License-Identifier: Apache-2.0
// RemovePadding, the packed attentions and RestorePadding of com.microsoft. The first is the op pack,
// and what comes after it has packed rows. A second one in a graph, a batch that may be empty, and
// attention over offsets that come from elsewhere have rows with room for all, since how many tokens
// are real depends on data: real tokens first, as the operators order them, and padding after them.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <unordered_map>

#include "frontend/operators/attention.h"
#include "frontend/operators/norm.h"
#include "ir/matmul.h"
#include "ir/pack.h"

namespace tfcc::frontend {
namespace {

// [A, B, ...] as [A * B, ...].
ValueId flattened(Importer& im, ValueId x, std::string_view suffix) {
  const Dims d = im.dims(x);
  Dims to{ir::mul(d[0], d[1])};
  to.insert(to.end(), d.begin() + 2, d.end());
  return reshape(im, x, to, suffix);
}

// Names that follow from `name` without the padding restored: what of them a graph returns would
// have a size of data.
std::set<std::string> reached_from(const Model& model, const std::string& name) {
  std::set<std::string> reached{name};
  for (const Node& n : model.nodes) {
    const bool reads = std::any_of(n.inputs.begin(), n.inputs.end(),
                                   [&](const std::string& i) { return reached.count(i); });
    if (reads && n.op_type != "RestorePadding") reached.insert(n.outputs.begin(), n.outputs.end());
  }
  reached.erase("");
  return reached;
}

ExprRef in_range(ExprRef i, ExprRef n) {
  return ir::logical_and(ir::le(i->pool->integer(0), i), ir::lt(i, n));
}

// ---- where tokens are ----

struct Layout {
  ExprRef batch, length;
  ValueId counts;  // [B] real tokens of each sequence
  ValueId starts;  // [B] real tokens before it
};

// Real tokens up to and with the last sequence.
ExprRef total_of(Importer& im, const Layout& l) {
  const Indices last{ir::sub(l.batch, im.integer(1))};
  return ir::add(im.element(l.starts, last), im.element(l.counts, last));
}

// The sequence of packed row t, [B * S]: how many sequences end at or before it, with padding
// counted after all real tokens.
ValueId sequence_of_rows(Importer& im, const Layout& l) {
  const Dims rows{ir::mul(l.batch, l.length)};
  const ExprRef t = im.index_vars(rows)[0], b = im.pool().index(1, l.batch),
                total = total_of(im, l);
  const ExprRef end = ir::add(im.element(l.starts, {b}), im.element(l.counts, {b}));
  const ExprRef padding_end = ir::sub(ir::mul(ir::add(b, im.integer(1)), l.length), end);
  ExprRef ended =
      ir::select(ir::lt(t, total), ir::le(end, t), ir::le(padding_end, ir::sub(t, total)));
  ir::ReduceAttrs attrs;
  attrs.extents = {l.batch};
  ir::Captured c = ir::capture(ir::convert(ended, Scalar::i64));
  attrs.body = c.body;
  return im.graph.add(ir::OpKind::reduce, c.operands, attrs, {DType::i64, rows},
                      im.value_name(0) + ".sequence", im.node->name);
}

// The place of packed row t in the padded batch, [B * S].
Result<ValueId> places_of_rows(Importer& im, const Layout& l) {
  const ValueId sequences = sequence_of_rows(im, l);
  const Dims rows = im.dims(sequences);
  const ExprRef t = im.index_vars(rows)[0], total = total_of(im, l);
  TFCC_TRY(ExprRef b, im.gather_index(im.element(sequences, {t}), l.batch));
  const ExprRef first = ir::mul(b, l.length), start = im.element(l.starts, {b});
  ExprRef real = ir::add(first, ir::sub(t, start));
  // Before sequence b there are first - start places of padding.
  ExprRef padding = ir::add(ir::add(first, im.element(l.counts, {b})),
                            ir::sub(ir::sub(t, total), ir::sub(first, start)));
  return im.pointwise(ir::select(ir::lt(t, total), real, padding), DType::i32, rows, ".places");
}

// Rows of x [N, ...] at the places, [T, ...].
Result<ValueId> rows_at(Importer& im, ValueId x, ValueId places, const Dims& to,
                        std::string_view suffix) {
  Indices at = im.index_vars(to);
  const ExprRef have = im.dims(places)[0];
  const ExprRef t = have == to[0] ? at[0] : within(at[0], have);
  TFCC_TRY(at[0], im.gather_index(im.element(places, {t}), im.dims(x)[0]));
  return im.pointwise(im.element(x, at), im.type(x).dtype, to, suffix);
}

}  // namespace

namespace {

// What RemovePadding made.
struct PackedTokens {
  // Offsets: the lengths of the sequences and the tokens before each.
  struct Sequences {
    ValueId lengths, starts;
  };
  std::unordered_map<ValueId, Sequences> sequences;
  // Of the one whose rows are those of a pack.
  std::optional<ir::Packing> packing;
  ValueId offsets, ends;
  std::map<std::string, ExprRef> rows;  // ONNX names that may have as many rows as there are tokens
};

Result<void> refuse_packed_output(Importer& im, const std::string& name, ValueId v) {
  const auto& rows = im.notes<PackedTokens>().rows;
  const auto packed = rows.find(name);
  const Dims& dims = im.dims(v);
  if (packed == rows.end() || std::find(dims.begin(), dims.end(), packed->second) == dims.end())
    return {};
  return im.fail(
      ErrorCode::unsupported,
      fmt::format(
          "output '{}' has a row per real token, a number that depends on data; put RestorePadding before it",
          escaped(name)));
}

}  // namespace

namespace {

// There is one packed size in a graph, of a batch that has tokens, whose number nobody asks for.
bool may_pack(const Importer& im, const Dims& rows) {
  const auto positive = [&](ExprRef n) { return ir::prove_ge0(ir::sub(n, n->pool->integer(1))); };
  return !im.room_for_padding() && im.graph.size_with(SizeRole::packed) == nullptr &&
         positive(rows[0]) && positive(rows[1]);
}

// The real tokens of x [B,S,width], [T,width].
ValueId packed_rows(Importer& im, ValueId x, ValueId counts) {
  const Dims d = im.dims(x);
  const ExprRef b = im.pool().index(0, d[0]), s = im.pool().index(1, d[1]);
  const ir::Packing p = ir::add_pack(im.graph, ir::lt(s, im.element(counts, {b})), nullptr, d[0],
                                     d[1], im.node->name);
  im.notes<PackedTokens>().packing = p;
  const Dims to{p.total, d[2]};
  const Indices at = im.index_vars(to);
  return im.pointwise(im.element(x, {p.sequence(im.graph, at[0]), p.place(im.graph, at[0]), at[1]}),
                      im.type(x).dtype, to, "");
}

}  // namespace

Result<void> import_microsoft_remove_padding(Importer& im) {
  TFCC_TRY(ValueId x, real_input(im, 0, 3, "input"));
  TFCC_TRY(ValueId counts, integer_input(im, 1, "sequence_token_count"));
  if (im.rank(counts) != 1)
    return im.fail(ErrorCode::shape, "sequence_token_count must be [batch]");
  const Dims d = im.dims(x);
  TFCC_TRY(
      [[maybe_unused]] ExprRef b,
      im.unify(d[0], im.dims(counts)[0], "sequence_token_count has not one number per sequence"));
  ir::CumsumAttrs before;
  before.exclusive = true;
  const DType dtype = im.type(counts).dtype;
  const ValueId starts = im.graph.add(ir::OpKind::cumsum, {counts}, before, im.type(counts),
                                      im.value_name(0) + ".starts", im.node->name);
  const Layout l{d[0], d[1], counts, starts};
  TFCC_TRY(ValueId places, places_of_rows(im, l));
  PackedTokens& made = im.notes<PackedTokens>();
  const bool packs = may_pack(im, d);
  ValueId y;
  if (packs) {
    y = packed_rows(im, x, counts);
  } else {
    TFCC_TRY(y, rows_at(im, flattened(im, x, ".flat"), places, {ir::mul(d[0], d[1]), d[2]}, ""));
  }
  im.define(0, y);
  im.output_rules.insert(refuse_packed_output);
  for (const std::string& name : reached_from(im.model(), im.node->outputs[0]))
    made.rows[name] = im.dims(y)[0];
  if (wants_output(im, 1)) {
    const ValueId offsets = reshape(im, places, {d[0], d[1]}, ".offsets");
    im.define(1, offsets);
    made.sequences[offsets] = {counts, starts};
    if (packs) made.offsets = offsets;
  }
  const Dims ends{ir::add(d[0], im.integer(1))};
  const ExprRef i = im.index_vars(ends)[0];
  const ValueId all = im.define(
      2, ir::select(ir::lt(i, d[0]), im.element(starts, {i}), total_of(im, l)), dtype, ends);
  if (packs) made.ends = all;
  if (!wants_output(im, 3)) return {};
  ir::ReduceAttrs longest;
  longest.kind = ir::ReduceKind::max;
  longest.extents = {d[0]};
  ir::Captured c = ir::capture(im.element(counts, {im.pool().index(1, d[0])}));
  longest.body = c.body;
  im.define(3, im.graph.add(ir::OpKind::reduce, c.operands, longest, {dtype, {im.integer(1)}},
                            im.value_name(3), im.node->name));
  return {};
}

namespace {

// Where place p of the padded batch is in offsets [B, S], -1 if not among the first `rows`.
ValueId row_of_places(Importer& im, ValueId offsets, ExprRef rows) {
  const ValueId flat = flattened(im, offsets, ".offsets");
  const Dims places = im.dims(flat);
  const ExprRef p = im.index_vars(places)[0], t = im.pool().index(1, places[0]);
  ir::ReduceAttrs attrs;
  attrs.kind = ir::ReduceKind::max;
  attrs.extents = {places[0]};
  ExprRef here = ir::logical_and(ir::eq(im.element(flat, {t}), p), ir::lt(t, rows));
  ir::Captured c = ir::capture(ir::select(here, t, im.integer(-1)));
  attrs.body = c.body;
  return im.graph.add(ir::OpKind::reduce, c.operands, attrs, {DType::i64, places},
                      im.value_name(0) + ".row", im.node->name);
}

}  // namespace

Result<void> import_microsoft_restore_padding(Importer& im) {
  TFCC_TRY(ValueId x, real_input(im, 0, 2, "input"));
  TFCC_TRY(ValueId offsets, integer_input(im, 1, "token_offset"));
  if (im.rank(offsets) != 2)
    return im.fail(ErrorCode::shape,
                   "needs input [tokens, width] and token_offset [batch, length]");
  const Dims d = im.dims(offsets), to{d[0], d[1], im.dims(x)[1]};
  const Indices at = im.index_vars(to);
  const ExprRef rows = im.dims(x)[0], zero = im.pool().real(0, ir::scalar_of(im.type(x).dtype));
  ExprRef row, real;
  const PackedTokens& tokens = im.notes<PackedTokens>();
  if (tokens.packing && offsets == tokens.offsets && rows == tokens.packing->total) {
    row = im.element(tokens.packing->row, {at[0], at[1]});
    const ExprRef element = im.element(x, {ir::bounded(row, rows, tokens.packing->flag), at[2]});
    im.define(0, ir::select(ir::le(im.integer(0), row), element, zero), im.type(x).dtype, to);
    return {};
  }
  const auto& made = tokens.sequences;
  if (auto known = made.find(offsets); known != made.end()) {
    row = ir::add(im.element(known->second.starts, {at[0]}), at[1]);
    real = ir::lt(at[1], im.element(known->second.lengths, {at[0]}));
  } else {
    const ValueId inverse = row_of_places(im, offsets, rows);
    row = im.element(inverse, {ir::add(ir::mul(at[0], d[1]), at[1])});
    real = ir::le(im.integer(0), row);
  }
  im.define(
      0, ir::select(ir::logical_and(real, in_range(row, rows)), im.element(x, {row, at[2]}), zero),
      im.type(x).dtype, to);
  return {};
}

namespace {

struct Packed {
  ExprRef rows, batch, length;
  ValueId offsets, ends;                 // [B, S]; [B + 1]
  const ir::Packing* packing = nullptr;  // whose rows these are, if they are those of a pack
};

Result<Packed> packed_of(Importer& im, ValueId tokens, size_t offsets_input) {
  Packed p{im.dims(tokens)[0], nullptr, nullptr, {}, {}};
  TFCC_TRY(p.offsets, integer_input(im, offsets_input, "token_offset"));
  TFCC_TRY(p.ends, integer_input(im, offsets_input + 1, "cumulative_sequence_length"));
  if (im.rank(p.offsets) != 2 || im.rank(p.ends) != 1)
    return im.fail(ErrorCode::shape,
                   "needs token_offset [batch, length] and cumulative_sequence_length [batch + 1]");
  p.batch = im.dims(p.offsets)[0];
  p.length = im.dims(p.offsets)[1];
  TFCC_TRY([[maybe_unused]] ExprRef n, im.unify(ir::add(p.batch, im.integer(1)), im.dims(p.ends)[0],
                                                "cumulative_sequence_length is not [batch + 1]"));
  const PackedTokens& made = im.notes<PackedTokens>();
  if (made.packing && p.offsets == made.offsets && p.ends == made.ends &&
      p.rows == made.packing->total)
    p.packing = &*made.packing;
  return p;
}

ExprRef length_of(Importer& im, const Packed& p, ExprRef b) {
  return ir::sub(im.element(p.ends, {ir::add(b, im.integer(1))}), im.element(p.ends, {b}));
}

// `element(row, head, column)` of packed tokens as rows of an attention: of those of a pack [1, T,
// heads * size]. Else [B, heads, S, size], where places of padding hold those of another token, or
// zeros.
ValueId spread(Importer& im, const Packed& p, int64_t heads, ExprRef size, DType dtype,
               std::string_view suffix,
               const std::function<ExprRef(ExprRef, ExprRef, ExprRef)>& element) {
  if (p.packing != nullptr) {
    const Dims rows{im.integer(1), p.rows, ir::mul(im.integer(heads), size)};
    const Indices at = im.index_vars(rows);
    return im.pointwise(element(at[1], ir::div(at[2], size), ir::mod(at[2], size)), dtype, rows,
                        suffix);
  }
  const Dims to{p.batch, im.integer(heads), p.length, size};
  const Indices at = im.index_vars(to);
  const ExprRef row = ir::add(im.element(p.ends, {at[0]}), at[2]);
  ExprRef body = ir::select(in_range(row, p.rows), element(row, at[1], at[3]),
                            im.pool().real(0, ir::scalar_of(dtype)));
  return im.pointwise(body, dtype, to, suffix);
}

// The score of an attention of these indices (b, h, i, j) and dims, and its bias.
Result<ExprRef> biased(Importer& im, ExprRef s, const Indices& at, const Dims& dims,
                       size_t bias_input) {
  if (!im.has_input(bias_input)) return s;
  TFCC_TRY(ValueId bias, im.input(bias_input));
  TFCC_TRY(ExprRef b, score_bias(im, bias, at, dims, "attention_bias"));
  return ir::add(s, ir::convert(b, s->type));
}

// Attention over the rows of a pack, which sees all keys of a sequence.
Result<void> attend_rows(Importer& im, const Packed& p, ValueId q, ValueId k, ValueId v,
                         int64_t heads, size_t bias_input) {
  const ExprRef n = im.integer(heads);
  const Dims dims{p.batch, n, p.length, p.length};
  const auto size = ir::exact_div(im.dims(q)[2], n);
  TFCC_TRY(const ExprRef scale, attention_scale(im, size.value_or(im.dims(q)[2]), true));
  const ExprRef scaled =
      ir::mul(im.pool().param("s", Scalar::f32), ir::convert(scale, Scalar::f32));
  TFCC_TRY(const ExprRef score, biased(im, scaled, im.index_vars(dims), dims, bias_input));
  ir::AttentionAttrs attrs;
  attrs.heads = attrs.kv_heads = heads;
  attrs.packed = {p.batch, p.length};
  std::vector<ValueId> operands{q, k, v};
  for (ValueId x : p.packing->operands()) operands.push_back(x);
  attrs.score = ir::capture({score}, operands)[0];
  const ValueId context = im.graph.add(ir::OpKind::attention, operands, attrs, im.type(v),
                                       im.value_name(0) + ".rows", im.node->name);
  const Dims to{p.rows, im.dims(v)[2]};
  const Indices at = im.index_vars(to);
  im.define(0, im.element(context, {im.integer(0), at[0], at[1]}), im.type(v).dtype, to);
  return {};
}

Result<void> attend_packed(Importer& im, const Packed& p, ValueId q, ValueId k, ValueId v,
                           int64_t heads, size_t bias_input) {
  if (p.packing != nullptr) return attend_rows(im, p, q, k, v, heads, bias_input);
  AttentionParts parts{q, k, v, nullptr, nullptr, true};
  TFCC_TRY(parts.scale, attention_scale(im, im.dims(q)[3], true));
  parts.score = [&](ExprRef s, const Indices& at, const Dims& dims) -> Result<ExprRef> {
    TFCC_TRY(s, biased(im, s, at, dims, bias_input));
    return ir::select(ir::lt(at[3], length_of(im, p, at[0])), s,
                      im.pool().real(-INFINITY, s->type));
  };
  TFCC_TRY(const AttentionValues a, attend(im, parts));
  const ValueId flat = flattened(im, merge_heads(im, a.context, ".padded"), ".flat");
  TFCC_TRY(ValueId y,
           rows_at(im, flat, flattened(im, p.offsets, ".offsets"), {p.rows, im.dims(flat)[1]}, ""));
  im.define(0, y);
  return {};
}

}  // namespace

Result<void> import_microsoft_packed_attention(Importer& im) {
  TFCC_TRY(ValueId x, real_input(im, 0, 2, "input"));
  TFCC_TRY(ValueId w, real_input(im, 1, 2, "weights"));
  TFCC_TRY(const int64_t heads, head_count(im, "num_heads"));
  if (im.type(x).dtype != im.type(w).dtype)
    return im.fail(ErrorCode::bad_file, "input and weights have different types");
  TFCC_TRY([[maybe_unused]] ExprRef width,
           im.unify(im.dims(x)[1], im.dims(w)[0], "input and weights do not multiply"));
  TFCC_TRY(const Packed p, packed_of(im, x, 3));
  const ExprRef columns = im.dims(w)[1];
  ExprRef sizes[3];
  const auto given = im.attr_ints("qkv_hidden_sizes");
  const auto third = ir::exact_div(columns, im.integer(3));
  if (!third && !given) return im.fail(ErrorCode::shape, "the weights do not split into three");
  for (size_t i = 0; i < 3; ++i)
    sizes[i] = given && given->size() == 3 ? im.integer((*given)[i]) : *third;
  TFCC_TRY([[maybe_unused]] ExprRef total,
           im.unify(columns, ir::add(sizes[0], ir::add(sizes[1], sizes[2])),
                    "qkv_hidden_sizes do not add up to the weights' columns"));
  const DType dtype = im.type(x).dtype;
  TFCC_TRY(const auto bias, bias_input(im, 2, columns));
  const Type wide{dtype, {p.rows, columns}};
  const ValueId product =
      ir::add_matmul(im.graph, x, w, {}, ir::bias_epilogue(im.graph, wide, bias), wide,
                     im.value_name(0) + ".qkv", im.node->name);
  ValueId qkv[3];
  ExprRef first = im.integer(0);
  for (size_t i = 0; i < 3; ++i) {
    const auto size = ir::exact_div(sizes[i], im.integer(heads));
    if (!size)
      return im.fail(ErrorCode::shape,
                     fmt::format("{} does not split into {} heads", ir::print(sizes[i]), heads));
    qkv[i] =
        spread(im, p, heads, *size, dtype,
               i == 0   ? ".q"
               : i == 1 ? ".k"
                        : ".v",
               [&](ExprRef row, ExprRef h, ExprRef c) {
                 return im.element(product, {row, ir::add(first, ir::add(ir::mul(h, *size), c))});
               });
    first = ir::add(first, sizes[i]);
  }
  return attend_packed(im, p, qkv[0], qkv[1], qkv[2], heads, 5);
}

Result<void> import_microsoft_packed_multi_head_attention(Importer& im) {
  TFCC_TRY(ValueId q, im.input(0));
  TFCC_TRY(const int64_t heads, head_count(im, "num_heads"));
  const bool packed = im.rank(q) == 4;
  if ((im.rank(q) != 2 && !packed) || !is_float(im.type(q).dtype))
    return im.fail(ErrorCode::shape, "query must be [tokens, width] or [tokens, heads, 3, size]");
  if (packed) {
    TFCC_TRY([[maybe_unused]] ExprRef three,
             im.unify(im.integer(3), im.dims(q)[2],
                      "the packed query must be [tokens, heads, 3, size]"));
  }
  if (packed) {
    TFCC_TRY([[maybe_unused]] ExprRef n, im.unify(im.integer(heads), im.dims(q)[1],
                                                  "the packed query has another number of heads"));
  }
  TFCC_TRY(const Packed p, packed_of(im, q, 4));
  ExprRef all = im.integer(0);
  ValueId parts[3];
  for (size_t i = 0; i < 3; ++i) {
    parts[i] = q;
    if (!packed) {
      TFCC_TRY(parts[i], real_input(im, i, 2, "query, key or value"));
    }
    if (!packed) {
      TFCC_TRY([[maybe_unused]] ExprRef rows,
               im.unify(p.rows, im.dims(parts[i])[0],
                        "query, key and value have different numbers of tokens"));
    }
    all = ir::add(all, packed ? ir::mul(im.integer(heads), im.dims(q)[3]) : im.dims(parts[i])[1]);
  }
  TFCC_TRY(const auto bias, bias_input(im, 3, all));
  ValueId qkv[3];
  ExprRef first = im.integer(0);
  for (size_t i = 0; i < 3; ++i) {
    const ValueId x = parts[i];
    const auto size =
        packed ? std::optional(im.dims(q)[3]) : ir::exact_div(im.dims(x)[1], im.integer(heads));
    if (!size)
      return im.fail(ErrorCode::shape,
                     fmt::format("input {} does not split into {} heads", i, heads));
    qkv[i] = spread(im, p, heads, *size, im.type(x).dtype,
                    i == 0   ? ".q"
                    : i == 1 ? ".k"
                             : ".v",
                    [&](ExprRef row, ExprRef h, ExprRef c) {
                      const ExprRef column = ir::add(ir::mul(h, *size), c);
                      ExprRef e =
                          packed ? im.element(x, {row, h, im.integer(static_cast<int64_t>(i)), c})
                                 : im.element(x, {row, column});
                      return bias ? ir::add(e, im.element(*bias, {ir::add(first, column)})) : e;
                    });
    first = ir::add(first, ir::mul(im.integer(heads), *size));
  }
  return attend_packed(im, p, qkv[0], qkv[1], qkv[2], heads, 6);
}

}  // namespace tfcc::frontend
