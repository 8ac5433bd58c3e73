// SPDX-License-Identifier: Apache-2.0
// LayerNormalization, GroupNormalization, InstanceNormalization: views of rows, a norm over them,
// and a scale. BatchNormalization: a scale alone.
#include <fmt/format.h>

#include <algorithm>

#include "frontend/operators/elementwise.h"
#include "frontend/operators/norm.h"
#include "ir/norm.h"

namespace tfcc::frontend {
namespace {

// x with the axes from `axis` on merged into one; the same value if there is nothing to merge.
ValueId merge_from(Importer& im, ValueId x, size_t axis, std::string_view suffix) {
  const Dims d = im.dims(x);
  if (axis + 1 == d.size()) return x;
  Dims to(d.begin(), d.begin() + axis);
  to.push_back(ir::element_count(im.pool(), Dims(d.begin() + axis, d.end())));
  return reshape(im, x, to, suffix);
}

// A scale or bias as a vector over the normalised axes, to which it may broadcast.
Result<ValueId> parameter(Importer& im, size_t i, const Dims& normalised, const Type& x) {
  TFCC_TRY(ValueId v, im.input(i));
  const auto misfit = [&] {
    return im.fail(ErrorCode::shape, fmt::format("scale {} does not fit {}",
                                                 ir::to_string(im.type(v)), ir::to_string(x)));
  };
  if (!is_float(im.type(v).dtype) || im.rank(v) > normalised.size()) return misfit();
  if (im.rank(v) == normalised.size()) {
    bool whole = true;
    for (size_t k = 0; k < normalised.size(); ++k)
      whole = whole && (normalised[k] == im.dims(v)[k] || !ir::is_int(im.dims(v)[k], 1));
    if (whole) {
      for (size_t k = 0; k < normalised.size(); ++k) {
        TFCC_TRY([[maybe_unused]] ExprRef n,
                 im.unify(im.dims(v)[k], normalised[k],
                          fmt::format("scale {} does not fit {}", ir::to_string(im.type(v)),
                                      ir::to_string(x))));
      }
      return merge_from(im, v, 0, i == 1 ? ".scale" : ".bias");
    }
  }
  TFCC_TRY(Dims all, im.broadcast(normalised, im.dims(v)));
  if (all != normalised) return misfit();
  ValueId full = im.pointwise(im.broadcast_element(v, im.index_vars(all)), im.type(v).dtype, all,
                              i == 1 ? ".full_scale" : ".full_bias");
  return merge_from(im, full, 0, i == 1 ? ".scale" : ".bias");
}

// Outputs Mean and InvStdDev of a layer norm: over the last axis of rows, reshaped.
void define_statistics(Importer& im, ValueId rows, const Dims& d, size_t axis, double eps) {
  if (!wants_output(im, 1) && !wants_output(im, 2)) return;
  const DType dtype = im.type(rows).dtype == DType::f64 ? DType::f64 : DType::f32;
  Dims outer(d.begin(), d.begin() + axis), shape = outer;
  shape.resize(d.size(), im.integer(1));
  const Indices at = im.index_vars(outer);
  Indices own = at;
  const ExprRef width = im.dims(rows).back();
  own.push_back(im.pool().index(static_cast<int64_t>(axis), width));
  const ExprRef e = im.element(rows, own);
  ValueId mean = reduction(im, ir::ReduceKind::mean, e, {width}, {dtype, outer}, ".mean");
  const ExprRef centred = ir::sub(e, im.element(mean, at));
  ValueId variance = reduction(im, ir::ReduceKind::mean, ir::mul(centred, centred), {width},
                               {dtype, outer}, ".variance");
  const Indices result = im.index_vars(shape);
  const Indices from(result.begin(), result.begin() + axis);
  if (wants_output(im, 1)) im.define(1, im.element(mean, from), dtype, shape);
  if (!wants_output(im, 2)) return;
  const ExprRef v = im.element(variance, from);
  const ExprRef deviation = ir::unary(ir::ExprKind::sqrt, ir::add(v, im.pool().real(eps, v->type)));
  im.define(2, ir::div(im.pool().real(1, v->type), deviation), dtype, shape);
}

// (x - mean) / deviation over the last axis of rows.
ValueId standardised(Importer& im, ValueId rows, double eps) {
  const Type type = im.type(rows);
  if (!ir::as_int(type.dims.back())) {  // the op wants rows of a known length
    const RowStatistics s = row_statistics(im, rows, static_cast<float>(eps), true);
    const Indices at = im.index_vars(type.dims);
    Indices row = at;
    row.back() = im.integer(0);
    const ExprRef centred = ir::sub(im.element(rows, at), im.element(s.mean, row));
    return im.pointwise(ir::mul(centred, im.element(s.inverse_deviation, row)), type.dtype,
                        type.dims, ".rows");
  }
  const ExprRef one = im.pool().real(1, ir::scalar_of(type.dtype));
  ValueId gamma = im.pointwise(one, type.dtype, {type.dims.back()}, ".ones");
  return ir::add_norm(im.graph, {ir::NormKind::layer, eps, gamma, std::nullopt}, rows, type,
                      im.value_name(0) + ".rows", im.node->name);
}

// A layer norm whose scale or bias has axes outside the normalised ones: rows alone, then both as
// they broadcast to all of x.
Result<void> scaled_in_place(Importer& im, ValueId x, size_t axis) {
  const Type whole = im.type(x);
  const Dims d = whole.dims;
  const ValueId rows = merge_from(im, x, axis, ".merged");
  const double eps = im.attr_float("epsilon", 1e-5f);
  ValueId y = standardised(im, rows, eps);
  if (axis + 1 != d.size()) y = reshape(im, y, d, ".standardised");
  const Indices at = im.index_vars(d);
  ExprRef e = im.element(y, at);
  for (size_t i = 1; i < 3; ++i) {
    if (!im.has_input(i)) continue;
    TFCC_TRY(ValueId v, im.input(i));
    const auto misfit = [&] {
      return im.fail(ErrorCode::shape,
                     fmt::format("{} {} does not fit {}", i == 1 ? "scale" : "bias",
                                 ir::to_string(im.type(v)), ir::to_string(whole)));
    };
    if (!is_float(im.type(v).dtype) || im.rank(v) > d.size()) return misfit();
    TFCC_TRY(const Dims all, im.broadcast(d, im.dims(v)));
    if (all != d) return misfit();
    const ExprRef own = ir::convert(im.broadcast_element(v, at), e->type);
    e = i == 1 ? ir::mul(e, own) : ir::add(e, own);
  }
  im.define(0, e, whole.dtype, d);
  define_statistics(im, rows, d, axis, eps);
  return {};
}

// x [N,C,...] normalised over `groups` groups of channels, then scaled: the scale has one number
// per channel or per group.
Result<void> normalise_groups(Importer& im, ExprRef groups, bool scale_per_group) {
  TFCC_TRY(ValueId x, im.input(0));
  TFCC_TRY(ValueId scale, im.input(1));
  TFCC_TRY(ValueId bias, im.input(2));
  TFCC_TRY_VOID(require_float(im, x));
  const Dims d = im.dims(x);
  if (d.size() < 2 || im.rank(scale) != 1 || im.rank(bias) != 1)
    return im.fail(ErrorCode::shape, "needs [N, C, ...] and vectors of scale and bias");
  const std::optional<ExprRef> channels = ir::exact_div(d[1], groups);
  if (!channels)
    return im.fail(ErrorCode::shape, fmt::format("{} channels do not make {} groups",
                                                 ir::print(d[1]), ir::print(groups)));
  for (ValueId v : {scale, bias}) {
    TFCC_TRY([[maybe_unused]] ExprRef n, im.unify(im.dims(v)[0], scale_per_group ? groups : d[1],
                                                  "scale and bias do not fit the channels"));
  }
  const ExprRef width =
      ir::mul(*channels, ir::element_count(im.pool(), Dims(d.begin() + 2, d.end())));
  const ValueId rows = reshape(im, x, {d[0], groups, width}, ".groups");
  const ValueId y =
      reshape(im, standardised(im, rows, im.attr_float("epsilon", 1e-5f)), d, ".standardised");
  const Indices at = im.index_vars(d);
  const ExprRef own = scale_per_group ? ir::div(at[1], *channels) : at[1];
  const ExprRef e = im.element(y, at);
  const auto number = [&](ValueId v) { return ir::convert(im.element(v, {own}), e->type); };
  im.define(0, ir::add(ir::mul(e, number(scale)), number(bias)), im.type(x).dtype, d);
  return {};
}

}  // namespace

Result<void> import_layer_normalization(Importer& im) {
  TFCC_TRY(ValueId x, im.input(0));
  TFCC_TRY_VOID(require_float(im, x));
  const Type whole = im.type(x);
  const Dims d = whole.dims;
  TFCC_TRY(size_t axis, im.axis_of(im.attr_int("axis", -1), d.size()));
  const Dims normalised(d.begin() + axis, d.end());
  const auto beyond = [&](size_t i) {
    if (!im.has_input(i)) return false;
    const Result<ValueId> v = im.input(i);
    return v && im.rank(*v) > normalised.size();
  };
  if (beyond(1) || beyond(2)) return scaled_in_place(im, x, axis);
  const ValueId rows = merge_from(im, x, axis, ".merged");
  ir::NormOf norm{
      .kind = ir::NormKind::layer, .eps = im.attr_float("epsilon", 1e-5f), .gamma = {}, .beta = {}};
  TFCC_TRY(norm.gamma, parameter(im, 1, normalised, whole));
  if (im.has_input(2)) {
    TFCC_TRY(norm.beta, parameter(im, 2, normalised, whole));
  }
  const bool merged = axis + 1 != d.size();
  const ValueId y = ir::add_norm(im.graph, norm, rows, im.type(rows),
                                 im.value_name(0) + (merged ? ".rows" : ""), im.node->name);
  im.define(0, merged ? reshape(im, y, d, "") : y);
  define_statistics(im, rows, d, axis, norm.eps);
  return {};
}

Result<void> import_group_normalization(Importer& im) {
  const int64_t groups = im.attr_int("num_groups", 0);
  if (groups < 1) return im.fail(ErrorCode::bad_file, "num_groups must be positive");
  return normalise_groups(im, im.integer(groups), im.opset < 21);
}

Result<void> import_batch_normalization(Importer& im) {
  if (im.attr_int("training_mode", 0) != 0)
    return im.fail(ErrorCode::unsupported,
                   "training_mode = 1 is for training; export the model in eval mode");
  TFCC_TRY(ValueId x, im.input(0));
  TFCC_TRY_VOID(require_float(im, x));
  const Dims d = im.dims(x);
  if (d.size() < 2) return im.fail(ErrorCode::shape, "needs [N, C, ...]");
  const Indices at = im.index_vars(d);
  const ExprRef e = im.element(x, at);
  std::vector<ExprRef> of_channel;
  for (size_t i = 1; i < 5; ++i) {
    TFCC_TRY(ValueId v, im.input(i));
    TFCC_TRY_VOID(require_float(im, v));
    if (im.rank(v) != 1)
      return im.fail(ErrorCode::shape, "scale, bias, mean and variance must be vectors");
    TFCC_TRY(
        [[maybe_unused]] ExprRef n,
        im.unify(im.dims(v)[0], d[1], "scale, bias, mean and variance do not fit the channels"));
    of_channel.push_back(ir::convert(im.element(v, {at[1]}), e->type));
  }
  const ExprRef eps = im.pool().real(im.attr_float("epsilon", 1e-5f), e->type);
  const ExprRef deviation = ir::unary(ir::ExprKind::sqrt, ir::add(of_channel[3], eps));
  im.define(
      0,
      ir::add(ir::mul(ir::div(ir::sub(e, of_channel[2]), deviation), of_channel[0]), of_channel[1]),
      im.type(x).dtype, d);
  return {};
}

Result<void> import_instance_normalization(Importer& im) {
  TFCC_TRY(ValueId x, im.input(0));
  if (im.rank(x) < 2) return im.fail(ErrorCode::shape, "needs [N, C, ...]");
  return normalise_groups(im, im.dims(x)[1], false);
}

// x over its norm along an axis, 0 where that is 0.
Result<void> import_lp_normalization(Importer& im) {
  TFCC_TRY(ValueId x, im.input(0));
  TFCC_TRY_VOID(require_float(im, x));
  const Dims d = im.dims(x);
  TFCC_TRY(size_t axis, im.axis_of(im.attr_int("axis", -1), d.size()));
  const int64_t p = im.attr_int("p", 2);
  if (p != 1 && p != 2) return im.fail(ErrorCode::bad_file, "p must be 1 or 2");
  const DType dtype = im.type(x).dtype == DType::f64 ? DType::f64 : DType::f32;
  Dims outer = d;
  outer.erase(outer.begin() + static_cast<std::ptrdiff_t>(axis));
  Indices own = im.index_vars(outer);
  own.insert(own.begin() + static_cast<std::ptrdiff_t>(axis),
             variables(im, {d[axis]}, outer.size())[0]);
  const ExprRef e = im.element(x, own);
  ValueId sum = reduction(im, ir::ReduceKind::sum, p == 1 ? ir::abs(e) : ir::mul(e, e), {d[axis]},
                          {dtype, outer}, ".sum");
  const Indices at = im.index_vars(d);
  Indices row = at;
  row.erase(row.begin() + static_cast<std::ptrdiff_t>(axis));
  const ExprRef of_row = im.element(sum, row), zero = im.pool().real(0, of_row->type);
  const ExprRef norm = p == 1 ? of_row : ir::unary(ir::ExprKind::sqrt, of_row);
  const ExprRef y = ir::div(ir::convert(im.element(x, at), of_row->type), norm);
  im.define(0, ir::select(ir::eq(of_row, zero), zero, y), im.type(x).dtype, d);
  return {};
}

}  // namespace tfcc::frontend
