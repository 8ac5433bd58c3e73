// SPDX-License-Identifier: Apache-2.0
// fuse-head-norm: an rms norm of every head of q or k becomes a part of the rotary embedding that
// alone reads it (Qwen3, Gemma3), so that q, k and v are products again, which fuse-qkv joins.
//   before: %n = norm(@gamma, %q) {body = (i,j,k,l) => %q[i,j,16*k + l], eps = .., kind = rms} : f32[B,S,4,16];
//           %x = pointwise(%n) {body = (i,j,k) => %n[i,j,k / 16,k % 16]} : f32[B,S,64]; %y = rope(%x, %cos, %sin) {heads = 4, ..}
//   after:  %y = rope(%q, %cos, %sin, @gamma) {eps = .., heads = 4, ..}
// Requires: the norm is of kind rms, of a tensor as it is and of the type of what is rotated, and
// its rows are the heads that are rotated; gamma is constant; nobody else reads the norm or its
// view. Runs after: raise-rms-norm, raise-rope, canonicalize, which moves the norm in front of a
// transposition. Runs before: fuse-qkv, lift-kv-cache.
#include "passes/match.h"
#include "passes/passes.h"

namespace tfcc::passes {
namespace {

// The norm whose rows [B, S, heads, d] stand as x [B, S, heads * d] does, if x alone reads it.
const ir::Op* norm_of(const Graph& g, ValueId x, int64_t heads) {
  ValueId v = x;
  if (const ir::Op* view = g.def(x); view && view->kind == OpKind::pointwise) {
    const Indices own = ir::indices_of(g, x);
    ExprRef e = ir::element_of(g, x, own);
    if (e->kind != ExprKind::load || g.use_count(x) != 1) return nullptr;
    v = *loaded(e);
    const auto &from = g.value(v).type.dims, &to = g.value(x).type.dims;
    if (e->args != ir::reshape_indices(g.pool(), own, to, from)) return nullptr;
  }
  const int64_t width = *ir::as_int(g.value(x).type.dims.back());
  const ir::Op* op = g.def(v);
  if (!op || op->kind != OpKind::norm) return nullptr;
  if (!ir::is_int(g.value(v).type.dims.back(), width / heads)) return nullptr;
  return g.use_count(v) == 1 ? op : nullptr;
}

bool fuse(Graph& g, OpId o, PassReport& report) {
  const ir::Op rope = g.op(o);
  ir::RopeAttrs attrs = rope.as<ir::RopeAttrs>();
  if (attrs.eps) return false;
  const ValueId x = rope.operands[0];
  const ir::Op* found = norm_of(g, x, attrs.heads);
  if (!found) return false;
  const auto miss = [&](const std::string& reason) {
    report.misses.push_back({label(g, o), reason});
    return false;
  };
  const ir::Op norm = *found;
  const auto& of_norm = norm.as<ir::NormAttrs>();
  if (of_norm.kind != ir::NormKind::rms) return miss("heads are normalised around their mean");
  if (norm.results.size() != 1) return miss("what the norm of heads reads is a result too");
  if (!g.is_constant(norm.operands[0])) return miss("the factors of the norm are not constant");

  // What the norm reads, as rows of heads.
  const ir::Type type = g.value(x).type;
  const auto& heads = g.value(norm.results[0]).type.dims;
  const Indices own = ir::indices_of(g.pool(), type.dims);
  ExprRef e = ir::free_expr(g, g.value(norm.results[0]).def, of_norm.body,
                            ir::reshape_indices(g.pool(), own, type.dims, heads));
  if (e->kind != ExprKind::load) return miss("the norm of heads computes what it reads");
  const ValueId from = *loaded(e);
  if (g.value(from).type.dtype != type.dtype) return miss("the norm of heads reads another type");
  ir::Captured c = ir::capture(e);
  const bool as_it_is = e->args == own && g.value(from).type == type;
  std::vector<ValueId> operands = rope.operands;
  operands[0] = as_it_is ? from
                         : g.add_pointwise(c.operands, c.body, type,
                                           g.value(norm.results[0]).name + ".x", norm.origin);
  operands.push_back(norm.operands[0]);
  attrs.eps = of_norm.eps;
  const ValueId y = rope.results[0];
  const OpId fused =
      g.add_op(OpKind::rope, operands, attrs, {g.value(y).type}, {g.value(y).name}, rope.origin);
  g.replace_uses(y, g.result(fused));
  return true;
}

}  // namespace

PassReport fuse_head_norm(Graph& graph) {
  PassReport report;
  for (OpId o : std::vector<OpId>(graph.order())) {
    if (graph.op(o).kind == OpKind::rope && fuse(graph, o, report)) ++report.rewrites;
  }
  return report;
}

}  // namespace tfcc::passes
