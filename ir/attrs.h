// SPDX-License-Identifier: Apache-2.0
// Attributes of each op: plain structs. An optional one that is not set is not written. visit()
// names every field once, sorted by key; the printer, the parser, the verifier's expression walk
// and equality are all written on top of it.
#pragma once

#include <optional>
#include <string_view>
#include <variant>
#include <vector>

#include "ir/constant.h"
#include "ir/expr.h"

namespace tfcc::ir {

struct ConstantAttrs {
  Constant constant;
  template <class V> void visit(V&&) {}
};

/// result[i...] = body(i...); slot k of a load is operand k; index k ranges over result dim k.
struct PointwiseAttrs {
  ExprRef body = nullptr;
  template <class V> void visit(V&& v) { v("body", body); }
};

enum class ReduceKind : uint8_t { sum, mean, max, min, prod };
inline constexpr std::string_view kReduceKindNames[] = {"sum", "mean", "max", "min", "prod"};

/// result[i...] = kind over r... of body(i..., r...); reduction index k is number rank+k over
/// extents[k].
struct ReduceAttrs {
  ExprRef body = nullptr;
  std::vector<ExprRef> extents;
  ReduceKind kind = ReduceKind::sum;
  template <class V> void visit(V&& v) {
    v("body", body);
    v("extents", extents);
    v("kind", kind);
  }
};

struct CumsumAttrs {
  int64_t axis = 0;
  bool exclusive = false;
  bool reverse = false;
  template <class V> void visit(V&& v) {
    v("axis", axis);
    v("exclusive", exclusive);
    v("reverse", reverse);
  }
};

/// An expression that an op may be without; visit() names it so, for an ExprRef alone says that the
/// op needs it.
struct OptionalExpr {
  ExprRef& expr;
  bool has_value() const { return expr != nullptr; }
};

enum class NormKind : uint8_t { layer, rms };
inline constexpr std::string_view kNormKindNames[] = {"layer", "rms"};

/// Moments of a row are kept for so many columns at a time: their mean, and the sum of the squares
/// of what they differ from it by.
inline constexpr int64_t kMomentColumns = 32;

/// result[.., i, j] = epilogue(s, .., i, j) with s = alpha * sum over k of a[.., i, k] b[.., k, j],
/// not rounded before the epilogue. a: [..., m, k] ([..., k, m] if trans_a); b likewise; leading
/// dims broadcast as in ONNX MatMul.
/// Operands: a, b, then what the epilogue loads (slot = operand). Indices: the dims of the result.
/// param s has the scalar type of the result, of integers i64. No epilogue: the result is s. A norm
/// between two products may be a part of both. The one before it has `scaled`, and two or three
/// results: scaled(v, .., i, j) with v = epilogue(s, .., i, j), the moments f32[n / 32, .., m, 2]
/// of v, and v itself. One after it has `norm` and `eps`: its last operand has the moments of m
/// rows, of which the epilogue has params mean (0 for rms) and rstd beside s. With `weight`, element
/// [i, j] of b as it would be stored is weight(i, j), a matrix [k, n] ([n, k] if trans_b) of the type
/// of a. What it loads are constants, which operands begin with instead of b.
/// With `heads` it is one product for each head, which stand side by side in a [.., m, heads*k] and in
/// the result [.., m, heads*n], and one behind the other in b [heads*k, n]; there is nothing else then.
struct MatmulAttrs {
  double alpha = 1;
  ExprRef epilogue = nullptr;
  std::optional<double> eps;
  ExprRef gate = nullptr;
  std::optional<int64_t> heads;
  std::optional<NormKind> norm;
  ExprRef scaled = nullptr;
  bool trans_a = false;
  bool trans_b = false;
  ExprRef weight = nullptr;
  template <class V> void visit(V&& v) {
    OptionalExpr after{epilogue}, of_two{gate}, stored{scaled}, of_b{weight};
    v("alpha", alpha);
    v("epilogue", after);
    v("eps", eps);
    v("gate", of_two);
    v("heads", heads);
    v("norm", norm);
    v("scaled", stored);
    v("trans_a", trans_a);
    v("trans_b", trans_b);
    v("weight", of_b);
  }
};

/// result[i.., j] = sum over k of x[i.., k] w[which(i..), j, k]: each row is multiplied by the matrix
/// that it chooses, as the tokens of a mixture of experts are. Operands: x [.., k], whose leading dims
/// are the first of the result's (rows along the others share a row of x), w [groups, n, k], then what
/// which loads (slot = operand). Indices: the dims of the result but the last. With `weight` and
/// `groups` element [g, j, k] of w is weight(g, j, k), of the type of x. What it loads are constants,
/// which stand in the place of w.
struct GroupedMatmulAttrs {
  std::optional<int64_t> groups;
  ExprRef weight = nullptr;
  ExprRef which = nullptr;
  template <class V> void visit(V&& v) {
    OptionalExpr of_w{weight};
    v("groups", groups);
    v("weight", of_w);
    v("which", which);
  }
};

struct SoftmaxAttrs {
  template <class V> void visit(V&&) {}
};

/// x[i...] = body(i...); y = norm(x) over the last axis: (x - mean) / sqrt(variance + eps) * gamma
/// + beta, or of kind rms x / sqrt(mean of squares + eps) * gamma. Operands: gamma, then beta if
/// has_beta, then what body loads (slot = operand).
/// Results: y, and x if two results are declared.
struct NormAttrs {
  ExprRef body = nullptr;
  double eps = 0;
  bool has_beta = false;
  NormKind kind = NormKind::layer;
  template <class V> void visit(V&& v) {
    v("body", body);
    v("eps", eps);
    v("has_beta", has_beta);
    v("kind", kind);
  }
};

/// rope(x, cos, sin): x [B,S,heads*d], cos and sin [B or 1, S, rotary/2], or [.., rotary] where a
/// pair's members differ. The first `rotary` channels of each head are rotated in pairs (e, e +
/// rotary/2), or (2e, 2e + 1) if interleaved. With `eps` each head is divided by its root mean
/// square first and multiplied by gamma [d]: rope(x, cos, sin, gamma). keys', values', q' =
/// rope_append(keys, values, k, v, slots, q, cos, sin): q' = rope(q, cos, sin), and kv_append of
/// rope(k, cos, sin), whose heads are those of the cache, and of v; with `eps` the gammas of q and
/// of k come last.
struct RopeAttrs {
  std::optional<double> eps;
  int64_t heads = 1;
  bool interleaved = false;
  int64_t rotary = 0;
  template <class V> void visit(V&& v) {
    v("eps", eps);
    v("heads", heads);
    v("interleaved", interleaved);
    v("rotary", rotary);
  }
};

/// row, cu, keys, order, seq, pos = pack(what live and kept load): the rows of [B,S] that are left
/// without padding, sequence by sequence: those of which live(b,s) holds, in order, then those of
/// which kept(b,s) alone holds. The last dim of pos, a size that this op makes, is their number.
/// row i32[B,S]: the packed row of (b,s), -1 where there is none. cu i32[B + 1]: the first row of
/// each sequence, then the number of all. keys i32[B]: live rows of each. order i32[B]: sequences,
/// those with most rows first. seq, pos i32[T]: where a packed row comes from.
struct PackAttrs {
  ExprRef kept = nullptr;
  ExprRef live = nullptr;
  template <class V> void visit(V&& v) {
    OptionalExpr optional{kept};
    v("kept", optional);
    v("live", live);
  }
};

/// keys', values' = kv_append(keys, values, k, v, slots): the pages of a cache with slot slots[t]
/// replaced by row t of k and v, in place. keys [pages, kv_heads, page, d], values with dv, k [1,
/// T, kv_heads*d], v with dv, slots i32[T]. Slot s is row s % page of page s / page; one outside of
/// the pages keeps nothing.
struct KvAppendAttrs {
  template <class V> void visit(V&&) {}
};

/// y, state' = earlier_rows(x, first, from, to, state): y[0,t,l,c] is row l + 1 before row t of x
/// [1,T,C], of the same sequence. Rows first[n] .. first[n + 1] are those of sequence n; before them
/// are the rows in slot from[n] of state [slots,1,L,C], the last one first, and its last L rows are
/// left in slot to[n], in place.
struct EarlierRowsAttrs {
  template <class V> void visit(V&&) {}
};

/// tokens, log_probabilities = sample(logits, ids, wanted, positions, sampling, draw, seen): the
/// token that follows each row of logits. Rows, their options and the order of choice: ir/ops.md.
struct SampleAttrs {
  template <class V> void visit(V&&) {}
};

/// What most ops of a kind are not.
struct OptionalFlag {
  bool& on;
  bool has_value() const { return on; }
};

/// Dims that an op may be without.
struct OptionalDims {
  std::vector<ExprRef>& dims;
  bool has_value() const { return !dims.empty(); }
};

/// Index variables of an attention's score and visible, by what they count: b, h, i and j.
enum AttentionIndex : int64_t { kBatch = 0, kHead = 1, kQuery = 2, kKey = 3 };
/// Of a linear attention: b, h, t (a token), e (an element of its head).
inline constexpr int64_t kToken = 2, kElement = 3;

/// ctx[b,i,h*dv+d] = sum_j softmax_j(score(q.k, b, h, i, j)) v[b,j,h'*dv+d]; h' = h / (heads /
/// kv_heads).
/// Operands: q [B,Sq,heads*d], k [B,Sk,kv_heads*d], v [B,Sk,kv_heads*dv], then what score and
/// visible load (slot = operand).
/// Packed: q [1,T,heads*d], k, v likewise, then cu, keys, order and pos of a pack, then loads;
/// packed = [B,S] are the extents of the padded tensors. Keys of a sequence are its live rows.
/// Indices stay positions in the padded tensor. Paged, which is packed too: k and v are states
/// [pages, kv_heads, page, d or dv], and after pos comes a table i32[B, W] of the pages of each
/// sequence: key j < keys[b] is row j % page of page table[b, j / page].
/// Indices: AttentionIndex. param s is the dot product q.k in f32. visible: null, or the condition
/// for key j to take part at all; a row without a visible key gives zeros.
struct AttentionAttrs {
  bool causal = false;  // visible implies j <= i + (Sk - Sq): blocks past the diagonal are skipped
  int64_t heads = 1;
  bool key_padding =
      false;  // visible has a conjunct over (b, j) only: blocks of masked keys are skipped
  int64_t kv_heads = 1;
  std::vector<ExprRef> packed;  // empty, or batch and length of the padded tensors
  std::optional<int64_t>
      page;  // packed too, where keys and values are pages of a cache: tokens of a page
  ExprRef score = nullptr;
  ExprRef sink = nullptr;  // over (b, h); none: -inf
  ExprRef visible = nullptr;
  std::optional<int64_t> window_left;   // visible implies j >= i + (Sk - Sq) - window_left
  std::optional<int64_t> window_right;  // visible implies j <= i + (Sk - Sq) + window_right
  template <class V> void visit(V&& v) {
    OptionalDims dims{packed};
    OptionalExpr beside{sink};
    v("causal", causal);
    v("heads", heads);
    v("key_padding", key_padding);
    v("kv_heads", kv_heads);
    v("packed", dims);
    v("page", page);
    v("score", score);
    v("sink", beside);
    v("visible", visible);
    v("window_left", window_left);
    v("window_right", window_right);
  }
  /// Operands before those that the expressions load: q, k, v, if packed cu, keys, order, pos,
  /// and if paged the table.
  size_t own_operands() const { return packed.empty() ? 3 : page ? 8 : 7; }
};

/// Index variables of the expressions of a linear attention: batch, head, token, channel of a head.
enum LinearAttentionIndex : int64_t { kOfBatch = 0, kOfHead = 1, kOfToken = 2, kOfChannel = 3 };

/// What of a linear attention stands for its softmax over the features of a head.
enum class FeatureSoftmax : uint8_t { q, k, both };
inline constexpr std::string_view kFeatureSoftmaxNames[] = {"q", "k", "both"};

/// y[b,i,h*dv+m] = epilogue(s, z, b, h, i, m) with s = sum_j w(i,j) v[b,j,g*dv+m], z = sum_j
/// w(i,j), g = h / (heads / kv_heads) and w(i,j) = sum_e q'[b,i,h,e] k'[b,j,g,e] * exp(sum of
/// decay(b,h,t) for j < t <= i), over visible j, with `causal` those of j <= i.
/// Operands: q [B,Sq,heads*d], k [B,Sk,kv_heads*d], v [B,Sk,kv_heads*dv], then what the expressions
/// load (slot = operand). q' = q_map(q, b, h, i, e), k' = k_map(k, b, g, j, e): element expressions
/// with the element as param s; without one the element. With `softmax` an element of q, of k or of
/// both is that of its softmax over the e of its head.
/// No epilogue: y is s. decay (causal alone): the logarithm of what older sums are multiplied by at
/// token t; none: 1. beta (causal alone): the delta rule, a token adds beta(b,g,t) (v - what k' reads
/// of the sums) in place of v.
/// Packed: as in AttentionAttrs, with cu, keys, order and pos behind v.
/// With `state` (causal alone): y, sums' = linear_attention(q, k, v, sums, loads..), which goes on
/// from sums f32 [B, kv_heads, dv (+ 1), d] and gives those after its last token.
///
/// y, state' = linear_attention_step(q, k, v, first, from, to, state, loads..): rows first[n] ..
/// first[n + 1] of q, k, v [1,T,..] go on with the state from[n] and leave the state to[n], in
/// place. b is 0 and t a row. state f32 [C, kv_heads, dv, d], or dv + 1 where the epilogue uses z:
/// row m < dv of a head is the sum of k' v[m], row dv that of k'.
struct LinearAttentionAttrs {
  ExprRef beta = nullptr;
  bool causal = false;
  ExprRef decay = nullptr;
  ExprRef epilogue = nullptr;
  int64_t heads = 1;
  ExprRef k_map = nullptr;
  int64_t kv_heads = 1;
  std::vector<ExprRef> packed;
  ExprRef q_map = nullptr;
  std::optional<FeatureSoftmax> softmax;
  bool state = false;
  ExprRef visible = nullptr;
  template <class V> void visit(V&& v) {
    OptionalDims dims{packed};
    OptionalFlag goes_on{state};
    OptionalExpr rate{beta}, decays{decay}, after{epilogue}, key{k_map}, query{q_map},
        shown{visible};
    v("beta", rate);
    v("causal", causal);
    v("decay", decays);
    v("epilogue", after);
    v("heads", heads);
    v("k_map", key);
    v("kv_heads", kv_heads);
    v("packed", dims);
    v("q_map", query);
    v("softmax", softmax);
    v("state", goes_on);
    v("visible", shown);
  }
  /// Operands before those that expressions load: q, k, v, and if packed cu, keys, order, pos, or
  /// the sums before.
  size_t own_operands() const { return packed.empty() ? 3 + state : 7; }
  bool q_softmax() const { return softmax && *softmax != FeatureSoftmax::k; }
  bool k_softmax() const { return softmax && *softmax != FeatureSoftmax::q; }
};

using Attrs =
    std::variant<ConstantAttrs, PointwiseAttrs, ReduceAttrs, CumsumAttrs, MatmulAttrs,
                 GroupedMatmulAttrs, SoftmaxAttrs, NormAttrs, RopeAttrs, PackAttrs, KvAppendAttrs,
                 EarlierRowsAttrs, LinearAttentionAttrs, AttentionAttrs, SampleAttrs>;

}  // namespace tfcc::ir
