// SPDX-License-Identifier: Apache-2.0
// Proofs 1, 2 and 5 of lift-kv-cache (passes/lift_kv_cache.cpp), by substitution of the elements of
// keys, values and outputs.
#include "passes/cached_layers.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "ir/ir.h"
#include "passes/row_ops.h"

namespace tfcc::passes {

bool CachedLayers::find_attentions() {
  for (OpId o : g_.order()) {
    if (g_.op(o).kind == OpKind::attention) attentions_.push_back(o);
    if (g_.op(o).kind != OpKind::linear_attention) continue;
    sums_ = true;
    states_alone_ |= g_.op(o).as<ir::LinearAttentionAttrs>().state;
  }
  states_alone_ &= attentions_.empty();
  return !attentions_.empty() || sums_;
}

bool CachedLayers::find_layers() {
  for (OpId o : attentions_) {
    const ir::Op& op = g_.op(o);
    Layer layer{o, {}, {}};
    if (!find_appended(o, op.operands[1], layer.keys) ||
        !find_appended(o, op.operands[2], layer.values))
      return false;
    layers_.push_back(layer);
  }
  return true;
}

// The output that is the sums after the last token where the input is those before the first.
std::optional<size_t> CachedLayers::output_of_sums(ExprRef before, ValueId after) const {
  const Indices at = ir::indices_of(g_, after);
  for (size_t i = 0; i < g_.outputs.size(); ++i) {
    const ValueId v = g_.outputs[i].value;
    if (g_.value(v).type.dims != g_.value(*loaded(before)).type.dims) continue;
    if (from_rows(v, before->args) == ir::load_of(g_, after, at)) return i;
  }
  return std::nullopt;
}

bool CachedLayers::find_sums() {
  for (OpId o : g_.order()) {
    const ir::Op& op = g_.op(o);
    if (op.kind != OpKind::linear_attention || !op.as<ir::LinearAttentionAttrs>().state) continue;
    if (ir::is_int(past_, 0)) return miss(o, "it goes on from sums, and the graph has no past");
    const Indices at = ir::indices_of(g_, op.operands[3]);
    ExprRef before = from_rows(op.operands[3], at);
    const auto past = loaded(before);
    if (!past || g_.def(*past)) return miss(o, "what it goes on from is no element of an input");
    // All elements of the input, where axes of 1 have no index.
    Indices own = before->args, wanted = at;
    for (Indices* x : {&own, &wanted}) std::erase_if(*x, [](ExprRef i) { return ir::as_int(i); });
    const bool all = std::ranges::is_permutation(own, wanted) &&
                     ir::element_count(pool_, g_.value(*past).type.dims) ==
                         ir::element_count(pool_, g_.value(op.operands[3]).type.dims);
    if (!all) return miss(o, fmt::format("it goes on from a part of '{}'", g_.value(*past).name));
    const auto present = output_of_sums(before, op.results[1]);
    if (!present)
      return miss(o, fmt::format("no output is '{}' after the new tokens", g_.value(*past).name));
    carried_outputs_.emplace(*present, *past);
  }
  return true;
}

// Does a place wrap at the length of the cache?
bool CachedLayers::is_circular(ExprRef element) const {
  bool found = false;
  ir::for_each_node(element, [&](ExprRef n) {
    if (n->kind != ExprKind::floordiv) return;  // a remainder is made of one
    ir::for_each_node(n->args[1], [&](ExprRef x) { found |= capacities_.count(x) > 0; });
  });
  return found;
}

bool CachedLayers::find_appended(OpId o, ValueId v, Appended& out) {
  const auto& dims = g_.value(v).type.dims;
  ExprRef c = pool_.index(2, dims[2]);
  if (is_rows(v)) {
    out.rows = ir::load_of(g_, v, {b_, s_, c});
    return true;
  }
  const bool in_place = in_place_ && (ir::as_int(dims[1]) || capacities_.count(dims[1]));
  if (!in_place && given(dims[1], nullptr) != ir::add(past_, length_))
    return miss(o, fmt::format("its keys are {}, not those of the past and the new ones",
                               ir::print(dims[1])));
  ExprRef j = pool_.index(1, past_);
  if (in_place && is_circular(from_rows(v, {b_, pool_.index(1, dims[1]), c})))
    return miss(o, "its cache is circular: what is behind its end is written over its beginning");
  out.old = given(from_rows(v, {b_, j, c}), nullptr);
  const auto past = loaded(out.old);
  if (!past || g_.def(*past)) return miss(o, "what it reads of the past is no element of an input");
  out.past = *past;
  out.rows = given(from_rows(v, {b_, ir::add(past_, s_), c}), nullptr);
  for (ValueId x : ir::loads_of(out.rows)) {
    if (!is_rows(x) && !is_fixed(x))
      return miss(o, fmt::format("its new keys and values read '{}'", g_.value(x).name));
  }
  return true;
}

// An output that is past and new rows in the layout of the past.
bool CachedLayers::is_present(const Graph::Output& output, const Appended& a) {
  if (g_.value(output.value).type.rank() != g_.value(a.past).type.rank())
    return false;  // cost: loads of other ranks differ
  const ir::Op* op = g_.def(output.value);
  if (!op) return false;
  if (std::find(op->operands.begin(), op->operands.end(), a.past) == op->operands.end())
    return false;  // cost: its elements would be others
  const Indices at = a.old->args;
  ExprRef j = pool_.index(1, past_);
  Indices later = at;
  for (ExprRef& x : later)
    x = ir::rewrite(x, [&](ExprRef n) -> ExprRef { return n == j ? ir::add(past_, s_) : nullptr; });
  if (given(from_rows(output.value, at), nullptr) != a.old) return false;
  ExprRef rows = from_rows(output.value, later);
  return given(rows, nullptr) == a.rows || from_all(rows) == from_all(a.rows);
}

bool CachedLayers::match_outputs() {
  std::vector<bool> taken(g_.outputs.size());
  std::map<uint32_t, size_t> presents;  // by past
  for (const Layer& layer : layers_) {
    for (const Appended* a : {&layer.keys, &layer.values}) {
      if (!a->past.valid()) continue;
      size_t i = 0;
      while (i < taken.size() && (taken[i] || !is_present(g_.outputs[i], *a))) ++i;
      if (i == taken.size())
        return miss(layer.attention, fmt::format("no output is '{}' with the new rows behind it",
                                                 g_.value(a->past).name));
      taken[i] = true;
      presents[a->past.value] = i;
    }
  }
  // Of others something is kept that keys or values are made of.
  for (const auto& [i, past] : carried_outputs_) {
    if (presents.emplace(past.value, i).second) taken[i] = true;
  }
  for (ValueId v : g_.inputs()) {
    const auto& dims = g_.value(v).type.dims;
    const auto n = std::ranges::find_if(dims, [&](ExprRef d) { return pasts_.count(d) > 0; });
    if (n != dims.end() && !presents.count(v.value))
      return miss(g_.value(v).name,
                  fmt::format("it is no past, and its length {} is its own", ir::print(*n)));
  }
  size_t last = 0;
  for (ValueId v : g_.inputs()) {
    const auto present = presents.find(v.value);
    if (present == presents.end()) continue;
    if (present->second < last)
      return miss(
          g_.outputs[present->second].name,
          fmt::format("it is '{}' with new rows, but comes in another order", g_.value(v).name));
    last = present->second;
  }
  for (size_t i = 0; i < taken.size(); ++i) {
    if (taken[i]) continue;
    const Graph::Output& o = g_.outputs[i];
    const ir::Type& type = g_.value(o.value).type;
    const bool rows =
        is_rows(o.value) && type.rank() == 3 && is_float(type.dtype) && ir::as_int(type.dims[2]);
    if (!rows || logits_.valid())
      return miss(o.name, rows ? "there are two outputs for each token"
                               : "the output is neither logits nor a past with new rows");
    logits_ = o.value;
  }
  return logits_.valid() || miss(g_.name, "no output has logits for each token");
}

}  // namespace tfcc::passes
