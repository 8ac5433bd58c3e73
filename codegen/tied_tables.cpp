// SPDX-License-Identifier: Apache-2.0
//   before: %h = pointwise(%ids, @w) {@w[%ids[i], j]};              matmul(%y, @w), packed in panels of 64
//   after:  %h = pointwise(%ids, @p) {@p[%ids[i] / 64, j, %ids[i] % 64]};  @p : the panels
#include "codegen/tied_tables.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>

#include "codegen/matmul/matmul.h"
#include "ir/matmul.h"

namespace tfcc::codegen {
namespace {

// The body of an op that may read a table by any indices, or nullptr.
ExprRef* body_of(ir::Op& op) {
  if (op.kind == OpKind::pointwise) return &op.as<ir::PointwiseAttrs>().body;
  if (op.kind == OpKind::norm) return &op.as<ir::NormAttrs>().body;
  return nullptr;
}

// Does the op read operand v by its body alone?
bool reads_by_body(const Graph& g, OpId o, ValueId v) {
  ir::Op op = g.op(o);
  ExprRef* body = body_of(op);
  if (!body) return false;
  bool loaded = false;
  ir::for_each_node(*body, [&](ExprRef n) {
    loaded |= n->kind == ir::ExprKind::load && op.operands[static_cast<size_t>(n->value)] == v;
  });
  const auto first = op.kind == OpKind::norm ? op.operands.begin() + 1 : op.operands.begin();
  return loaded && std::find(op.operands.begin(), first, v) == first;
}

// The recipe of a weight as [n,k], if it lies so or was transposed to [k,n] by its last step.
std::optional<ir::Constant> by_columns(ir::Constant weight, bool transposed) {
  if (transposed) return weight;
  if (weight.steps.empty() || weight.steps.back().kind != ir::ConstantStep::Kind::transpose)
    return std::nullopt;
  weight.steps.pop_back();
  return weight;
}

// Bytes of more than these are the same if they are one object.
constexpr size_t kMostCompared = 4096;

struct Panels {
  ValueId weight;
  MatmulDesc desc;
  MatmulConfig config;
};

// The weights that products have in panels, by their recipes as [n,k].
std::map<std::string, Panels> panels_of(const Graph& g, const TargetClass& target) {
  std::map<std::string, Panels> all;
  for (OpId o : g.order()) {
    if (g.op(o).kind != OpKind::matmul || !g.is_constant(g.op(o).operands[1])) continue;
    MatmulDesc desc = describe(g, o, 0);
    MatmulConfig config = choose(desc, target);
    if (config.arm != Arm::panel || desc.packed || desc.narrow) continue;
    const ValueId weight = g.op(o).operands[1];
    if (const auto table = by_columns(*g.constant(weight), desc.trans_b))
      all.emplace(ir::recipe_key(*table, kMostCompared),
                  Panels{weight, std::move(desc), std::move(config)});
  }
  return all;
}

void read_panels(Graph& g, OpId o, ValueId table, ValueId panels, int64_t width) {
  ir::Op& op = g.op(o);
  ExprRef* body = body_of(op);
  ExprRef w = g.pool().integer(width);
  *body = ir::rewrite(*body, [&](ExprRef n) -> ExprRef {
    if (n->kind != ir::ExprKind::load || op.operands[static_cast<size_t>(n->value)] != table)
      return nullptr;
    return g.pool().load(n->value, n->type,
                         {ir::div(n->args[0], w), n->args[1], ir::mod(n->args[0], w)});
  });
  std::vector<ValueId> operands = op.operands;
  std::replace(operands.begin(), operands.end(), table, panels);
  g.set_operands(o, operands);
}

}  // namespace

void tie_tables(Graph& graph, const TargetClass& target) {
  if (target.cuda()) return;
  const std::map<std::string, Panels> panels = panels_of(graph, target);
  for (OpId o : std::vector<OpId>(graph.order())) {
    if (panels.empty() || graph.op(o).kind != OpKind::constant) continue;
    const ValueId table = graph.result(o);
    if (graph.value(table).type.dims.size() != 2) continue;
    const auto found = panels.find(ir::recipe_key(*graph.constant(table), kMostCompared));
    if (found == panels.end()) continue;
    const Panels& p = found->second;
    const PackedWeight packed = packed_panels(p.weight, p.desc, p.config);
    ir::Constant constant = *graph.constant(p.weight);
    packed.change(constant);
    ValueId shared;
    for (OpId u : std::vector<OpId>(graph.value(table).users)) {
      if (!reads_by_body(graph, u, table)) continue;
      if (!shared.valid())
        shared = graph.add_constant(graph.value(p.weight).name + "." + packed.layout, constant);
      read_panels(graph, u, table, shared, p.config.panel);
    }
  }
  graph.clean();
}

}  // namespace tfcc::codegen
