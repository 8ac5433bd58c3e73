// SPDX-License-Identifier: Apache-2.0
// Elementwise operators of com.microsoft: the GELU family.
#include "frontend/import/importer.h"
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
  ExprRef one = im.pool().real(1, e->type),
          alpha = im.pool().real(im.attr_float("alpha", 1.702f), e->type);
  ExprRef sigmoid =
      ir::div(one, ir::add(one, ir::unary(ir::ExprKind::exp, ir::neg(ir::mul(alpha, e)))));
  im.define(0, ir::mul(e, sigmoid), t.dtype, t.dims);
  return {};
}

}  // namespace tfcc::frontend
