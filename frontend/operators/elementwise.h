// SPDX-License-Identifier: Apache-2.0
// How elementwise operators are imported: a function of scalars, applied under ONNX broadcasting.
// Internal to frontend/.
#pragma once

#include <fmt/format.h>

#include "frontend/import/importer.h"

namespace tfcc::frontend {

/// The value that integer `e` has as `dtype`: 8, 16 and 32 bits wrap, unless it is proved to fit.
/// An int32 of sizes and indices alone is left as it is where it fits at usual sizes, and the run
/// checks that it does at its own.
ExprRef narrowed(Importer& im, ExprRef e, DType dtype);

/// a / b rounded towards zero, for any integers. Division by zero is defined (the dividend),
/// INT64_MIN / -1 wraps.
ExprRef truncating_divide(Importer& im, ExprRef a, ExprRef b);

Result<void> require_float(Importer& im, ValueId v);

/// A float tensor as f32.
ValueId wide(Importer& im, ValueId v, std::string_view suffix);

/// Of real expressions: log(1 + exp(x)) and 1 / (1 + exp(-x)).
ExprRef softplus(ExprRef x);
ExprRef sigmoid(ExprRef x);

/// Output 0 is f(element) with the type of the input; f returns an expression.
template <class F> Result<void> unary_op(Importer& im, F f) {
  TFCC_TRY(ValueId x, im.input(0));
  const Type t = im.type(x);
  const Indices at = im.index_vars(t.dims);
  im.define(0, narrowed(im, f(im.element(x, at)), t.dtype), t.dtype, t.dims);
  return {};
}

/// The same for floats only.
template <class F> Result<void> float_op(Importer& im, F f) {
  TFCC_TRY(ValueId x, im.input(0));
  TFCC_TRY_VOID(require_float(im, x));
  return unary_op(im, f);
}

/// f is called with the elements of both inputs and returns a Result; `boolean` makes the result a
/// truth value.
template <class F> Result<void> binary_op(Importer& im, bool boolean, F f) {
  TFCC_TRY(ValueId a, im.input(0));
  TFCC_TRY(ValueId b, im.input(1));
  if (im.type(a).dtype != im.type(b).dtype) {
    return im.fail(ErrorCode::bad_file,
                   fmt::format("inputs have types {} and {}, which must be equal",
                               to_string(im.type(a).dtype), to_string(im.type(b).dtype)));
  }
  TFCC_TRY(Dims dims, im.broadcast(im.dims(a), im.dims(b)));
  const Indices at = im.index_vars(dims);
  TFCC_TRY(ExprRef body,
           Result<ExprRef>(f(im.broadcast_element(a, at), im.broadcast_element(b, at))));
  const DType dtype = boolean ? DType::boolean : im.type(a).dtype;
  im.define(0, narrowed(im, body, dtype), dtype, dims);
  return {};
}

/// Any number of inputs, taken together from the left; `finish` is applied to the result.
template <class F, class G> Result<void> fold_op(Importer& im, F f, G finish) {
  TFCC_TRY(ValueId first, im.input(0));
  const DType dtype = im.type(first).dtype;
  Dims dims = im.dims(first);
  for (size_t i = 1; i < im.node->inputs.size(); ++i) {
    TFCC_TRY(ValueId v, im.input(i));
    if (im.type(v).dtype != dtype)
      return im.fail(ErrorCode::bad_file, "inputs have different types");
    TFCC_TRY(dims, im.broadcast(dims, im.dims(v)));
  }
  const Indices at = im.index_vars(dims);
  ExprRef body = im.broadcast_element(first, at);
  // One body reads so many inputs; more are taken in turns, or it would nest too deep.
  constexpr size_t kMostInputs = 64;
  for (size_t i = 1; i < im.node->inputs.size(); ++i) {
    body = f(body, im.broadcast_element(*im.input(i), at));
    if (i % kMostInputs == 0)
      body =
          im.element(im.pointwise(body, dtype, dims, fmt::format(".part{}", i / kMostInputs)), at);
  }
  im.define(0, narrowed(im, finish(body), dtype), dtype, dims);
  return {};
}

}  // namespace tfcc::frontend
