// SPDX-License-Identifier: Apache-2.0
// eliminate-common-ops: ops of the same kind, operands, attributes and types are computed once.
//   before: %a = pointwise(%x) {body = (i) => exp(%x[i])}; %b = pointwise(%x) {body = (i) => exp(%x[i])}
//   after:  uses of %b read %a
// Constants are equal when their recipes are; inline ones over 64 KiB are not compared.
#include <map>
#include <vector>

#include "passes/match.h"
#include "passes/passes.h"

namespace tfcc::passes {
namespace {

using Key = std::vector<uint64_t>;

constexpr size_t kLargestCompared = 64 * 1024;  // larger ones are equal if they are the same bytes

Key key_of(const Graph& g, OpId o) {
  const ir::Op& op = g.op(o);
  Key key{static_cast<uint64_t>(op.kind), op.operands.size(), op.results.size()};
  for (ValueId v : op.operands) key.push_back(v.value);
  for (ValueId v : op.results) {
    const ir::Type& t = g.value(v).type;
    key.push_back(static_cast<uint64_t>(t.dtype) << 8 | t.rank());
    for (ExprRef d : t.dims) key.push_back(reinterpret_cast<uintptr_t>(d));
  }
  if (op.kind == OpKind::constant) {
    for (char c : ir::recipe_key(op.as<ir::ConstantAttrs>().constant, kLargestCompared))
      key.push_back(static_cast<uint64_t>(c));
  } else {
    const Key attrs = attributes_key(op);
    key.insert(key.end(), attrs.begin(), attrs.end());
  }
  return key;
}

}  // namespace

PassReport eliminate_common_ops(Graph& graph) {
  PassReport report;
  std::map<Key, OpId> first;
  for (OpId o : std::vector<OpId>(graph.order())) {
    auto [it, added] = first.emplace(key_of(graph, o), o);
    if (added) continue;
    for (size_t i = 0; i < graph.op(o).results.size(); ++i)
      graph.replace_uses(graph.result(o, i), graph.result(it->second, i));
    ++report.rewrites;
  }
  return report;
}

}  // namespace tfcc::passes
