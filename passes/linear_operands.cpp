// SPDX-License-Identifier: Apache-2.0
#include "passes/linear_operands.h"

#include "ir/ir.h"
#include "passes/linear_form.h"

namespace tfcc::passes {
namespace {

constexpr int64_t kMember = 100;  // index variable of a head of those that share one of k and v

class Layout {
 public:
  Layout(const Graph& g, const LinearExtents& extents) : g_(g), x_(extents) {}

  LinearOperands of(ExprRef q, ExprRef k, ExprRef v) {
    share_heads(k, v);
    ExprRef heads = pool().integer(x_.heads.heads), kv_heads = pool().integer(out_.kv_heads);
    // The type of what is read for each channel.
    const auto dtype = [&](ExprRef e, int64_t channel) {
      DType found = DType::f32;
      ir::for_each_node(e, [&](ExprRef n) {
        const auto x = ir::uses_index(n, channel) ? loaded(n) : std::nullopt;
        if (x && !g_.is_constant(*x) && is_float(type(*x).dtype) && type(*x).dtype != DType::f64)
          found = type(*x).dtype;
      });
      return found;
    };
    DType t = dtype(q, kE);
    if (dtype(k, kE) != t || dtype(v, kC) != t) t = DType::f32;
    out_.all[0] =
        operand(q, kT, kE, {x_.heads.batch, heads, x_.tokens, x_.size}, t, dtype(q, kE) == t);
    out_.all[1] =
        operand(k, kJ, kE, {x_.heads.batch, kv_heads, x_.keys, x_.size}, t, dtype(k, kE) == t);
    out_.all[2] = operand(v, kJ, kC, {x_.heads.batch, kv_heads, x_.keys, x_.v_size}, t, false);
    for (const LinearOperand& x : out_.all) {
      out_.problem =
          x.tensor.existing ? "" : ir::body_problem(g_, x.tensor.body, x.tensor.type.dims);
      if (!out_.problem.empty()) break;
    }
    return std::move(out_);
  }

 private:
  ExprPool& pool() const { return g_.pool(); }
  const ir::Type& type(ValueId v) const { return g_.value(v).type; }

  // What the softmax over all of `channel` at this load is of, at the same place, through views;
  // null if it is none.
  ExprRef softmax_input(ExprRef load, ExprRef channel) const {
    const ir::Op* def = g_.def(*loaded(load));
    if (!def || def->kind != OpKind::softmax || load->args.back() != channel ||
        type(*loaded(load)).dims.back() != channel->args[0])
      return nullptr;
    for (size_t i = 0; i + 1 < load->args.size(); ++i) {
      if (ir::uses_index(load->args[i], kC)) return nullptr;
    }
    ExprRef x = ir::load_of(g_, def->operands[0], load->args);
    ExprRef seen = ir::expand(g_, x, [](ValueId) { return true; });
    return loaded(seen) ? seen : x;
  }

  // An operand over heads, tokens and channels of these extents and numbers: a tensor of the graph
  // under a map, or the value itself.
  LinearOperand operand(ExprRef e, int64_t token, int64_t channel,
                        const std::vector<ExprRef>& extents, DType dtype, bool may_map) {
    Indices by(6, nullptr);
    const Indices own = ir::indices_of(pool(), extents);
    by[static_cast<size_t>(token)] = own[kT];
    by[static_cast<size_t>(channel)] = own[kC];
    if (token != kT) by[kT] = nullptr;
    e = ir::substitute_indices(e, by);
    ExprRef base = nullptr;
    bool one = true;
    ir::for_each_node(e, [&](ExprRef n) {
      if (n->kind != ExprKind::load || !ir::uses_index(n, kC)) return;
      one &= !base;
      base = n;
    });
    if (may_map && base && one && base->type == Scalar::f32) {
      ExprRef s = pool().param("s", Scalar::f32);
      ExprRef map = ir::rewrite(e, [&](ExprRef n) { return n == base ? s : nullptr; });
      map = map == s ? nullptr : simpler(map);
      if (ExprRef x = softmax_input(base, own[kC]); x && type(*loaded(x)).dtype == dtype) {
        // Where a condition chose the row, that of the softmax need not be in range without it.
        const TokenMajor of = token_major(g_, x, extents, dtype);
        if (of.existing || ir::body_problem(g_, of.body, of.type.dims).empty())
          return {of, map, true};
      }
      const TokenMajor t = token_major(g_, base, extents, type(*loaded(base)).dtype);
      if (t.existing) return {t, map};
    }
    return {token_major(g_, e, extents, dtype)};
  }

  // elu(x) + 1 as exporters spell it has e^x - 1 by a tanh, so that small x keep their digits; with
  // 1 added it is e^x again.
  ExprRef simpler(ExprRef map) const {
    return ir::rewrite(map, [&](ExprRef n) -> ExprRef {
      if (n->kind != ExprKind::fadd) return nullptr;
      for (size_t i : {0, 1}) {
        ExprRef elu = n->args[1 - i];
        if (ir::as_real(n->args[i]) != 1.0 || elu->kind != ExprKind::select) continue;
        ExprRef x = elu->args[2], t = ir::unary(ExprKind::tanh, ir::mul(x, pool().real(0.5)));
        ExprRef less_one = ir::div(ir::mul(pool().real(2), t), ir::sub(pool().real(1), t));
        if (elu->args[1] == less_one)
          return ir::select(elu->args[0], ir::unary(ExprKind::exp, x), ir::add(x, n->args[i]));
      }
      return nullptr;
    });
  }

  // e over heads that `group` query heads share, if it is the same for all of a group.
  ExprRef shared(ExprRef e, int64_t group) const {
    if (!e) return e;
    ExprRef h =
        ir::indices_of(pool(), {x_.heads.batch, pool().integer(x_.heads.heads / group)})[kH];
    ExprRef member = pool().index(kMember, pool().integer(group));
    ExprRef r =
        ir::substitute_indices(e, {nullptr, ir::add(ir::mul(h, pool().integer(group)), member)});
    return ir::uses_index(r, kMember) ? nullptr : r;
  }

  void share_heads(ExprRef& k, ExprRef& v) {
    out_.kv_heads = x_.heads.heads;
    for (int64_t group = x_.heads.heads; group > 1; --group) {
      if (x_.heads.heads % group != 0) continue;  // cost: such heads are not shared
      ExprRef a = shared(k, group), b = a ? shared(v, group) : nullptr;
      if (!b) continue;
      k = a, v = b;
      out_.kv_heads = x_.heads.heads / group;
      return;
    }
  }

  const Graph& g_;
  const LinearExtents& x_;
  LinearOperands out_;
};

}  // namespace

LinearOperands linear_operands(const Graph& g, const LinearExtents& extents, ExprRef q, ExprRef k,
                               ExprRef v) {
  return Layout(g, extents).of(q, k, v);
}

}  // namespace tfcc::passes
