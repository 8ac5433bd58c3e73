// SPDX-License-Identifier: Apache-2.0
// Attention (ONNX 23 on), spelled out as products, a score and a softmax; fuse-attention makes one op of it again.
// A row whose keys are all masked by -inf is 0, as the operator says.
#include <fmt/format.h>

#include <cmath>

#include "frontend/importer.h"

namespace tfcc::frontend {
namespace {

using ir::ExprKind;

// [B, S, H*D] to [B, H, S, D]; a 4-D value is taken as it is.
Result<ValueId> to_heads(Importer& im, ValueId x, int64_t heads, const char* what) {
  if (im.rank(x) == 4) return x;
  if (im.rank(x) != 3 || heads <= 0) {
    return im.fail(ErrorCode::shape, fmt::format("{} must be 4-D, or 3-D with q_num_heads and kv_num_heads", what));
  }
  const Dims d = im.dims(x);
  auto size = ir::exact_div(d[2], im.integer(heads));
  if (!size) return im.fail(ErrorCode::shape, fmt::format("{} does not split into {} heads", what, heads));
  const Dims to{d[0], im.integer(heads), d[1], *size};
  const Indices at = im.index_vars(to);
  return im.pointwise(im.element(x, {at[0], at[2], ir::add(ir::mul(at[1], *size), at[3])}), im.type(x).dtype, to,
                      fmt::format(".{}", what));
}

// Repeats key/value heads for grouped queries: head h reads head h / group.
Result<ValueId> repeat_heads(Importer& im, ValueId x, ExprRef heads, const char* what) {
  Dims to = im.dims(x);
  if (to[1] == heads) return x;
  auto group = ir::exact_div(heads, to[1]);
  if (!group) return im.fail(ErrorCode::shape, fmt::format("{} query heads are no multiple of {}", ir::print(heads), ir::print(to[1])));
  to[1] = heads;
  const Indices at = im.index_vars(to);
  return im.pointwise(im.element(x, {at[0], ir::div(at[1], *group), at[2], at[3]}), im.type(x).dtype, to, fmt::format(".{}.repeat", what));
}

Result<ExprRef> scale_of(Importer& im, ExprRef head_size) {
  const Attribute* a = im.node->find("scale");
  if (a && a->kind == Attribute::Kind::real) return im.pool().real(a->f);
  auto d = ir::as_int(head_size);
  if (!d || *d <= 0) return im.fail(ErrorCode::unsupported, "the head size must be known at compile time");
  return im.pool().real(1 / std::sqrt(static_cast<double>(*d)));
}

// The product s with scale, softcap, causality and mask applied, in the operator's order.
Result<ExprRef> score_of(Importer& im, ExprRef s, const Indices& at, const Dims& dims) {
  ExprPool& pool = im.pool();
  const float cap = im.attr_float("softcap", 0);
  if (cap > 0) s = ir::mul(pool.real(cap), ir::unary(ExprKind::tanh, ir::div(s, pool.real(cap))));
  ExprRef masked = pool.real(-INFINITY);
  if (im.attr_int("is_causal", 0)) s = ir::select(ir::le(at[3], at[2]), s, masked);
  if (!im.has_input(3)) return s;
  TFCC_TRY(ValueId mask, im.input(3));
  if (im.rank(mask) > 4) return im.fail(ErrorCode::shape, "attn_mask has more than 4 dims");
  TFCC_TRY(Dims all, im.broadcast(im.dims(mask), dims));
  if (all != dims) return im.fail(ErrorCode::shape, fmt::format("attn_mask {} does not broadcast to the scores", ir::to_string(im.type(mask))));
  ExprRef m = im.broadcast_element(mask, at);
  return m->type == Scalar::boolean ? ir::select(m, s, masked) : ir::add(s, ir::convert(m, s->type));
}

Result<void> check_supported(Importer& im) {
  for (size_t i = 4; i < im.node->inputs.size(); ++i) {
    if (im.has_input(i)) return im.fail(ErrorCode::unsupported, fmt::format("input {} (past or nonpad_kv_seqlen) is not supported", i));
  }
  for (size_t i = 1; i < im.node->outputs.size(); ++i) {
    if (!im.node->outputs[i].empty()) return im.fail(ErrorCode::unsupported, fmt::format("output {} (present or qk) is not supported", i));
  }
  if (im.attr_int("left_window_size", -1) >= 0 || im.attr_int("right_window_size", -1) >= 0) {
    return im.fail(ErrorCode::unsupported, "left_window_size and right_window_size are not supported");
  }
  return {};
}

}  // namespace

Result<void> import_attention(Importer& im) {
  TFCC_TRY_VOID(check_supported(im));
  TFCC_TRY(ValueId q, im.input(0));
  TFCC_TRY(ValueId k, im.input(1));
  TFCC_TRY(ValueId v, im.input(2));
  const bool flat = im.rank(q) == 3;
  TFCC_TRY(q, to_heads(im, q, im.attr_int("q_num_heads", 0), "q"));
  TFCC_TRY(k, to_heads(im, k, im.attr_int("kv_num_heads", 0), "k"));
  TFCC_TRY(v, to_heads(im, v, im.attr_int("kv_num_heads", 0), "v"));
  const Dims dq = im.dims(q);
  TFCC_TRY(k, repeat_heads(im, k, dq[1], "k"));
  TFCC_TRY(v, repeat_heads(im, v, dq[1], "v"));
  const DType dtype = im.type(q).dtype;
  if (im.type(k).dtype != dtype || im.type(v).dtype != dtype) return im.fail(ErrorCode::bad_file, "Q, K and V have different types");
  TFCC_TRY([[maybe_unused]] ExprRef d, im.unify(dq[3], im.dims(k)[3], "Q and K have different head sizes"));
  TFCC_TRY([[maybe_unused]] ExprRef n, im.unify(im.dims(k)[2], im.dims(v)[2], "K and V have different lengths"));
  TFCC_TRY(ExprRef scale, scale_of(im, dq[3]));

  auto name = [&](const char* suffix) { return im.value_name(0) + suffix; };
  const Dims scores{dq[0], dq[1], dq[2], im.dims(k)[2]};
  ir::MatmulAttrs attrs;
  attrs.trans_b = true;
  ValueId s = im.graph.add(ir::OpKind::matmul, {q, k}, attrs, {dtype, scores}, name(".qk"), im.node->name);
  const Indices at = im.index_vars(scores);
  TFCC_TRY(ExprRef body, score_of(im, ir::mul(im.element(s, at), ir::convert(scale, ir::scalar_of(dtype))), at, scores));
  ValueId masked = im.pointwise(body, dtype, scores, ".score");
  ValueId p = im.graph.add(ir::OpKind::softmax, {masked}, ir::SoftmaxAttrs{}, {dtype, scores}, name(".softmax"), im.node->name);
  ExprRef e = im.element(p, at);
  p = im.pointwise(ir::select(ir::is_nan(e), im.pool().real(0, e->type), e), dtype, scores, ".guard");
  const Dims out{dq[0], dq[1], dq[2], im.dims(v)[3]};
  ValueId y = im.graph.add(ir::OpKind::matmul, {p, v}, ir::MatmulAttrs{}, {dtype, out}, flat ? name(".heads") : name(""), im.node->name);
  if (flat) {
    const Dims to{out[0], out[2], ir::mul(out[1], out[3])};
    const Indices t = im.index_vars(to);
    y = im.pointwise(im.element(y, {t[0], ir::div(t[2], out[3]), t[1], ir::mod(t[2], out[3])}), dtype, to, "");
  }
  im.define(0, y);
  return {};
}

}  // namespace tfcc::frontend
