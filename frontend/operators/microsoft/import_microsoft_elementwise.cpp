// SPDX-License-Identifier: Apache-2.0
// Elementwise operators of com.microsoft: the GELU family, and the gates of LinearAttention.
#include "frontend/operators/elementwise.h"
#include "frontend/operators/norm.h"
#include "ir/gelu.h"

namespace tfcc::frontend {
namespace {

// GELU of input 0, plus input 1 where there is one.
Result<void> gelu_of(Importer& im, ir::GeluKind kind) {
  TFCC_TRY(ValueId x, im.input(0));
  if (!is_float(im.type(x).dtype) || im.rank(x) == 0)
    return im.fail(ErrorCode::bad_file, "the input must be of a float type and no scalar");
  if (im.has_input(1)) {
    TFCC_TRY(ValueId bias, im.input(1));
    TFCC_TRY(Dims dims, im.broadcast(im.dims(x), im.dims(bias)));
    if (dims != im.dims(x) || im.type(bias).dtype != im.type(x).dtype)
      return im.fail(ErrorCode::shape, "the bias does not fit the input");
    const Indices at = im.index_vars(dims);
    x = im.pointwise(ir::add(im.element(x, at), im.broadcast_element(bias, at)), im.type(x).dtype,
                     dims, ".biased");
  }
  im.define(0, ir::gelu_of(im.element(x, im.index_vars(im.dims(x))), kind), im.type(x).dtype,
            im.dims(x));
  return {};
}

}  // namespace

Result<void> import_microsoft_bias_gelu(Importer& im) { return gelu_of(im, ir::GeluKind::erf); }
Result<void> import_microsoft_fast_gelu(Importer& im) { return gelu_of(im, ir::GeluKind::tanh); }
Result<void> import_microsoft_gelu(Importer& im) { return gelu_of(im, ir::GeluKind::erf); }

Result<void> import_microsoft_quick_gelu(Importer& im) {
  TFCC_TRY(ValueId x, im.input(0));
  const Type t = im.type(x);
  if (!is_float(t.dtype)) return im.fail(ErrorCode::bad_file, "the input must be of a float type");
  ExprRef e = im.element(x, im.index_vars(t.dims));
  ExprRef alpha = im.pool().real(im.attr_float("alpha", 1.702f), e->type);
  im.define(0, ir::mul(e, sigmoid(ir::mul(alpha, e))), t.dtype, t.dims);
  return {};
}

// decay = decay_scale softplus(a + dt_bias) and beta = sigmoid(b), a and b [B,T,heads], in f32.
Result<void> import_microsoft_linear_attention_gate(Importer& im) {
  TFCC_TRY(ValueId a, im.input(0));
  TFCC_TRY_VOID(require_float(im, a));
  const Type t = im.type(a);
  const Indices at = im.index_vars(t.dims);
  const auto by_head = [&](size_t input) -> Result<ExprRef> {
    TFCC_TRY(ValueId v, im.input(input));
    if (im.rank(v) != 1 || !is_float(im.type(v).dtype) || t.dims.empty())
      return im.fail(ErrorCode::shape, fmt::format("{} has no number for each head of {}",
                                                   ir::to_string(im.type(v)), ir::to_string(t)));
    TFCC_TRY([[maybe_unused]] ExprRef n,
             im.unify(im.dims(v)[0], t.dims.back(), "dt_bias or decay_scale has other heads"));
    return ir::convert(im.element(v, {at.back()}), ir::scalar_of(t.dtype));
  };
  TFCC_TRY(ExprRef bias, by_head(1));
  TFCC_TRY(ExprRef scale, by_head(2));
  im.define(0, ir::mul(scale, softplus(ir::add(im.element(a, at), bias))), t.dtype, t.dims);
  if (!wants_output(im, 1)) return {};
  if (!im.has_input(3)) return im.fail(ErrorCode::bad_file, "beta is made of b, which is absent");
  TFCC_TRY(ValueId b, im.input(3));
  TFCC_TRY_VOID(require_float(im, b));
  const Type of_b = im.type(b);
  im.define(1, sigmoid(im.element(b, im.index_vars(of_b.dims))), of_b.dtype, of_b.dims);
  return {};
}

}  // namespace tfcc::frontend
