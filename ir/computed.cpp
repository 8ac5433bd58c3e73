// SPDX-License-Identifier: Apache-2.0
#include "ir/computed.h"

#include <algorithm>

#include "ir/ir.h"

namespace tfcc::ir {

std::string ComputedConstant::problem(const Graph& g) {
  if (g.outputs.size() != 1) return "has not one output";
  if (!g.inputs().empty() || !g.symbols.empty()) return "reads what only a run has";
  if (!g.checks.empty() || !g.flags.empty()) return "may refuse what it is given";
  const auto& dims = g.value(g.outputs[0].value).type.dims;
  if (!std::ranges::all_of(dims, [](ExprRef d) { return as_int(d).has_value(); }))
    return "has an output of unknown size";
  for (OpId o : g.order()) {
    if (g.op(o).kind != OpKind::constant) continue;
    if (g.op(o).as<ConstantAttrs>().constant.computed) return "is made of another one";
  }
  return "";
}

Result<std::span<const std::byte>> ComputedConstant::bytes() const {
  const std::lock_guard lock(making_);
  if (made_) return std::span<const std::byte>(bytes_);
  TFCC_TRY(const auto values, eval(graph_, {}));
  const HostTensor& made = values.at(graph_.outputs[0].name);
  bytes_.resize(static_cast<size_t>(made.element_count()) * size_of(made.dtype));
  for (size_t i = 0; i < made.reals.size(); ++i)
    write_real(made.dtype, bytes_.data(), i, made.reals[i]);
  for (size_t i = 0; i < made.ints.size(); ++i)
    write_int(made.dtype, bytes_.data(), i, made.ints[i]);
  for (OpId o : graph_.order()) {
    if (graph_.op(o).kind == OpKind::constant) let_go(graph_.op(o).as<ConstantAttrs>().constant);
  }
  made_ = true;
  return std::span<const std::byte>(bytes_);
}

}  // namespace tfcc::ir
