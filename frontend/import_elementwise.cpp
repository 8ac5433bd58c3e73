// SPDX-License-Identifier: Apache-2.0
// Elementwise operators: each is a function from scalars to a scalar under ONNX broadcasting.
#include <fmt/format.h>

#include "frontend/importer.h"

namespace tfcc::frontend {
namespace {

using ir::ExprKind;

template <class F>
Result<void> unary_op(Importer& im, F f) {
  TFCC_TRY(ValueId x, im.input(0));
  const Type t = im.type(x);
  const Indices at = im.index_vars(t.dims);
  im.define(0, f(im.element(x, at)), t.dtype, t.dims);
  return {};
}

Result<void> real_unary(Importer& im, ExprKind kind) {
  TFCC_TRY(ValueId x, im.input(0));
  if (!is_float(im.type(x).dtype)) {
    return im.fail(ErrorCode::unsupported, fmt::format("input has type {}; a float type is needed", to_string(im.type(x).dtype)));
  }
  return unary_op(im, [&](ExprRef e) { return ir::unary(kind, e); });
}

// f is called with the elements of both inputs and returns a Result; `boolean` makes the result a truth value.
template <class F>
Result<void> binary_op(Importer& im, bool boolean, F f) {
  TFCC_TRY(ValueId a, im.input(0));
  TFCC_TRY(ValueId b, im.input(1));
  if (im.type(a).dtype != im.type(b).dtype) {
    return im.fail(ErrorCode::bad_file, fmt::format("inputs have types {} and {}, which must be equal",
                                                    to_string(im.type(a).dtype), to_string(im.type(b).dtype)));
  }
  TFCC_TRY(Dims dims, im.broadcast(im.dims(a), im.dims(b)));
  const Indices at = im.index_vars(dims);
  TFCC_TRY(ExprRef body, Result<ExprRef>(f(im.broadcast_element(a, at), im.broadcast_element(b, at))));
  im.define(0, body, boolean ? DType::boolean : im.type(a).dtype, dims);
  return {};
}

// Max, Min: any number of inputs.
template <class F>
Result<void> fold_op(Importer& im, F f) {
  TFCC_TRY(ValueId first, im.input(0));
  const DType dtype = im.type(first).dtype;
  Dims dims = im.dims(first);
  for (size_t i = 1; i < im.node->inputs.size(); ++i) {
    TFCC_TRY(ValueId v, im.input(i));
    if (im.type(v).dtype != dtype) return im.fail(ErrorCode::bad_file, "inputs have different types");
    TFCC_TRY(dims, im.broadcast(dims, im.dims(v)));
  }
  const Indices at = im.index_vars(dims);
  ExprRef body = im.broadcast_element(first, at);
  for (size_t i = 1; i < im.node->inputs.size(); ++i) body = f(body, im.broadcast_element(*im.input(i), at));
  im.define(0, body, dtype, dims);
  return {};
}

// ONNX divides integers towards zero, the expression language downwards; the divisor must be known to be positive.
Result<ExprRef> integer_divide(Importer& im, ExprRef a, ExprRef b) {
  if (!ir::prove_ge0(ir::sub(b, im.integer(1)))) {
    return im.fail(ErrorCode::unsupported, "integer division needs a divisor that is known to be positive");
  }
  ExprRef down = ir::div(a, b);
  if (ir::prove_ge0(a)) return down;
  return ir::select(ir::le(im.integer(0), a), down, ir::neg(ir::div(ir::neg(a), b)));
}

constexpr int64_t kLargestIntegerPower = 16;

Result<ExprRef> power(Importer& im, ExprRef a, ExprRef b) {
  if (a->type != Scalar::i64) return ir::pow(a, ir::convert(b, a->type));
  std::optional<int64_t> n = ir::as_int(b);
  if (auto r = ir::as_real(b)) n = static_cast<double>(static_cast<int64_t>(*r)) == *r ? std::optional(static_cast<int64_t>(*r)) : n;
  if (!n || *n < 0 || *n > kLargestIntegerPower) {
    return im.fail(ErrorCode::unsupported, "an integer base needs a small constant exponent");
  }
  ExprRef p = im.integer(1);
  for (int64_t i = 0; i < *n; ++i) p = ir::mul(p, a);
  return p;
}

}  // namespace

Result<void> import_abs(Importer& im) { return unary_op(im, [](ExprRef e) { return ir::abs(e); }); }
Result<void> import_neg(Importer& im) { return unary_op(im, [](ExprRef e) { return ir::neg(e); }); }
Result<void> import_ceil(Importer& im) { return real_unary(im, ExprKind::ceil); }
Result<void> import_cos(Importer& im) { return real_unary(im, ExprKind::cos); }
Result<void> import_erf(Importer& im) { return real_unary(im, ExprKind::erf); }
Result<void> import_exp(Importer& im) { return real_unary(im, ExprKind::exp); }
Result<void> import_floor(Importer& im) { return real_unary(im, ExprKind::floor); }
Result<void> import_log(Importer& im) { return real_unary(im, ExprKind::log); }
Result<void> import_round(Importer& im) { return real_unary(im, ExprKind::rint); }
Result<void> import_sign(Importer& im) { return real_unary(im, ExprKind::sign); }
Result<void> import_sin(Importer& im) { return real_unary(im, ExprKind::sin); }
Result<void> import_sqrt(Importer& im) { return real_unary(im, ExprKind::sqrt); }
Result<void> import_tanh(Importer& im) { return real_unary(im, ExprKind::tanh); }

Result<void> import_reciprocal(Importer& im) {
  return unary_op(im, [&](ExprRef e) { return ir::div(im.pool().real(1, e->type), e); });
}

Result<void> import_sigmoid(Importer& im) {
  return unary_op(im, [&](ExprRef e) {
    ExprRef one = im.pool().real(1, e->type);
    return ir::div(one, ir::add(one, ir::unary(ExprKind::exp, ir::neg(e))));
  });
}

Result<void> import_relu(Importer& im) {
  return unary_op(im, [&](ExprRef e) { return ir::max(e, e->type == Scalar::i64 ? im.integer(0) : im.pool().real(0, e->type)); });
}

Result<void> import_add(Importer& im) { return binary_op(im, false, [](ExprRef a, ExprRef b) { return ir::add(a, b); }); }
Result<void> import_sub(Importer& im) { return binary_op(im, false, [](ExprRef a, ExprRef b) { return ir::sub(a, b); }); }
Result<void> import_mul(Importer& im) { return binary_op(im, false, [](ExprRef a, ExprRef b) { return ir::mul(a, b); }); }

Result<void> import_div(Importer& im) {
  return binary_op(im, false, [&](ExprRef a, ExprRef b) -> Result<ExprRef> {
    return a->type == Scalar::i64 ? integer_divide(im, a, b) : ir::div(a, b);
  });
}

Result<void> import_mod(Importer& im) {
  const bool c_style = im.attr_int("fmod", 0) != 0;
  return binary_op(im, false, [&](ExprRef a, ExprRef b) -> Result<ExprRef> {
    if (a->type != Scalar::i64) {
      if (!c_style) return im.fail(ErrorCode::bad_file, "Mod of floats needs fmod = 1");
      return ir::mod(a, b);
    }
    if (!ir::prove_ge0(ir::sub(b, im.integer(1)))) {
      return im.fail(ErrorCode::unsupported, "integer modulo needs a divisor that is known to be positive");
    }
    if (!c_style || ir::prove_ge0(a)) return ir::mod(a, b);
    return ir::select(ir::le(im.integer(0), a), ir::mod(a, b), ir::neg(ir::mod(ir::neg(a), b)));
  });
}

Result<void> import_pow(Importer& im) {
  TFCC_TRY(ValueId a, im.input(0));
  TFCC_TRY(ValueId b, im.input(1));
  TFCC_TRY(Dims dims, im.broadcast(im.dims(a), im.dims(b)));
  const Indices at = im.index_vars(dims);
  TFCC_TRY(ExprRef body, power(im, im.broadcast_element(a, at), im.broadcast_element(b, at)));
  im.define(0, body, im.type(a).dtype, dims);
  return {};
}

Result<void> import_max(Importer& im) { return fold_op(im, [](ExprRef a, ExprRef b) { return ir::max(a, b); }); }
Result<void> import_min(Importer& im) { return fold_op(im, [](ExprRef a, ExprRef b) { return ir::min(a, b); }); }

Result<void> import_clip(Importer& im) {
  TFCC_TRY(ValueId x, im.input(0));
  const Type t = im.type(x);
  ExprRef e = im.element(x, im.index_vars(t.dims));
  for (size_t i : {1, 2}) {
    if (!im.has_input(i)) continue;
    TFCC_TRY(ValueId bound, im.input(i));
    ExprRef limit = im.element(bound, Indices(im.rank(bound), im.integer(0)));
    e = i == 1 ? ir::max(e, limit) : ir::min(e, limit);
  }
  im.define(0, e, t.dtype, t.dims);
  return {};
}

Result<void> import_equal(Importer& im) { return binary_op(im, true, [](ExprRef a, ExprRef b) { return ir::eq(a, b); }); }
Result<void> import_greater(Importer& im) { return binary_op(im, true, [](ExprRef a, ExprRef b) { return ir::lt(b, a); }); }
Result<void> import_greater_or_equal(Importer& im) { return binary_op(im, true, [](ExprRef a, ExprRef b) { return ir::le(b, a); }); }
Result<void> import_less(Importer& im) { return binary_op(im, true, [](ExprRef a, ExprRef b) { return ir::lt(a, b); }); }
Result<void> import_less_or_equal(Importer& im) { return binary_op(im, true, [](ExprRef a, ExprRef b) { return ir::le(a, b); }); }

namespace {
Result<void> logic(Importer& im, ExprRef (*f)(ExprRef, ExprRef)) {
  return binary_op(im, true, [&](ExprRef a, ExprRef b) -> Result<ExprRef> {
    if (a->type != Scalar::boolean) return im.fail(ErrorCode::bad_file, "inputs must be bool");
    return f(a, b);
  });
}
}  // namespace

Result<void> import_and(Importer& im) { return logic(im, ir::logical_and); }
Result<void> import_or(Importer& im) { return logic(im, ir::logical_or); }

Result<void> import_not(Importer& im) {
  TFCC_TRY(ValueId x, im.input(0));
  if (im.type(x).dtype != DType::boolean) return im.fail(ErrorCode::bad_file, "input must be bool");
  return unary_op(im, [](ExprRef e) { return ir::logical_not(e); });
}

Result<void> import_is_nan(Importer& im) {
  TFCC_TRY(ValueId x, im.input(0));
  const Dims dims = im.dims(x);
  im.define(0, ir::is_nan(im.element(x, im.index_vars(dims))), DType::boolean, dims);
  return {};
}

Result<void> import_where(Importer& im) {
  TFCC_TRY(ValueId c, im.input(0));
  TFCC_TRY(ValueId a, im.input(1));
  TFCC_TRY(ValueId b, im.input(2));
  if (im.type(c).dtype != DType::boolean || im.type(a).dtype != im.type(b).dtype) {
    return im.fail(ErrorCode::bad_file, "Where needs a bool condition and two inputs of one type");
  }
  TFCC_TRY(Dims dims, im.broadcast(im.dims(a), im.dims(b)));
  TFCC_TRY(dims, im.broadcast(im.dims(c), dims));
  const Indices at = im.index_vars(dims);
  im.define(0, ir::select(im.broadcast_element(c, at), im.broadcast_element(a, at), im.broadcast_element(b, at)),
            im.type(a).dtype, dims);
  return {};
}

namespace {

// A type whose values lie in a wider one: rounded, or wrapped, to the narrow one.
Result<void> cast_to_packed(Importer& im, ValueId x, const ElementType& to) {
  const Dims dims = im.dims(x);
  ExprRef e = im.element(x, im.index_vars(dims));
  if (to.small_float) {
    if (e->type != Scalar::f64) e = ir::convert(e, Scalar::f32);
    e = ir::convert(round_to_small_float(e, *to.small_float, im.attr_int("saturate", 1) != 0), ir::scalar_of(to.value));
  } else {
    e = wrap_to_integer(ir::convert(e, Scalar::i64), to);
  }
  im.set_onnx_type(im.define(0, e, to.value, dims), to);
  return {};
}

}  // namespace

Result<void> import_cast(Importer& im) {
  TFCC_TRY(ValueId x, im.input(0));
  const int64_t to = im.attr_int("to", 0);
  const std::optional<DType> dtype = dtype_of_onnx(static_cast<int>(to));
  if (const auto packed = element_type(static_cast<int>(to)); !dtype && packed) return cast_to_packed(im, x, *packed);
  if (!dtype) return im.fail(ErrorCode::unsupported, fmt::format("cast to {} is not supported", onnx_type_name(static_cast<int>(to))));
  const Dims dims = im.dims(x);
  ExprRef e = ir::convert(im.element(x, im.index_vars(dims)), ir::scalar_of(*dtype));
  if (*dtype == DType::f16 && im.type(x).dtype != DType::f16) e = ir::unary(ExprKind::round_f16, e);
  if (*dtype == DType::bf16 && im.type(x).dtype != DType::bf16) e = ir::unary(ExprKind::round_bf16, e);
  im.define(0, e, *dtype, dims);
  return {};
}

Result<void> import_gelu(Importer& im) {
  TFCC_TRY(ValueId x, im.input(0));
  const std::string approximate = im.attr_string("approximate", "none");
  if (approximate != "none" && approximate != "tanh") {
    return im.fail(ErrorCode::unsupported, fmt::format("approximate = \"{}\" is not supported", escaped(approximate)));
  }
  const ir::GeluKind kind = approximate == "tanh" ? ir::GeluKind::tanh : ir::GeluKind::erf;
  im.define(0, im.graph.add(ir::OpKind::gelu, {x}, ir::GeluAttrs{kind}, im.type(x), im.value_name(0), im.node->name));
  return {};
}

Result<void> import_identity(Importer& im) {
  TFCC_TRY(ValueId x, im.input(0));
  im.define(0, x);
  return {};
}

Result<void> import_dropout(Importer& im) {
  TFCC_TRY(ValueId x, im.input(0));
  if (im.node->outputs.size() > 1 && !im.node->outputs[1].empty()) {
    return im.fail(ErrorCode::unsupported, "the mask output of Dropout is not supported; export for inference");
  }
  im.define(0, x);
  return {};
}

}  // namespace tfcc::frontend
