// SPDX-License-Identifier: Apache-2.0
// Conv and ConvTranspose of any number of axes: windows of kernel size 1 are a matrix product of
// views, others gather their windows first (Conv) or are written as a sum over the kernel (one
// channel per group, ConvTranspose).
#include <fmt/format.h>

#include <algorithm>

#include "frontend/operators/elementwise.h"
#include "frontend/operators/norm.h"

namespace tfcc::frontend {
namespace {

struct Window {
  size_t axes = 0;  // spatial
  int64_t groups = 1, group_inputs = 0, outputs = 0;
  std::vector<int64_t> kernel, strides, dilations;
  Indices before, after;  // padding
  ValueId x, w;
  bool has_bias = false;
  ValueId bias;
};

std::vector<int64_t> attr_or(Importer& im, IntegersName name, size_t count, int64_t otherwise) {
  return im.attr_ints(name).value_or(std::vector<int64_t>(count, otherwise));
}

// Reads what Conv and ConvTranspose share; weights [first, second, kernel...].
Result<Window> read_window(Importer& im) {
  Window c;
  TFCC_TRY(c.x, im.input(0));
  TFCC_TRY(c.w, im.input(1));
  TFCC_TRY_VOID(require_float(im, c.x));
  const Dims d = im.dims(c.x), dw = im.dims(c.w);
  if (d.size() < 3 || dw.size() != d.size() || im.type(c.w).dtype != im.type(c.x).dtype) {
    return im.fail(ErrorCode::shape,
                   "input and weights must have one type and one rank, at least 3");
  }
  c.axes = d.size() - 2;
  for (size_t k = 0; k < c.axes; ++k) {
    const auto n = ir::as_int(dw[k + 2]);
    if (!n || *n < 1)
      return im.fail(ErrorCode::unsupported, "the kernel's size must be known at compile time");
    c.kernel.push_back(*n);
  }
  c.strides = attr_or(im, "strides", c.axes, 1);
  c.dilations = attr_or(im, "dilations", c.axes, 1);
  const std::vector<int64_t> pads = attr_or(im, "pads", 2 * c.axes, 0);
  if (c.strides.size() != c.axes || c.dilations.size() != c.axes || pads.size() != 2 * c.axes) {
    return im.fail(ErrorCode::bad_file, "strides, dilations or pads do not fit the kernel");
  }
  const auto bad = [](int64_t v) { return v < 1 || v > INT32_MAX; };
  if (std::any_of(c.strides.begin(), c.strides.end(), bad) ||
      std::any_of(c.dilations.begin(), c.dilations.end(), bad)) {
    return im.fail(ErrorCode::bad_file, "strides and dilations must be positive");
  }
  for (size_t k = 0; k < c.axes; ++k) {
    c.before.push_back(im.integer(pads[k]));
    c.after.push_back(im.integer(pads[c.axes + k]));
  }
  c.groups = im.attr_int("group", 1);
  c.has_bias = im.has_input(2);
  if (c.has_bias) {
    TFCC_TRY(c.bias, im.input(2));
  }
  if (c.groups < 1) return im.fail(ErrorCode::bad_file, "group must be positive");
  return c;
}

int64_t reach(const Window& c, size_t k) { return (c.kernel[k] - 1) * c.dilations[k] + 1; }

Result<Dims> conv_sizes(Importer& im, Window& c) {
  const Dims d = im.dims(c.x);
  const std::string auto_pad = im.attr_string("auto_pad", "NOTSET");
  if (auto_pad != "NOTSET" && auto_pad != "VALID" && auto_pad != "SAME_UPPER" &&
      auto_pad != "SAME_LOWER") {
    return im.fail(ErrorCode::bad_file,
                   fmt::format("auto_pad \"{}\" is not known", escaped(auto_pad)));
  }
  Dims out;
  for (size_t k = 0; k < c.axes; ++k) {
    const ExprRef n = d[k + 2], stride = im.integer(c.strides[k]), one = im.integer(1);
    if (auto_pad == "VALID") c.before[k] = c.after[k] = im.integer(0);
    if (auto_pad.starts_with("SAME")) {
      out.push_back(ir::div(ir::add(n, im.integer(c.strides[k] - 1)), stride));
      ExprRef span = ir::add(ir::mul(ir::sub(out.back(), one), stride), im.integer(reach(c, k)));
      ExprRef total = ir::max(ir::sub(span, n), im.integer(0));
      c.before[k] = ir::div(auto_pad == "SAME_UPPER" ? total : ir::add(total, one), im.integer(2));
      continue;
    }
    ExprRef room = ir::sub(ir::add(n, ir::add(c.before[k], c.after[k])), im.integer(reach(c, k)));
    TFCC_TRY_VOID(im.require_ge0(
        room, fmt::format("a window of {} does not fit {} elements", reach(c, k), ir::print(n))));
    out.push_back(ir::add(ir::div(room, stride), one));
  }
  return out;
}

// x where the window at `o` has its element `k`, 0 in the padding.
ExprRef seen(Importer& im, const Window& c, ExprRef n, ExprRef channel, const Indices& o,
             const Indices& k) {
  const Dims d = im.dims(c.x);
  Indices at{n, channel};
  ExprRef inside = im.pool().boolean(true);
  for (size_t a = 0; a < c.axes; ++a) {
    ExprRef i = ir::add(ir::mul(o[a], im.integer(c.strides[a])),
                        ir::sub(ir::mul(k[a], im.integer(c.dilations[a])), c.before[a]));
    inside =
        ir::logical_and(inside, ir::logical_and(ir::le(im.integer(0), i), ir::lt(i, d[a + 2])));
    at.push_back(i);
  }
  const ExprRef e = im.element(c.x, at);
  return ir::select(inside, e, zero_of(im, e->type));
}

ExprRef with_bias(Importer& im, const Window& c, ExprRef e, ExprRef channel) {
  return c.has_bias ? ir::add(e, im.element(c.bias, {channel})) : e;
}

Indices part(const Indices& all, size_t from, size_t count) {
  return Indices(all.begin() + from, all.begin() + from + count);
}

Dims kernel_dims(Importer& im, const Window& c) {
  Dims out;
  for (int64_t k : c.kernel) out.push_back(im.integer(k));
  return out;
}

// A sum over channels of the group and the kernel, element by element, without the bias.
ValueId sum_of_windows(Importer& im, const Window& c, const Dims& to, std::string_view suffix) {
  const Indices at = im.index_vars(to);
  Dims extents{im.integer(c.group_inputs)};
  for (ExprRef k : kernel_dims(im, c)) extents.push_back(k);
  const Indices r = variables(im, extents, to.size()), k = part(r, 1, c.axes);
  const ExprRef group = ir::div(at[1], im.integer(c.outputs / c.groups));
  const ExprRef channel = ir::add(ir::mul(group, im.integer(c.group_inputs)), r[0]);
  Indices weight{at[1], r[0]};
  weight.insert(weight.end(), k.begin(), k.end());
  const ExprRef body =
      ir::mul(seen(im, c, at[0], channel, part(at, 2, c.axes), k), im.element(c.w, weight));
  return reduction(im, ir::ReduceKind::sum, body, extents, {im.type(c.x).dtype, to}, suffix);
}

void define_sum(Importer& im, const Window& c, const Dims& to) {
  ValueId y = sum_of_windows(im, c, to, c.has_bias ? ".sum" : "");
  const Indices at = im.index_vars(to);
  if (c.has_bias) im.define(0, with_bias(im, c, im.element(y, at), at[1]), im.type(y).dtype, to);
  else im.define(0, y);
}

// Windows gathered into columns, times the weights as a matrix.
void define_product(Importer& im, const Window& c, const Dims& to) {
  const DType dtype = im.type(c.x).dtype;
  const ExprRef groups = im.integer(c.groups);
  Dims window{im.integer(c.group_inputs)};
  for (ExprRef k : kernel_dims(im, c)) window.push_back(k);
  const ExprRef rows = ir::element_count(im.pool(), window);
  const Dims space(to.begin() + 2, to.end());
  const ExprRef places = ir::element_count(im.pool(), space);
  const bool one_group = c.groups == 1;
  Dims columns_dims{to[0], groups, rows, places};
  if (one_group) columns_dims.erase(columns_dims.begin() + 1);
  const Indices at = im.index_vars(columns_dims);
  const size_t r = one_group ? 1 : 2;
  const Indices inner = ir::reshape_indices(im.pool(), {at[r]}, {rows}, window);
  const Indices o = ir::reshape_indices(im.pool(), {at[r + 1]}, {places}, space);
  const ExprRef channel =
      one_group ? inner[0] : ir::add(ir::mul(at[1], im.integer(c.group_inputs)), inner[0]);
  ValueId columns = im.pointwise(seen(im, c, at[0], channel, o, part(inner, 1, c.axes)), dtype,
                                 columns_dims, ".windows");
  const ExprRef group_outputs = im.integer(c.outputs / c.groups);
  ValueId weights =
      reshape(im, c.w, one_group ? Dims{group_outputs, rows} : Dims{groups, group_outputs, rows},
              ".weights");
  Dims product{to[0], groups, group_outputs, places};
  if (one_group) product.erase(product.begin() + 1);
  ValueId y = im.graph.add(ir::OpKind::matmul, {weights, columns}, ir::MatmulAttrs{},
                           {dtype, product}, im.value_name(0) + ".product", im.node->name);
  const Indices result = im.index_vars(to);
  const ExprRef place = ir::linear_index(im.pool(), part(result, 2, c.axes), space);
  Indices from{result[0], ir::div(result[1], group_outputs), ir::mod(result[1], group_outputs),
               place};
  if (one_group) from = {result[0], result[1], place};
  im.define(0, with_bias(im, c, im.element(y, from), result[1]), dtype, to);
}

}  // namespace

Result<void> import_conv(Importer& im) {
  TFCC_TRY(Window c, read_window(im));
  const Dims d = im.dims(c.x), dw = im.dims(c.w);
  const auto outputs = ir::as_int(dw[0]), inputs = ir::as_int(dw[1]);
  if (!outputs || !inputs)
    return im.fail(ErrorCode::unsupported, "the weights' shape must be known at compile time");
  c.outputs = *outputs;
  c.group_inputs = *inputs;
  if (c.outputs % c.groups != 0 || c.group_inputs < 1)
    return im.fail(ErrorCode::shape, "the output channels do not split into groups");
  TFCC_TRY([[maybe_unused]] ExprRef n,
           im.unify(d[1], im.integer(c.group_inputs * c.groups),
                    fmt::format("{} channels do not fit weights {}", ir::print(d[1]),
                                ir::to_string(im.type(c.w)))));
  if (c.has_bias) {
    if (im.rank(c.bias) != 1 || im.dims(c.bias)[0] != dw[0])
      return im.fail(ErrorCode::shape, "the bias does not fit the output channels");
  }
  TFCC_TRY(Dims space, conv_sizes(im, c));
  Dims to{d[0], dw[0]};
  to.insert(to.end(), space.begin(), space.end());
  if (c.group_inputs == 1 && c.groups > 1) define_sum(im, c, to);
  else define_product(im, c, to);
  return {};
}

namespace {

// Result dims of a transposed convolution; sets the padding.
Result<Dims> transposed_sizes(Importer& im, Window& c) {
  const Dims& d = im.dims(c.x);
  const std::string auto_pad = im.attr_string("auto_pad", "NOTSET");
  const std::vector<int64_t> more = attr_or(im, "output_padding", c.axes, 0);
  const auto shape = im.attr_ints("output_shape");
  if (more.size() != c.axes || (shape && shape->size() != c.axes))
    return im.fail(ErrorCode::bad_file, "output_padding or output_shape does not fit the kernel");
  Dims to{d[0], im.integer(c.outputs)};
  for (size_t k = 0; k < c.axes; ++k) {
    ExprRef full = ir::add(ir::mul(ir::sub(d[k + 2], im.integer(1)), im.integer(c.strides[k])),
                           im.integer(reach(c, k) + more[k]));
    if (shape || auto_pad.starts_with("SAME")) {
      to.push_back(shape ? im.integer((*shape)[k]) : ir::mul(d[k + 2], im.integer(c.strides[k])));
      ExprRef total = ir::max(im.integer(0), ir::sub(full, to.back())),
              half = ir::div(total, im.integer(2));
      c.before[k] = auto_pad == "SAME_UPPER" ? half : ir::sub(total, half);
    } else {
      if (auto_pad == "VALID") c.before[k] = c.after[k] = im.integer(0);
      to.push_back(ir::sub(full, ir::add(c.before[k], c.after[k])));
    }
    TFCC_TRY_VOID(im.require_ge0(to.back(), "the padding leaves no elements"));
  }
  return to;
}

}  // namespace

Result<void> import_conv_transpose(Importer& im) {
  TFCC_TRY(Window c, read_window(im));
  const Dims d = im.dims(c.x), dw = im.dims(c.w);
  const auto inputs = ir::as_int(dw[0]), group_outputs = ir::as_int(dw[1]);
  if (!inputs || !group_outputs || *inputs % c.groups != 0)
    return im.fail(ErrorCode::unsupported, "the weights' shape must be known and fit the groups");
  c.group_inputs = *inputs / c.groups;
  c.outputs = *group_outputs * c.groups;
  TFCC_TRY([[maybe_unused]] ExprRef n,
           im.unify(d[1], dw[0], "the channels do not fit the weights"));
  TFCC_TRY(const Dims to, transposed_sizes(im, c));
  // Output o takes input i through kernel element k where i * stride = o + before - k * dilation.
  const Indices at = im.index_vars(to);
  Dims extents{im.integer(c.group_inputs)};
  for (ExprRef k : kernel_dims(im, c)) extents.push_back(k);
  const Indices r = variables(im, extents, to.size());
  const ExprRef per_group = im.integer(*group_outputs),
                channel =
                    ir::add(ir::mul(ir::div(at[1], per_group), im.integer(c.group_inputs)), r[0]);
  Indices from{at[0], channel}, weight{channel, ir::mod(at[1], per_group)};
  ExprRef inside = im.pool().boolean(true);
  for (size_t k = 0; k < c.axes; ++k) {
    const ExprRef stride = im.integer(c.strides[k]);
    ExprRef position =
        ir::sub(ir::add(at[k + 2], c.before[k]), ir::mul(r[k + 1], im.integer(c.dilations[k])));
    ExprRef i = ir::div(position, stride);
    inside = ir::logical_and(inside, ir::eq(ir::mod(position, stride), im.integer(0)));
    inside =
        ir::logical_and(inside, ir::logical_and(ir::le(im.integer(0), i), ir::lt(i, d[k + 2])));
    from.push_back(i);
    weight.push_back(r[k + 1]);
  }
  const ExprRef term = ir::mul(im.element(c.x, from), im.element(c.w, weight));
  const Type type{im.type(c.x).dtype, to};
  ValueId y = reduction(im, ir::ReduceKind::sum, ir::select(inside, term, zero_of(im, term->type)),
                        extents, type, c.has_bias ? ".sum" : "");
  if (!c.has_bias) {
    im.define(0, y);
    return {};
  }
  if (im.rank(c.bias) != 1) return im.fail(ErrorCode::shape, "the bias must be a vector");
  TFCC_TRY([[maybe_unused]] ExprRef m,
           im.unify(im.dims(c.bias)[0], to[1], "the bias does not fit the output channels"));
  im.define(0, with_bias(im, c, im.element(y, at), at[1]), type.dtype, to);
  return {};
}

namespace {

// What com.microsoft has besides for CUDA: states of several tokens, slices of channels.
Result<void> refuse_other_states(Importer& im) {
  const auto refuse = [&](IntegerName name, int64_t usual) -> Result<void> {
    const int64_t value = im.attr_int(name, usual);
    if (value == usual) return {};
    return im.fail(ErrorCode::unsupported,
                   fmt::format("{} {} is not supported, only {}", name.name, value, usual));
  };
  TFCC_TRY_VOID(refuse("ndim", 1));
  TFCC_TRY_VOID(refuse("state_window", 0));
  TFCC_TRY_VOID(refuse("state_update_capacity", 0));
  TFCC_TRY_VOID(refuse("state_channels_last", -1));
  TFCC_TRY_VOID(refuse("state_length", 0));
  TFCC_TRY_VOID(refuse("input_channel_offset", 0));
  return refuse("input_channels", 0);
}

// [B,C,tokens]; `last`: of com.microsoft it may be [B,tokens,C].
Result<ValueId> by_channel(Importer& im, size_t input, bool last, std::string_view suffix) {
  TFCC_TRY(ValueId v, im.input(input));
  if (last && im.rank(v) == 3) return transpose(im, v, {0, 2, 1}, suffix);
  return v;
}

// So many tokens behind past_state, or zeros, a weight sees at most.
constexpr int64_t kMostReach = 1 << 20;

// Each token and those before it, of which the first may be in past_state.
Result<Window> read_causal_window(Importer& im, bool last) {
  Window c;
  TFCC_TRY(c.x, by_channel(im, 0, last, ".by_channel"));
  TFCC_TRY(c.w, im.input(1));
  TFCC_TRY_VOID(require_float(im, c.x));
  const Dims d = im.dims(c.x), dw = im.dims(c.w);
  const int64_t channels = dw.size() == 3 ? ir::as_int(dw[0]).value_or(0) : 0,
                taps = dw.size() == 3 ? ir::as_int(dw[2]).value_or(0) : 0;
  const std::string misfit = fmt::format("weights {} do not fit input {}",
                                         ir::to_string(im.type(c.w)), ir::to_string(im.type(c.x)));
  if (d.size() != 3 || channels < 1 || taps < 1 || im.type(c.w).dtype != im.type(c.x).dtype ||
      !ir::is_int(dw[1], 1)) {
    return im.fail(ErrorCode::shape, misfit);
  }
  TFCC_TRY([[maybe_unused]] ExprRef same, im.unify(d[1], dw[0], misfit));
  const int64_t dilation = im.attr_int("dilation", 1);
  if (dilation < 1 || dilation > kMostReach || taps - 1 > kMostReach / dilation)
    return im.fail(ErrorCode::bad_file, fmt::format("dilation {} is out of range", dilation));
  const int64_t reach = (taps - 1) * dilation;
  c.axes = 1, c.group_inputs = 1, c.groups = c.outputs = channels;
  c.kernel = {taps}, c.strides = {1}, c.dilations = {dilation};
  c.before = {im.integer(reach)}, c.after = {im.integer(0)};
  c.has_bias = im.has_input(2);
  if (c.has_bias) {
    TFCC_TRY(c.bias, im.input(2));
    if (im.rank(c.bias) != 1)
      return im.fail(ErrorCode::shape, "the bias does not fit the channels");
    TFCC_TRY([[maybe_unused]] ExprRef n,
             im.unify(im.dims(c.bias)[0], dw[0], "the bias does not fit the channels"));
  }
  if (!im.has_input(3)) return c;
  TFCC_TRY(ValueId past, by_channel(im, 3, last, ".past_by_channel"));
  const std::string short_past =
      fmt::format("past_state {} has not {} tokens", ir::to_string(im.type(past)), reach);
  if (im.rank(past) != 3) return im.fail(ErrorCode::shape, short_past);
  TFCC_TRY([[maybe_unused]] ExprRef n, im.unify(im.dims(past)[2], c.before[0], short_past));
  TFCC_TRY(c.x, concat(im, {past, c.x}, 2, ".with_past"));
  c.before = {im.integer(0)};
  return c;
}

}  // namespace

// Each channel over the tokens so far (opset 27, and of com.microsoft): x behind past_state, or behind
// zeros. What the next run has for its past_state are the last k - 1 of these.
Result<void> import_causal_conv_with_state(Importer& im) {
  const std::string activation = im.attr_string("activation", "none");
  if (activation != "none" && activation != "silu" && activation != "swish") {
    return im.fail(ErrorCode::bad_file,
                   fmt::format("activation \"{}\" is not known", escaped(activation)));
  }
  TFCC_TRY_VOID(refuse_other_states(im));
  const bool last = im.attr_int("channels_last", 0) != 0;
  TFCC_TRY(Window c, read_causal_window(im, last));
  const Dims given = im.dims(*im.input(0)),
             to{given[0], im.integer(c.outputs), given[last ? 1 : 2]};
  const DType dtype = im.type(c.x).dtype;
  const Indices at = im.index_vars(to);
  ExprRef y = with_bias(im, c, im.element(sum_of_windows(im, c, to, ".sum"), at), at[1]);
  if (activation != "none") y = ir::mul(y, sigmoid(y));
  const auto define = [&](size_t output, ExprRef e, const Dims& dims) {
    if (!last) {
      im.define(output, e, dtype, dims);
      return;
    }
    const ValueId value = im.pointwise(e, dtype, dims, fmt::format(".output{}", output));
    im.define(output, transpose(im, value, {0, 2, 1}, fmt::format(".rows{}", output)));
  };
  define(0, y, to);
  if (wants_output(im, 1)) {
    const Dims kept{to[0], to[1], im.integer((c.kernel[0] - 1) * c.dilations[0])};
    const Indices k = im.index_vars(kept);
    c.dilations = {1};
    define(1, seen(im, c, k[0], k[1], {to[2]}, {k[2]}), kept);
  }
  return {};
}

}  // namespace tfcc::frontend
