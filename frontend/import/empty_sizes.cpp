// SPDX-License-Identifier: Apache-2.0
#include "frontend/import/empty_sizes.h"

#include <algorithm>
#include <array>

#include "ir/ir.h"

namespace tfcc::frontend {

std::string resolved_size(const Facts& facts, std::string name) {
  for (size_t step = 0; step <= facts.alias.size(); ++step) {
    auto it = facts.alias.find(name);
    if (it == facts.alias.end()) break;
    name = it->second;
  }
  return name;
}

std::string symbol_name(const ValueInfo& input, size_t axis) {
  const std::string& s = input.dims[axis].symbol;
  if (s.empty()) return input.name + "." + std::to_string(axis);
  return ir::is_reserved_name(s) ? s + ".size" : s;
}

namespace {

constexpr size_t kMostTried = 16;   // one at a time; each is an import
constexpr int64_t kUsualSize = 64;  // of the sizes that are not 0

// Whether some output has elements when `empty` is 0 and no other size is.
bool leaves_elements(const Graph& g, const std::string& empty) {
  const auto size = [&](std::string_view name) -> int64_t {
    if (name == empty) return 0;
    const ir::SymbolRange range = g.pool().range(name);
    return std::max(range.min, std::min(kUsualSize, range.max.value_or(kUsualSize)));
  };
  return std::any_of(g.outputs.begin(), g.outputs.end(), [&](const Graph::Output& out) {
    const Dims& dims = g.value(out.value).type.dims;
    return std::all_of(dims.begin(), dims.end(),
                       [&](ExprRef d) { return ir::eval_size(d, size) > 0; });
  });
}

// Sizes of inputs of integers and truth values.
std::set<std::string> token_sizes(const Model& model, const Facts& facts) {
  std::set<std::string> names;
  for (const ValueInfo& in : model.inputs) {
    if (in.dtype && is_float(*in.dtype)) continue;
    for (size_t axis = 0; axis < in.dims.size(); ++axis) {
      if (!in.dims[axis].value) names.insert(resolved_size(facts, symbol_name(in, axis)));
    }
  }
  return names;
}

// Whether a shape may be decided by a comparison of sizes, which min >= 1 may have decided for 0
// too: Max(S, 1) is S then.
bool decides(const std::vector<Node>& nodes) {
  static constexpr std::array<std::string_view, 17> kDeciding = {
      "Abs", "Clip", "Equal", "Greater", "GreaterOrEqual", "If",   "Less", "LessOrEqual", "Max",
      "Min", "Mod",  "Not",   "Relu",    "ReduceMax",      "Sign", "TopK", "Where"};
  return std::any_of(nodes.begin(), nodes.end(), [](const Node& n) {
    return std::find(kDeciding.begin(), kDeciding.end(), n.op_type) != kDeciding.end();
  });
}

std::set<std::string> names_of(const Graph& g, const Facts& facts) {
  std::set<std::string> names;
  for (const ir::SizeSymbol& s : g.symbols) {
    if (!facts.min.count(s.name)) names.insert(s.name);
  }
  return names;
}

}  // namespace

bool EmptySizes::more(const Importer& im, const Facts& facts, const Walk& walk) {
  if (searched_) {
    if (waiting_.empty()) return false;
    kept_ = allowed_;
    allowed_.insert(waiting_.back());
    waiting_.pop_back();
    return true;
  }
  searched_ = true;
  settled_ = facts;
  const std::set<std::string> tokens = token_sizes(im.model(), facts);
  std::set<std::string> hidden;
  for (const std::string& name : names_of(im.graph, facts)) {
    if (!leaves_elements(im.graph, name)) hidden.insert(name);
    else if (!tokens.count(name)) allowed_.insert(name);
  }
  if (!hidden.empty() && decides(im.model().nodes)) {
    Importer from_zero(im.model(), facts);
    if (walk(from_zero, facts, hidden)) {
      for (const std::string& name : hidden) {
        if (leaves_elements(from_zero.graph, name)) allowed_.insert(name);
      }
    }
  }
  return !allowed_.empty();
}

bool EmptySizes::contradicted(const Facts& before, const Facts& after, bool walked) const {
  if (allowed_.empty()) return false;
  Facts same_least = after;
  same_least.min = before.min;
  return !(same_least == before) || (!walked && after == before);
}

bool EmptySizes::retreat(Facts& facts) {
  if (allowed_.empty()) return false;
  facts = settled_;
  if (!one_by_one_) {
    one_by_one_ = true;
    if (allowed_.size() > 1 && allowed_.size() <= kMostTried)
      waiting_.assign(allowed_.rbegin(), allowed_.rend());
  }
  allowed_ = kept_;
  if (!waiting_.empty()) {
    allowed_.insert(waiting_.back());
    waiting_.pop_back();
  }
  return true;
}

}  // namespace tfcc::frontend
