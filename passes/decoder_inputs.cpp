// SPDX-License-Identifier: Apache-2.0
#include "passes/decoder_inputs.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace tfcc::passes {
namespace {

bool has(const std::string& name, const char* part) { return name.find(part) != name.npos; }

bool is_whole(DType t) { return t == DType::i64 || t == DType::i32; }

// Inputs that may say how many tokens a sequence has: whole numbers in one dim.
std::vector<ValueId> vectors_of(const Graph& g) {
  std::vector<ValueId> found;
  for (ValueId v : g.inputs()) {
    const ir::Type& type = g.value(v).type;
    if (type.rank() == 1 && is_whole(type.dtype)) found.push_back(v);
  }
  return found;
}

// What an input is used for.
struct Use {
  std::set<int64_t> rows;   // of the constant tables that it finds rows of
  bool has_angles = false;  // sines and cosines are taken of what is computed of it
};

bool takes_angles(ir::Op op) {
  bool found = false;
  for (ExprRef* body : ir::expressions_of(op))
    ir::for_each_node(
        *body, [&](ExprRef n) { found |= n->kind == ExprKind::sin || n->kind == ExprKind::cos; });
  return found;
}

// Of the ops that read v, and of those that read what they compute, but for attentions.
bool leads_to_angles(const Graph& g, ValueId v) {
  std::vector<ValueId> worklist{v};
  std::set<uint32_t> seen;
  while (!worklist.empty()) {
    const ValueId x = worklist.back();
    worklist.pop_back();
    if (!seen.insert(x.value).second) continue;  // cost: seen before
    for (OpId o : g.value(x).users) {
      if (g.op(o).kind == OpKind::attention) continue;
      if (takes_angles(g.op(o))) return true;
      worklist.insert(worklist.end(), g.op(o).results.begin(), g.op(o).results.end());
    }
  }
  return false;
}

Use use_of(const Graph& g, ValueId v) {
  Use use;
  const auto reads = [&](ExprRef e) {
    bool found = false;
    ir::for_each_node(e, [&](ExprRef n) { found |= loaded(n) == v; });
    return found;
  };
  use.has_angles = leads_to_angles(g, v);
  const auto look = [&](ExprRef n) {
    if (n->kind != ExprKind::load || !g.is_constant(*loaded(n))) return;
    for (size_t k = 0; k < n->args.size(); ++k) {
      if (reads(n->args[k]))
        use.rows.insert(ir::as_int(g.value(*loaded(n)).type.dims[k]).value_or(0));
    }
  };
  for (OpId o : g.value(v).users) {
    ir::Op op = g.op(o);
    for (ExprRef* body : ir::expressions_of(op))
      ir::for_each_node(ir::free_expr(g, o, *body, {}), look);
  }
  return use;
}

}  // namespace

std::vector<std::vector<Count>> counts_of(const Graph& graph) {
  constexpr size_t kMostVectors = 3;
  const std::vector<ValueId> vectors = vectors_of(graph);
  if (vectors.size() > kMostVectors) return {{}};  // then what reads them is not lifted
  std::vector<Count> named;
  for (ValueId v : vectors) {
    const std::string& name = graph.value(v).name;
    named.push_back(has(name, "len") || has(name, "total") ? Count::all : Count::past);
  }
  std::vector<std::vector<Count>> found = {named};
  std::vector<Count> next(vectors.size(), Count::past);
  for (size_t k = 0; k < next.size();) {
    if (next != named) found.push_back(next);
    for (k = 0; k < next.size(); ++k) {
      next[k] = static_cast<Count>((static_cast<int>(next[k]) + 1) % kCounts);
      if (next[k] != Count::past) break;
    }
  }
  return found;
}

DecoderInputs::DecoderInputs(Graph& g, const std::vector<Count>& counts, PassReport& report)
    : GivenInputs(g), report_(report) {
  const std::vector<ValueId> vectors = vectors_of(g);
  for (size_t i = 0; i < counts.size(); ++i) counts_[vectors[i].value] = counts[i];
}

bool DecoderInputs::miss(std::string what, std::string reason) {
  report_.misses.push_back({std::move(what), std::move(reason)});
  return false;
}

ValueId* DecoderInputs::place_of(InputRole role) {
  switch (role) {
    case InputRole::ids: return &in_.ids;
    case InputRole::mask: return &in_.mask;
    case InputRole::positions: return &in_.positions;
    case InputRole::types: return &in_.types;
    default: break;
  }
  return nullptr;
}

// Ids look up as many rows as there are logits; of positions angles are taken. What looks up other
// rows may be a language or a speaker as well as a position, and what hides keys may be a mask.
InputRole DecoderInputs::role_by_use(ValueId v) const {
  const Use use = use_of(g_, v);
  if (use.rows.empty()) return use.has_angles ? InputRole::positions : InputRole::none;
  for (const Graph::Output& o : g_.outputs) {
    const auto& dims = g_.value(o.value).type.dims;
    if (dims.size() == 3 && use.rows.count(ir::as_int(dims[2]).value_or(-1))) return InputRole::ids;
  }
  return InputRole::none;
}

bool DecoderInputs::find_inputs() {
  std::vector<ValueId> unknown;
  const auto take = [&](ValueId v, InputRole role) {
    ValueId* place = place_of(role);
    if (!place || place->valid())
      return miss(g_.value(v).name, "its role in a decoder is not clear");
    *place = v;
    return true;
  };
  for (ValueId v : g_.inputs()) {
    const ir::Value& in = g_.value(v);
    // In time, height and width, [3, batch, length], positions are one number for tokens of a text.
    const bool several = in.type.rank() == 3 && in.role == InputRole::positions;
    if (in.type.rank() != 2 && !several) continue;
    if (in.role == InputRole::none && is_whole(in.type.dtype)) unknown.push_back(v);
    else if (!take(v, in.role)) return false;
  }
  for (ValueId v : unknown) {
    const bool alone = unknown.size() == 1 && !in_.ids.valid();
    if (!take(v, alone ? InputRole::ids : role_by_use(v))) return false;
  }
  return in_.ids.valid() ||
         miss(g_.name, "there is no input of token ids, whole numbers of [batch, length]");
}

// [batch or 1, length], or [3, batch, length].
bool DecoderInputs::is_of_each_token(const std::vector<ExprRef>& dims) const {
  if (dims.back() != length_) return false;
  if (dims.size() == 2) return true;
  return ir::is_int(dims[0], 3) && dims[1] == batch_;
}

// Does an attention read it, or what is a view or a choice of it? Others hold no keys.
bool DecoderInputs::leads_to_attention(ValueId v) const {
  std::vector<ValueId> worklist{v};
  std::set<uint32_t> seen;
  while (!worklist.empty()) {
    const ValueId x = worklist.back();
    worklist.pop_back();
    if (!seen.insert(x.value).second) continue;  // cost: seen before
    for (OpId o : g_.value(x).users) {
      const ir::Op& op = g_.op(o);
      if (op.kind == OpKind::pointwise) worklist.push_back(op.results[0]);
      if (op.kind == OpKind::attention) return true;
    }
  }
  return false;
}

bool DecoderInputs::find_sizes() {
  batch_ = g_.value(in_.ids).type.dims[0];
  length_ = g_.value(in_.ids).type.dims[1];
  const ir::SizeSymbol* past = g_.size_with(SizeRole::past);
  past_ = past ? pool_.symbol(past->name) : pool_.integer(0);
  // A graph may read the length of past and new tokens off its mask.
  if (const ir::SizeSymbol* total = g_.size_with(SizeRole::context))
    total_ = pool_.symbol(total->name);
  // Then no size of the graph says how many tokens were before: an index of a new token is no position.
  if (states_alone_ && !past) past_ = fresh("past_tokens");
  find_capacities();
  find_pasts();
  if (length_->kind != ExprKind::symbol)
    return miss(g_.name, fmt::format("its length is always {}", ir::print(length_)));
  if (in_.positions.valid() && !is_of_each_token(g_.value(in_.positions).type.dims))
    return miss(g_.value(in_.positions).name, "it is not of each new token");
  b_ = pool_.index(0, batch_);
  s_ = pool_.index(1, length_);
  return true;
}

// Layers of a window may name the length of their past otherwise. A generator gives all layers the
// same tokens. That all inputs of such a length are pasts is asked when these are known.
void DecoderInputs::find_pasts() {
  if (past_->kind != ExprKind::symbol) return;
  for (ValueId v : g_.inputs()) {
    const ir::Type& type = g_.value(v).type;
    if (!is_float(type.dtype)) continue;  // cost: ids and masks are of tokens
    for (ExprRef n : type.dims) {
      const bool known = n == batch_ || n == length_ || n == past_ || n == total_;
      if (n->kind == ExprKind::symbol && !known && !capacities_.count(n)) pasts_.insert(n);
    }
  }
}

// A size that the graph has no name for.
ExprRef DecoderInputs::fresh(std::string name) {
  while (std::ranges::any_of(g_.symbols, [&](const auto& s) { return s.name == name; }))
    name += "_";
  pool_.set_range(name, {0, ir::kLargestSize});
  return pool_.symbol(name);
}

// Caches that are written in place have the dims of an output. Where there is no past, nothing says
// what a vector counts: a prefix, a speaker.
void DecoderInputs::find_capacities() {
  std::erase_if(counts_,
                [&](const auto& c) { return g_.value(ValueId{c.first}).type.dims[0] != batch_; });
  if (counts_.empty()) return;  // cost: nothing would say where new tokens go
  std::set<ExprRef> sizes;
  for (ValueId v : g_.inputs()) {
    const auto& dims = g_.value(v).type.dims;
    in_place_ |= leads_to_attention(v) &&
                 std::any_of(g_.outputs.begin(), g_.outputs.end(),
                             [&](const auto& o) { return g_.value(o.value).type.dims == dims; });
    for (ExprRef d : dims) {
      if (d->kind == ExprKind::symbol && d != batch_ && d != length_) sizes.insert(d);
    }
  }
  if (!in_place_) {
    if (ir::is_int(past_, 0)) counts_.clear();
    return;
  }
  capacities_ = std::move(sizes);
  past_ = fresh("past_tokens");
  spare_ = fresh("spare_tokens");
}

}  // namespace tfcc::passes
