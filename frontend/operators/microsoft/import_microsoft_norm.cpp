// SPDX-License-Identifier: Apache-2.0
// The norms of com.microsoft: a residual sum or a sum of embeddings and the norm after it.
#include <fmt/format.h>

#include "frontend/operators/attention.h"
#include "frontend/operators/elementwise.h"
#include "frontend/operators/norm.h"

namespace tfcc::frontend {
namespace {

// x + skip (+ bias), skip broadcast over leading axes.
Result<ValueId> residual_sum(Importer& im, size_t bias_input) {
  TFCC_TRY(ValueId x, im.input(0));
  TFCC_TRY(ValueId skip, im.input(1));
  const Dims dims = im.dims(x);
  const Indices at = im.index_vars(dims);
  ExprRef e = im.element(x, at);
  auto plus = [&](ValueId v, const char* what) -> Result<void> {
    TFCC_TRY(Dims all, im.broadcast(dims, im.dims(v)));
    if (all != dims || im.type(v).dtype != im.type(x).dtype) {
      return im.fail(ErrorCode::shape,
                     fmt::format("{} {} does not fit the input", what, ir::to_string(im.type(v))));
    }
    e = ir::add(e, im.broadcast_element(v, at));
    return {};
  };
  TFCC_TRY_VOID(plus(skip, "skip"));
  if (im.has_input(bias_input)) {
    TFCC_TRY(ValueId bias, im.input(bias_input));
    TFCC_TRY_VOID(plus(bias, "bias"));
  }
  return im.pointwise(e, im.type(x).dtype, dims, ".sum");
}

// Outputs 1 to 3 of the skip norms: mean, inverse deviation, sum.
void define_statistics(Importer& im, ValueId sum, float eps, bool centred) {
  if (wants_output(im, 1) || wants_output(im, 2)) {
    const RowStatistics s = row_statistics(im, sum, eps, centred);
    if (centred) im.define(1, s.mean);
    im.define(2, s.inverse_deviation);
  }
  im.define(3, sum);
}

}  // namespace

Result<void> import_microsoft_skip_layer_normalization(Importer& im) {
  TFCC_TRY(ValueId sum, residual_sum(im, 4));
  TFCC_TRY(ValueId gamma, im.input(2));
  std::optional<ValueId> beta;
  if (im.has_input(3)) {
    TFCC_TRY(beta, im.input(3));
  }
  const float eps = im.attr_float("epsilon", 1e-12f);
  TFCC_TRY(ValueId y, norm_op(im, ir::NormKind::layer, sum, gamma, beta, eps, im.value_name(0)));
  im.define(0, y);
  define_statistics(im, sum, eps, true);
  return {};
}

Result<void> import_microsoft_skip_simplified_layer_normalization(Importer& im) {
  if (wants_output(im, 1))
    return im.fail(ErrorCode::unsupported,
                   "a root-mean-square norm has no mean; leave output 1 out");
  TFCC_TRY(ValueId sum, residual_sum(im, 3));
  TFCC_TRY(ValueId gamma, im.input(2));
  const float eps = im.attr_float("epsilon", 1e-12f);
  TFCC_TRY(ValueId y,
           norm_op(im, ir::NormKind::rms, sum, gamma, std::nullopt, eps, im.value_name(0)));
  im.define(0, y);
  define_statistics(im, sum, eps, false);
  return {};
}

namespace {

// Row `id` of an embedding table [N, H].
Result<ExprRef> embedding(Importer& im, size_t table_input, ExprRef id, ExprRef column,
                          ExprRef width, const char* what) {
  TFCC_TRY(ValueId table, real_input(im, table_input, 2, what));
  TFCC_TRY([[maybe_unused]] ExprRef same,
           im.unify(width, im.dims(table)[1], fmt::format("{} has another width", what)));
  TFCC_TRY(ExprRef row, im.gather_index(id, im.dims(table)[0]));
  return im.element(table, {row, column});
}

// mask_index: how many mask values of each row are 1; 0 without a mask.
Result<void> define_mask_index(Importer& im, const Dims& batch, DType dtype) {
  if (!wants_output(im, 1)) return {};
  if (!im.has_input(7)) {
    im.define(1, im.integer(0), dtype, batch);
    return {};
  }
  TFCC_TRY(ValueId mask, integer_input(im, 7, "mask"));
  if (im.rank(mask) != 2) return im.fail(ErrorCode::shape, "mask must be [batch, length]");
  ir::ReduceAttrs attrs;
  attrs.extents = {im.dims(mask)[1]};
  const Indices at{im.index_vars(batch)[0], im.pool().index(1, im.dims(mask)[1])};
  ir::Captured c =
      ir::capture(ir::convert(ir::eq(im.element(mask, at), im.integer(1)), Scalar::i64));
  attrs.body = c.body;
  im.define(1, im.graph.add(ir::OpKind::reduce, c.operands, attrs, {dtype, batch}, im.value_name(1),
                            im.node->name));
  return {};
}

}  // namespace

Result<void> import_microsoft_embed_layer_normalization(Importer& im) {
  TFCC_TRY(ValueId ids, integer_input(im, 0, "input_ids"));
  TFCC_TRY(ValueId words, real_input(im, 2, 2, "word_embedding"));
  TFCC_TRY(ValueId gamma, im.input(5));
  TFCC_TRY(ValueId beta, im.input(6));
  if (im.rank(ids) != 2) return im.fail(ErrorCode::shape, "input_ids must be [batch, length]");
  const Dims dims{im.dims(ids)[0], im.dims(ids)[1], im.dims(words)[1]};
  const Indices at = im.index_vars(dims);
  const Indices token{at[0], at[1]};
  ExprRef position = at[1];
  if (im.has_input(8)) {
    TFCC_TRY(ValueId p, integer_input(im, 8, "position_ids"));
    TFCC_TRY(Dims all, im.broadcast({dims[0], dims[1]}, im.dims(p)));
    if (all != Dims{dims[0], dims[1]})
      return im.fail(ErrorCode::shape, "position_ids do not fit input_ids");
    position = im.broadcast_element(p, token);
  }
  TFCC_TRY(ExprRef e, embedding(im, 2, im.element(ids, token), at[2], dims[2], "word_embedding"));
  TFCC_TRY(ExprRef p, embedding(im, 3, position, at[2], dims[2], "position_embedding"));
  e = ir::add(e, p);
  if (im.has_input(1) && im.has_input(4)) {
    TFCC_TRY(ValueId segments, integer_input(im, 1, "segment_ids"));
    TFCC_TRY(Dims all, im.broadcast({dims[0], dims[1]}, im.dims(segments)));
    if (all != Dims{dims[0], dims[1]})
      return im.fail(ErrorCode::shape, "segment_ids do not fit input_ids");
    TFCC_TRY(ExprRef s, embedding(im, 4, im.broadcast_element(segments, token), at[2], dims[2],
                                  "segment_embedding"));
    e = ir::add(e, s);
  }
  const ValueId sum = im.pointwise(e, im.type(words).dtype, dims, ".sum");
  TFCC_TRY(ValueId y, norm_op(im, ir::NormKind::layer, sum, gamma, beta,
                              im.attr_float("epsilon", 1e-12f), im.value_name(0)));
  im.define(0, y);
  im.define(2, sum);
  return define_mask_index(im, {dims[0]}, im.type(ids).dtype);
}

// x / rms(x) scale activation(gate), by groups of as many neighbours as scale has, in f32.
Result<void> import_microsoft_gated_rms_norm(Importer& im) {
  const std::string activation = im.attr_string("activation", "silu");
  if (activation != "silu" && activation != "swish" && activation != "sigmoid")
    return im.fail(ErrorCode::bad_file,
                   fmt::format("activation \"{}\" is not known", escaped(activation)));
  TFCC_TRY(ValueId x, im.input(0));
  TFCC_TRY(ValueId scale, im.input(1));
  TFCC_TRY(ValueId gate, im.input(2));
  for (ValueId v : {x, scale, gate}) {
    TFCC_TRY_VOID(require_float(im, v));
    if (im.type(v).dtype == DType::f64)
      return im.fail(ErrorCode::unsupported,
                     "X, scale or gate is f64; f32, f16 and bf16 are supported");
  }
  const Type t = im.type(x);
  const int64_t width = t.dims.empty() ? 0 : ir::as_int(t.dims.back()).value_or(0),
                group = im.rank(scale) == 1 ? ir::as_int(im.dims(scale)[0]).value_or(0) : 0;
  if (width < 1 || group < 1 || width % group != 0 || im.rank(gate) != t.dims.size())
    return im.fail(ErrorCode::shape,
                   fmt::format("scale {} and gate {} do not fit {}", ir::to_string(im.type(scale)),
                               ir::to_string(im.type(gate)), ir::to_string(t)));
  for (size_t k = 0; k < t.dims.size(); ++k) {
    TFCC_TRY([[maybe_unused]] ExprRef n,
             im.unify(im.dims(gate)[k], t.dims[k], "the gate has other sizes"));
  }
  Dims rows = t.dims;
  rows.back() = im.integer(width / group);
  rows.push_back(im.integer(group));
  TFCC_TRY(ValueId normed,
           norm_op(im, ir::NormKind::rms, reshape(im, wide(im, x, ".wide"), rows, ".groups"),
                   wide(im, scale, ".scale"), std::nullopt, im.attr_float("epsilon", 1e-5f),
                   im.value_name(0) + ".normed"));
  const Indices at = im.index_vars(t.dims);
  const ExprRef e = im.element(reshape(im, normed, t.dims, ".rows"), at), z = im.element(gate, at),
                s = sigmoid(z);
  im.define(0, ir::mul(e, activation == "sigmoid" ? s : ir::mul(z, s)), t.dtype, t.dims);
  return {};
}

}  // namespace tfcc::frontend
