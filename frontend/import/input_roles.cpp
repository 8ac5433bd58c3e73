// SPDX-License-Identifier: Apache-2.0
#include "frontend/import/input_roles.h"

#include "ir/ir.h"

namespace tfcc::frontend {
namespace {

// [batch, past and new tokens].
bool is_of_all_tokens(const ir::Graph& g, const ir::Type& type) {
  if (type.rank() != 2) return false;
  const ir::SizeSymbol *past = g.size_with(SizeRole::past), *length = g.size_with(SizeRole::length),
                       *all = g.size_with(SizeRole::context);
  if (all && type.dims[1] == g.pool().symbol(all->name)) return true;
  return past && length &&
         type.dims[1] == ir::add(g.pool().symbol(past->name), g.pool().symbol(length->name));
}

InputRole role_of(const ir::Graph& g, const ir::Value& in) {
  const bool whole = in.type.dtype == DType::i64 || in.type.dtype == DType::i32;
  return whole && is_of_all_tokens(g, in.type) ? InputRole::mask
                                               : role_by_name(in.name, in.type.dtype);
}

}  // namespace

void tell_input_roles(ir::Graph& graph) {
  for (ir::ValueId v : graph.inputs()) graph.set_role(v, role_of(graph, graph.value(v)));
}

}  // namespace tfcc::frontend
