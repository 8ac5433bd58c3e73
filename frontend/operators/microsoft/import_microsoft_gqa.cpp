// SPDX-License-Identifier: Apache-2.0
// GroupQueryAttention of com.microsoft: rotation, a cache whose rows have lengths of their own,
// windows, soft cap and sinks.
#include <fmt/format.h>

#include <cmath>

#include "frontend/operators/attention.h"
#include "frontend/operators/norm.h"

namespace tfcc::frontend {
namespace {

struct Queries {
  int64_t heads, kv_heads;
  ExprRef head_size;
  ValueId q, k, v;  // [B, H, S, D], [B, Hkv, S, D]
  ExprRef length;   // S
  ValueId lengths;  // seqlens_k: keys of each row, minus 1
};

Result<void> check_supported(Importer& im) {
  for (const StringName name : {StringName("k_quant_type"), StringName("v_quant_type")}) {
    const std::string kind = im.attr_string(name, "NONE");
    if (kind != "NONE")
      return im.fail(ErrorCode::unsupported,
                     fmt::format("{} = {} is not supported; export with a cache of floats",
                                 name.name, escaped(kind)));
  }
  return {};
}

Result<Queries> queries_of(Importer& im) {
  Queries s{};
  TFCC_TRY(s.heads, head_count(im, "num_heads"));
  TFCC_TRY(s.kv_heads, head_count(im, "kv_num_heads"));
  TFCC_TRY(ValueId q, real_input(im, 0, 3, "query"));
  const bool packed = !im.has_input(1);
  auto size = ir::exact_div(im.dims(q)[2], im.integer(packed ? s.heads + 2 * s.kv_heads : s.heads));
  if (!size) return im.fail(ErrorCode::shape, "the query does not split into its heads");
  s.head_size = *size;
  s.length = im.dims(q)[1];
  TFCC_TRY(s.q, split_heads(im, q, im.integer(0), s.heads, *size, std::nullopt, "q"));
  if (packed) {
    TFCC_TRY(s.k, split_heads(im, q, ir::mul(im.integer(s.heads), *size), s.kv_heads, *size,
                              std::nullopt, "k"));
    TFCC_TRY(s.v, split_heads(im, q, ir::mul(im.integer(s.heads + s.kv_heads), *size), s.kv_heads,
                              *size, std::nullopt, "v"));
  } else {
    TFCC_TRY(ValueId k, real_input(im, 1, 3, "key"));
    TFCC_TRY(ValueId v, real_input(im, 2, 3, "value"));
    TFCC_TRY(s.k, split_heads(im, k, s.kv_heads, "k"));
    TFCC_TRY(s.v, split_heads(im, v, s.kv_heads, "v"));
  }
  TFCC_TRY(s.lengths, im.input(5));
  if (!is_integer(im.type(s.lengths).dtype) || im.rank(s.lengths) == 0 || im.rank(s.lengths) > 2) {
    return im.fail(ErrorCode::shape, "seqlens_k must be integers of [batch]");
  }
  if (im.rank(s.lengths) == 2 && !ir::is_int(im.dims(s.lengths)[1], 1))
    return im.fail(ErrorCode::shape, "seqlens_k must be integers of [batch]");
  TFCC_TRY([[maybe_unused]] ExprRef b, im.unify(im.dims(q)[0], im.dims(s.lengths)[0],
                                                "seqlens_k has not one length per batch row"));
  return s;
}

// How many tokens row b had before: its length without the new ones; 0 in a first pass, where rows
// may be shorter than S.
ExprRef past_of(Importer& im, const Queries& s, ExprRef b) {
  Indices at(im.rank(s.lengths), im.integer(0));
  at[0] = b;
  return ir::max(im.integer(0),
                 ir::sub(ir::add(im.element(s.lengths, at), im.integer(1)), s.length));
}

// ---- rotation and norms ----

Result<ValueId> normed(Importer& im, ValueId x, size_t weight_input, const char* suffix) {
  if (!im.has_input(weight_input)) return x;
  TFCC_TRY(ValueId w, im.input(weight_input));
  return norm_op(im, ir::NormKind::rms, x, w, std::nullopt, im.attr_float("qk_norm_epsilon", 1e-6f),
                 im.value_name(0) + suffix);
}

Result<ValueId> turned(Importer& im, const Queries& s, ValueId x, const char* suffix) {
  TFCC_TRY(ValueId cos, real_input(im, 7, 2, "cos_cache"));
  TFCC_TRY(ValueId sin, real_input(im, 8, 2, "sin_cache"));
  const Dims d = im.dims(x), cache = im.dims(cos);
  if (cache.size() != 2 || im.dims(sin) != cache)
    return im.fail(ErrorCode::shape, "cos_cache and sin_cache must be [positions, size / 2]");
  const auto columns = ir::as_int(cache[1]), size = ir::as_int(s.head_size);
  if (!columns || !size || 2 * *columns > *size)
    return im.fail(ErrorCode::unsupported,
                   "the widths of cos_cache and head must be known and fit");
  const Indices at = im.index_vars(d);
  ExprRef position = ir::add(past_of(im, s, at[0]), at[2]);
  if (im.has_input(9)) {
    TFCC_TRY(ValueId ids, integer_input(im, 9, "position_ids"));
    if (im.rank(ids) != 2) return im.fail(ErrorCode::shape, "position_ids must be [batch, length]");
    TFCC_TRY(Dims all, im.broadcast({d[0], d[2]}, im.dims(ids)));
    if (all != Dims{d[0], d[2]})
      return im.fail(ErrorCode::shape, "position_ids do not fit the query");
    position = im.broadcast_element(ids, {at[0], at[2]});
  }
  TFCC_TRY(ExprRef row, im.gather_index(position, cache[0]));
  const Scalar scalar = ir::scalar_of(im.type(x).dtype);
  Rotation r;
  r.size = 2 * *columns;
  r.interleaved = im.attr_int("rotary_interleaved", 0) != 0;
  r.cos = [&](ExprRef c) { return ir::convert(im.element(cos, {row, c}), scalar); };
  r.sin = [&](ExprRef c) { return ir::convert(im.element(sin, {row, c}), scalar); };
  auto element = [&](ExprRef c) { return im.element(x, {at[0], at[1], at[2], c}); };
  return im.pointwise(rotated(r, at[3], element), im.type(x).dtype, d, suffix);
}

// ---- the cache ----

// The length of the cache that comes out: that of the one that goes in or of all tokens, whichever
// is larger.
Result<ExprRef> present_length(Importer& im, const Queries& s, std::optional<ValueId> past) {
  TFCC_TRY(ValueId total, integer_input(im, 6, "total_sequence_length"));
  TFCC_TRY(ExprRef e, im.scalar(total, "total_sequence_length"));
  e = ir::expand(im.graph, e, [](ValueId) { return true; });
  if (past && im.rank(*past) != 4)
    return im.fail(ErrorCode::shape, "past_key must be [batch, heads, length, size]");
  const ExprRef before = past ? im.dims(*past)[2] : im.integer(0);
  // A total that is data says nothing that a shape could use: all tokens are then the past and the
  // new ones.
  const bool window = past && im.attr_int("sliding_window_cache", 0);
  if (!is_size_expression(e)) {
    if (window)
      return im.fail(ErrorCode::unsupported,
                     "sliding_window_cache needs total_sequence_length as a size; export with a "
                     "cache of full length");
    return ir::add(before, s.length);
  }
  // As long as nothing is evicted, such a cache is any other. Its window hides what may be.
  if (window) {
    TFCC_TRY_VOID(im.require_ge0(
        ir::sub(ir::add(before, s.length), e),
        "sliding_window_cache: the past must have all tokens before the new ones; give it whole"));
  }
  return past ? ir::max(before, e) : e;
}

// Row b of the cache: its past, then the new tokens; 0 after them.
Result<ValueId> present_of(Importer& im, const Queries& s, std::optional<ValueId> past, ValueId x,
                           ExprRef length, const char* what) {
  Dims to = im.dims(x);
  to[2] = length;
  if (past) {
    if (im.rank(*past) != 4 || im.type(*past).dtype != im.type(x).dtype) {
      return im.fail(ErrorCode::shape,
                     fmt::format("past_{} {} does not go with {}", what,
                                 ir::to_string(im.type(*past)), ir::to_string(im.type(x))));
    }
    for (size_t k : {0, 1, 3}) {
      TFCC_TRY(to[k], im.unify(to[k], im.dims(*past)[k],
                               fmt::format("past_{} differs from {} in axis {}", what, what, k)));
    }
  }
  const Indices at = im.index_vars(to);
  ExprRef before = past_of(im, s, at[0]);
  ExprRef fresh = past ? ir::sub(at[2], before) : at[2];
  const ExprRef zero = im.pool().real(0, ir::scalar_of(im.type(x).dtype));
  ExprRef body =
      ir::select(ir::lt(fresh, s.length), im.element(x, {at[0], at[1], fresh, at[3]}), zero);
  if (past) {
    ExprRef old = ir::select(ir::lt(at[2], im.dims(*past)[2]), im.element(*past, at), zero);
    body = ir::select(ir::lt(at[2], before), old, body);
  }
  return im.pointwise(body, im.type(x).dtype, to, fmt::format(".{}.present", what));
}

// ---- the score ----

// A key of zeros after the others, for the sink: its score is the sink's, its value 0.
ValueId with_sink_row(Importer& im, ValueId x, const char* suffix) {
  Dims to = im.dims(x);
  const ExprRef n = to[2];
  to[2] = ir::add(n, im.integer(1));
  const Indices at = im.index_vars(to);
  const ExprRef zero = im.pool().real(0, ir::scalar_of(im.type(x).dtype));
  return im.pointwise(ir::select(ir::lt(at[2], n), im.element(x, at), zero), im.type(x).dtype, to,
                      suffix);
}

Result<ExprRef> score_of(Importer& im, const Queries& s, ExprRef keys, ExprRef e, const Indices& at,
                         const Dims& dims) {
  ExprPool& pool = im.pool();
  const ExprRef hidden = pool.real(-INFINITY, e->type);
  if (const float cap = im.attr_float("softcap", 0); cap > 0) e = soft_cap(e, cap);
  if (im.has_input(10)) {
    TFCC_TRY(ValueId bias, im.input(10));
    Dims covered = dims;
    const ExprRef width = im.rank(bias) == 4 ? im.dims(bias)[3] : dims[3];
    if (!ir::is_int(width, 1)) covered[3] = width;
    if (!ir::prove_ge0(
            ir::sub(width, im.integer(1)))) {  // a size that nothing else has: that of all keys
      TFCC_TRY([[maybe_unused]] ExprRef same,
               im.unify(keys, width, "attention_bias does not cover the keys"));
    }
    Indices place = at;
    if (covered[3] != dims[3]) place[3] = within(at[3], width);
    TFCC_TRY(ExprRef b, score_bias(im, bias, place, covered, "attention_bias"));
    b = ir::convert(b, e->type);
    // Keys that the bias does not cover are beyond the last token.
    e = covered[3] == dims[3] ? ir::add(e, b)
                              : ir::select(ir::lt(at[3], width), ir::add(e, b), hidden);
  }
  const ExprRef past = past_of(im, s, at[0]), position = ir::add(past, at[2]);
  ExprRef visible;
  if (im.attr_int("causal", 1)) {
    visible = ir::le(at[3], position);
    const int64_t window = im.attr_int("local_window_size", -1);
    if (window > 0)
      visible = ir::logical_and(visible, ir::lt(ir::sub(position, at[3]), im.integer(window)));
  } else {
    Indices row(im.rank(s.lengths), im.integer(0));
    row[0] = at[0];
    visible = ir::le(at[3], im.element(s.lengths, row));
  }
  e = ir::select(visible, e, hidden);
  if (keys == dims[3]) return e;
  ExprRef sink = pool.real(0, e->type);
  if (im.has_input(11)) {
    TFCC_TRY(ValueId sinks, real_input(im, 11, 1, "head_sink"));
    TFCC_TRY([[maybe_unused]] ExprRef n,
             im.unify(dims[1], im.dims(sinks)[0], "head_sink must have one number per head"));
    sink = ir::convert(im.element(sinks, {at[1]}), e->type);
  }
  return ir::select(ir::lt(at[3], keys), e, sink);
}

}  // namespace

Result<void> import_microsoft_group_query_attention(Importer& im) {
  TFCC_TRY_VOID(check_supported(im));
  TFCC_TRY(Queries s, queries_of(im));
  TFCC_TRY(s.q, normed(im, s.q, 14, ".q.normed"));
  TFCC_TRY(s.k, normed(im, s.k, 15, ".k.normed"));
  if (im.attr_int("do_rotary", 0)) {
    TFCC_TRY(s.q, turned(im, s, s.q, ".q.turned"));
    TFCC_TRY(s.k, turned(im, s, s.k, ".k.turned"));
  }
  std::optional<ValueId> past_k, past_v;
  if (im.has_input(3)) {
    TFCC_TRY(past_k, im.input(3));
    TFCC_TRY(past_v, im.input(4));
    if (im.rank(*past_k) != 4)
      return im.fail(ErrorCode::shape, "past_key must be [batch, heads, length, size]");
  }
  TFCC_TRY(const ExprRef keys, present_length(im, s, past_k));
  TFCC_TRY(ValueId k, present_of(im, s, past_k, s.k, keys, "key"));
  TFCC_TRY(ValueId v, present_of(im, s, past_v, s.v, keys, "value"));
  im.define(1, k);
  im.define(2, v);
  if (im.has_input(11) || im.attr_int("smooth_softmax", 0)) {
    k = with_sink_row(im, k, ".k.sink");
    v = with_sink_row(im, v, ".v.sink");
  }
  AttentionParts parts{s.q, k, v, nullptr, nullptr};
  TFCC_TRY(parts.scale, attention_scale(im, s.head_size, true));
  parts.score = [&](ExprRef e, const Indices& at, const Dims& dims) {
    return score_of(im, s, keys, e, at, dims);
  };
  TFCC_TRY(const AttentionValues a, attend(im, parts));
  im.define(0, merge_heads(im, a.context, ""));
  if (!wants_output(im, 3)) return {};
  const int64_t which = im.attr_int("qk_output", 0);
  if (which != 1 && which != 2)
    return im.fail(ErrorCode::bad_file, "output_qk needs qk_output 1 or 2");
  im.define(3, which == 1 ? a.score : a.probabilities);
  return {};
}

}  // namespace tfcc::frontend
