// SPDX-License-Identifier: Apache-2.0
// fuse-attention: the two products, everything elementwise between them and the softmax as one op.
//   before: %s = matmul(%q, %k) {trans_b = true}; %m = pointwise(%s, %mask) {...}; %p = softmax(%m); %o = matmul(%p, %v)
//   after:  %ctx = attention(%q2, %k2, %v2, %mask) {heads, score = (s,b,h,i,j) => ...}; %o = a view of %ctx
// q2, k2, v2 are token-major [B, S, heads * d]: an existing tensor where the graph has one, else one pointwise op each.
// Scales on q, k or the product move into the score. A guard that turns NaN into 0 after the softmax is dropped: a row without
// a visible key is 0 in the op.
// Requires: rank 4; the score reads the product at (b, h, i, j) alone; probabilities and scores have no other use.
#include <algorithm>

#include "passes/match.h"
#include "passes/passes.h"

namespace tfcc::passes {
namespace {

struct Match {
  OpId softmax, product, context;  // product: q.k; context: p.v
  ExprRef score = nullptr;         // free, with param s for the scaled product
  ExprRef q = nullptr, k = nullptr, v = nullptr;  // free elements at (b,h,i,d), (b,h,j,d), (b,h,j,d)
  Indices q_at, k_at, v_at;
};

class Fuser {
 public:
  Fuser(Graph& g, OpId softmax, PassReport& report) : g_(g), report_(report) { m_.softmax = softmax; }

  bool run() {
    if (!find_score() || !find_context() || !find_operands()) return false;
    rewrite();
    return true;
  }

 private:
  ExprPool& pool() { return g_.pool(); }
  const ir::Type& type(ValueId v) const { return g_.value(v).type; }

  bool miss(const std::string& reason) {
    report_.misses.push_back({label(g_, m_.softmax), reason});
    return false;
  }

  // The one product that the softmax's argument reads, at exactly the softmax's indices.
  bool find_score() {
    const ValueId x = g_.op(m_.softmax).operands[0];
    if (type(x).rank() != 4) return miss("the scores have rank " + std::to_string(type(x).rank()) + ", not 4");
    at_ = ir::indices_of(g_, x);
    ExprRef e = expanded(g_, x, at_);
    std::optional<ValueId> product;
    bool elsewhere = false;
    ir::for_each_node(e, [&](ExprRef n) {
      if (n->kind != ExprKind::load) return;
      const ValueId v{static_cast<uint32_t>(n->value)};
      const ir::Op* op = g_.def(v);
      if (!op || op->kind != OpKind::matmul) return;
      if (n->args != at_ || (product && *product != v)) elsewhere = true;
      product = v;
    });
    if (!product) return miss("no product in the score");
    if (elsewhere) return miss("the score reads a product at other indices than its own");
    m_.product = g_.value(*product).def;
    if (g_.op(m_.product).operands.size() != 2) return miss("the product of q and k has a bias");
    ExprRef load = ir::load_of(g_, *product, at_);
    raw_score_ = e;
    product_load_ = load;
    return true;
  }

  // Is e the probability at these indices, perhaps with NaN turned into 0?
  static bool is_probability(ExprRef e, ExprRef p) {
    if (e == p) return true;
    return e->kind == ExprKind::select && e->args[0]->kind == ExprKind::isnan && e->args[0]->args[0] == p &&
           e->args[2] == p && ir::as_real(e->args[1]) == 0.0;
  }

  // IsNaN and Where are two ops: the guard is the one that reads the other.
  bool only_for(OpId condition, OpId guard) {
    const ValueId c = g_.result(condition);
    return !g_.is_output(c) &&
           std::ranges::all_of(g_.value(c).users, [&](OpId u) { return u == guard; });
  }

  // Follows the probabilities through single-use elementwise ops to the product with v.
  bool find_context() {
    ValueId p = g_.result(m_.softmax);
    const ValueId first = p;
    for (int step = 0; step < 8; ++step) {
      if (g_.is_output(p)) return miss("the probabilities are an output");
      for (OpId user : g_.value(p).users) {
        const ir::Op& op = g_.op(user);
        if (op.kind == OpKind::matmul && op.operands[0] == p && op.operands[1] != p) {
          if (g_.use_count(p) != 1) return miss("the probabilities have another use");
          return check_context(user, first);
        }
      }
      // A guard reads its operand twice in one op: one user, perhaps several uses.
      const auto& users = g_.value(p).users;
      if (users.empty()) return miss("the probabilities are not used");
      OpId next = users[0];
      for (OpId u : users) {
        if (type(g_.result(u)).dtype != DType::boolean) next = u;
      }
      for (OpId u : users) {
        if (u != next && !only_for(u, next)) return miss("the probabilities have another use");
      }
      if (g_.op(next).kind != OpKind::pointwise) return miss("the probabilities are not multiplied by values");
      p = g_.result(next);
    }
    return miss("the probabilities are not multiplied by values");
  }

  bool check_context(OpId context, ValueId probabilities) {
    const ir::Op& op = g_.op(context);
    const auto& attrs = op.as<ir::MatmulAttrs>();
    if (attrs.trans_a || attrs.alpha != 1 || op.operands.size() != 2) return miss("the product with v is scaled, transposed or has a bias");
    if (type(op.operands[1]).rank() != 4) return miss("the product with v has not rank 4");
    ExprRef e = expanded(g_, op.operands[0], at_);
    if (!is_probability(e, ir::load_of(g_, probabilities, at_))) return miss("the probabilities are changed before the product with v");
    m_.context = context;
    return true;
  }

  // The element of operand i of a product at (b, h, row, column) of the untransposed operand.
  ExprRef operand(OpId product, size_t i, bool swap, Indices at) {
    const ValueId v = g_.op(product).operands[i];
    if (swap) std::swap(at[2], at[3]);
    const auto& dims = type(v).dims;
    for (size_t k = 0; k < 2; ++k) {
      if (ir::is_int(dims[k], 1)) at[k] = pool().integer(0);
    }
    return expanded(g_, v, at);
  }

  bool find_operands() {
    const ir::Op& product = g_.op(m_.product);
    const auto& qk = product.as<ir::MatmulAttrs>();
    if (type(product.operands[0]).rank() != 4 || type(product.operands[1]).rank() != 4) return miss("q or k has not rank 4");
    const auto& dims = type(g_.op(m_.softmax).operands[0]).dims;
    const auto& dq = type(product.operands[0]).dims;
    ExprRef size = dq[qk.trans_a ? 2 : 3];
    const auto& pv = g_.op(m_.context).as<ir::MatmulAttrs>();
    const auto& out = type(g_.op(m_.context).results[0]).dims;
    if (!ir::as_int(size) || !ir::as_int(out[3]) || !ir::as_int(dims[1])) return miss("heads or head size are not known at compile time");
    heads_ = *ir::as_int(dims[1]);
    if (*ir::as_int(size) > kLargestHead || *ir::as_int(out[3]) > kLargestHead) return miss("the head size is over 256");
    m_.q_at = ir::indices_of(pool(), {dims[0], dims[1], dims[2], size});
    m_.k_at = ir::indices_of(pool(), {dims[0], dims[1], dims[3], size});
    m_.v_at = ir::indices_of(pool(), {dims[0], dims[1], dims[3], out[3]});
    m_.q = operand(m_.product, 0, qk.trans_a, m_.q_at);
    m_.k = operand(m_.product, 1, !qk.trans_b, m_.k_at);  // stored [.., j, d] with trans_b, else [.., d, j]
    m_.v = operand(m_.context, 1, pv.trans_b, m_.v_at);
    const double scale = qk.alpha * peel_scale(m_.q) * peel_scale(m_.k);
    ExprRef s = pool().param("s", Scalar::f32);
    if (product_load_->type != Scalar::f32) return miss("the scores are " + ir::to_string(type(g_.result(m_.product))) + "; the op computes in f32");
    ExprRef scaled = scale == 1 ? s : ir::mul(s, pool().real(scale));
    m_.score = ir::rewrite(raw_score_, [&](ExprRef n) { return n == product_load_ ? scaled : nullptr; });
    if (m_.score->type != Scalar::f32) return miss("the score is not f32");
    return true;
  }

  // A tensor [B, S, heads * d] whose element (b, s, h * d + c) is `e` at (b, h, s, c): an existing value, or a new op.
  ValueId token_major(ExprRef e, const Indices& at, const std::string& name) {
    ExprRef size = at[3]->kind == ExprKind::index ? at[3]->args[0] : pool().integer(1);
    auto extent = [&](ExprRef i) { return i->kind == ExprKind::index ? i->args[0] : pool().integer(1); };
    const ir::Type t{g_.value(g_.result(m_.product)).type.dtype, {extent(at[0]), extent(at[2]), ir::mul(pool().integer(heads_), size)}};
    const Indices token = ir::indices_of(pool(), t.dims);
    // The old indices by number; an axis of size 1 was a constant and does not occur.
    Indices by(4);
    by[0] = token[0];
    by[1] = ir::div(token[2], size);
    by[2] = token[1];
    by[3] = ir::mod(token[2], size);
    ExprRef body = ir::substitute_indices(e, by);
    if (auto v = loaded_at(body, token); v && type(*v) == t) return *v;
    ir::Captured c = ir::capture(body);
    return g_.add_pointwise(c.operands, c.body, t, name, g_.op(m_.softmax).origin);
  }

  void rewrite() {
    const ValueId out = g_.op(m_.context).results[0];
    const ir::Type out_type = type(out);
    const std::string base = g_.value(out).name;
    std::vector<ValueId> operands{token_major(m_.q, m_.q_at, base + ".q"), token_major(m_.k, m_.k_at, base + ".k"),
                                  token_major(m_.v, m_.v_at, base + ".v")};
    ir::AttentionAttrs attrs;
    attrs.heads = attrs.kv_heads = heads_;
    attrs.score = capture_loads(m_.score, operands);
    ExprRef size = out_type.dims[3];
    const ir::Type t{out_type.dtype, {out_type.dims[0], out_type.dims[2], ir::mul(pool().integer(heads_), size)}};
    ValueId ctx = g_.add(OpKind::attention, operands, attrs, t, base + ".ctx", g_.op(m_.softmax).origin);
    const Indices at = ir::indices_of(pool(), out_type.dims);
    ExprRef element = ir::load_of(g_, ctx, {at[0], at[2], ir::add(ir::mul(at[1], size), at[3])});
    ir::Captured c = ir::capture(element);
    g_.replace_uses(out, g_.add_pointwise(c.operands, c.body, out_type, base, g_.op(m_.context).origin));
  }

  static ExprRef capture_loads(ExprRef e, std::vector<ValueId>& operands) {
    // q, k and v keep their places even if the score reads one of them again.
    return ir::capture(std::vector<ExprRef>{e}, operands)[0];
  }

  static constexpr int64_t kLargestHead = 256;
  Graph& g_;
  PassReport& report_;
  Match m_;
  Indices at_;
  ExprRef raw_score_ = nullptr, product_load_ = nullptr;
  int64_t heads_ = 0;
};

}  // namespace

PassReport fuse_attention(Graph& graph) {
  PassReport report;
  for (OpId o : std::vector<OpId>(graph.order())) {
    if (graph.op(o).kind != OpKind::softmax || graph.use_count(graph.result(o)) == 0) continue;
    report.rewrites += Fuser(graph, o, report).run();
  }
  return report;
}

}  // namespace tfcc::passes
