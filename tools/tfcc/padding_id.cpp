// SPDX-License-Identifier: Apache-2.0
#include "tools/tfcc/padding_id.h"

#include <algorithm>

namespace tfcc::tools {
namespace {

// An input of the op's conditions, if there is no other.
std::optional<ir::ValueId> ids_of(const ir::Graph& g, const ir::Op& pack) {
  if (pack.operands.size() != 1) return std::nullopt;
  const ir::Value& ids = g.value(pack.operands[0]);
  if (ids.def.valid() || ids.type.rank() != 2 || is_float(ids.type.dtype) ||
      ids.role == InputRole::mask)
    return std::nullopt;
  return pack.operands[0];
}

// Sequence b has id b alone, `count` of them: how many tokens of each are kept as keys.
Result<std::map<std::string, ir::HostTensor>> keys_by_id(const ir::Graph& g, ir::ValueId ids,
                                                         int64_t count) {
  std::map<std::string, ir::HostTensor> inputs;
  for (ir::ValueId v : g.inputs()) {
    ir::HostTensor t;
    t.dtype = g.value(v).type.dtype;
    for (ir::ExprRef d : g.value(v).type.dims) {
      t.dims.push_back(ir::eval_size(d, [&](std::string_view name) {
        const auto symbol = std::ranges::find(g.symbols, name, &ir::SizeSymbol::name);
        const bool batch = symbol != g.symbols.end() && symbol->role == SizeRole::batch;
        return std::max<int64_t>(g.pool().range(name).min, batch ? count : 1);
      }));
    }
    const int64_t n = t.element_count();
    if (is_float(t.dtype)) t.reals.assign(static_cast<size_t>(n), 0.0);
    for (int64_t i = 0; i < n && !is_float(t.dtype); ++i)
      t.ints.push_back(v == ids ? i / t.dims[1] : 0);
    inputs[g.value(v).name] = std::move(t);
  }
  return ir::eval(g, inputs);
}

}  // namespace

std::optional<PaddingId> padding_id(const ir::Graph& optimised) {
  const auto pack = std::ranges::find_if(
      optimised.order(), [&](ir::OpId o) { return optimised.op(o).kind == ir::OpKind::pack; });
  if (pack == optimised.order().end()) return std::nullopt;
  const auto ids = ids_of(optimised, optimised.op(*pack));
  if (!ids) return std::nullopt;
  ir::Graph g = optimised;
  constexpr size_t keys = 2;  // of the results of pack
  g.outputs = {{"keys", g.op(*pack).results[keys]}};
  g.clean();
  for (int64_t count = 64; count > 1; count /= 2) {  // tables may be shorter
    const auto kept = keys_by_id(g, *ids, count);
    if (!kept) continue;
    const std::vector<int64_t>& n = kept->at("keys").ints;
    if (std::ranges::count(n, 0) != 1) return std::nullopt;
    return PaddingId{optimised.value(*ids).name, std::ranges::find(n, 0) - n.begin()};
  }
  return std::nullopt;
}

}  // namespace tfcc::tools
