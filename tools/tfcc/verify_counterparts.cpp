// SPDX-License-Identifier: Apache-2.0
#include "tools/tfcc/verify_counterparts.h"

#include <algorithm>
#include <cctype>
#include <string>

#include "passes/match.h"

namespace tfcc::tools {
namespace {

using ir::ExprRef;
using ir::Graph;
using ir::OpId;
using ir::ValueId;

// "Mul_1.2.1" was named after "Mul_1" or "Mul_1.2".
bool strip_suffix(std::string& name) {
  const size_t dot = name.rfind('.');
  if (dot == std::string::npos || dot + 1 == name.size()) return false;
  if (!std::all_of(name.begin() + static_cast<std::ptrdiff_t>(dot) + 1, name.end(),
                   [](unsigned char c) { return std::isdigit(c); }))
    return false;
  name.resize(dot);
  return true;
}

class Pairing {
 public:
  Pairing(const Graph& before, const Graph& after) : before_(before), after_(after) {}

  Counterparts run() {
    for (OpId o : after_.order()) {
      for (ValueId v : after_.op(o).results) pair(v, before_.find_value(after_.value(v).name));
    }
    // What took the place of a value is read in its place.
    for (OpId o : after_.order()) {
      if (o.value >= before_.op_count() || before_.op(o).erased) continue;
      const ir::Op &was = before_.op(o), &is = after_.op(o);
      if (was.operands.size() != is.operands.size() || !same_computation(was, is)) continue;
      for (size_t i = 0; i < is.operands.size(); ++i) pair(is.operands[i], was.operands[i]);
    }
    for (const Graph::Output& now : after_.outputs) {
      for (const Graph::Output& then : before_.outputs) {
        if (then.name == now.name) pair(now.value, then.value);
      }
    }
    // Else it was named after a value that is gone.
    for (OpId o : after_.order()) {
      for (ValueId v : after_.op(o).results) {
        std::string name = after_.value(v).name;
        while (!pairs_.count(v) && strip_suffix(name)) {
          if (!after_.find_value(name).valid()) pair(v, before_.find_value(name));
        }
      }
    }
    return std::move(pairs_);
  }

 private:
  static bool computed(const Graph& graph, ValueId v) {
    const ir::Op* op = graph.def(v);
    return op && op->kind != ir::OpKind::constant;
  }

  void pair(ValueId now, ValueId then) {
    if (!then.valid() || !computed(after_, now) || !computed(before_, then)) return;
    if (after_.value(now).type.dims == before_.value(then).type.dims) pairs_.emplace(now, then);
  }

  const Graph &before_, &after_;
  Counterparts pairs_;
};

}  // namespace

bool same_computation(const ir::Op& a, const ir::Op& b) {
  return a.kind == b.kind && a.attrs.index() == b.attrs.index() &&
         passes::attributes_key(a) == passes::attributes_key(b);
}

Counterparts counterparts(const Graph& before, const Graph& after) {
  return Pairing(before, after).run();
}

}  // namespace tfcc::tools
