// SPDX-License-Identifier: Apache-2.0
// RotaryEmbedding: the operator of ONNX 23 and that of com.microsoft, which takes its inputs in
// another order; MRotaryEmbedding, whose columns turn by three positions of a token.
#include <fmt/format.h>

#include <algorithm>

#include "frontend/operators/attention.h"

namespace tfcc::frontend {
namespace {

constexpr int64_t kWidest = int64_t{1} << 30;  // of caches; twice as much must fit

struct Rotary {
  ValueId x, cos, sin;
  std::optional<ValueId> positions;  // [B, S], or [1]: where the first token is
  int64_t heads = 0;                 // of a 3-D input
  int64_t size = 0;                  // columns that turn; 0: all
};

// The angle of token (b, s): a row of the cache, or the cache itself where it has batch and length.
Result<std::vector<ExprRef>> token_of(Importer& im, const Rotary& r, ExprRef b, ExprRef s,
                                      const Dims& tokens) {
  // [B or 1, S, ...]
  auto fits = [&](const Dims& d, const char* what) -> Result<void> {
    const auto text = fmt::format("{} do not fit the input", what);
    if (!ir::is_int(d[0], 1)) {
      TFCC_TRY([[maybe_unused]] ExprRef batch, im.unify(tokens[0], d[0], text));
    }
    TFCC_TRY([[maybe_unused]] ExprRef length, im.unify(tokens[1], d[1], text));
    return {};
  };
  const Dims cache = im.dims(r.cos);
  if (im.dims(r.sin) != cache)
    return im.fail(ErrorCode::shape, "cos and sin have different shapes");
  if (!r.positions) {
    if (cache.size() != 3)
      return im.fail(ErrorCode::shape,
                     "without position_ids the caches must be [batch, length, size / 2]");
    TFCC_TRY_VOID(fits(cache, "the caches"));
    return ir::broadcast_indices(im.pool(), {cache[0], cache[1]}, Indices{b, s});
  }
  if (cache.size() != 2)
    return im.fail(ErrorCode::shape, "with position_ids the caches must be [positions, size / 2]");
  const size_t rank = im.rank(*r.positions);
  if (rank > 2) return im.fail(ErrorCode::shape, "position_ids must be [batch, length] or [1]");
  ExprRef p;
  if (rank == 2) TFCC_TRY_VOID(fits(im.dims(*r.positions), "position_ids"));
  if (rank == 2) p = im.broadcast_element(*r.positions, {b, s});
  else p = ir::add(im.element(*r.positions, Indices(rank, im.integer(0))), s);
  TFCC_TRY(ExprRef row, im.gather_index(p, cache[0]));
  return std::vector<ExprRef>{row};
}

// The size of a head of x: its last axis, or a part of that.
Result<ExprRef> head_of(Importer& im, const Rotary& r, const Dims& d, int64_t columns) {
  if (d.size() != 3) return d.back();
  ExprRef heads = r.heads > 0 ? im.integer(r.heads) : nullptr;
  if (r.heads <= 0) {  // the whole head turns, so the cache says how wide it is
    auto n = ir::exact_div(d[2], im.integer(2 * columns));
    if (!n)
      return im.fail(ErrorCode::shape, "the width does not split into heads of twice the cache's");
    heads = *n;
  }
  auto size = ir::exact_div(d[2], heads);
  if (!size)
    return im.fail(ErrorCode::shape,
                   fmt::format("the width does not split into {} heads", ir::print(heads)));
  return *size;
}

Result<void> import_rotary(Importer& im, const Rotary& r, bool interleaved) {
  const Dims d = im.dims(r.x);
  if (d.size() != 3 && d.size() != 4)
    return im.fail(ErrorCode::shape, "the input must have 3 or 4 dims");
  const DType dtype = im.type(r.x).dtype;
  if (!is_float(dtype) || im.type(r.cos).dtype != im.type(r.sin).dtype)
    return im.fail(ErrorCode::bad_file, "input, cos and sin must be of a float type");
  if (im.rank(r.cos) < 2 || im.rank(r.cos) > 3)
    return im.fail(ErrorCode::shape, "the caches must have 2 or 3 dims");
  const auto columns = ir::as_int(im.dims(r.cos).back());
  if (!columns)
    return im.fail(ErrorCode::unsupported,
                   "the width of the cos cache must be known at compile time");
  if (*columns > kWidest)
    return im.fail(ErrorCode::shape,
                   fmt::format("a cos cache of width {} is not supported", *columns));
  TFCC_TRY(ExprRef head, head_of(im, r, d, *columns));
  const auto head_size = ir::as_int(head);
  if (!head_size)
    return im.fail(ErrorCode::unsupported, "the head size must be known at compile time");
  Rotation turn;
  turn.size = r.size > 0 ? r.size : *head_size;
  turn.interleaved = interleaved;
  if (turn.size % 2 != 0 || turn.size > *head_size || *columns != turn.size / 2) {
    return im.fail(ErrorCode::shape,
                   fmt::format("caches of width {} do not turn {} columns of heads of {}", *columns,
                               turn.size, *head_size));
  }
  // Heads side by side are turned one by one, for an index of both would run into the next head.
  const bool split = d.size() == 4;
  const Dims by_head = split ? d : Dims{d[0], ir::div(d[2], head), d[1], head};
  const Indices at = im.index_vars(by_head);
  TFCC_TRY(const Indices token, token_of(im, r, at[0], at[2], {by_head[0], by_head[2]}));
  const Scalar scalar = ir::scalar_of(dtype);
  auto angle = [&](ValueId cache) {
    return [&im, token, cache, scalar](ExprRef c) {
      Indices i = token;
      i.push_back(c);
      return ir::convert(im.element(cache, i), scalar);
    };
  };
  turn.cos = angle(r.cos);
  turn.sin = angle(r.sin);
  auto x = [&](ExprRef c) {
    if (split) return im.element(r.x, {at[0], at[1], at[2], c});
    return im.element(r.x, {at[0], at[2], ir::add(ir::mul(at[1], head), c)});
  };
  const ExprRef turned = rotated(turn, at[3], x);
  if (split) {
    im.define(0, turned, dtype, d);
    return {};
  }
  const ValueId heads = im.pointwise(turned, dtype, by_head, ".by_head");
  const Indices row = im.index_vars(d);
  im.define(0, im.element(heads, {row[0], ir::div(row[2], head), row[1], ir::mod(row[2], head)}),
            dtype, d);
  return {};
}

}  // namespace

Result<void> import_rotary_embedding(Importer& im) {
  Rotary r;
  TFCC_TRY(r.x, im.input(0));
  TFCC_TRY(r.cos, im.input(1));
  TFCC_TRY(r.sin, im.input(2));
  if (im.has_input(3)) {
    TFCC_TRY(r.positions, integer_input(im, 3, "position_ids"));
  }
  r.heads = im.attr_int("num_heads", 0);
  r.size = im.attr_int("rotary_embedding_dim", 0);
  if (im.rank(r.x) == 3 && r.heads <= 0)
    return im.fail(ErrorCode::bad_file, "a 3-D input needs num_heads");
  return import_rotary(im, r, im.attr_int("interleaved", 0) != 0);
}

namespace {

Result<Rotary> read_microsoft(Importer& im) {
  Rotary r;
  TFCC_TRY(r.x, im.input(0));
  TFCC_TRY(r.positions, integer_input(im, 1, "position_ids"));
  TFCC_TRY(r.cos, im.input(2));
  TFCC_TRY(r.sin, im.input(3));
  r.size = im.attr_int("rotary_embedding_dim", 0);
  r.heads = im.attr_int("num_heads", 0);
  if (r.size > 0 && r.heads <= 0 && im.rank(r.x) == 3)
    return im.fail(ErrorCode::bad_file, "rotary_embedding_dim needs num_heads");
  if (im.attr_float("scale", 1) != 1)
    return im.fail(ErrorCode::unsupported, "scale is not supported; scale the caches");
  if (im.attr_int("is_packed_batching", 0))
    return im.fail(ErrorCode::unsupported,
                   "is_packed_batching is not supported; export a padded batch");
  return r;
}

// Which of a token's positions (time, height, width) column c turns by: one section after the other,
// or every third column where the section has as many.
ExprRef stream_of(Importer& im, ExprRef c, const std::vector<int64_t>& sections, bool interleaved) {
  const auto below = [&](int64_t n) { return ir::lt(c, im.integer(n)); };
  const ExprRef t = im.integer(0), h = im.integer(1), w = im.integer(2);
  if (!interleaved)
    return ir::select(below(sections[0]), t, ir::select(below(sections[0] + sections[1]), h, w));
  const ExprRef third = ir::mod(c, im.integer(3));
  return ir::select(ir::logical_and(ir::eq(third, h), below(3 * sections[1])), h,
                    ir::select(ir::logical_and(ir::eq(third, w), below(3 * sections[2])), w, t));
}

}  // namespace

Result<void> import_microsoft_rotary_embedding(Importer& im) {
  TFCC_TRY(const Rotary r, read_microsoft(im));
  return import_rotary(im, r, im.attr_int("interleaved", 0) != 0);
}

// As a rotation by caches of each token, which are made first.
Result<void> import_microsoft_m_rotary_embedding(Importer& im) {
  TFCC_TRY(Rotary r, read_microsoft(im));
  const auto sections = im.attr_ints("mrope_section").value_or(std::vector<int64_t>{});
  const int64_t layout = im.attr_int("mrope_layout", 0);
  const Dims cache = im.dims(r.cos), tokens = im.dims(*r.positions);
  if (layout != 0 && layout != 1)
    return im.fail(ErrorCode::bad_file, fmt::format("mrope_layout {} is not known", layout));
  if (cache.size() != 2 || im.dims(r.sin) != cache)
    return im.fail(ErrorCode::shape, "cos and sin must be [positions, size / 2]");
  if (tokens.size() != 3 || !ir::is_int(tokens[0], 3))
    return im.fail(ErrorCode::shape, "position_ids must be [3, batch, length]");
  const int64_t columns = std::min(ir::as_int(cache[1]).value_or(-1), kWidest);
  const auto fits = [&](int64_t n) { return n >= 0 && n <= columns; };
  if (sections.size() != 3 || !std::all_of(sections.begin(), sections.end(), fits) ||
      sections[0] + sections[1] + sections[2] != columns)
    return im.fail(ErrorCode::bad_file, "mrope_section has not the columns of the caches");
  const Dims dims{tokens[1], tokens[2], cache[1]};
  const Indices at = im.index_vars(dims);
  const ExprRef p =
      im.element(*r.positions, {stream_of(im, at[2], sections, layout == 1), at[0], at[1]});
  TFCC_TRY(ExprRef row, im.gather_index(p, cache[0]));
  r.cos = im.pointwise(im.element(r.cos, {row, at[2]}), im.type(r.cos).dtype, dims, ".cos");
  r.sin = im.pointwise(im.element(r.sin, {row, at[2]}), im.type(r.sin).dtype, dims, ".sin");
  r.positions.reset();
  return import_rotary(im, r, im.attr_int("interleaved", 0) != 0);
}

}  // namespace tfcc::frontend
