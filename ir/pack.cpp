// SPDX-License-Identifier: Apache-2.0
#include "ir/pack.h"

#include <algorithm>

namespace tfcc::ir {
namespace {

ExprRef bounded_load(const Graph& graph, ValueId v, ExprRef t, ExprRef extent, int64_t flag) {
  if (is_int(extent, 1)) return graph.pool().integer(0);
  return bounded(load_of(graph, v, {t}), extent, flag);
}

// A size of the graph as large as the padded batch at most.
ExprRef add_total(Graph& graph, ExprRef batch, ExprRef length) {
  SizeSymbol symbol;
  symbol.name = "packed_tokens";
  while (std::any_of(graph.symbols.begin(), graph.symbols.end(),
                     [&](const SizeSymbol& s) { return s.name == symbol.name; }))
    symbol.name += "_";
  symbol.role = SizeRole::packed;
  symbol.bound = mul(batch, length);
  graph.pool().set_range(symbol.name, {1, kLargestSize});
  graph.symbols.push_back(symbol);
  return graph.pool().symbol(symbol.name);
}

}  // namespace

ExprRef Packing::sequence(const Graph& graph, ExprRef t) const {
  return bounded_load(graph, seq, t, batch, flag);
}

ExprRef Packing::place(const Graph& graph, ExprRef t) const {
  return bounded_load(graph, pos, t, length, flag);
}

Packing add_pack(Graph& graph, ExprRef live, ExprRef kept, ExprRef batch, ExprRef length,
                 std::string origin) {
  Packing p;
  p.batch = batch;
  p.length = length;
  p.total = add_total(graph, batch, length);
  p.flag = static_cast<int64_t>(graph.flags.size());
  graph.flags.emplace_back("a row without padding lies outside of its batch; report this model");
  std::vector<ValueId> operands;
  const auto free = capture({kept, live}, operands);
  const auto i32 = [](std::vector<ExprRef> dims) { return Type{DType::i32, std::move(dims)}; };
  const OpId pack = graph.add_op(OpKind::pack, operands, PackAttrs{free[0], free[1]},
                                 {i32({batch, length}), i32({add(batch, graph.pool().integer(1))}),
                                  i32({batch}), i32({batch}), i32({p.total}), i32({p.total})},
                                 {"row", "cu", "keys", "order", "seq", "pos"}, std::move(origin));
  p.row = graph.result(pack, 0);
  p.cu = graph.result(pack, 1);
  p.keys = graph.result(pack, 2);
  p.order = graph.result(pack, 3);
  p.seq = graph.result(pack, 4);
  p.pos = graph.result(pack, 5);
  return p;
}

}  // namespace tfcc::ir
