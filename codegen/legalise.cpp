// SPDX-License-Identifier: Apache-2.0
// legalise: what no launch can do as it is becomes ops that can. Runs before lowering, on every
// target.
//   products whose leading dims broadcast on both sides: the operand is expanded by a pointwise op
//   products that read a graph input (on CUDA they take no caller's memory): a copy goes in front
//   products whose result has 16 bits and another type than the factors: stored in f32 first, no library has them
//   products of f64: a reduction, for there is no library product of that type on both targets
//   second factors that are expressions, and that the chosen arm does not compute (codegen/matmul): an op of their own
//   epilogues that the chosen arm does not take (codegen/matmul): an op of their own, of the sum as it is stored, which of integers is an i32
#include "codegen/legalise.h"

#include <utility>

#include "codegen/matmul/matmul.h"
#include "ir/matmul.h"

namespace tfcc::codegen {
namespace {

using Dims = std::vector<ExprRef>;

Dims leading(const Graph& g, ValueId v) {
  const Dims& d = g.value(v).type.dims;
  return Dims(d.begin(), d.end() - 2);
}

ValueId expanded_to(Graph& g, ValueId v, const Dims& lead) {
  const ir::Type& t = g.value(v).type;
  Dims dims = lead;
  dims.insert(dims.end(), t.dims.end() - 2, t.dims.end());
  const auto at = ir::indices_of(g.pool(), dims);
  ir::Captured c = ir::capture(ir::load_of(g, v, ir::broadcast_indices(g.pool(), t.dims, at)));
  return g.add_pointwise(c.operands, c.body, {t.dtype, dims}, g.value(v).name + ".expanded");
}

void set_operand(Graph& g, OpId o, size_t i, ValueId v) {
  std::vector<ValueId> operands = g.op(o).operands;
  operands[i] = v;
  g.set_operands(o, operands);
}

void legalise_operands(Graph& g, OpId o) {
  const Dims lead = leading(g, g.op(o).results[0]);
  for (size_t i : {0, 1}) {
    if (i == 1 && g.op(o).as<ir::MatmulAttrs>().weight) continue;  // of constants
    const ValueId v = g.op(o).operands[i];
    const Dims own = leading(g, v);
    const bool shared = ir::is_int(ir::element_count(g.pool(), own), 1);
    // A shared a, transposed or not, is a stride of 0; anything else must have all leading dims.
    if (!shared && own != lead) set_operand(g, o, i, expanded_to(g, v, lead));
    else if (!g.def(v)) set_operand(g, o, i, expanded_to(g, v, own));
  }
}

// sum over k of a[.., m, k] * b[.., k, n], as a reduction.
void as_reduction(Graph& g, OpId o) {
  const ir::Op op = g.op(o);
  const auto& attrs = op.as<ir::MatmulAttrs>();
  const ir::Type t = g.value(op.results[0]).type;
  const size_t rank = t.dims.size();
  const auto at = ir::indices_of(g.pool(), t.dims);
  const Dims& da = g.value(op.operands[0]).type.dims;
  ExprRef extent = da[da.size() - (attrs.trans_a ? 2 : 1)];
  ExprRef k = g.pool().index(static_cast<int64_t>(rank), extent);
  ExprRef a = ir::factor_element(g, op.operands[0], attrs.trans_a, at, at[rank - 2], k);
  ExprRef b = ir::factor_element(g, op.operands[1], attrs.trans_b, at, k, at[rank - 1]);
  ir::Captured c = ir::capture(ir::mul(a, b));
  ir::ReduceAttrs reduce;
  reduce.body = c.body;
  reduce.extents = {extent};
  ValueId sum =
      g.add(OpKind::reduce, c.operands, reduce, t, g.value(op.results[0]).name + ".sum", op.origin);
  ExprRef e = ir::mul(ir::load_of(g, sum, at), g.pool().real(attrs.alpha, ir::scalar_of(t.dtype)));
  ir::Captured y = ir::capture(ir::with_sum(ir::free_epilogue(g, o, at), e));
  g.replace_uses(op.results[0],
                 g.add_pointwise(y.operands, y.body, t, g.value(op.results[0]).name, op.origin));
}

// A result of 16 bits of factors that have another type: the product is stored in f32, whatever its
// epilogue, and narrowed after it. Returns the product.
OpId through_f32(Graph& g, OpId o) {
  const ValueId y = g.result(o);
  const ir::Type t = g.value(y).type;
  if (t.dtype == g.value(g.op(o).operands[0]).type.dtype || t.dtype == DType::f32) return o;
  const ir::Op op = g.op(o);
  const ValueId wide = g.add(OpKind::matmul, op.operands, op.attrs, {DType::f32, t.dims},
                             g.value(y).name + ".f32", op.origin);
  ir::Captured c = ir::capture(ir::load_of(g, wide, ir::indices_of(g, wide)));
  g.replace_uses(y, g.add_pointwise(c.operands, c.body, t, g.value(y).name + ".narrow", op.origin));
  return g.value(wide).def;
}

// The product of all columns, and an op that makes one of each pair.
void split_gate(Graph& g, OpId o) {
  const ir::Op op = g.op(o);
  auto attrs = op.as<ir::MatmulAttrs>();
  const ExprRef gate = std::exchange(attrs.gate, nullptr);
  ir::Type type = g.value(op.results[0]).type;
  const auto at = ir::indices_of(g.pool(), type.dims);
  type.dims.back() = ir::mul(g.pool().integer(2), type.dims.back());
  const ValueId sums = g.add(OpKind::matmul, op.operands, attrs, type,
                             g.value(op.results[0]).name + ".sums", op.origin);
  const auto sum = [&](bool second) {
    auto of = at;
    of.back() = ir::gated_column(g.pool(), at.back(), second);
    return ir::load_of(g, sums, of);
  };
  ir::Captured c = ir::capture(ir::with_sums(gate, sum(false), sum(true)));
  ir::Op& rest = g.op(o);
  rest.kind = OpKind::pointwise;
  rest.attrs = ir::PointwiseAttrs{c.body};
  g.set_operands(o, c.operands);
}

// The value stays, so that forms of a graph in which it is computed at once, and in two ops, share
// its buffer.
void split_epilogue(Graph& g, OpId o) {
  const ir::Op op = g.op(o);
  if (op.as<ir::MatmulAttrs>().gate) return split_gate(g, o);
  const ValueId y = op.results[0];
  const bool integers = !is_real_product(g, op);
  const auto at = ir::indices_of(g, y);
  ExprRef epilogue = ir::free_epilogue(g, o, at);
  const ir::Type type = integers ? ir::Type{DType::i32, g.value(y).type.dims} : g.value(y).type;
  const ValueId sum = ir::add_matmul(g, op.operands[0], op.operands[1], ir::free_attrs(g, o),
                                     nullptr, type, g.value(y).name + ".sum", op.origin);
  ir::Op& rest = g.op(o);
  ir::Captured c = ir::capture(ir::with_sum(epilogue, ir::load_of(g, sum, at)));
  rest.kind = OpKind::pointwise;
  rest.attrs = ir::PointwiseAttrs{c.body};
  g.set_operands(o, c.operands);
}

// The constant in another type.
ValueId widened(Graph& g, ValueId v, DType to) {
  ir::Constant c = *g.constant(v);
  c.steps.push_back({ir::ConstantStep::Kind::cast, {}, to});
  return g.add_constant(g.value(v).name, c);
}

// The second factor becomes the result of an op of its own, or a constant.
void split_factor(Graph& g, OpId o) {
  const ir::Op op = g.op(o);
  const ValueId y = op.results[0];
  const ir::Type type = ir::second_factor(g, op);
  auto attrs = ir::free_attrs(g, o);
  ir::Captured c = ir::capture(attrs.weight);
  const ValueId b = narrow_factor(g, op) ? widened(g, c.operands[0], type.dtype)
                                         : g.add_pointwise(c.operands, c.body, type,
                                                           g.value(y).name + ".weight", op.origin);
  std::vector<ExprRef> bodies{ir::free_epilogue(g, o, ir::indices_of(g, y))};
  if (!attrs.epilogue) bodies[0] = nullptr;
  std::vector<ValueId> operands{op.operands[0], b};
  attrs.weight = nullptr;
  attrs.epilogue = ir::capture(bodies, operands)[0];
  g.op(o).attrs = attrs;
  g.set_operands(o, operands);
}

// A bias is an operand of the library then: no caller's memory either.
void copy_bias(Graph& g, OpId o) {
  const auto bias = ir::bias_of(g, g.op(o));
  if (!bias || g.def(*bias)) return;
  ir::Captured c = ir::capture(ir::load_of(g, *bias, ir::indices_of(g, *bias)));
  set_operand(
      g, o, 2,
      g.add_pointwise(c.operands, c.body, g.value(*bias).type, g.value(*bias).name + ".copy"));
}

}  // namespace

void legalise(Graph& graph, const TargetClass& target, int64_t most_tokens,
              const ProductRules& rules) {
  for (OpId o : std::vector<OpId>(graph.order())) {
    if (graph.op(o).kind != OpKind::matmul) continue;
    if (!is_real_product(graph, graph.op(o))) {
      const MatmulDesc desc = describe(graph, o, most_tokens, rules);
      if (!takes_epilogue(choose(desc, target), desc)) split_epilogue(graph, o);
      continue;
    }
    if (graph.value(graph.result(o)).type.dtype == DType::f64) {
      if (graph.op(o).as<ir::MatmulAttrs>().weight) split_factor(graph, o);
      as_reduction(graph, o);
      continue;
    }
    const OpId product = through_f32(graph, o);
    const MatmulDesc whole = describe(graph, product, most_tokens, rules);
    if (!takes_factor(choose(whole, target).arm, whole)) split_factor(graph, product);
    legalise_operands(graph, product);
    const MatmulDesc desc = describe(graph, product, most_tokens, rules);
    const MatmulConfig config = choose(desc, target);
    if (config.arm == Arm::library) copy_bias(graph, product);
    if (!takes_epilogue(config, desc)) split_epilogue(graph, product);
  }
  graph.clean();
}

}  // namespace tfcc::codegen
