// SPDX-License-Identifier: Apache-2.0
// Operators on quantised tensors that ONNX Runtime's static quantiser writes in its operator form:
// QLinearAdd and relatives. Each is the operator on the dequantised inputs, quantised: y =
// saturate(round(f((a - a_zero) * a_scale, ...) / y_scale) + y_zero).
#include <fmt/format.h>

#include "frontend/import/importer.h"

namespace tfcc::frontend {
namespace {

// A tensor of 8 or 16 bits with a scale and, perhaps, a zero point for all of it.
struct Quantised {
  ValueId values, scale;
  std::optional<ValueId> zero;
};

ExprRef single(Importer& im, ValueId v) {
  return im.element(v, Indices(im.rank(v), im.integer(0)));
}

Result<void> check_scale(Importer& im, ValueId scale, const std::optional<ValueId>& zero) {
  if (im.type(scale).dtype != DType::f32) return im.fail(ErrorCode::bad_file, "a scale is not f32");
  if (is_single(im, scale) && (!zero || is_single(im, *zero))) return {};
  return im.fail(ErrorCode::unsupported, "a scale or zero point has more than one element");
}

// Inputs `first`, first + 1 and first + 2: values, scale and zero point.
Result<Quantised> quantised_input(Importer& im, size_t first) {
  Quantised q;
  TFCC_TRY(q.values, im.input(first));
  TFCC_TRY(q.scale, im.input(first + 1));
  if (im.has_input(first + 2)) {
    TFCC_TRY(q.zero, im.input(first + 2));
  }
  TFCC_TRY_VOID(check_scale(im, q.scale, q.zero));
  const DType t = im.type(q.values).dtype;
  if (!is_integer(t) || size_of(t) > 2)
    return im.fail(ErrorCode::bad_file,
                   fmt::format("input has type {}; 8 or 16 bits are needed", to_string(t)));
  if (q.zero && im.type(*q.zero).dtype != t)
    return im.fail(ErrorCode::bad_file, "a zero point has another type than its tensor");
  return q;
}

// The real that element `at`, under broadcasting, stands for.
ExprRef real_of(Importer& im, const Quantised& q, const Indices& at) {
  ExprRef e = im.broadcast_element(q.values, at);
  if (q.zero) e = ir::sub(e, single(im, *q.zero));
  return ir::mul(ir::convert(e, Scalar::f32), single(im, q.scale));
}

// Defines the output: `body` over `dims` in the quantisation of inputs `scale` and scale + 1;
// `like` has its type if there is no zero point.
Result<void> define_quantised(Importer& im, ExprRef body, const Dims& dims, size_t scale,
                              ValueId like) {
  TFCC_TRY(ValueId divisor, im.input(scale));
  std::optional<ValueId> zero;
  if (im.has_input(scale + 1)) {
    TFCC_TRY(zero, im.input(scale + 1));
  }
  TFCC_TRY_VOID(check_scale(im, divisor, zero));
  const std::optional<ElementType> t = element_type(im.onnx_type(zero ? *zero : like));
  if (!t || !t->is_integer())
    return im.fail(ErrorCode::bad_file, "the zero point of the result is of no integer type");
  ExprRef offset = zero ? single(im, *zero) : nullptr;
  im.set_onnx_type(
      im.define(0, requantised(ir::div(body, single(im, divisor)), offset, *t), t->value, dims),
      *t);
  return {};
}

template <class F> Result<void> unary(Importer& im, F f) {
  TFCC_TRY(Quantised x, quantised_input(im, 0));
  const Dims dims = im.dims(x.values);
  return define_quantised(im, f(real_of(im, x, im.index_vars(dims))), dims, 3, x.values);
}

template <class F> Result<void> binary(Importer& im, F f) {
  TFCC_TRY(Quantised a, quantised_input(im, 0));
  TFCC_TRY(Quantised b, quantised_input(im, 3));
  TFCC_TRY(Dims dims, im.broadcast(im.dims(a.values), im.dims(b.values)));
  const Indices at = im.index_vars(dims);
  return define_quantised(im, f(real_of(im, a, at), real_of(im, b, at)), dims, 6, a.values);
}

}  // namespace

Result<void> import_microsoft_qlinear_add(Importer& im) {
  return binary(im, [](ExprRef a, ExprRef b) { return ir::add(a, b); });
}

Result<void> import_microsoft_qlinear_mul(Importer& im) {
  return binary(im, [](ExprRef a, ExprRef b) { return ir::mul(a, b); });
}

Result<void> import_microsoft_qlinear_sigmoid(Importer& im) {
  ExprRef one = im.pool().real(1);
  return unary(im, [&](ExprRef x) {
    return ir::div(one, ir::add(one, ir::unary(ir::ExprKind::exp, ir::neg(x))));
  });
}

Result<void> import_microsoft_qlinear_leaky_relu(Importer& im) {
  ExprRef zero = im.pool().real(0), alpha = im.pool().real(im.attr_float("alpha", 0.01f));
  return unary(im, [&](ExprRef x) { return ir::select(ir::lt(x, zero), ir::mul(alpha, x), x); });
}

// Attribute `opset` is that of the Softmax which it replaces. A probability that the result cannot
// hold saturates, as in QuantizeLinear; onnxruntime turns the 1 of a row of one element into 0 at a
// scale of 1/256.
Result<void> import_microsoft_qlinear_softmax(Importer& im) {
  TFCC_TRY(Quantised x, quantised_input(im, 0));
  const Dims dims = im.dims(x.values);
  TFCC_TRY(const size_t axis, im.axis_of(im.attr_int("axis", -1), dims.size()));
  const ValueId real = im.pointwise(real_of(im, x, im.index_vars(dims)), DType::f32, dims, ".real");
  const ValueId y =
      softmax_along(im, real, axis, im.attr_int("opset", 13) < 13, im.value_name(0) + ".softmax");
  return define_quantised(im, im.element(y, im.index_vars(dims)), dims, 3, x.values);
}

// The result's scale and zero point, then three inputs for each part.
Result<void> import_microsoft_qlinear_concat(Importer& im) {
  if (im.node->inputs.size() < 5 || im.node->inputs.size() % 3 != 2)
    return im.fail(ErrorCode::bad_file,
                   "needs a scale, a zero point and three inputs for each part");
  std::vector<ValueId> parts;
  TFCC_TRY(Quantised first, quantised_input(im, 2));
  for (size_t i = 2; i < im.node->inputs.size(); i += 3) {
    TFCC_TRY(Quantised q, quantised_input(im, i));
    const Dims dims = im.dims(q.values);
    parts.push_back(im.pointwise(real_of(im, q, im.index_vars(dims)), DType::f32, dims,
                                 fmt::format(".real{}", i / 3)));
  }
  if (!im.node->find("axis")) return im.fail(ErrorCode::bad_file, "attribute 'axis' is missing");
  TFCC_TRY(const size_t axis, im.axis_of(im.attr_int("axis", 0), im.rank(parts[0])));
  TFCC_TRY(const ValueId whole, concat(im, parts, axis, ".real"));
  const Dims dims = im.dims(whole);
  return define_quantised(im, im.element(whole, im.index_vars(dims)), dims, 0, first.values);
}

}  // namespace tfcc::frontend
