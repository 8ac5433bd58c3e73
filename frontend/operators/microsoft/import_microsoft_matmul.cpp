// SPDX-License-Identifier: Apache-2.0
// FusedMatMul: MatMul with a scale and operands that are stored transposed, in their matrices or
// with the first batch axis inside.
#include <fmt/format.h>

#include "frontend/import/importer.h"

namespace tfcc::frontend {
namespace {

// Moves axis 0 next to the last axis: [m, batch..., k] to [batch..., m, k].
ValueId batch_first(Importer& im, ValueId x, const char* suffix) {
  std::vector<size_t> perm;
  const size_t rank = im.rank(x);
  for (size_t k = 1; k + 1 < rank; ++k) perm.push_back(k);
  perm.push_back(0);
  perm.push_back(rank - 1);
  return transpose(im, x, perm, suffix);
}

}  // namespace

Result<void> import_microsoft_fused_matmul(Importer& im) {
  TFCC_TRY(ValueId a, im.input(0));
  TFCC_TRY(ValueId b, im.input(1));
  if (!is_float(im.type(a).dtype) || im.type(a).dtype != im.type(b).dtype)
    return im.fail(ErrorCode::unsupported, "both inputs must have one float type");
  if (im.rank(a) == 0 || im.rank(b) == 0)
    return im.fail(ErrorCode::shape, "inputs must not be scalars");
  ir::MatmulAttrs attrs;
  attrs.alpha = im.attr_float("alpha", 1);
  // A vector has nothing to transpose.
  const bool row = im.rank(a) == 1, column = im.rank(b) == 1;
  attrs.trans_a = !row && im.attr_int("transA", 0) != 0;
  attrs.trans_b = !column && im.attr_int("transB", 0) != 0;
  if (row) a = reshape(im, a, {im.integer(1), im.dims(a)[0]}, ".row");
  if (column) b = reshape(im, b, {im.dims(b)[0], im.integer(1)}, ".column");
  if (im.attr_int("transBatchA", 0) && im.rank(a) > 2) a = batch_first(im, a, ".a");
  if (im.attr_int("transBatchB", 0) && im.rank(b) > 2) b = batch_first(im, b, ".b");
  const Dims da = im.dims(a), db = im.dims(b);
  const size_t ra = da.size(), rb = db.size();
  TFCC_TRY([[maybe_unused]] ExprRef k,
           im.unify(da[attrs.trans_a ? ra - 2 : ra - 1], db[attrs.trans_b ? rb - 1 : rb - 2],
                    fmt::format("{} and {} do not multiply", ir::to_string(im.type(a)),
                                ir::to_string(im.type(b)))));
  TFCC_TRY(Dims out, im.broadcast(Dims(da.begin(), da.end() - 2), Dims(db.begin(), db.end() - 2)));
  Dims flat = out;
  out.push_back(da[attrs.trans_a ? ra - 1 : ra - 2]);
  out.push_back(db[attrs.trans_b ? rb - 2 : rb - 1]);
  ValueId y = im.graph.add(ir::OpKind::matmul, {a, b}, attrs, {im.type(a).dtype, out},
                           im.value_name(0) + (row || column ? ".matrix" : ""), im.node->name);
  if (row || column) {
    if (!row) flat.push_back(out[out.size() - 2]);
    if (!column) flat.push_back(out.back());
    y = reshape(im, y, flat, "");
  }
  im.define(0, y);
  return {};
}

}  // namespace tfcc::frontend
