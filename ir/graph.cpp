// SPDX-License-Identifier: Apache-2.0
// The graph: construction, use lists, unique names, and clean().
#include "ir/graph.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>

namespace tfcc::ir {

/// Names in use and, for names that clashed, the next suffix to try. Copies of a graph share it
/// until one adds a name.
struct NameTable {
  std::unordered_map<std::string, ValueId> holder;
  std::unordered_map<std::string, uint64_t> next_suffix;
};

std::string_view to_string(OpKind kind) {
  static constexpr std::string_view kNames[] = {
#define TFCC_OP(name, attrs, summary) #name,
#include "ir/ops.def"
#undef TFCC_OP
  };
  return kNames[static_cast<size_t>(kind)];
}

std::string to_string(const Type& type) {
  std::string out = tfcc::to_string(type.dtype);
  out += '[';
  for (size_t d = 0; d < type.dims.size(); ++d) {
    if (d) out += ',';
    out += print(type.dims[d]);
  }
  return out + ']';
}

Scalar scalar_of(DType t) {
  if (t == DType::f64) return Scalar::f64;
  if (is_float(t)) return Scalar::f32;
  return t == DType::boolean ? Scalar::boolean : Scalar::i64;
}

Graph::Graph(std::string graph_name) : Graph(std::move(graph_name), std::make_shared<ExprPool>()) {}

Graph::Graph(std::string graph_name, std::shared_ptr<ExprPool> pool)
    : name(std::move(graph_name)), pool_(std::move(pool)), names_(std::make_shared<NameTable>()) {}

const Op* Graph::def(ValueId v) const {
  const OpId o = value(v).def;
  return o.valid() ? &op(o) : nullptr;
}

bool Graph::is_constant(ValueId v) const { return constant(v) != nullptr; }

const Constant* Graph::constant(ValueId v) const {
  const Op* o = def(v);
  return o && o->kind == OpKind::constant ? &o->as<ConstantAttrs>().constant : nullptr;
}

bool Graph::is_output(ValueId v) const {
  return std::any_of(outputs.begin(), outputs.end(), [v](const Output& o) { return o.value == v; });
}

const SizeSymbol* Graph::size_with(SizeRole role) const {
  const auto it = std::find_if(symbols.begin(), symbols.end(),
                               [role](const SizeSymbol& s) { return s.role == role; });
  return it == symbols.end() ? nullptr : &*it;
}

ValueId Graph::find_value(std::string_view value_name) const {
  const auto it = names_->holder.find(std::string(value_name));
  return it == names_->holder.end() ? ValueId{} : it->second;
}

size_t Graph::use_count(ValueId v) const {
  const auto as_output =
      std::count_if(outputs.begin(), outputs.end(), [v](const Output& o) { return o.value == v; });
  return value(v).users.size() + static_cast<size_t>(as_output);
}

NameTable& Graph::own_names() {
  if (names_.use_count() > 1) names_ = std::make_shared<NameTable>(*names_);
  return *names_;
}

std::string Graph::unique_name(std::string wanted, ValueId holder) {
  NameTable& names = own_names();
  if (wanted.empty()) wanted = "v";
  if (names.holder.emplace(wanted, holder).second) return wanted;
  uint64_t& suffix = names.next_suffix[wanted];
  for (;;) {
    std::string candidate = wanted + '.' + std::to_string(++suffix);
    if (names.holder.emplace(candidate, holder).second) return candidate;
  }
}

ValueId Graph::add_input(std::string input_name, Type type) {
  const ValueId v{static_cast<uint32_t>(values_.size())};
  values_.push_back({unique_name(std::move(input_name), v), std::move(type), {}, {}, {}});
  inputs_.push_back(v);
  return v;
}

ValueId Graph::add_constant(std::string constant_name, Constant constant) {
  Type type{constant.result_dtype(), {}};
  for (int64_t d : constant.result_dims()) type.dims.push_back(pool().integer(d));
  return add(OpKind::constant, {}, ConstantAttrs{std::move(constant)}, std::move(type),
             std::move(constant_name));
}

OpId Graph::add_op(OpKind kind, std::vector<ValueId> operands, Attrs attrs, std::vector<Type> types,
                   std::vector<std::string> names, std::string origin) {
  TFCC_CHECK(types.size() == names.size());
  const OpId id{static_cast<uint32_t>(ops_.size())};
  Op op{kind, std::move(operands), {}, std::move(attrs), std::move(origin), false};
  for (ValueId v : op.operands) values_[v.value].users.push_back(id);
  for (size_t i = 0; i < types.size(); ++i) {
    const ValueId v{static_cast<uint32_t>(values_.size())};
    values_.push_back({unique_name(std::move(names[i]), v), std::move(types[i]), id, {}, {}});
    op.results.push_back(v);
  }
  ops_.push_back(std::move(op));
  order_.push_back(id);
  return id;
}

ValueId Graph::insert_result(OpId o, size_t at, Type type, std::string name) {
  const ValueId v{static_cast<uint32_t>(values_.size())};
  values_.push_back({unique_name(std::move(name), v), std::move(type), o, {}, {}});
  auto& results = op(o).results;
  results.insert(results.begin() + static_cast<std::ptrdiff_t>(at), v);
  return v;
}

ValueId Graph::add(OpKind kind, std::vector<ValueId> operands, Attrs attrs, Type type,
                   std::string value_name, std::string origin) {
  std::vector<Type> types;
  types.push_back(std::move(type));
  return result(add_op(kind, std::move(operands), std::move(attrs), std::move(types),
                       {std::move(value_name)}, std::move(origin)));
}

ValueId Graph::add_pointwise(std::vector<ValueId> operands, ExprRef body, Type type,
                             std::string value_name, std::string origin) {
  return add(OpKind::pointwise, std::move(operands), PointwiseAttrs{body}, std::move(type),
             std::move(value_name), std::move(origin));
}

void Graph::replace_uses(ValueId from, ValueId to) {
  if (from == to) return;
  TFCC_CHECK(value(from).type == value(to).type);
  values_[from.value].replacement = to;
  std::vector<OpId>& users = values_[from.value].users;
  for (OpId o :
       users) {  // an op that uses `from` twice is listed twice, so every entry moves one use
    auto& operands = ops_[o.value].operands;
    *std::find(operands.begin(), operands.end(), from) = to;
  }
  std::vector<OpId>& others = values_[to.value].users;
  others.insert(others.end(), users.begin(), users.end());
  users.clear();
  for (Output& output : outputs) {
    if (output.value == from) output.value = to;
  }
}

void Graph::set_operands(OpId o, std::vector<ValueId> operands) {
  for (ValueId v : op(o).operands) {
    std::vector<OpId>& users = values_[v.value].users;
    const auto it = std::find(users.rbegin(), users.rend(), o);
    TFCC_CHECK(it != users.rend());
    *it = users.back();
    users.pop_back();
  }
  op(o).operands = std::move(operands);
  for (ValueId v : op(o).operands) values_[v.value].users.push_back(o);
}

void Graph::rename(ValueId v, std::string new_name) {
  std::string& current = values_[v.value].name;
  if (current == new_name) return;
  if (find_value(current) == v) own_names().holder.erase(current);
  current = unique_name(std::move(new_name), v);
}

size_t Graph::clean() {
  std::vector<OpId> order;
  order.reserve(order_.size());
  std::vector<bool> seen(ops_.size(), false);
  struct Frame {
    OpId op;
    size_t next;
  };
  std::vector<Frame> stack;  // explicit: graphs may be deeper than the call stack
  const auto visit = [&](ValueId v) {
    const OpId o = value(v).def;
    if (!o.valid() || seen[o.value]) return;
    seen[o.value] = true;
    stack.push_back({o, 0});
  };
  for (const Output& output : outputs) {
    visit(output.value);
    while (!stack.empty()) {
      Frame& top = stack.back();
      const auto& operands = op(top.op).operands;
      if (top.next < operands.size()) {
        visit(operands[top.next++]);
      } else {
        order.push_back(top.op);
        stack.pop_back();
      }
    }
  }

  size_t removed = 0;
  for (OpId o : order_) {
    if (seen[o.value]) continue;
    op(o).operands.clear();
    op(o).erased = true;
    for (ValueId v : op(o).results) own_names().holder.erase(value(v).name);
    ++removed;
  }
  for (Value& v : values_) v.users.clear();
  for (OpId o : order) {
    for (ValueId v : op(o).operands) values_[v.value].users.push_back(o);
  }
  order_ = std::move(order);
  return removed;
}

std::vector<ExprRef> indices_of(ExprPool& pool, const std::vector<ExprRef>& dims) {
  std::vector<ExprRef> out;
  for (size_t d = 0; d < dims.size(); ++d)
    out.push_back(pool.index(static_cast<int64_t>(d), dims[d]));
  return out;
}

ExprRef element_count(ExprPool& pool, const std::vector<ExprRef>& dims) {
  ExprRef n = pool.integer(1);
  for (ExprRef d : dims) n = mul(n, d);
  return n;
}

}  // namespace tfcc::ir
