// SPDX-License-Identifier: Apache-2.0
// Words for matching element expressions, shared by the passes.
#pragma once

#include <cmath>
#include <optional>
#include <vector>

#include "ir/elements.h"

namespace tfcc::passes {

using ir::ExprKind;
using ir::ExprPool;
using ir::ExprRef;
using ir::Graph;
using ir::OpId;
using ir::OpKind;
using ir::Scalar;
using ir::ValueId;
using Indices = std::vector<ExprRef>;

/// The summands of a real sum, the factors of a real product, in any association.
void flatten(ExprKind kind, ExprRef e, std::vector<ExprRef>& out);
inline std::vector<ExprRef> summands(ExprRef e) {
  std::vector<ExprRef> v;
  flatten(ExprKind::fadd, e, v);
  return v;
}
inline std::vector<ExprRef> factors(ExprRef e) {
  std::vector<ExprRef> v;
  flatten(ExprKind::fmul, e, v);
  return v;
}

/// A real constant within `relative` of v (constants pass through f32 and f16 on their way).
bool near(ExprRef e, double v, double relative = 1e-3);

/// The value that e loads, if e is a load.
std::optional<ValueId> loaded(ExprRef e);
/// The value loaded at exactly these indices, if e is such a load.
std::optional<ValueId> loaded_at(ExprRef e, const Indices& at);
/// The rank-1 value loaded at the last of these indices (a bias, a gamma), with as many elements as
/// that index has.
std::optional<ValueId> loaded_along_last(const Graph& graph, ExprRef e, const Indices& at);

/// The two addends of e = x + bias in either order, each if it is one: a value at these indices, and
/// a vector along the last axis.
struct BiasAdd {
  std::optional<ValueId> x, bias;
};
/// Nothing if e is no sum.
std::optional<BiasAdd> bias_add(const Graph& graph, ExprRef e, const Indices& at);

/// Is e the probability p, perhaps rounded, perhaps with NaN turned into 0?
bool is_probability(ExprRef e, ExprRef p);

/// The element of v at its own indices with all elementwise producers inlined, except where `stop`
/// says so.
ExprRef expanded(const Graph& graph, ValueId v, const Indices& at,
                 const std::function<bool(ValueId)>& stop = {}, ir::Reach reach = {});

/// The element of v at these indices through views alone, which do not round: a load.
ExprRef through_views(const Graph& graph, ValueId v, const Indices& at);

/// Is this pointwise value a product and a vector along its last axis, still an op of its own?
/// fuse-linear-bias wants it whole, so that a pass which reads it in pieces (q, k and v of one
/// product) stops there.
bool is_biased_product(const Graph& graph, ValueId v);

/// Far enough for a norm, a GELU or a softmax, whose parts are a few ops away; these are looked for
/// at every op.
inline constexpr ir::Reach kNearby{24, 64};

/// The element of a sum with the elementwise ops that it alone reads inlined, but for those that are
/// better off as ops of their own: what a fusion may
/// swallow.
ExprRef expanded_sum(const Graph& graph, ValueId v, const Indices& at);

/// Is v made of inputs by whole numbers alone, as a count of the mask is?
bool is_given(const Graph& graph, ValueId v);

/// The product of constant factors of e, and what is left.
double peel_scale(ExprRef& e);

/// The attributes of an op but constants as numbers: equal if and only if the attributes are.
std::vector<uint64_t> attributes_key(const ir::Op& op);

/// What messages call an op: its ONNX nodes if known, else its result.
std::string label(const Graph& graph, OpId o);

}  // namespace tfcc::passes
