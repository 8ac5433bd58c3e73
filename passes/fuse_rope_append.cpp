// SPDX-License-Identifier: Apache-2.0
// fuse-rope-append: the rotary embedding of q and k and the append of k and v to a cache as one op,
// which is one launch.
//   before: %q2 = rope(%q, %cos, %sin); %k2 = rope(%k, %cos, %sin); %keys, %values = kv_append(%kc, %vc, %k2, %v, %slots);
//           %y = attention(%q2, %keys, %values, ..)
//   after:  %keys, %values, %q2 = rope_append(%kc, %vc, %k, %v, %slots, %q, %cos, %sin); %y = attention(%q2, %keys, %values, ..)
//           with both gammas behind them where heads are normalised
// Requires: the same tables and attributes but for the number of heads, which are heads of the
// cache's size; nobody else reads %k2, and one attention alone reads the cache and %q2, so that %q2
// does not follow from the cache. Runs after: lift-kv-cache. Runs before: fuse-qkv, which looks
// through either form.
#include "passes/match.h"
#include "passes/passes.h"

namespace tfcc::passes {
namespace {

// The rope that makes v for one reader.
const ir::Op* rope_of(const Graph& g, ValueId v) {
  const ir::Op* op = g.def(v);
  return op && op->kind == OpKind::rope && g.use_count(v) == 1 ? op : nullptr;
}

// The op that alone reads these keys and values: an attention, for which q is made.
std::optional<OpId> reader(const Graph& g, ValueId keys, ValueId values) {
  const std::vector<OpId>& users = g.value(keys).users;
  if (users.size() != 1 || g.value(values).users != users) return std::nullopt;
  return users[0];
}

bool fuse(Graph& g, OpId o, PassReport& report) {
  const auto miss = [&](const std::string& reason) {
    report.misses.push_back({label(g, o), reason});
    return false;
  };
  const ir::Op append = g.op(o);
  const ir::Op* k = rope_of(g, append.operands[2]);
  if (!k) return miss("its keys are not rotated for it alone");
  const auto attention = reader(g, append.results[0], append.results[1]);
  if (!attention) return miss("its cache is not read by one op alone");
  const ValueId rotated = g.op(*attention).operands[0];
  const ir::Op* q = rope_of(g, rotated);
  if (!q) return miss("the queries are not rotated for one op alone");
  const auto &of_k = k->as<ir::RopeAttrs>(), &of_q = q->as<ir::RopeAttrs>();
  const bool same_tables = q->operands[1] == k->operands[1] && q->operands[2] == k->operands[2];
  if (!same_tables || of_q.interleaved != of_k.interleaved || of_q.rotary != of_k.rotary)
    return miss("queries and keys are rotated differently");
  if (of_q.eps != of_k.eps) return miss("queries and keys are normalised differently");
  ExprRef heads = g.value(append.operands[0]).type.dims[1],
          size = g.value(append.operands[0]).type.dims[3];
  if (!ir::is_int(heads, of_k.heads) ||
      g.value(rotated).type.dims[2] != ir::mul(size, g.pool().integer(of_q.heads))) {
    return miss("the heads that are rotated are not those of the cache");
  }

  std::vector<ValueId> operands = append.operands;
  operands[2] = k->operands[0];
  operands.insert(operands.end(), q->operands.begin(), q->operands.end());
  if (of_k.eps) operands.push_back(k->operands[3]);
  std::vector<ir::Type> types;
  std::vector<std::string> names;
  for (ValueId v : {append.results[0], append.results[1], rotated}) {
    types.push_back(g.value(v).type);
    names.push_back(g.value(v).name);
  }
  const OpId fused = g.add_op(OpKind::rope_append, operands, of_q, types, names, append.origin);
  g.replace_uses(append.results[0], g.result(fused, 0));
  g.replace_uses(append.results[1], g.result(fused, 1));
  g.replace_uses(rotated, g.result(fused, 2));
  return true;
}

}  // namespace

PassReport fuse_rope_append(Graph& graph) {
  PassReport report;
  for (OpId o : std::vector<OpId>(graph.order())) {
    if (graph.op(o).kind == OpKind::kv_append && fuse(graph, o, report)) ++report.rewrites;
  }
  return report;
}

}  // namespace tfcc::passes
