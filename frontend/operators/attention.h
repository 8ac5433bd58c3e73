// SPDX-License-Identifier: Apache-2.0
// What the attention operators of both domains are made of: heads, caches, rotation, and products
// with a score and a softmax between them. All of it is plain ops and bodies, the form in which
// exporters spell attention out.
#pragma once

#include <functional>

#include "frontend/import/importer.h"

namespace tfcc::frontend {

/// A number of heads from an attribute. Errors: bad_file.
Result<int64_t> head_count(Importer& im, IntegerName attribute);
/// Input i, which must be of integers. Errors: bad_file.
Result<ValueId> integer_input(Importer& im, size_t i, const char* what);
/// Input i, which must be of floats of this rank. Errors: shape.
Result<ValueId> real_input(Importer& im, size_t i, size_t rank, const char* what);
/// Input i as a vector of n reals, if it is there. Errors: shape.
Result<std::optional<ValueId>> bias_input(Importer& im, size_t i, ExprRef n);

/// [B, S, heads * D] as [B, heads, S, D]. Errors: shape.
Result<ValueId> split_heads(Importer& im, ValueId x, int64_t heads, const char* what);
/// The same of columns [first, first + heads * size) of x, plus those of a bias that is as wide as
/// x, if there is one.
Result<ValueId> split_heads(Importer& im, ValueId x, ExprRef first, int64_t heads, ExprRef size,
                            std::optional<ValueId> bias, const char* what);
/// [B, H, S, D] as [B, S, H * D].
ValueId merge_heads(Importer& im, ValueId x, std::string_view suffix);
/// Key or value heads for grouped queries: head h reads head h / group. Errors: shape.
Result<ValueId> repeat_heads(Importer& im, ValueId x, ExprRef heads, const char* what);
/// [B, H, P, D] and [B, H, S, D] as [B, H, P + S, D]. Errors: shape.
Result<ValueId> append_to_cache(Importer& im, ValueId past, ValueId x, const char* what);

/// The scale of an attention: the attribute `scale` (0 counts as absent if `zero_is_default`) or 1
/// / sqrt(head size).
Result<ExprRef> attention_scale(Importer& im, ExprRef head_size, bool zero_is_default);
/// cap * tanh(s / cap).
ExprRef soft_cap(ExprRef s, double cap);
/// The element of an additive bias that broadcasts to the scores. Errors: shape.
Result<ExprRef> score_bias(Importer& im, ValueId bias, const Indices& at, const Dims& scores,
                           const char* what);

/// Index i, or the last of n where it is beyond them: for what a condition beside it leaves out.
/// Conditions are evaluated together, so that a guard alone does not keep a load in range. n is
/// positive.
inline ExprRef within(ExprRef i, ExprRef n) { return ir::min(i, ir::sub(n, n->pool->integer(1))); }

struct AttentionParts {
  ValueId q, k, v;  // [B, H, Sq, D], [B, Hkv, Sk, D], [B, Hkv, Sk, Dv]
  ExprRef scale = nullptr;
  /// The score from the scaled product; at = b, h, i, j.
  std::function<Result<ExprRef>(ExprRef product, const Indices& at, const Dims& dims)> score;
  bool empty_rows_are_zero = false;     // a row of scores that are all -inf
  std::string_view context = ".heads";  // suffix of the context's name
};

struct AttentionValues {
  ValueId product;  // scaled
  ValueId score;
  ValueId probabilities;
  ValueId context;  // [B, H, Sq, Dv]
};

/// softmax(score(scale * q k)) v. Errors: shape, and those of `score`.
Result<AttentionValues> attend(Importer& im, const AttentionParts& parts);

/// How a rotary embedding turns a head: columns below `size` with the angles of a token.
struct Rotation {
  int64_t size = 0;  // columns that turn; even
  bool interleaved = false;
  std::function<ExprRef(ExprRef column)> cos, sin;  // of this token; column < size / 2
};

/// Column d of a head whose columns are x(d), turned.
ExprRef rotated(const Rotation& r, ExprRef d, const std::function<ExprRef(ExprRef)>& x);

}  // namespace tfcc::frontend
