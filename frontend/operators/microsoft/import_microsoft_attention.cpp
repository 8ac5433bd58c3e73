// SPDX-License-Identifier: Apache-2.0
// Attention, MultiHeadAttention and DecoderMaskedMultiHeadAttention of com.microsoft: packed
// operands, caches of two kinds, and masks in every form that ONNX Runtime's optimizer writes.
#include <fmt/format.h>

#include <cmath>

#include "frontend/operators/attention.h"
#include "frontend/operators/norm.h"
#include "ir/matmul.h"

namespace tfcc::frontend {
namespace {

// Keys and values of earlier tokens.
struct Cache {
  ValueId k, v;                // of all keys [B, H, T, D]
  ExprRef past = nullptr;      // how many there were before; a size, or data with a shared buffer
  bool shared_buffer = false;  // T is the capacity: keys from past + S on are not there yet
};

struct Inputs {
  ValueId q, k, v;  // [B, H, S, D]; k and v new ones alone
  std::optional<ValueId> mask, bias;
};

// ---- masks ----

// The number of keys of row b, for a mask of lengths: [B], [2B] (ends, then starts) or [3B + 2]
// (lengths, then offsets).
Result<ExprRef> kept_by_lengths(Importer& im, ValueId mask, const Indices& at, const Dims& dims) {
  const ExprRef n = im.dims(mask)[0], batch = dims[0];
  auto is = [&](int64_t factor, int64_t extra) {
    return ir::is_int(ir::sub(n, ir::add(ir::mul(batch, im.integer(factor)), im.integer(extra))),
                      0);
  };
  ExprRef kept = ir::lt(at[3], im.element(mask, {at[0]}));
  if (is(3, 2)) return kept;
  if (is(2, 0))
    return ir::logical_and(kept, ir::le(im.element(mask, {ir::add(at[0], batch)}), at[3]));
  TFCC_TRY([[maybe_unused]] ExprRef b,
           im.unify(batch, n,
                    fmt::format("mask {} is not of [batch], [2 * batch] or [3 * batch + 2]",
                                ir::to_string(im.type(mask)))));
  return kept;
}

Result<ExprRef> kept_by_mask(Importer& im, ValueId mask, ExprRef past, const Indices& at,
                             const Dims& dims) {
  const Dims dm = im.dims(mask);
  const DType dtype = im.type(mask).dtype;
  if (is_float(dtype)) return im.fail(ErrorCode::bad_file, "the mask must be of integers");
  if (dm.size() == 1 && dtype == DType::boolean)
    return im.fail(ErrorCode::bad_file, "a mask of lengths must be of integers");
  if (dm.size() == 1) return kept_by_lengths(im, mask, at, dims);
  Indices place;
  switch (dm.size()) {
    case 2:
      if (ir::is_int(dm[1], 1) && !ir::is_int(dims[3], 1)) return nullptr;  // a stand-in
      place = {at[0], at[3]};
      break;
    case 3: place = {at[0], at[2], at[3]}; break;
    case 4: {  // [B, 1, M, M]: a table of which this is the part from row `past` on
      for (size_t k : {0, 1}) {
        if (!ir::is_int(dm[k], 1)) {
          TFCC_TRY([[maybe_unused]] ExprRef same,
                   im.unify(dims[k], dm[k], "the mask does not fit the scores"));
        }
      }
      TFCC_TRY(ExprRef row, im.gather_index(ir::add(past, at[2]), dm[2]));
      TFCC_TRY(ExprRef column, im.gather_index(at[3], dm[3]));
      const Indices lead = ir::broadcast_indices(im.pool(), {dm[0], dm[1]}, Indices{at[0], at[1]});
      ExprRef m = im.element(mask, {lead[0], lead[1], row, column});
      return m->type == Scalar::boolean ? m : ir::lt(im.integer(0), m);
    }
    default:
      return im.fail(ErrorCode::shape,
                     fmt::format("mask {} has not 1 to 4 dims", ir::to_string(im.type(mask))));
  }
  // A mask of the tokens so far over a cache of capacity T is shorter; what it does not cover is
  // not there.
  ExprRef inside = nullptr;
  for (size_t k = 0; k < place.size(); ++k) {
    const ExprRef have = dm[k], need = k == 0 ? dims[0] : k + 1 == place.size() ? dims[3] : dims[2];
    if (ir::is_int(have, 1) && !ir::is_int(need, 1) && k + 1 < place.size()) {
      place[k] = im.integer(0);
      continue;
    }
    if (k + 1 == place.size() && !ir::as_int(past) && ir::has_loads(past) && have != need) {
      inside = ir::lt(at[3], have);
      place[k] = within(at[3], have);
      continue;
    }
    TFCC_TRY([[maybe_unused]] ExprRef same, im.unify(need, have,
                                                     fmt::format("mask {} does not fit the scores",
                                                                 ir::to_string(im.type(mask)))));
  }
  ExprRef m = im.element(mask, place);
  ExprRef kept = m->type == Scalar::boolean ? m : ir::lt(im.integer(0), m);
  return inside ? ir::logical_and(inside, kept) : kept;
}

// The scaled product with bias, mask and causality applied: what a mask hides is moved by
// mask_filter_value.
Result<ExprRef> score_of(Importer& im, const Inputs& in, const Cache& cache, ExprRef s,
                         const Indices& at, const Dims& dims) {
  ExprPool& pool = im.pool();
  if (in.bias) {
    TFCC_TRY(ExprRef b, score_bias(im, *in.bias, at, dims, "attention_bias"));
    s = ir::add(s, ir::convert(b, s->type));
  }
  if (in.mask) {
    TFCC_TRY(ExprRef kept, kept_by_mask(im, *in.mask, cache.past, at, dims));
    const ExprRef filter = pool.real(im.attr_float("mask_filter_value", -10000.0f), s->type);
    if (kept) s = ir::add(s, ir::select(kept, pool.real(0, s->type), filter));
  }
  const ExprRef hidden = pool.real(-INFINITY, s->type);
  const ExprRef last = ir::add(at[2], cache.past);
  if (cache.shared_buffer || im.attr_int("unidirectional", 0))
    s = ir::select(ir::le(at[3], last), s, hidden);
  return s;
}

// ---- caches ----

// `past` with x written at position `at`, of past's capacity.
Result<ValueId> write_to_cache(Importer& im, ValueId past, ValueId x, ExprRef position,
                               const char* what) {
  Dims to = im.dims(past);
  if (to.size() != 4)
    return im.fail(ErrorCode::shape,
                   fmt::format("past {} must be [batch, heads, length, size]", what));
  for (size_t k : {0, 1, 3}) {
    TFCC_TRY(to[k], im.unify(to[k], im.dims(x)[k],
                             fmt::format("past {} differs from {} in axis {}", what, what, k)));
  }
  const Indices i = im.index_vars(to);
  const ExprRef fresh = ir::sub(i[2], position), n = im.dims(x)[2];
  const ExprRef written =
      im.element(x, {i[0], i[1], ir::is_int(n, 1) ? im.integer(0) : fresh, i[3]});
  const ExprRef old = im.element(past, i);
  ExprRef body = ir::is_int(n, 1) ? ir::select(ir::eq(fresh, im.integer(0)), written, old)
                                  : ir::select(ir::le(position, i[2]),
                                               ir::select(ir::lt(fresh, n), written, old), old);
  return im.pointwise(body, im.type(past).dtype, to, fmt::format(".{}.present", what));
}

// The caches with the new keys and values in them. `length_input` holds the past length of a shared
// buffer.
Result<Cache> extended(Importer& im, const Inputs& in, std::optional<ValueId> past_k,
                       std::optional<ValueId> past_v, size_t length_input) {
  Cache c{in.k, in.v, im.integer(0), false};
  if (!past_k) return c;
  c.shared_buffer = im.attr_int("past_present_share_buffer", 0) != 0 || im.has_input(length_input);
  if (!c.shared_buffer) {
    TFCC_TRY(c.k, append_to_cache(im, *past_k, in.k, "k"));
    TFCC_TRY(c.v, append_to_cache(im, *past_v, in.v, "v"));
    c.past = im.dims(*past_k)[2];
    return c;
  }
  TFCC_TRY(ValueId length, integer_input(im, length_input, "past_sequence_length"));
  TFCC_TRY(c.past, im.scalar(length, "past_sequence_length"));
  TFCC_TRY(c.k, write_to_cache(im, *past_k, in.k, c.past, "k"));
  TFCC_TRY(c.v, write_to_cache(im, *past_v, in.v, c.past, "v"));
  return c;
}

Result<AttentionValues> attend_to(Importer& im, const Inputs& in, const Cache& cache) {
  AttentionParts parts{in.q, cache.k, cache.v, nullptr, nullptr};
  TFCC_TRY(parts.scale, attention_scale(im, im.dims(in.q)[3], true));
  parts.score = [&](ExprRef s, const Indices& at, const Dims& dims) {
    return score_of(im, in, cache, s, at, dims);
  };
  return attend(im, parts);
}

Result<std::optional<ValueId>> optional_input(Importer& im, size_t i) {
  if (!im.has_input(i)) return std::optional<ValueId>();
  TFCC_TRY(ValueId v, im.input(i));
  return std::optional(v);
}

// Half `which` of past [2, B, H, P, D].
ValueId half_of(Importer& im, ValueId past, int64_t which, const char* suffix) {
  const Dims d = im.dims(past), to(d.begin() + 1, d.end());
  Indices at = im.index_vars(to);
  at.insert(at.begin(), im.integer(which));
  return im.pointwise(im.element(past, at), im.type(past).dtype, to, suffix);
}

// present [2, B, H, T, D] of keys and values.
Result<void> define_present(Importer& im, const Cache& c) {
  if (!wants_output(im, 1)) return {};
  Dims to = im.dims(c.k);
  TFCC_TRY(to[3], im.unify(to[3], im.dims(c.v)[3],
                           "keys and values of different head sizes make no single present"));
  to.insert(to.begin(), im.integer(2));
  const Indices at = im.index_vars(to);
  const Indices inner(at.begin() + 1, at.end());
  im.define(
      1, ir::select(ir::eq(at[0], im.integer(0)), im.element(c.k, inner), im.element(c.v, inner)),
      im.type(c.k).dtype, to);
  return {};
}

}  // namespace

namespace {

// do_rotary: queries and keys turned by their positions, which go on after the past. Halves of the
// first rotary_embedding_dim columns form the pairs; pair e turns by position / 10000^(2 e / dim).
Result<void> rotate(Importer& im, Inputs& in, std::optional<ValueId> past_k) {
  const auto head = ir::as_int(im.dims(in.q)[3]);
  const int64_t given = im.attr_int("rotary_embedding_dim", 0),
                size = given ? given : head.value_or(0);
  if (!head || size < 2 || size % 2 != 0 || size > *head || im.dims(in.k)[3] != im.dims(in.q)[3]) {
    return im.fail(ErrorCode::bad_file,
                   fmt::format("rotary_embedding_dim {} does not fit heads of {} columns", size,
                               ir::print(im.dims(in.q)[3])));
  }
  ExprRef first = im.integer(0);
  if (past_k && (im.attr_int("past_present_share_buffer", 0) || im.has_input(6))) {
    TFCC_TRY(ValueId length, integer_input(im, 6, "past_sequence_length"));
    TFCC_TRY(first, im.scalar(length, "past_sequence_length"));
  } else if (past_k) {
    first = im.dims(*past_k)[2];
  }
  std::vector<std::byte> bytes(static_cast<size_t>(size / 2) * sizeof(float));
  for (int64_t e = 0; e < size / 2; ++e) {
    ir::write_real(DType::f32, bytes.data(), static_cast<size_t>(e),
                   std::pow(10000.0, -2.0 * static_cast<double>(e) / static_cast<double>(size)));
  }
  const ValueId speeds =
      im.graph.add_constant(im.value_name(0) + ".rotary_speeds",
                            ir::constant_from_bytes(DType::f32, {size / 2}, std::move(bytes)));
  for (ValueId* x : {&in.q, &in.k}) {
    const Dims d = im.dims(*x);
    const Indices at = im.index_vars(d);
    const auto element = [&](ExprRef column) {
      return im.element(*x, {at[0], at[1], at[2], column});
    };
    const Scalar scalar = element(at[3])->type;
    const auto angle = [&](ExprRef e) {
      return ir::convert(ir::mul(ir::convert(ir::add(first, at[2]), Scalar::f32),
                                 ir::load_of(im.graph, speeds, {e})),
                         scalar);
    };
    const Rotation r{size, false, [&](ExprRef e) { return ir::unary(ir::ExprKind::cos, angle(e)); },
                     [&](ExprRef e) { return ir::unary(ir::ExprKind::sin, angle(e)); }};
    *x = im.pointwise(rotated(r, at[3], element), im.type(*x).dtype, d,
                      x == &in.q ? ".q.turned" : ".k.turned");
  }
  return {};
}

}  // namespace

Result<void> import_microsoft_attention(Importer& im) {
  TFCC_TRY(ValueId x, real_input(im, 0, 3, "input"));
  TFCC_TRY(ValueId w, real_input(im, 1, 2, "weights"));
  TFCC_TRY(const int64_t heads, head_count(im, "num_heads"));
  if (im.type(x).dtype != im.type(w).dtype)
    return im.fail(ErrorCode::bad_file, "input and weights have different types");
  TFCC_TRY([[maybe_unused]] ExprRef width,
           im.unify(im.dims(x)[2], im.dims(w)[0], "input and weights do not multiply"));
  const Dims d = im.dims(x);
  const ExprRef columns = im.dims(w)[1];
  ExprRef sizes[3];
  if (auto given = im.attr_ints("qkv_hidden_sizes"); given && given->size() == 3) {
    for (size_t k = 0; k < 3; ++k) sizes[k] = im.integer((*given)[k]);
  } else {
    auto third = ir::exact_div(columns, im.integer(3));
    if (!third) return im.fail(ErrorCode::shape, "the weights do not split into three");
    for (ExprRef& s : sizes) s = *third;
  }
  TFCC_TRY([[maybe_unused]] ExprRef total,
           im.unify(columns, ir::add(sizes[0], ir::add(sizes[1], sizes[2])),
                    "qkv_hidden_sizes do not add up to the weights' columns"));
  TFCC_TRY(const auto bias, bias_input(im, 2, columns));
  const Type wide{im.type(x).dtype, {d[0], d[1], columns}};
  const ValueId product =
      ir::add_matmul(im.graph, x, w, {}, ir::bias_epilogue(im.graph, wide, bias), wide,
                     im.value_name(0) + ".qkv", im.node->name);
  Inputs in;
  ExprRef first = im.integer(0);
  ValueId* const parts[] = {&in.q, &in.k, &in.v};
  const char* const names[] = {"q", "k", "v"};
  for (size_t k = 0; k < 3; ++k) {
    auto size = ir::exact_div(sizes[k], im.integer(heads));
    if (!size)
      return im.fail(ErrorCode::shape,
                     fmt::format("{} does not split into {} heads", names[k], heads));
    TFCC_TRY(*parts[k], split_heads(im, product, first, heads, *size, std::nullopt, names[k]));
    first = ir::add(first, sizes[k]);
  }
  TFCC_TRY(in.mask, optional_input(im, 3));
  TFCC_TRY(in.bias, optional_input(im, 5));
  std::optional<ValueId> past_k, past_v;
  if (im.has_input(4)) {
    TFCC_TRY(ValueId past, real_input(im, 4, 5, "past"));
    TFCC_TRY(
        [[maybe_unused]] ExprRef two,
        im.unify(im.integer(2), im.dims(past)[0], "past must be [2, batch, heads, length, size]"));
    past_k = half_of(im, past, 0, ".past.k");
    past_v = half_of(im, past, 1, ".past.v");
  }
  if (im.attr_int("do_rotary", 0)) TFCC_TRY_VOID(rotate(im, in, past_k));
  TFCC_TRY(const Cache cache, extended(im, in, past_k, past_v, 6));
  TFCC_TRY(const AttentionValues a, attend_to(im, in, cache));
  im.define(0, merge_heads(im, a.context, ""));
  return define_present(im, cache);
}

namespace {

// Part `which` of a packed [B, S, H, n, D] as [B, H, S, D], with columns `first` on of the bias.
ValueId unpacked(Importer& im, ValueId x, int64_t which, ExprRef first, std::optional<ValueId> bias,
                 const char* suffix) {
  const Dims d = im.dims(x), to{d[0], d[2], d[1], d[4]};
  const Indices at = im.index_vars(to);
  ExprRef e = im.element(x, {at[0], at[2], at[1], im.integer(which), at[3]});
  if (bias)
    e = ir::add(e, im.element(*bias, {ir::add(first, ir::add(ir::mul(at[1], d[4]), at[3]))}));
  return im.pointwise(e, im.type(x).dtype, to, suffix);
}

// Part [first, first + heads * size) of x [B, S, width] as heads, with the part of the bias that
// starts at `of_bias`.
ValueId biased_heads(Importer& im, ValueId x, int64_t heads, ExprRef size,
                     std::optional<ValueId> bias, ExprRef of_bias, const char* suffix) {
  const Dims d = im.dims(x), to{d[0], im.integer(heads), d[1], size};
  const Indices at = im.index_vars(to);
  const ExprRef column = ir::add(ir::mul(at[1], size), at[3]);
  ExprRef e = im.element(x, {at[0], at[2], column});
  if (bias) e = ir::add(e, im.element(*bias, {ir::add(of_bias, column)}));
  return im.pointwise(e, im.type(x).dtype, to, suffix);
}

// All three in the query: [B, S, H, 3, D] or [B, S, 3 * H * D].
Result<void> read_packed(Importer& im, ValueId q, int64_t heads, size_t bias_slot, Inputs& in) {
  const ExprRef zero = im.integer(0), n = im.integer(heads), two = im.integer(2);
  if (im.rank(q) == 5) {
    TFCC_TRY([[maybe_unused]] ExprRef h,
             im.unify(n, im.dims(q)[2], "the packed query has another number of heads"));
    TFCC_TRY([[maybe_unused]] ExprRef three,
             im.unify(im.integer(3), im.dims(q)[3],
                      "the packed query must be [batch, length, heads, 3, size]"));
    const ExprRef part = ir::mul(n, im.dims(q)[4]);
    TFCC_TRY(const auto bias, bias_input(im, bias_slot, ir::mul(im.integer(3), part)));
    in.q = unpacked(im, q, 0, zero, bias, ".q");
    in.k = unpacked(im, q, 1, part, bias, ".k");
    in.v = unpacked(im, q, 2, ir::mul(two, part), bias, ".v");
    return {};
  }
  auto size = ir::exact_div(im.dims(q)[2], im.integer(3 * heads));
  if (!size)
    return im.fail(ErrorCode::shape,
                   fmt::format("the packed query does not split into 3 times {} heads", heads));
  const ExprRef part = ir::mul(n, *size);
  TFCC_TRY(const auto bias, bias_input(im, bias_slot, ir::mul(im.integer(3), part)));
  TFCC_TRY(in.q, split_heads(im, q, zero, heads, *size, bias, "q"));
  TFCC_TRY(in.k, split_heads(im, q, part, heads, *size, bias, "k"));
  TFCC_TRY(in.v, split_heads(im, q, ir::mul(two, part), heads, *size, bias, "v"));
  return {};
}

// The query as it is given, [B, S, heads * size].
struct Projected {
  ValueId value;
  int64_t heads;
  ExprRef size, width;
};

// Key and value in one, packed [B, L, H, 2, D].
Result<void> read_packed_key(Importer& im, const Projected& q, ValueId k, size_t bias_slot,
                             Inputs& in) {
  TFCC_TRY([[maybe_unused]] ExprRef h, im.unify(im.integer(q.heads), im.dims(k)[2],
                                                "the packed key has another number of heads"));
  TFCC_TRY([[maybe_unused]] ExprRef two,
           im.unify(im.integer(2), im.dims(k)[3],
                    "the packed key must be [batch, length, heads, 2, size]"));
  const ExprRef part = ir::mul(im.integer(q.heads), im.dims(k)[4]);
  TFCC_TRY(const auto bias,
           bias_input(im, bias_slot, ir::add(q.width, ir::mul(im.integer(2), part))));
  in.q = biased_heads(im, q.value, q.heads, q.size, bias, im.integer(0), ".q");
  in.k = unpacked(im, k, 0, q.width, bias, ".k");
  in.v = unpacked(im, k, 1, ir::add(q.width, part), bias, ".v");
  return {};
}

// The cache of another sequence has its bias already; only the query's is left.
Result<void> read_cached_key(Importer& im, const Projected& q, size_t bias_slot, Inputs& in) {
  std::optional<ValueId> bias;
  if (im.has_input(bias_slot)) {
    TFCC_TRY(bias, real_input(im, bias_slot, 1, "bias"));
    TFCC_TRY_VOID(im.require_ge0(ir::sub(im.dims(*bias)[0], q.width),
                                 "the bias is shorter than the query's width"));
  }
  in.q = biased_heads(im, q.value, q.heads, q.size, bias, im.integer(0), ".q");
  return {};
}

// Where q, k and v of the multi-head operators are: separate, k and v in one, all in one, or a
// cache of another sequence.
Result<void> read_qkv(Importer& im, int64_t heads, size_t bias_slot, Inputs& in) {
  TFCC_TRY(ValueId q, im.input(0));
  const ExprRef n = im.integer(heads);
  if (!is_float(im.type(q).dtype) || (im.rank(q) != 3 && im.rank(q) != 5)) {
    return im.fail(
        ErrorCode::shape,
        "query must be [batch, length, width] or packed [batch, length, heads, 3, size]");
  }
  if (im.rank(q) == 5 || !im.has_input(1)) return read_packed(im, q, heads, bias_slot, in);
  TFCC_TRY(ValueId k, im.input(1));
  const ExprRef width = im.dims(q)[2];
  const auto size = ir::exact_div(width, n);
  if (!size)
    return im.fail(ErrorCode::shape, fmt::format("the query does not split into {} heads", heads));
  if (im.type(k).dtype != im.type(q).dtype)
    return im.fail(ErrorCode::bad_file, "query and key have different types");
  const Projected query{q, heads, *size, width};
  if (im.rank(k) == 5) return read_packed_key(im, query, k, bias_slot, in);
  TFCC_TRY(ValueId v, im.input(2));
  if (im.type(v).dtype != im.type(q).dtype)
    return im.fail(ErrorCode::bad_file, "query and value have different types");
  if (im.rank(k) == 4 && im.rank(v) == 4) {
    in.k = k;
    in.v = v;
    return read_cached_key(im, query, bias_slot, in);
  }
  if (im.rank(k) != 3 || im.rank(v) != 3)
    return im.fail(ErrorCode::shape,
                   "key and value must be [batch, length, width] or caches of 4 dims");
  const auto k_size = ir::exact_div(im.dims(k)[2], n), v_size = ir::exact_div(im.dims(v)[2], n);
  if (!k_size || !v_size)
    return im.fail(ErrorCode::shape,
                   fmt::format("key or value does not split into {} heads", heads));
  const ExprRef of_v = ir::add(width, im.dims(k)[2]);
  TFCC_TRY(const auto bias, bias_input(im, bias_slot, ir::add(of_v, im.dims(v)[2])));
  in.q = biased_heads(im, q, heads, *size, bias, im.integer(0), ".q");
  in.k = biased_heads(im, k, heads, *k_size, bias, width, ".k");
  in.v = biased_heads(im, v, heads, *v_size, bias, of_v, ".v");
  return {};
}

struct Slots {
  size_t bias, mask, score_bias, past_k, past_v, past_length, indirection;
};

// Keys as the beams of a search left them: token j of beam row b comes from row indirection[b /
// beams, b % beams, j].
Result<ValueId> gathered_beams(Importer& im, ValueId cache, ValueId indirection, ExprRef past,
                               const char* suffix) {
  const Dims d = im.dims(cache), di = im.dims(indirection);
  if (di.size() != 3)
    return im.fail(ErrorCode::shape, "cache_indirection must be [batch, beams, length]");
  const ExprRef beams = di[1];
  const auto count = ir::as_int(beams);
  if (!count || *count < 1)
    return im.fail(ErrorCode::unsupported, "the number of beams must be known at compile time");
  const Indices at = im.index_vars(d);
  TFCC_TRY(ExprRef group, im.gather_index(ir::div(at[0], beams), di[0]));
  TFCC_TRY(ExprRef position, im.gather_index(at[2], di[2]));
  TFCC_TRY(
      ExprRef beam,
      im.gather_index(im.element(indirection, {group, ir::mod(at[0], beams), position}), beams));
  TFCC_TRY(ExprRef row,
           im.gather_index(ir::add(ir::mul(ir::div(at[0], beams), beams), beam), d[0]));
  ExprRef e = ir::select(ir::lt(at[2], past), im.element(cache, {row, at[1], at[2], at[3]}),
                         im.element(cache, at));
  return im.pointwise(e, im.type(cache).dtype, d, suffix);
}

Result<void> import_multi_head(Importer& im, const Slots& slots) {
  TFCC_TRY(const int64_t heads, head_count(im, "num_heads"));
  Inputs in;
  TFCC_TRY_VOID(read_qkv(im, heads, slots.bias, in));
  TFCC_TRY(in.mask, optional_input(im, slots.mask));
  TFCC_TRY(in.bias, optional_input(im, slots.score_bias));
  TFCC_TRY(const auto past_k, optional_input(im, slots.past_k));
  TFCC_TRY(const auto past_v, optional_input(im, slots.past_v));
  if (past_k.has_value() != past_v.has_value())
    return im.fail(ErrorCode::bad_file, "past_key and past_value go together");
  TFCC_TRY(Cache cache, extended(im, in, past_k, past_v, slots.past_length));
  im.define(1, cache.k);
  im.define(2, cache.v);
  if (im.has_input(slots.indirection) && cache.shared_buffer) {
    TFCC_TRY(ValueId indirection, integer_input(im, slots.indirection, "cache_indirection"));
    TFCC_TRY(cache.k, gathered_beams(im, cache.k, indirection, cache.past, ".k.beams"));
    TFCC_TRY(cache.v, gathered_beams(im, cache.v, indirection, cache.past, ".v.beams"));
  }
  TFCC_TRY(const AttentionValues a, attend_to(im, in, cache));
  im.define(0, merge_heads(im, a.context, ""));
  im.define(3, a.score);
  return {};
}

}  // namespace

Result<void> import_microsoft_multi_head_attention(Importer& im) {
  return import_multi_head(im, {3, 4, 5, 6, 7, 8, 9});
}
Result<void> import_microsoft_decoder_masked_multi_head_attention(Importer& im) {
  return import_multi_head(im, {10, 3, 4, 5, 6, 7, 9});
}

}  // namespace tfcc::frontend
