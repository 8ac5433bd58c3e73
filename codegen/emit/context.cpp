// SPDX-License-Identifier: Apache-2.0
#include "codegen/emit/context.h"

#include <fmt/format.h>

#include <algorithm>

namespace tfcc::codegen {
namespace {

bool written_in_place(const Graph& g, ValueId v) {
  const ir::Op* op = g.def(v);
  if (!op || is_real_product(g, *op) || op->kind == OpKind::constant) return false;
  return std::none_of(g.value(v).users.begin(), g.value(v).users.end(),
                      [&](OpId u) { return is_real_product(g, g.op(u)); });
}

}  // namespace

CallerMemory::CallerMemory(const std::vector<const Graph*>& forms) : inputs_(forms[0]->inputs()) {
  for (size_t i = ir::plain_outputs(*forms[0]); i < forms[0]->outputs.size(); ++i) {
    const ValueId v = forms[0]->outputs[i].value;
    states_.emplace_back(v, *input_of(ir::state_before(*forms[0], v)));
  }
  for (size_t i = 0; i < ir::plain_outputs(*forms[0]); ++i) {
    const ValueId v = forms[0]->outputs[i].value;
    // Where one form has a product, the value must not be the caller's.
    const bool in_place = std::all_of(forms.begin(), forms.end(), [&](const Graph* g) {
      return g->outputs[i].value == v && written_in_place(*g, v);
    });
    outputs_.push_back(in_place ? std::optional(v) : std::nullopt);
  }
}

std::optional<size_t> CallerMemory::input_of(ValueId v) const {
  const auto it = std::find(inputs_.begin(), inputs_.end(), v);
  return it == inputs_.end() ? std::nullopt
                             : std::optional(static_cast<size_t>(it - inputs_.begin()));
}

std::optional<size_t> CallerMemory::output_of(ValueId v) const {
  const auto it = std::find(outputs_.begin(), outputs_.end(), v);
  return it == outputs_.end() ? std::nullopt
                              : std::optional(static_cast<size_t>(it - outputs_.begin()));
}

std::optional<size_t> CallerMemory::state_of(ValueId v) const {
  const auto it =
      std::find_if(states_.begin(), states_.end(), [&](const auto& s) { return s.first == v; });
  return it == states_.end() ? std::nullopt : std::optional(it->second);
}

std::string storage_type(DType t) { return t == DType::boolean ? "b8" : tfcc::to_string(t); }

std::string index_name(int64_t k) { return fmt::format("i{}", k); }

std::string index_parameters(size_t count) {
  std::string s;
  for (size_t k = 0; k < count; ++k) s += fmt::format("{}idx i{}", k ? ", " : "", k);
  return s;
}

std::string EmitContext::storage(ValueId v) const { return storage_type(type(v).dtype); }

ExprRef EmitContext::rows(ValueId v) const {
  const auto& d = dims(v);
  return d.empty() ? integer(1)
                   : ir::element_count(pool(), std::vector<ExprRef>(d.begin(), d.end() - 1));
}

std::optional<int64_t> EmitContext::largest(ExprRef size) const {
  return bucket.longest && size == bucket.length ? bucket.longest : promised(size);
}

std::optional<int64_t> EmitContext::promised(ExprRef size) const {
  if (auto n = ir::as_int(size)) return n;
  if (size->kind == ir::ExprKind::symbol) return pool().range(size->name).max;
  return std::nullopt;
}

bool EmitContext::any_of_callers(const std::vector<ValueId>& values) const {
  return std::any_of(values.begin(), values.end(), [&](ValueId v) { return callers.has(v); });
}

bool EmitContext::made_before_last(const std::vector<ExprRef>& sizes,
                                   const std::vector<ValueId>& reads) const {
  const auto mentions = [](ExprRef e, const std::string& symbol) {
    bool found = false;
    ir::for_each_node(
        e, [&](ExprRef n) { found |= n->kind == ir::ExprKind::symbol && n->name == symbol; });
    return found;
  };
  const auto written = [&](ValueId v) { return graph.def(v) && !graph.is_constant(v); };
  if (std::none_of(reads.begin(), reads.end(), written)) return false;
  return std::all_of(graph.symbols.begin(), graph.symbols.end(), [&](const ir::SizeSymbol& s) {
    const auto of_it = [&](ExprRef e) { return mentions(e, s.name); };
    if (!s.made() || std::none_of(sizes.begin(), sizes.end(), of_it)) return true;
    return std::any_of(reads.begin(), reads.end(), [&](ValueId v) {
      return written(v) && graph.def(v)->kind != OpKind::pack &&
             std::any_of(dims(v).begin(), dims(v).end(), of_it);
    });
  });
}

Error EmitContext::unsupported(OpId o, const std::string& what) const {
  const ir::Op& op = graph.op(o);
  return {ErrorCode::unsupported, fmt::format("{} '{}': {}", ir::to_string(op.kind),
                                              graph.value(op.results[0]).name, what)};
}

ExprRef rows_of(const EmitContext& c, ValueId v) {
  const std::vector<ExprRef>& dims = c.dims(v);
  ExprRef rows = c.integer(1);
  for (size_t k = 0; k + 1 < dims.size(); ++k) rows = ir::mul(rows, dims[k]);
  return rows;
}

std::optional<RowSlice> row_slice(const Graph& g, ValueId v) {
  const ir::Op* op = g.def(v);
  if (!op || op->kind != OpKind::pointwise || op->operands.size() != 1 || g.is_output(v))
    return std::nullopt;
  for (OpId user : g.value(v).users) {
    const ir::Op& reader = g.op(user);
    // Only as q, k or v, or as what is rotated: tables and what a score loads go through a plain
    // pointer.
    std::vector<size_t> in_place;
    switch (reader.kind) {
      case OpKind::attention:
      case OpKind::linear_attention:
      case OpKind::linear_attention_step: in_place = {0, 1, 2}; break;
      case OpKind::rope: in_place = {0}; break;
      case OpKind::kv_append: in_place = {2, 3}; break;
      case OpKind::rope_append: in_place = {2, 3, 5}; break;
      default: return std::nullopt;
    }
    for (size_t i = 0; i < reader.operands.size(); ++i) {
      if (reader.operands[i] == v &&
          std::find(in_place.begin(), in_place.end(), i) == in_place.end())
        return std::nullopt;
    }
  }
  const ValueId base = op->operands[0];
  const ir::Type &type = g.value(v).type, &wide = g.value(base).type;
  ExprRef body = op->as<ir::PointwiseAttrs>().body;
  const auto at = ir::indices_of(g.pool(), type.dims);
  if (body->kind != ir::ExprKind::load || at.size() != 3 || !g.def(base) || g.is_constant(base) ||
      wide.dtype != type.dtype) {
    return std::nullopt;
  }
  // The same rows, which may have no batch of their own where there is one.
  const size_t batch = body->args.size() == 2 && ir::is_int(type.dims[0], 1) ? 1 : 0;
  if (body->args.size() + batch != 3) return std::nullopt;
  for (size_t k = batch; k < 2; ++k) {
    if (body->args[k - batch] != at[k] || wide.dims[k - batch] != type.dims[k]) return std::nullopt;
  }
  const auto offset = ir::as_int(ir::sub(body->args.back(), at[2])),
             stride = ir::as_int(wide.dims.back());
  if (!offset || *offset < 0 || !stride) return std::nullopt;
  return RowSlice{base, *offset, *stride};
}

}  // namespace tfcc::codegen
