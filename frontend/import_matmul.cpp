// SPDX-License-Identifier: Apache-2.0
// Matrix products: MatMul and Gemm.
#include <fmt/format.h>

#include "frontend/importer.h"

namespace tfcc::frontend {
namespace {

Result<void> check_float(Importer& im, ValueId v) {
  if (is_float(im.type(v).dtype)) return {};
  return im.fail(ErrorCode::unsupported, fmt::format("product of {} is not supported; a float type is needed", to_string(im.type(v).dtype)));
}

}  // namespace

Result<void> import_matmul(Importer& im) {
  TFCC_TRY(ValueId a, im.input(0));
  TFCC_TRY(ValueId b, im.input(1));
  TFCC_TRY_VOID(check_float(im, a));
  if (im.type(a).dtype != im.type(b).dtype) return im.fail(ErrorCode::bad_file, "inputs have different types");
  if (im.rank(a) == 0 || im.rank(b) == 0) return im.fail(ErrorCode::shape, "inputs must not be scalars");
  const bool row = im.rank(a) == 1, column = im.rank(b) == 1;
  if (row) a = reshape(im, a, {im.integer(1), im.dims(a)[0]}, ".row");
  if (column) b = reshape(im, b, {im.dims(b)[0], im.integer(1)}, ".column");
  const Dims da = im.dims(a), db = im.dims(b);
  TFCC_TRY([[maybe_unused]] ExprRef k, im.unify(da.back(), db[db.size() - 2],
           fmt::format("{} and {} do not multiply", ir::to_string(im.type(a)), ir::to_string(im.type(b)))));
  TFCC_TRY(Dims out, im.broadcast(Dims(da.begin(), da.end() - 2), Dims(db.begin(), db.end() - 2)));
  out.push_back(da[da.size() - 2]);
  out.push_back(db.back());
  const Type type{im.type(a).dtype, out};
  ValueId y = im.graph.add(ir::OpKind::matmul, {a, b}, ir::MatmulAttrs{}, type,
                           im.value_name(0) + (row || column ? ".matrix" : ""), im.node->name);
  if (row || column) {
    Dims flat(out.begin(), out.end() - 2);
    if (!row) flat.push_back(out[out.size() - 2]);
    if (!column) flat.push_back(out.back());
    y = reshape(im, y, flat, "");
  }
  im.define(0, y);
  return {};
}

Result<void> import_gemm(Importer& im) {
  TFCC_TRY(ValueId a, im.input(0));
  TFCC_TRY(ValueId b, im.input(1));
  TFCC_TRY_VOID(check_float(im, a));
  if (im.rank(a) != 2 || im.rank(b) != 2 || im.type(a).dtype != im.type(b).dtype) {
    return im.fail(ErrorCode::shape, "Gemm needs two matrices of one type");
  }
  ir::MatmulAttrs attrs;
  attrs.alpha = im.attr_float("alpha", 1);
  attrs.trans_a = im.attr_int("transA", 0) != 0;
  attrs.trans_b = im.attr_int("transB", 0) != 0;
  const Dims da = im.dims(a), db = im.dims(b);
  const Dims out{da[attrs.trans_a ? 1 : 0], db[attrs.trans_b ? 0 : 1]};
  TFCC_TRY([[maybe_unused]] ExprRef k, im.unify(da[attrs.trans_a ? 0 : 1], db[attrs.trans_b ? 1 : 0],
           fmt::format("{} and {} do not multiply", ir::to_string(im.type(a)), ir::to_string(im.type(b)))));
  const Type type{im.type(a).dtype, out};
  const float beta = im.attr_float("beta", 1);
  if (!im.has_input(2) || beta == 0) {
    im.define(0, im.graph.add(ir::OpKind::matmul, {a, b}, attrs, type, im.value_name(0), im.node->name));
    return {};
  }
  TFCC_TRY(ValueId c, im.input(2));
  if (im.rank(c) == 1 && im.dims(c)[0] == out[1] && beta == 1) {
    im.define(0, im.graph.add(ir::OpKind::matmul, {a, b, c}, attrs, type, im.value_name(0), im.node->name));
    return {};
  }
  ValueId y = im.graph.add(ir::OpKind::matmul, {a, b}, attrs, type, im.value_name(0) + ".product", im.node->name);
  TFCC_TRY(Dims sum, im.broadcast(out, im.dims(c)));
  if (sum != out) return im.fail(ErrorCode::shape, "C does not broadcast to the product");
  const Indices at = im.index_vars(out);
  ExprRef e = im.broadcast_element(c, at);
  im.define(0, ir::add(im.element(y, at), ir::mul(im.pool().real(beta, e->type), e)), type.dtype, out);
  return {};
}

}  // namespace tfcc::frontend
