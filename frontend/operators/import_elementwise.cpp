// SPDX-License-Identifier: Apache-2.0
// Elementwise operators: each is a function from scalars to a scalar under ONNX broadcasting.
#include <cmath>

#include "frontend/operators/elementwise.h"
#include "ir/gelu.h"

namespace tfcc::frontend {

using ir::ExprKind;

ValueId wide(Importer& im, ValueId v, std::string_view suffix) {
  if (im.type(v).dtype == DType::f32) return v;
  const Dims d = im.dims(v);
  return im.pointwise(im.element(v, im.index_vars(d)), DType::f32, d, suffix);
}

Result<void> require_float(Importer& im, ValueId v) {
  if (is_float(im.type(v).dtype)) return {};
  return im.fail(ErrorCode::unsupported, fmt::format("input has type {}; a float type is needed",
                                                     to_string(im.type(v).dtype)));
}

namespace {

Result<void> real_unary(Importer& im, ExprKind kind) {
  return float_op(im, [&](ExprRef e) { return ir::unary(kind, e); });
}

constexpr int64_t kLargestIntegerPower = 16;

ExprRef power(Importer& im, ExprRef a, ExprRef b) {
  if (a->type != Scalar::i64) return ir::pow(a, ir::convert(b, a->type));
  std::optional<int64_t> n = ir::as_int(b);
  if (auto r = ir::as_real(b); r && *r >= 0 && *r <= kLargestIntegerPower && *r == std::floor(*r))
    n = static_cast<int64_t>(*r);
  if (!n || *n < 0 || *n > kLargestIntegerPower) {
    // Exact while the result fits 53 bits.
    return ir::convert(ir::pow(ir::convert(a, Scalar::f64), ir::convert(b, Scalar::f64)),
                       Scalar::i64);
  }
  ExprRef p = im.integer(1);
  for (int64_t i = 0; i < *n; ++i) p = ir::mul(p, a);
  return p;
}

}  // namespace

Result<void> import_abs(Importer& im) {
  return unary_op(im, [](ExprRef e) { return ir::abs(e); });
}
Result<void> import_neg(Importer& im) {
  return unary_op(im, [](ExprRef e) { return ir::neg(e); });
}
Result<void> import_ceil(Importer& im) { return real_unary(im, ExprKind::ceil); }
Result<void> import_cos(Importer& im) { return real_unary(im, ExprKind::cos); }
Result<void> import_erf(Importer& im) { return real_unary(im, ExprKind::erf); }
Result<void> import_exp(Importer& im) { return real_unary(im, ExprKind::exp); }
Result<void> import_floor(Importer& im) { return real_unary(im, ExprKind::floor); }
Result<void> import_log(Importer& im) { return real_unary(im, ExprKind::log); }
Result<void> import_round(Importer& im) { return real_unary(im, ExprKind::rint); }
Result<void> import_sin(Importer& im) { return real_unary(im, ExprKind::sin); }
Result<void> import_sqrt(Importer& im) { return real_unary(im, ExprKind::sqrt); }
Result<void> import_tanh(Importer& im) { return real_unary(im, ExprKind::tanh); }

Result<void> import_sign(Importer& im) {
  return unary_op(im, [&](ExprRef e) {
    if (e->type != Scalar::i64) return ir::unary(ExprKind::sign, e);
    return ir::max(im.integer(-1), ir::min(im.integer(1), e));
  });
}

Result<void> import_reciprocal(Importer& im) {
  return float_op(im, [&](ExprRef e) { return ir::div(im.pool().real(1, e->type), e); });
}

Result<void> import_sigmoid(Importer& im) {
  return float_op(im, [&](ExprRef e) {
    ExprRef one = im.pool().real(1, e->type);
    return ir::div(one, ir::add(one, ir::unary(ExprKind::exp, ir::neg(e))));
  });
}

Result<void> import_relu(Importer& im) {
  return unary_op(im, [&](ExprRef e) {
    return ir::max(e, e->type == Scalar::i64 ? im.integer(0) : im.pool().real(0, e->type));
  });
}

Result<void> import_add(Importer& im) {
  return binary_op(im, false, [](ExprRef a, ExprRef b) { return ir::add(a, b); });
}
Result<void> import_sub(Importer& im) {
  return binary_op(im, false, [](ExprRef a, ExprRef b) { return ir::sub(a, b); });
}
Result<void> import_mul(Importer& im) {
  return binary_op(im, false, [](ExprRef a, ExprRef b) { return ir::mul(a, b); });
}

Result<void> import_pow(Importer& im) {
  TFCC_TRY(ValueId a, im.input(0));
  TFCC_TRY(ValueId b, im.input(1));
  TFCC_TRY(Dims dims, im.broadcast(im.dims(a), im.dims(b)));
  const Indices at = im.index_vars(dims);
  ExprRef body = power(im, im.broadcast_element(a, at), im.broadcast_element(b, at));
  im.define(0, narrowed(im, body, im.type(a).dtype), im.type(a).dtype, dims);
  return {};
}

namespace {
ExprRef same(ExprRef e) { return e; }
}  // namespace

Result<void> import_max(Importer& im) { return fold_op(im, ir::max, same); }
Result<void> import_min(Importer& im) { return fold_op(im, ir::min, same); }

Result<void> import_sum(Importer& im) {
  TFCC_TRY(ValueId x, im.input(0));
  TFCC_TRY_VOID(require_float(im, x));
  return fold_op(im, ir::add, same);
}

Result<void> import_mean(Importer& im) {
  TFCC_TRY(ValueId x, im.input(0));
  TFCC_TRY_VOID(require_float(im, x));
  const double count = static_cast<double>(im.node->inputs.size());
  return fold_op(im, ir::add,
                 [&](ExprRef e) { return ir::div(e, im.pool().real(count, e->type)); });
}

Result<void> import_clip(Importer& im) {
  TFCC_TRY(ValueId x, im.input(0));
  const Type t = im.type(x);
  ExprRef e = im.element(x, im.index_vars(t.dims));
  for (size_t i : {1, 2}) {
    if (!im.has_input(i)) continue;
    TFCC_TRY(ValueId bound, im.input(i));
    if (im.type(bound).dtype != t.dtype)
      return im.fail(ErrorCode::bad_file, "the bounds have another type than the input");
    TFCC_TRY(ExprRef limit, im.scalar(bound, i == 1 ? "min" : "max"));
    e = i == 1 ? ir::max(e, limit) : ir::min(e, limit);
  }
  im.define(0, e, t.dtype, t.dims);
  return {};
}

Result<void> import_equal(Importer& im) {
  return binary_op(im, true, [](ExprRef a, ExprRef b) { return ir::eq(a, b); });
}
Result<void> import_greater(Importer& im) {
  return binary_op(im, true, [](ExprRef a, ExprRef b) { return ir::lt(b, a); });
}
Result<void> import_greater_or_equal(Importer& im) {
  return binary_op(im, true, [](ExprRef a, ExprRef b) { return ir::le(b, a); });
}
Result<void> import_less(Importer& im) {
  return binary_op(im, true, [](ExprRef a, ExprRef b) { return ir::lt(a, b); });
}
Result<void> import_less_or_equal(Importer& im) {
  return binary_op(im, true, [](ExprRef a, ExprRef b) { return ir::le(a, b); });
}

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
Result<void> import_xor(Importer& im) {
  return logic(im, [](ExprRef a, ExprRef b) { return ir::logical_not(ir::eq(a, b)); });
}

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
  im.define(0,
            ir::select(im.broadcast_element(c, at), im.broadcast_element(a, at),
                       im.broadcast_element(b, at)),
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
    e = ir::convert(round_to_small_float(e, *to.small_float, im.attr_int("saturate", 1) != 0),
                    ir::scalar_of(to.value));
  } else {
    e = wrap_to_integer(ir::convert(e, Scalar::i64), to);
  }
  im.set_onnx_type(im.define(0, e, to.value, dims), to);
  return {};
}

// Converted, and rounded once where the result has 16 bits.
ExprRef rounded_once(ExprRef e, DType from, DType to) {
  const bool to_half = to == DType::f16 && from != DType::f16,
             to_bf16 = to == DType::bf16 && from != DType::bf16;
  if (e->type != Scalar::f64) e = ir::convert(e, ir::scalar_of(to));
  if (to_half) e = ir::unary(ExprKind::round_f16, e);
  if (to_bf16) e = ir::unary(ExprKind::round_bf16, e);
  return ir::convert(e, ir::scalar_of(to));
}

Result<void> cast_to(Importer& im, int onnx_type) {
  TFCC_TRY(ValueId x, im.input(0));
  const std::optional<DType> dtype = dtype_of_onnx(onnx_type);
  if (const auto packed = element_type(onnx_type); !dtype && packed)
    return cast_to_packed(im, x, *packed);
  if (!dtype)
    return im.fail(ErrorCode::unsupported,
                   fmt::format("cast to {} is not supported", onnx_type_name(onnx_type)));
  const Dims dims = im.dims(x);
  const ExprRef e = rounded_once(im.element(x, im.index_vars(dims)), im.type(x).dtype, *dtype);
  im.define(0, narrowed(im, e, *dtype), *dtype, dims);
  return {};
}

}  // namespace

Result<void> import_cast(Importer& im) { return cast_to(im, im.attr_type("to")); }

Result<void> import_cast_like(Importer& im) {
  TFCC_TRY(ValueId like, im.input(1));
  return cast_to(im, im.onnx_type(like));
}

Result<void> import_gelu(Importer& im) {
  TFCC_TRY(ValueId x, im.input(0));
  const std::string approximate = im.attr_string("approximate", "none");
  if (approximate != "none" && approximate != "tanh") {
    return im.fail(ErrorCode::unsupported,
                   fmt::format("approximate = \"{}\" is not supported", escaped(approximate)));
  }
  const ir::GeluKind kind = approximate == "tanh" ? ir::GeluKind::tanh : ir::GeluKind::erf;
  im.define(0, ir::gelu_of(im.element(x, im.index_vars(im.dims(x))), kind), im.type(x).dtype,
            im.dims(x));
  return {};
}

Result<void> import_identity(Importer& im) {
  TFCC_TRY(ValueId x, im.input(0));
  im.define(0, x);
  return {};
}

Result<void> import_dropout(Importer& im) {
  TFCC_TRY(ValueId x, im.input(0));
  if (im.has_input(2)) {
    TFCC_TRY(ValueId mode, im.input(2));
    TFCC_TRY(ExprRef training, im.scalar(mode, "training_mode"));
    training = im.resolved(training);
    bool keeps_all = false;
    if (im.has_input(1)) {
      TFCC_TRY(ValueId ratio, im.input(1));
      TFCC_TRY(ExprRef share, im.scalar(ratio, "ratio"));
      keeps_all = ir::as_real(im.resolved(share)) == 0.0;
    }
    if (training != im.pool().boolean(false) && !keeps_all)
      return im.fail(ErrorCode::unsupported,
                     "Dropout in training mode is not supported; export for inference");
  }
  im.define(0, x);
  if (im.node->outputs.size() > 1 && !im.node->outputs[1].empty()) {
    im.define(1, im.pool().boolean(true), DType::boolean, im.dims(x));  // nothing is dropped
  }
  return {};
}

}  // namespace tfcc::frontend
