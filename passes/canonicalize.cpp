// SPDX-License-Identifier: Apache-2.0
// canonicalize: drops ops that change nothing, extends the recipes of constants, and moves
// transposes into products.
//   before: %y = pointwise(%x) {body = (i,j) => %x[i,j]} : f32[B,64]                     (used by %z)
//   after:  %z reads %x
//   before: %t = pointwise(@w) {body = (i,j) => @w[j,i]} : f32[64,32]
//   after:  const @t : f32[64,32] = ... |> transpose(1,0)
//   before: %t = pointwise(%k) {body = (i,j,k,l) => %k[i,j,l,k]}; %s = matmul(%q, %t) {trans_b = false}
//   after:  %s = matmul(%q, %k) {trans_b = true}
//   before: %p = matmul(%a, %b) : f32[B,8,S]                                             (%a: f32[B,8,1], %b: f32[B,1,S])
//   after:  %p = pointwise(%a, %b) {body = (i,j,k) => %a[i,j,0] * %b[i,0,k]}
//   before: %r = pointwise(%x) {body = (i,j) => %x[i / S,i % S,j]} : f32[B*S,64]; %p = matmul(%r, @w)       (GPT-2's Conv1D)
//   after:  %m = matmul(%x, @w) : f32[B,S,192]; %p is a view of %m
//   before: %at = pointwise(%n) {body = (i,j) => select(j <= 0, i, %n[i])} : i64[B,2]; %y = pointwise(%x, %at) {body = (i,k) => %x[%at[i,0],%at[i,1],k]}
//   after:  %y = pointwise(%x, %n) {body = (i,k) => %x[i,%n[i],k]}                        (h[arange(B), n])
//   before: %n = pointwise() {body = (i,j) => 1} : i64[B,S]; %p = cumsum(%n) {axis = 1}
//   after:  %p = pointwise() {body = (i,j) => j + 1} : i64[B,S]
// Requires: the same type; for recipes, a permutation or a cast alone.
#include "ir/matmul.h"
#include "passes/keep_rows.h"
#include "passes/match.h"
#include "passes/passes.h"

#include <algorithm>

namespace tfcc::passes {
namespace {

// The operand and axis permutation of a body that is one load with permuted indices: result index
// perm[k] at axis k.
struct Permutation {
  ValueId source;
  std::vector<int64_t> axis;  // axis[k] = number of the result index used at source axis k
};

std::optional<Permutation> as_permutation(const Graph& g, ValueId v) {
  const ir::Op* op = g.def(v);
  if (!op || op->kind != OpKind::pointwise || op->operands.size() != 1) return std::nullopt;
  ExprRef body = op->as<ir::PointwiseAttrs>().body;
  if (body->kind != ExprKind::load || body->args.size() != g.value(v).type.rank())
    return std::nullopt;
  const auto& dims = g.value(v).type.dims;
  const auto& source = g.value(op->operands[0]).type.dims;
  Permutation p{op->operands[0], {}};
  std::vector<bool> used(dims.size());
  for (size_t k = 0; k < body->args.size(); ++k) {
    ExprRef i = body->args[k];
    int64_t number = -1;
    if (i->kind == ExprKind::index) {
      number = i->value;
    } else if (ir::is_int(i, 0) && ir::is_int(source[k], 1)) {
      // An axis of size 1 has no index: take the next unused result axis of size 1.
      for (size_t r = 0; r < dims.size() && number < 0; ++r) {
        if (!used[r] && ir::is_int(dims[r], 1)) number = static_cast<int64_t>(r);
      }
    }
    if (number < 0 || used[number] || dims[number] != source[k]) return std::nullopt;
    used[number] = true;
    p.axis.push_back(number);
  }
  return p;
}

bool is_identity(const Permutation& p) {
  for (size_t k = 0; k < p.axis.size(); ++k) {
    if (p.axis[k] != static_cast<int64_t>(k)) return false;
  }
  return true;
}

bool drop_identity(Graph& g, ValueId v) {
  auto p = as_permutation(g, v);
  if (!p || !is_identity(*p) || g.value(p->source).type != g.value(v).type) return false;
  g.replace_uses(v, p->source);
  return true;
}

// Rank-0 and reshaped forms of a constant: the same elements in the same order.
bool same_order(const Graph& g, ValueId v, ValueId source) {
  const ir::Op& op = *g.def(v);
  const auto& dims = g.value(v).type.dims;
  const auto& from = g.value(source).type.dims;
  if (ir::element_count(g.pool(), dims) != ir::element_count(g.pool(), from)) return false;
  const auto at = ir::reshape_indices(g.pool(), ir::indices_of(g, v), dims, from);
  ExprRef body = op.as<ir::PointwiseAttrs>().body;
  return body->kind == ExprKind::load && body->args == at;
}

// A conversion that the stored type repeats: the recipe's cast rounds once, as the body did.
bool is_cast_to(ExprRef body, DType to) {
  if (body->kind == ExprKind::round_f16) return to == DType::f16;
  if (body->kind == ExprKind::round_bf16) return to == DType::bf16;
  return body->kind == ExprKind::f2f && (to == DType::f32 || to == DType::f64);
}

bool extend_recipe(Graph& g, ValueId v) {
  const ir::Op* op = g.def(v);
  if (op->operands.size() != 1) return false;
  const ir::Constant* c = g.constant(op->operands[0]);
  if (!c) return false;
  const ir::Type type = g.value(v).type;
  ir::Constant extended = *c;
  ExprRef body = op->as<ir::PointwiseAttrs>().body;
  const bool whole = type.dims == g.value(op->operands[0]).type.dims;
  if (whole && is_cast_to(body, type.dtype) && body->args[0]->kind == ExprKind::load &&
      body->args[0]->args == ir::indices_of(g, v)) {
    extended.steps.push_back({ir::ConstantStep::Kind::cast, {}, type.dtype});
  } else if (auto p = as_permutation(g, v); p && g.value(p->source).type.dtype == type.dtype) {
    // The recipe's permutation names, for each result axis, the source axis it comes from.
    std::vector<int64_t> perm(p->axis.size());
    for (size_t k = 0; k < perm.size(); ++k) perm[p->axis[k]] = static_cast<int64_t>(k);
    extended.steps.push_back({ir::ConstantStep::Kind::transpose, perm, type.dtype});
  } else if (g.value(op->operands[0]).type.dtype == type.dtype &&
             same_order(g, v, op->operands[0])) {
    std::vector<int64_t> dims;
    for (ExprRef d : type.dims) {
      auto n = ir::as_int(d);
      TFCC_CHECK(n);  // as many elements as a constant
      dims.push_back(*n);
    }
    extended.steps.push_back({ir::ConstantStep::Kind::reshape, dims, type.dtype});
  } else {
    return false;
  }
  g.replace_uses(v, g.add_constant(g.value(v).name, extended));
  return true;
}

// Of a permutation that is no identity: those are dropped before anything reads them.
bool swaps_last_two(const Permutation& p) {
  for (size_t k = 0; k + 2 < p.axis.size(); ++k) {
    if (p.axis[k] != static_cast<int64_t>(k)) return false;
  }
  return true;
}

bool absorb_transposes(Graph& g, OpId o) {
  bool changed = false;
  for (size_t i = 0; i < 2; ++i) {
    const ValueId v = g.op(o).operands[i];
    auto p = as_permutation(g, v);
    if (!p || !swaps_last_two(*p) || g.value(p->source).type.dtype != g.value(v).type.dtype)
      continue;
    std::vector<ValueId> operands = g.op(o).operands;
    operands[i] = p->source;
    g.set_operands(o, operands);
    bool& flag =
        i == 0 ? g.op(o).as<ir::MatmulAttrs>().trans_a : g.op(o).as<ir::MatmulAttrs>().trans_b;
    flag = !flag;
    changed = true;
  }
  return changed;
}

// A product over one k: an elementwise op. Rotary angles are made so, and must not be rounded as a
// product's operands are.
bool drop_sum_over_one(Graph& g, OpId o) {
  const ir::Op op = g.op(o);
  const auto& attrs = op.as<ir::MatmulAttrs>();
  const auto& da = g.value(op.operands[0]).type.dims;
  if (!ir::is_int(da[attrs.trans_a ? da.size() - 2 : da.size() - 1], 1)) return false;
  const ir::Type type = g.value(op.results[0]).type;
  const Indices at = ir::indices_of(g, op.results[0]);
  const size_t rank = at.size();
  ExprRef zero = g.pool().integer(0);
  ExprRef sum =
      ir::mul(ir::factor_element(g, op.operands[0], attrs.trans_a, at, at[rank - 2], zero),
              ir::factor_element(g, op.operands[1], attrs.trans_b, at, zero, at[rank - 1]));
  if (attrs.alpha != 1) sum = ir::mul(sum, g.pool().real(attrs.alpha, sum->type));
  if (attrs.epilogue)
    sum = sum->type == Scalar::i64 ? ir::wrap(sum, 32, true)
                                   : ir::convert(sum, ir::scalar_of(type.dtype));
  ir::Captured c = ir::capture(ir::with_sum(ir::free_epilogue(g, o, at), sum));
  g.replace_uses(op.results[0],
                 g.add_pointwise(c.operands, c.body, type, g.value(op.results[0]).name, op.origin));
  return true;
}

// A load of whole numbers at a fixed place of some axis reads what lies there, if that is short, an
// index or one load: a part of a concatenation.
bool read_parts(Graph& g, OpId o) {
  constexpr size_t kMostNodes = 4;
  ir::Op op = g.op(o);
  bool found = false;
  std::vector<ExprRef> free;
  const std::vector<ExprRef*> bodies = ir::expressions_of(op);
  for (ExprRef* body : bodies) {
    free.push_back(ir::rewrite(ir::free_expr(g, o, *body, {}), [&](ExprRef n) -> ExprRef {
      const auto v = loaded(n);
      if (!v || !g.def(*v) || g.def(*v)->kind != OpKind::pointwise ||
          is_float(g.value(*v).type.dtype) ||
          std::none_of(n->args.begin(), n->args.end(), [](ExprRef a) { return ir::as_int(a); }))
        return nullptr;
      ExprRef part = ir::element_of(g, *v, n->args);
      if (ir::node_count(part) > kMostNodes) return nullptr;
      found = true;
      return part;
    }));
  }
  if (!found) return false;
  std::vector<ValueId> operands(
      op.operands.begin(), op.operands.begin() + static_cast<std::ptrdiff_t>(ir::first_loaded(op)));
  free = ir::capture(free, operands);
  for (size_t k = 0; k < bodies.size(); ++k) *bodies[k] = free[k];
  g.op(o).attrs = op.attrs;
  g.set_operands(o, operands);
  return true;
}

// A running sum of one whole number is that number times as many as are summed. In f32 too, where it
// is exact up to 2^24 and nearer than a sum behind that.
constexpr double kLargestWhole = 1 << 24;
bool fold_running_sum(Graph& g, OpId o) {
  const ir::Op op = g.op(o);
  const auto& attrs = op.as<ir::CumsumAttrs>();
  const ir::Type& type = g.value(op.results[0]).type;
  const ir::Op* x = g.def(op.operands[0]);
  if (!x || x->kind != OpKind::pointwise) return false;
  const Indices at = ir::indices_of(g.pool(), type.dims);
  ExprRef each = ir::element_of(g, op.operands[0], at);
  if (const auto x = ir::as_real(each);
      x && type.dtype == DType::f32 && std::trunc(*x) == *x && std::abs(*x) <= kLargestWhole)
    each = g.pool().integer(static_cast<int64_t>(*x));
  else if (type.dtype != DType::i64 || !ir::as_int(each)) return false;
  const auto axis = static_cast<size_t>(attrs.axis);
  ExprRef sum = ir::mul(each, ir::summed_count(attrs, at[axis], type.dims[axis]));
  if (ir::poison_of(sum) != ir::Poison::none) return false;  // it wraps
  const ir::Captured c = ir::capture(ir::convert(sum, ir::scalar_of(type.dtype)));
  g.replace_uses(op.results[0],
                 g.add_pointwise(c.operands, c.body, type, g.value(op.results[0]).name, op.origin));
  return true;
}

}  // namespace

PassReport canonicalize(Graph& graph) {
  PassReport report;
  for (OpId o : std::vector<OpId>(graph.order())) {
    if (graph.use_count(graph.result(o)) == 0) continue;  // cost: replaced, or read by nothing
    if (keep_axes_of_rows(graph, o)) {
      ++report.rewrites;
      continue;
    }
    const ir::Op& op = graph.op(o);
    if (ir::is_plain_product(op))
      report.rewrites += drop_sum_over_one(graph, o) || absorb_transposes(graph, o);
    if (op.kind == OpKind::pointwise || op.kind == OpKind::reduce)
      report.rewrites += read_parts(graph, o);
    if (op.kind == OpKind::cumsum) report.rewrites += fold_running_sum(graph, o);
    if (op.kind != OpKind::pointwise) continue;
    const ValueId v = op.results[0];
    report.rewrites += drop_identity(graph, v) || extend_recipe(graph, v);
  }
  return report;
}

}  // namespace tfcc::passes
