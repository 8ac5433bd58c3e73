// SPDX-License-Identifier: Apache-2.0
// Attention (ONNX 23 on), spelled out as products, a score and a softmax; fuse-attention makes one
// op of it again. A row whose keys are all masked by -inf is 0, as the operator says.
#include <fmt/format.h>

#include <cmath>

#include "frontend/operators/attention.h"

namespace tfcc::frontend {
namespace {

// [B, S, H*D] to [B, H, S, D]; a 4-D value is taken as it is.
Result<ValueId> to_heads(Importer& im, ValueId x, IntegerName attribute, const char* what) {
  if (im.rank(x) == 4) return x;
  if (im.rank(x) != 3 || im.attr_int(attribute, 0) <= 0) {
    return im.fail(ErrorCode::shape,
                   fmt::format("{} must be 4-D, or 3-D with q_num_heads and kv_num_heads", what));
  }
  TFCC_TRY(const int64_t heads, head_count(im, attribute));
  return split_heads(im, x, heads, what);
}

struct Operands {
  ValueId q, k, v;
  ExprRef past = nullptr;               // length of the past
  std::optional<ValueId> used_lengths;  // keys in use, per batch row
};

Result<Operands> operands_of(Importer& im) {
  Operands o;
  TFCC_TRY(o.q, im.input(0));
  TFCC_TRY(o.k, im.input(1));
  TFCC_TRY(o.v, im.input(2));
  if (im.rank(o.q) != im.rank(o.k) || im.rank(o.q) != im.rank(o.v))
    return im.fail(ErrorCode::shape, "q, k and v must all be 4-D or all be 3-D");
  TFCC_TRY(o.q, to_heads(im, o.q, "q_num_heads", "q"));
  TFCC_TRY(o.k, to_heads(im, o.k, "kv_num_heads", "k"));
  TFCC_TRY(o.v, to_heads(im, o.v, "kv_num_heads", "v"));
  o.past = im.integer(0);
  if (im.has_input(4) != im.has_input(5))
    return im.fail(ErrorCode::bad_file, "past_key and past_value go together");
  if (im.has_input(4)) {
    TFCC_TRY(ValueId past_k, im.input(4));
    TFCC_TRY(ValueId past_v, im.input(5));
    TFCC_TRY(o.k, append_to_cache(im, past_k, o.k, "k"));
    TFCC_TRY(o.v, append_to_cache(im, past_v, o.v, "v"));
    o.past = im.dims(past_k)[2];
  }
  if (im.has_input(6)) {
    TFCC_TRY(ValueId n, im.input(6));
    if (im.has_input(4))
      return im.fail(ErrorCode::bad_file, "nonpad_kv_seqlen and past_key exclude each other");
    if (im.rank(n) != 1 || !is_integer(im.type(n).dtype))
      return im.fail(ErrorCode::shape, "nonpad_kv_seqlen must be a vector of integers");
    TFCC_TRY([[maybe_unused]] ExprRef b,
             im.unify(im.dims(o.q)[0], im.dims(n)[0],
                      "nonpad_kv_seqlen has not one length per batch row"));
    o.used_lengths = n;
  }
  return o;
}

// The score with attn_mask applied. From opset 24 on the mask may be shorter than the keys: the
// rest is hidden.
Result<ExprRef> with_mask(Importer& im, ExprRef s, const Indices& at, const Dims& dims) {
  TFCC_TRY(ValueId mask, im.input(3));
  const ExprRef hidden = im.pool().real(-INFINITY, s->type);
  Dims covered = dims;
  const Dims dm = im.dims(mask);
  const bool shorter =
      im.opset >= 24 && !dm.empty() && dm.back() != dims[3] && !ir::is_int(dm.back(), 1);
  if (shorter) covered[3] = dm.back();
  Indices place = at;
  if (shorter) place[3] = within(at[3], dm.back());
  TFCC_TRY(ExprRef m, score_bias(im, mask, place, covered, "attn_mask"));
  ExprRef masked =
      m->type == Scalar::boolean ? ir::select(m, s, hidden) : ir::add(s, ir::convert(m, s->type));
  return shorter ? ir::select(ir::lt(at[3], dm.back()), masked, hidden) : masked;
}

// Keys that the attributes and nonpad_kv_seqlen leave; true if all.
ExprRef allowed_keys(Importer& im, const Operands& o, const Indices& at, const Dims& dims) {
  ExprRef offset = o.past, allowed = im.pool().boolean(true);
  if (o.used_lengths) {
    const ExprRef n = im.element(*o.used_lengths, {at[0]});
    allowed = ir::lt(at[3], n);
    offset = ir::sub(n, dims[2]);
  }
  const ExprRef position = ir::add(at[2], offset);
  if (im.attr_int("is_causal", 0)) allowed = ir::logical_and(allowed, ir::le(at[3], position));
  const int64_t left = im.attr_int("left_window_size", -1),
                right = im.attr_int("right_window_size", -1);
  if (left >= 0)
    allowed = ir::logical_and(allowed, ir::le(ir::sub(position, im.integer(left)), at[3]));
  if (right >= 0)
    allowed = ir::logical_and(allowed, ir::le(at[3], ir::add(position, im.integer(right))));
  return allowed;
}

// The product s with soft cap, mask and causality applied, in the operator's order.
Result<ExprRef> score_of(Importer& im, const Operands& o, ExprRef s, const Indices& at,
                         const Dims& dims) {
  const float cap = im.attr_float("softcap", 0);
  if (cap > 0) s = soft_cap(s, cap);
  if (im.has_input(3)) {
    TFCC_TRY(s, with_mask(im, s, at, dims));
  }
  return ir::select(allowed_keys(im, o, at, dims), s, im.pool().real(-INFINITY, s->type));
}

// Output 3: the scores at the stage that the attribute names.
Result<void> define_scores(Importer& im, const AttentionValues& a) {
  const int64_t mode = im.attr_int("qk_matmul_output_mode", 0);
  const Dims dims = im.dims(a.product);
  switch (mode) {
    case 0: im.define(3, a.product); return {};
    case 1: {
      const float cap = im.attr_float("softcap", 0);
      ExprRef s = im.element(a.product, im.index_vars(dims));
      im.define(3, cap > 0 ? soft_cap(s, cap) : s, im.type(a.product).dtype, dims);
      return {};
    }
    case 2: im.define(3, a.score); return {};
    case 3: im.define(3, a.probabilities); return {};
    default:
      return im.fail(ErrorCode::bad_file,
                     fmt::format("qk_matmul_output_mode {} is not defined", mode));
  }
}

}  // namespace

Result<void> import_attention(Importer& im) {
  TFCC_TRY(ValueId query, im.input(0));
  TFCC_TRY(const Operands o, operands_of(im));
  AttentionParts parts{o.q, o.k, o.v, nullptr, nullptr, true, im.rank(query) == 3 ? ".heads" : ""};
  TFCC_TRY(parts.scale, attention_scale(im, im.dims(o.q)[3], false));
  parts.score = [&](ExprRef s, const Indices& at, const Dims& dims) {
    return score_of(im, o, s, at, dims);
  };
  TFCC_TRY(const AttentionValues a, attend(im, parts));
  im.define(0, im.rank(query) == 3 ? merge_heads(im, a.context, "") : a.context);
  im.define(1, o.k);
  im.define(2, o.v);
  return im.node->outputs.size() > 3 && !im.node->outputs[3].empty() ? define_scores(im, a)
                                                                     : Result<void>{};
}

}  // namespace tfcc::frontend
