// SPDX-License-Identifier: Apache-2.0
// The parts of attention operators as ops and bodies.
#include "frontend/operators/attention.h"

#include <fmt/format.h>

#include <cmath>

namespace tfcc::frontend {

using ir::ExprKind;

namespace {
constexpr int64_t kMostHeads = 1 << 16;
}

Result<int64_t> head_count(Importer& im, IntegerName attribute) {
  const int64_t n = im.attr_int(attribute, 0);
  if (n >= 1 && n <= kMostHeads) return n;
  return im.fail(ErrorCode::bad_file,
                 fmt::format("{} must be from 1 to {}", attribute.name, kMostHeads));
}

Result<ValueId> integer_input(Importer& im, size_t i, const char* what) {
  TFCC_TRY(ValueId v, im.input(i));
  if (is_integer(im.type(v).dtype)) return v;
  return im.fail(ErrorCode::bad_file,
                 fmt::format("{} must be of integers, not {}", what, to_string(im.type(v).dtype)));
}

Result<ValueId> real_input(Importer& im, size_t i, size_t rank, const char* what) {
  TFCC_TRY(ValueId v, im.input(i));
  if (is_float(im.type(v).dtype) && im.rank(v) == rank) return v;
  return im.fail(ErrorCode::shape, fmt::format("{} must be of floats and have {} dims, not {}",
                                               what, rank, ir::to_string(im.type(v))));
}

Result<std::optional<ValueId>> bias_input(Importer& im, size_t i, ExprRef n) {
  if (!im.has_input(i)) return std::optional<ValueId>();
  TFCC_TRY(ValueId v, real_input(im, i, 1, "bias"));
  TFCC_TRY([[maybe_unused]] ExprRef same,
           im.unify(n, im.dims(v)[0], fmt::format("the bias has not {} elements", ir::print(n))));
  return std::optional(v);
}

Result<ValueId> split_heads(Importer& im, ValueId x, int64_t heads, const char* what) {
  if (im.rank(x) != 3 || heads <= 0)
    return im.fail(ErrorCode::shape, fmt::format("{} must be [batch, length, heads * size]", what));
  auto size = ir::exact_div(im.dims(x)[2], im.integer(heads));
  if (!size)
    return im.fail(ErrorCode::shape, fmt::format("{} does not split into {} heads", what, heads));
  return split_heads(im, x, im.integer(0), heads, *size, std::nullopt, what);
}

Result<ValueId> split_heads(Importer& im, ValueId x, ExprRef first, int64_t heads, ExprRef size,
                            std::optional<ValueId> bias, const char* what) {
  const Dims d = im.dims(x);
  const Dims to{d[0], im.integer(heads), d[1], size};
  const Indices at = im.index_vars(to);
  ExprRef column = ir::add(first, ir::add(ir::mul(at[1], size), at[3]));
  ExprRef e = im.element(x, {at[0], at[2], column});
  if (bias) e = ir::add(e, im.element(*bias, {column}));
  return im.pointwise(e, im.type(x).dtype, to, fmt::format(".{}", what));
}

ValueId merge_heads(Importer& im, ValueId x, std::string_view suffix) {
  const Dims d = im.dims(x), to{d[0], d[2], ir::mul(d[1], d[3])};
  const Indices at = im.index_vars(to);
  return im.pointwise(im.element(x, {at[0], ir::div(at[2], d[3]), at[1], ir::mod(at[2], d[3])}),
                      im.type(x).dtype, to, suffix);
}

Result<ValueId> repeat_heads(Importer& im, ValueId x, ExprRef heads, const char* what) {
  Dims to = im.dims(x);
  if (to[1] == heads) return x;
  auto group = ir::exact_div(heads, to[1]);
  if (!group)
    return im.fail(ErrorCode::shape, fmt::format("{} query heads are no multiple of {}",
                                                 ir::print(heads), ir::print(to[1])));
  to[1] = heads;
  const Indices at = im.index_vars(to);
  return im.pointwise(im.element(x, {at[0], ir::div(at[1], *group), at[2], at[3]}),
                      im.type(x).dtype, to, fmt::format(".{}.repeat", what));
}

Result<ValueId> append_to_cache(Importer& im, ValueId past, ValueId x, const char* what) {
  if (im.rank(past) != 4 || im.type(past).dtype != im.type(x).dtype) {
    return im.fail(ErrorCode::shape,
                   fmt::format("past {} {} does not go with {}", what, ir::to_string(im.type(past)),
                               ir::to_string(im.type(x))));
  }
  Dims to = im.dims(x);
  const ExprRef length = im.dims(past)[2];
  for (size_t k : {0, 1, 3}) {
    TFCC_TRY(to[k], im.unify(to[k], im.dims(past)[k],
                             fmt::format("past {} differs from {} in axis {}", what, what, k)));
  }
  to[2] = ir::add(length, to[2]);
  const Indices at = im.index_vars(to);
  ExprRef fresh = im.element(x, {at[0], at[1], ir::sub(at[2], length), at[3]});
  return im.pointwise(ir::select(ir::lt(at[2], length), im.element(past, at), fresh),
                      im.type(x).dtype, to, fmt::format(".{}.present", what));
}

Result<ExprRef> attention_scale(Importer& im, ExprRef head_size, bool zero_is_default) {
  const Attribute* a = im.node->find("scale");
  if (a && a->kind == Attribute::Kind::real && (a->f != 0 || !zero_is_default))
    return im.pool().real(a->f);
  auto d = ir::as_int(head_size);
  if (!d || *d <= 0)
    return im.fail(ErrorCode::unsupported, "the head size must be known at compile time");
  return im.pool().real(1 / std::sqrt(static_cast<double>(*d)));
}

ExprRef soft_cap(ExprRef s, double cap) {
  ExprRef c = s->pool->real(cap, s->type);
  return ir::mul(c, ir::unary(ExprKind::tanh, ir::div(s, c)));
}

Result<ExprRef> score_bias(Importer& im, ValueId bias, const Indices& at, const Dims& scores,
                           const char* what) {
  if (im.rank(bias) > 4)
    return im.fail(ErrorCode::shape, fmt::format("{} has more than 4 dims", what));
  TFCC_TRY(Dims all, im.broadcast(scores, im.dims(bias)));
  if (all != scores) {
    return im.fail(ErrorCode::shape, fmt::format("{} {} does not broadcast to the scores", what,
                                                 ir::to_string(im.type(bias))));
  }
  // Where sizes are equal by a check at run time alone, the index is kept in range by itself.
  Indices place = at;
  const Dims d = im.dims(bias);
  for (size_t k = 0; k < d.size(); ++k) {
    const size_t axis = place.size() - d.size() + k;
    if (d[k] != scores[axis] && ir::prove_ge0(ir::sub(d[k], im.integer(1))))
      place[axis] = within(place[axis], d[k]);
  }
  return im.broadcast_element(bias, place);
}

Result<AttentionValues> attend(Importer& im, const AttentionParts& parts) {
  const Dims dq = im.dims(parts.q);
  const DType dtype = im.type(parts.q).dtype;
  if (im.type(parts.k).dtype != dtype || im.type(parts.v).dtype != dtype)
    return im.fail(ErrorCode::bad_file, "Q, K and V have different types");
  if (!is_float(dtype)) return im.fail(ErrorCode::bad_file, "Q, K and V must be of a float type");
  TFCC_TRY(ValueId k, repeat_heads(im, parts.k, dq[1], "k"));
  TFCC_TRY(ValueId v, repeat_heads(im, parts.v, dq[1], "v"));
  TFCC_TRY([[maybe_unused]] ExprRef d,
           im.unify(dq[3], im.dims(k)[3], "Q and K have different head sizes"));
  TFCC_TRY([[maybe_unused]] ExprRef n,
           im.unify(im.dims(k)[2], im.dims(v)[2], "K and V have different lengths"));
  for (ValueId x : {k, v}) {
    TFCC_TRY([[maybe_unused]] ExprRef b,
             im.unify(dq[0], im.dims(x)[0], "Q, K and V have different batch sizes"));
  }
  auto name = [&](const char* suffix) { return im.value_name(0) + suffix; };

  const Dims dims{dq[0], dq[1], dq[2], im.dims(k)[2]};
  ir::MatmulAttrs attrs;
  attrs.trans_b = true;
  ValueId s = im.graph.add(ir::OpKind::matmul, {parts.q, k}, attrs, {dtype, dims}, name(".qk"),
                           im.node->name);
  const Indices at = im.index_vars(dims);
  AttentionValues out;
  const ExprRef product = im.element(s, at),
                scaled = ir::mul(product, ir::convert(parts.scale, product->type));
  out.product = im.pointwise(scaled, dtype, dims, ".scaled");
  TFCC_TRY(ExprRef score, parts.score(scaled, at, dims));
  out.score = im.pointwise(score, dtype, dims, ".score");
  ValueId p = im.graph.add(ir::OpKind::softmax, {out.score}, ir::SoftmaxAttrs{}, {dtype, dims},
                           name(".softmax"), im.node->name);
  if (parts.empty_rows_are_zero) {
    ExprRef e = im.element(p, at);
    p = im.pointwise(ir::select(ir::is_nan(e), im.pool().real(0, e->type), e), dtype, dims,
                     ".guard");
  }
  out.probabilities = p;
  out.context = im.graph.add(ir::OpKind::matmul, {p, v}, ir::MatmulAttrs{},
                             {dtype, {dq[0], dq[1], dq[2], im.dims(v)[3]}},
                             im.value_name(0) + std::string(parts.context), im.node->name);
  return out;
}

ExprRef rotated(const Rotation& r, ExprRef d, const std::function<ExprRef(ExprRef)>& x) {
  ExprPool& pool = *d->pool;
  const ExprRef size = pool.integer(r.size), half = pool.integer(r.size / 2), two = pool.integer(2),
                one = pool.integer(1);
  // The column that d turns with, its sign, and the angle of both.
  ExprRef angle, partner;
  if (r.interleaved) {
    angle = ir::div(ir::min(d, ir::sub(size, one)), two);
    const ExprRef even = ir::mul(two, angle);
    partner = ir::select(ir::eq(ir::mod(d, two), pool.integer(0)), ir::neg(x(ir::add(even, one))),
                         x(even));
  } else {
    angle = ir::mod(d, half);
    partner = ir::select(ir::lt(d, half), ir::neg(x(ir::add(d, half))), x(ir::sub(d, half)));
  }
  ExprRef turned = ir::add(ir::mul(x(d), r.cos(angle)), ir::mul(partner, r.sin(angle)));
  return ir::select(ir::lt(d, size), turned, x(d));
}

}  // namespace tfcc::frontend
