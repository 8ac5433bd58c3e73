// SPDX-License-Identifier: Apache-2.0
#include "passes/scaled_softmax.h"

#include <algorithm>

#include "ir/matmul.h"
#include "passes/raise_norm.h"

namespace tfcc::passes {
namespace {

bool is_one(ExprRef e) { return ir::as_real(e) == 1.0; }

// d of the logistic function 1 / (1 + exp(-d)), as lse - sink.
struct Difference {
  ExprRef lse, sink;
};
std::optional<Difference> of_logistic(ExprRef e) {
  if (e->kind != ExprKind::fdiv || !is_one(e->args[0]) || e->args[1]->kind != ExprKind::fadd)
    return std::nullopt;
  const auto& sum = e->args[1]->args;
  ExprRef power = is_one(sum[0]) ? sum[1] : sum[0];
  if (power->kind != ExprKind::exp || !(is_one(sum[0]) || is_one(sum[1]))) return std::nullopt;
  ExprRef d = power->args[0];
  const bool negated = d->kind == ExprKind::fneg;
  if (negated) d = d->args[0];
  if (d->kind != ExprKind::fsub) return std::nullopt;
  return negated ? Difference{d->args[0], d->args[1]} : Difference{d->args[1], d->args[0]};
}

// The x of shift + log(sum over its last axis of exp(x - shift)), at the indices `at` of x.
std::optional<ValueId> of_logarithm(const Graph& g, ExprRef lse, const Indices& at) {
  if (lse->kind != ExprKind::fadd) return std::nullopt;
  for (const size_t k : {0, 1}) {
    ExprRef logarithm = lse->args[k], shift = lse->args[1 - k];
    if (logarithm->kind != ExprKind::log) continue;
    const auto body = reduced_body(g, logarithm->args[0], ir::ReduceKind::sum, at);
    if (!body || (*body)->kind != ExprKind::exp) continue;
    ExprRef shifted = (*body)->args[0];
    if (shifted->kind != ExprKind::fsub || shifted->args[1] != shift) continue;
    if (!ir::uses_index(shift, at.back()->value)) return loaded_at(shifted->args[0], at);
  }
  return std::nullopt;
}

struct Match {
  OpId product;
  ValueId x;
  ExprRef sink;  // over the leading indices
};

ExprRef without_rounding(ExprRef e) {
  return e->kind == ExprKind::round_f16 || e->kind == ExprKind::round_bf16 ? e->args[0] : e;
}

// Is operand 0 of the product softmax(x)?
bool multiplies_softmax(const Graph& g, OpId product, ValueId x, const Indices& at) {
  const ValueId p = g.op(product).operands[0];
  if (g.value(p).type.dims != g.value(x).type.dims)
    return false;  // cost: the verifier would undo the pass
  ExprRef e = without_rounding(expanded(g, p, at));
  if (e->kind == ExprKind::select) e = e->args[2];  // of a guard against NaN
  const auto s = loaded_at(without_rounding(e), at);
  const ir::Op* softmax = s ? g.def(*s) : nullptr;
  return softmax && softmax->kind == OpKind::softmax && softmax->operands[0] == x &&
         is_probability(expanded(g, p, at), ir::load_of(g, *s, at));
}

std::optional<Match> match(const Graph& g, OpId o) {
  const ValueId y = g.result(o);
  const auto is_product = [&](ValueId v) { return g.def(v) && ir::is_plain_product(*g.def(v)); };
  if (g.op(o).kind != OpKind::pointwise || !std::ranges::any_of(g.op(o).operands, is_product))
    return std::nullopt;  // cost: most ops have none, and their elements are not written out
  const Indices at = ir::indices_of(g, y);
  const auto is_row = [&](ValueId v) {  // a score, of which rows are summed
    return std::ranges::any_of(g.value(v).users,
                               [&](OpId u) { return g.op(u).kind == OpKind::reduce; });
  };
  ExprRef e = expanded(
      g, y, at, [&](ValueId v) { return v != y && (is_product(v) || is_row(v)); }, kNearby);
  if (e->kind != ExprKind::fmul) return std::nullopt;
  for (const size_t k : {0, 1}) {
    const auto m = loaded_at(e->args[k], at);
    if (!m || !is_product(*m) || g.use_count(*m) != 1) continue;
    const OpId product = g.value(*m).def;
    const auto& attrs = g.op(product).as<ir::MatmulAttrs>();
    if (attrs.epilogue || attrs.alpha != 1 || attrs.trans_a) continue;
    const auto d = of_logistic(without_rounding(e->args[1 - k]));
    if (!d || ir::uses_index(d->sink, at.back()->value)) continue;
    const auto& scores = g.value(g.op(product).operands[0]).type.dims;
    if (scores.size() != at.size()) continue;  // cost: then the sum is not at this place
    if (g.value(*m).type != g.value(y).type) continue;
    const Indices of_x = ir::indices_of(g.pool(), scores);
    const auto x = of_logarithm(g, d->lse, of_x);
    if (x && multiplies_softmax(g, product, *x, of_x)) return Match{product, *x, d->sink};
  }
  return std::nullopt;
}

}  // namespace

bool take_sink(Graph& g, OpId o) {
  const auto m = match(g, o);
  if (!m) return false;
  ExprPool& pool = g.pool();
  const ir::Type scores = g.value(m->x).type;
  ir::Type wide = scores;
  ExprRef columns = scores.dims.back(), one = pool.integer(1), last = ir::sub(columns, one);
  if (!ir::prove_ge0(last)) return false;
  wide.dims.back() = ir::add(columns, one);
  const ir::Op product = g.op(m->product);
  const std::string name = g.value(m->x).name;
  const auto add = [&](ExprRef e, const ir::Type& type, const char* suffix) {
    const ir::Captured c = ir::capture(e);
    return g.add_pointwise(c.operands, c.body, type, name + suffix, product.origin);
  };
  Indices at = ir::indices_of(pool, wide.dims), from = at;
  from.back() = ir::min(at.back(), last);
  const ValueId with_sink = add(ir::select(ir::lt(at.back(), columns), ir::load_of(g, m->x, from),
                                           ir::convert(m->sink, ir::scalar_of(scores.dtype))),
                                wide, ".sink");
  const ValueId p = g.add(OpKind::softmax, {with_sink}, ir::SoftmaxAttrs{}, wide, name + ".softmax",
                          product.origin);
  const ir::Type narrow{g.value(product.operands[0]).type.dtype, scores.dims};
  const ValueId weights = add(ir::convert(ir::load_of(g, p, ir::indices_of(pool, scores.dims)),
                                          ir::scalar_of(narrow.dtype)),
                              narrow, ".weights");
  const ValueId y = g.result(o);
  g.replace_uses(y, g.add(OpKind::matmul, {weights, product.operands[1]}, product.attrs,
                          g.value(y).type, g.value(y).name, product.origin));
  return true;
}

}  // namespace tfcc::passes
