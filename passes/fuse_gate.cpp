// SPDX-License-Identifier: Apache-2.0
// fuse-gate: the op that makes one value of gate and up becomes a part of their product, whose
// columns are stored in turns of eight.
//   before: %gu = matmul(%x, @w) {trans_b = true} : f16[B,512]; %y = pointwise(%gu) {body = (i,j) => silu(%gu[i,j]) * %gu[i,j + 256]}
//   after:  const @w.turns = @w |> reshape(2,32,8,K) |> transpose(1,0,2,3) |> reshape(512,K)
//           %y = matmul(%x, @w.turns) {gate = (s,t) => silu(s) * t, trans_b = true} : f16[B,256]
// A kernel has both sums of a pair in one thread then (templates/cuda/matmul_stream.cuh,
// matmul_ordered.cuh, matmul_end.cuh), and computes the gate before it rounds. Where the chosen arm has no gates, code
// generation splits it off again. For every CUDA plan, so that all of a file share the weight.
// Requires: %gu is a product of reals but f64 by a constant matrix stored by columns, which nobody else
// reads, nor %gu; no epilogue; both halves are read at the op's own row and column, of a known
// width that is a multiple of 8; nothing else is read, and no index used; %y has the type of %gu.
// Runs after: fuse-gated-mlp, convert-precision, transpose-weights.
#include "ir/matmul.h"
#include "passes/match.h"
#include "passes/passes.h"

namespace tfcc::passes {
namespace {

// Whether its columns may be stored in another order, and pairs of them make one.
bool may_be_gated(const Graph& g, const ir::Op& product) {
  const auto& attrs = product.as<ir::MatmulAttrs>();
  if (!ir::is_plain_product(product) || !attrs.trans_b || attrs.trans_a) return false;
  const ir::Value& w = g.value(product.operands[1]);
  return !attrs.epilogue && !attrs.scaled && is_float(w.type.dtype) && w.type.dtype != DType::f64 &&
         g.constant(product.operands[1]) && w.type.rank() == 2 &&
         g.use_count(product.operands[1]) == 1;
}

// The op's body over s and t, if all that it reads are the halves of `both` at its own place; null
// else.
ExprRef gate_of(const Graph& g, OpId o, ValueId both) {
  const ir::Type& type = g.value(g.result(o)).type;
  auto half = g.value(both).type;
  ExprRef all = half.dims.back();
  half.dims.back() = ir::div(all, g.pool().integer(2));
  if (type != half || all != ir::mul(g.pool().integer(2), half.dims.back()) ||
      ir::as_int(half.dims.back()).value_or(1) % ir::kGated != 0)
    return nullptr;
  const Indices own = ir::indices_of(g, g.result(o));
  Indices second = own;
  second.back() = ir::add(own.back(), half.dims.back());
  const auto sum = [&](const char* name) {
    return g.pool().param(name, ir::scalar_of(type.dtype));
  };
  ExprRef gate = ir::rewrite(
      ir::free_expr(g, o, g.op(o).as<ir::PointwiseAttrs>().body, own), [&](ExprRef n) -> ExprRef {
        if (loaded(n) != both) return nullptr;
        return n->args == own ? sum("s") : n->args == second ? sum("t") : nullptr;
      });
  return gate->has_load || gate->has_index ? nullptr : gate;
}

// The constant with its rows in turns of eight of each half.
ir::Constant in_turns(ir::Constant c) {
  const std::vector<int64_t> dims = c.result_dims();
  const DType dtype = c.result_dtype();
  using Kind = ir::ConstantStep::Kind;
  c.steps.push_back({Kind::reshape, {2, dims[0] / 2 / ir::kGated, ir::kGated, dims[1]}, dtype});
  c.steps.push_back({Kind::transpose, {1, 0, 2, 3}, dtype});
  c.steps.push_back({Kind::reshape, dims, dtype});
  return c;
}

}  // namespace

PassReport fuse_gate(Graph& graph) {
  PassReport report;
  for (OpId o : std::vector<OpId>(graph.order())) {
    if (graph.op(o).kind != OpKind::pointwise || graph.op(o).operands.empty()) continue;
    const ValueId both = graph.op(o).operands[0], y = graph.result(o);
    const ir::Op* product = graph.def(both);
    if (!product || product->kind != OpKind::matmul || graph.use_count(both) != 1 ||
        !may_be_gated(graph, *product))
      continue;
    auto attrs = product->as<ir::MatmulAttrs>();
    attrs.gate = gate_of(graph, o, both);
    if (!attrs.gate) continue;
    const ValueId x = product->operands[0], w = product->operands[1];
    const std::string origin = product->origin;
    const ValueId turns =
        graph.add_constant(graph.value(w).name + ".turns", in_turns(*graph.constant(w)));
    graph.replace_uses(y, graph.add(OpKind::matmul, {x, turns}, attrs, graph.value(y).type,
                                    graph.value(y).name, origin));
    ++report.rewrites;
  }
  return report;
}

}  // namespace tfcc::passes
