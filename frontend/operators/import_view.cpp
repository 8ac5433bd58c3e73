// SPDX-License-Identifier: Apache-2.0
// More operators that move elements: Tile, Pad, Trilu, EyeLike, DepthToSpace, SpaceToDepth,
// ReverseSequence.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "frontend/import/importer.h"

namespace tfcc::frontend {

Result<void> import_tile(Importer& im) {
  TFCC_TRY(ValueId x, im.input(0));
  TFCC_TRY(ValueId r, im.input(1));
  TFCC_TRY(auto repeats, im.sizes(r, "repeats"));
  const Dims d = im.dims(x);
  if (repeats.size() != d.size())
    return im.fail(ErrorCode::shape,
                   fmt::format("{} repeats for an input of rank {}", repeats.size(), d.size()));
  Dims to;
  for (size_t k = 0; k < d.size(); ++k) {
    TFCC_TRY_VOID(
        im.require_ge0(repeats[k], fmt::format("repeats {} is negative", ir::print(repeats[k]))));
    to.push_back(ir::mul(d[k], repeats[k]));
  }
  Indices at = im.index_vars(to);
  for (size_t k = 0; k < d.size(); ++k) {
    if (ir::is_int(d[k], 1)) at[k] = im.integer(0);
    else if (!ir::is_int(repeats[k], 1)) at[k] = ir::mod(at[k], d[k]);
  }
  im.define(0, im.element(x, at), im.type(x).dtype, to);
  return {};
}

namespace {

enum class PadMode { constant, edge, reflect, wrap };

Result<PadMode> pad_mode(Importer& im) {
  const std::string name = im.attr_string("mode", "constant");
  const std::pair<const char*, PadMode> known[] = {{"constant", PadMode::constant},
                                                   {"edge", PadMode::edge},
                                                   {"reflect", PadMode::reflect},
                                                   {"wrap", PadMode::wrap}};
  for (const auto& [text, mode] : known) {
    if (name == text) return mode;
  }
  return im.fail(ErrorCode::unsupported,
                 fmt::format("mode \"{}\" is not supported", escaped(name)));
}

// Where the element at i, which may lie outside [0, n), comes from; n >= 1.
ExprRef padded_from(Importer& im, PadMode mode, ExprRef i, ExprRef n) {
  if (mode == PadMode::wrap) return ir::mod(i, n);
  if (mode == PadMode::edge) return clamped(i, n);
  // Reflection has the period 2 (n - 1); a single element is its own reflection.
  ExprRef last = ir::sub(n, im.integer(1)), period = ir::mul(im.integer(2), last);
  ExprRef m = ir::mod(i, ir::max(period, im.integer(1)));
  return clamped(ir::min(m, ir::sub(period, m)), n);
}

}  // namespace

Result<void> import_pad(Importer& im) {
  TFCC_TRY(ValueId x, im.input(0));
  TFCC_TRY(ValueId p, im.input(1));
  TFCC_TRY(auto pads, im.sizes(p, "pads"));
  TFCC_TRY(PadMode mode, pad_mode(im));
  const Dims d = im.dims(x);
  std::vector<int64_t> axes;
  for (size_t k = 0; k < d.size(); ++k) axes.push_back(static_cast<int64_t>(k));
  if (im.has_input(3)) {
    TFCC_TRY(ValueId v, im.input(3));
    TFCC_TRY(axes, im.numbers(v, "axes"));
  }
  if (pads.size() != 2 * axes.size())
    return im.fail(ErrorCode::shape, fmt::format("{} pads for {} axes", pads.size(), axes.size()));
  ExprRef value = zero_of(im, ir::scalar_of(im.type(x).dtype));
  if (im.has_input(2)) {
    TFCC_TRY(ValueId v, im.input(2));
    if (im.type(v).dtype != im.type(x).dtype)
      return im.fail(ErrorCode::bad_file, "constant_value has another type than the input");
    TFCC_TRY(value, im.scalar(v, "constant_value"));
  }
  Dims to = d;
  Indices before(d.size(), im.integer(0));
  for (size_t k = 0; k < axes.size(); ++k) {
    TFCC_TRY(size_t axis, im.axis_of(axes[k], d.size()));
    before[axis] = pads[k];
    to[axis] = ir::add(d[axis], ir::add(pads[k], pads[axes.size() + k]));
    TFCC_TRY_VOID(im.require_ge0(to[axis], fmt::format("pads leave {} elements of {}",
                                                       ir::print(to[axis]), ir::print(d[axis]))));
  }
  Indices at = im.index_vars(to);
  // With a truth value the choice becomes an "and", which evaluates both sides: the index stays
  // inside by itself.
  const bool eager = im.type(x).dtype == DType::boolean;
  ExprRef inside = im.pool().boolean(true);
  for (size_t k = 0; k < d.size(); ++k) {
    if (to[k] == d[k] && ir::is_int(before[k], 0)) continue;
    at[k] = ir::sub(at[k], before[k]);
    if (mode == PadMode::constant)
      inside = ir::logical_and(inside,
                               ir::logical_and(ir::le(im.integer(0), at[k]), ir::lt(at[k], d[k])));
    else at[k] = padded_from(im, mode, at[k], d[k]);
    if (eager) at[k] = clamped(at[k], d[k]);
  }
  im.define(0, ir::select(inside, im.element(x, at), value), im.type(x).dtype, to);
  return {};
}

Result<void> import_trilu(Importer& im) {
  TFCC_TRY(ValueId x, im.input(0));
  const Dims d = im.dims(x);
  if (d.size() < 2) return im.fail(ErrorCode::shape, "input must be a matrix or a batch of them");
  ExprRef k = im.integer(0);
  if (im.has_input(1)) {
    TFCC_TRY(ValueId v, im.input(1));
    if (!is_integer(im.type(v).dtype)) return im.fail(ErrorCode::bad_file, "k must be an integer");
    TFCC_TRY(k, im.scalar(v, "k"));
  }
  const Indices at = im.index_vars(d);
  const ExprRef column = at.back(), diagonal = ir::add(at[at.size() - 2], k);
  const ExprRef kept =
      im.attr_int("upper", 1) ? ir::le(diagonal, column) : ir::le(column, diagonal);
  const ExprRef e = im.element(x, at);
  im.define(0, ir::select(kept, e, zero_of(im, e->type)), im.type(x).dtype, d);
  return {};
}

Result<void> import_eye_like(Importer& im) {
  TFCC_TRY(ValueId x, im.input(0));
  const Dims d = im.dims(x);
  if (d.size() != 2) return im.fail(ErrorCode::shape, "input must be a matrix");
  DType dtype = im.type(x).dtype;
  if (im.node->find("dtype")) {
    const int to = im.attr_type("dtype");
    const std::optional<DType> known = dtype_of_onnx(to);
    if (!known)
      return im.fail(ErrorCode::unsupported,
                     fmt::format("type {} is not supported", onnx_type_name(to)));
    dtype = *known;
  }
  const Indices at = im.index_vars(d);
  ExprRef hit = ir::eq(ir::sub(at[1], at[0]), im.integer(im.attr_int("k", 0)));
  im.define(0, ir::convert(hit, ir::scalar_of(dtype)), dtype, d);
  return {};
}

namespace {

Result<int64_t> block_size(Importer& im, ValueId x) {
  const int64_t b = im.attr_int("blocksize", 0);
  if (im.rank(x) != 4 || b < 1 || b > (1 << 20))
    return im.fail(ErrorCode::shape, "input must be of rank 4 and blocksize positive");
  return b;
}

Result<ExprRef> quotient(Importer& im, ExprRef n, int64_t by) {
  std::optional<ExprRef> q = ir::exact_div(n, im.integer(by));
  if (!q)
    return im.fail(ErrorCode::shape,
                   fmt::format("size {} is not a multiple of {}", ir::print(n), by));
  return *q;
}

}  // namespace

Result<void> import_depth_to_space(Importer& im) {
  TFCC_TRY(ValueId x, im.input(0));
  TFCC_TRY(int64_t b, block_size(im, x));
  const Dims d = im.dims(x);
  TFCC_TRY(ExprRef channels, quotient(im, d[1], b * b));
  const ExprRef block = im.integer(b);
  const Dims to{d[0], channels, ir::mul(d[2], block), ir::mul(d[3], block)};
  const Indices at = im.index_vars(to);
  const ExprRef offset = ir::add(ir::mul(ir::mod(at[2], block), block), ir::mod(at[3], block));
  const bool columns_first = im.attr_string("mode", "DCR") == "CRD";
  const ExprRef channel = columns_first ? ir::add(ir::mul(at[1], im.integer(b * b)), offset)
                                        : ir::add(ir::mul(offset, channels), at[1]);
  im.define(0, im.element(x, {at[0], channel, ir::div(at[2], block), ir::div(at[3], block)}),
            im.type(x).dtype, to);
  return {};
}

Result<void> import_space_to_depth(Importer& im) {
  TFCC_TRY(ValueId x, im.input(0));
  TFCC_TRY(int64_t b, block_size(im, x));
  const Dims d = im.dims(x);
  TFCC_TRY(ExprRef height, quotient(im, d[2], b));
  TFCC_TRY(ExprRef width, quotient(im, d[3], b));
  const ExprRef block = im.integer(b);
  const Dims to{d[0], ir::mul(d[1], im.integer(b * b)), height, width};
  const Indices at = im.index_vars(to);
  const bool columns_first = im.attr_string("mode", "DCR") == "CRD";  // opset 28
  const ExprRef inner = columns_first ? im.integer(b * b) : d[1];
  ExprRef offset = ir::div(at[1], inner), channel = ir::mod(at[1], inner);
  if (columns_first) std::swap(offset, channel);
  const ExprRef row = ir::add(ir::mul(at[2], block), ir::div(offset, block));
  const ExprRef column = ir::add(ir::mul(at[3], block), ir::mod(offset, block));
  im.define(0, im.element(x, {at[0], channel, row, column}), im.type(x).dtype, to);
  return {};
}

Result<void> import_reverse_sequence(Importer& im) {
  TFCC_TRY(ValueId x, im.input(0));
  TFCC_TRY(ValueId lengths, im.input(1));
  const Dims d = im.dims(x);
  TFCC_TRY(size_t time, im.axis_of(im.attr_int("time_axis", 0), d.size()));
  TFCC_TRY(size_t batch, im.axis_of(im.attr_int("batch_axis", 1), d.size()));
  if (time == batch || im.rank(lengths) != 1 || !is_integer(im.type(lengths).dtype)) {
    return im.fail(ErrorCode::shape, "needs two axes and a vector of lengths");
  }
  TFCC_TRY([[maybe_unused]] ExprRef n,
           im.unify(d[batch], im.dims(lengths)[0], "one length per sequence is needed"));
  const Indices at = im.index_vars(d);
  const ExprRef length = im.element(lengths, {at[batch]}),
                mirrored = ir::sub(ir::sub(length, im.integer(1)), at[time]);
  Indices from = at;
  from[time] = clamped(mirrored, d[time]);
  im.define(0, ir::select(ir::lt(at[time], length), im.element(x, from), im.element(x, at)),
            im.type(x).dtype, d);
  return {};
}

}  // namespace tfcc::frontend
