// SPDX-License-Identifier: Apache-2.0
// join-head-products: products of every sequence and head whose second factor is the same for all
// sequences become one product of rows, in which heads stand side by side. So no sequence has a copy
// of the factor, and rows of padding can be left out. Such are the products of queries and keys
// with tables of relative positions, of which a score picks elements (DeBERTa).
//   before: %a = pointwise(%q) {body = (i,j,k) => %q[i / 4,j,16*(i % 4) + k]} : f32[4*B,S,16]
//           %t = pointwise(%p) {body = (i,j,k) => %p[16*(i % 4) + j,k]} : f32[4*B,16,32]
//           %m = matmul(%a, %t) {alpha = 1.0, ..} : f32[4*B,S,32]
//           %y = attention(%q, %k, %v, %m) {score = (s,b,h,i,j) => s + %m[4*b + h,i,..], ..}
//   after:  %m' = matmul(%q, %p) {alpha = 1.0, heads = 4, ..} : f32[B,S,128]
//           %y = attention(%q, %k, %v, %m') {score = (s,b,h,i,j) => s + %m'[b,i,32*h + ..], ..}
// So [B,4,S,16] times [1,4,16,32]. Requires: heads are a number, and more than one; the second
// factor, with its elementwise producers inlined, names heads and no sequence; the product has no
// epilogue, is no output, and is read by expressions alone. Runs after: fuse-pointwise, which makes
// each factor one expression. What all readers divide the elements by, a number from 1 to 1024, becomes a part
// of alpha.
#include <algorithm>
#include <cmath>

#include "passes/match.h"
#include "passes/passes.h"

namespace tfcc::passes {
namespace {

// Indices of an element, behind those of a tensor of four axes.
constexpr int64_t kSequence = 4, kHead = 5;
constexpr int64_t kMostHeads = 1024;
// In 16 bits a quotient has room where the product had. Of sums below 0.07 f16 may keep less of the
// fraction, with the largest divisor.
constexpr double kLeastDivisor = 1, kMostDivisor = 1024;

// The number that divides a size of one term, 4 of 4*B.
int64_t factor_of(ExprRef size) {
  return size->terms.size() == 1 && size->value == 0 ? size->terms[0].coefficient : 1;
}

class Joiner {
 public:
  Joiner(Graph& g, OpId o) : g_(g), pool_(g.pool()), op_(g.op(o)), product_(g.result(o)) {}

  bool run() {
    if (!is_plain() || !readers_load() || !find_heads()) return false;
    divisor_ = common_divisor();
    const ValueId joined = make_product();
    for (OpId user : std::vector<OpId>(g_.value(product_).users)) read(user, joined);
    return true;
  }

 private:
  const std::vector<ExprRef>& dims(ValueId v) const { return g_.value(v).type.dims; }
  ExprRef heads() const { return pool_.integer(heads_); }

  // Two stored factors and alpha, in a shape that is looked at.
  bool is_plain() const {
    const auto& attrs = op_.as<ir::MatmulAttrs>();
    ir::Op plain = op_;
    plain.attrs = ir::MatmulAttrs{.alpha = attrs.alpha, .trans_b = attrs.trans_b};
    if (attributes_key(op_) != attributes_key(plain)) return false;
    const ir::Type &a = g_.value(op_.operands[0]).type, &y = g_.value(product_).type;
    return is_float(a.dtype) && std::max(size_of(a.dtype), size_of(y.dtype)) <= sizeof(float) &&
           ir::as_int(a.dims.back()).value_or(0) > 0 && (y.rank() == 3 || y.rank() == 4) &&
           std::equal(a.dims.begin(), a.dims.end() - 2, y.dims.begin(), y.dims.end() - 2);
  }

  bool readers_load() const {
    if (g_.is_output(product_)) return false;
    return std::ranges::none_of(g_.value(product_).users, [&](OpId user) {
      const auto own = own_operands(g_.op(user));
      return std::ranges::find(own, product_) != own.end();
    });
  }
  static std::vector<ValueId> own_operands(const ir::Op& op) {
    const size_t count = std::min(ir::first_loaded(op), op.operands.size());
    return {op.operands.begin(), op.operands.begin() + static_cast<std::ptrdiff_t>(count)};
  }

  // ---- what it multiplies ----

  // The indices of the matrix of (b, h) among those of the product: [B * heads, ..], or [B, heads, ..].
  Indices matrix(ExprRef b, ExprRef h) const {
    if (dims(product_).size() == 3) return {ir::add(ir::mul(b, heads()), h)};
    return {b, h};
  }
  // Element (row, column) of a factor as it is stored, of the matrix (b, h).
  ExprRef element(ValueId factor, ExprRef b, ExprRef h, ExprRef row, ExprRef column) const {
    Indices at = matrix(b, h);
    at.insert(at.end(), {row, column});
    return ir::load_of(g_, factor, ir::broadcast_indices(pool_, dims(factor), at));
  }
  static bool any(ValueId) { return true; }

  bool find_heads() {
    const auto& y = dims(product_);
    if (y.size() == 4) return try_heads(ir::as_int(y[1]).value_or(1), y[0]);
    // 4 of 4*B; of a number any that divides it.
    const int64_t all = ir::as_int(y[0]).value_or(factor_of(y[0]));
    for (int64_t heads = 2; heads <= std::min(all, kMostHeads); ++heads) {
      if (all % heads != 0) continue;  // cost: sequences are whole
      if (try_heads(heads, *ir::exact_div(y[0], pool_.integer(heads)))) return true;
    }
    return false;
  }

  bool try_heads(int64_t heads, ExprRef batch) {
    if (ir::is_int(batch, 1)) return false;
    heads_ = heads;
    batch_ = batch;
    const ValueId b = op_.operands[1];
    const size_t rank = dims(b).size();
    ExprRef row = pool_.index(0, dims(b)[rank - 2]), column = pool_.index(1, dims(b).back());
    second_ = ir::expand(g_,
                         element(b, pool_.index(kSequence, batch),
                                 pool_.index(kHead, pool_.integer(heads)), row, column),
                         any);
    return !ir::uses_index(second_, kSequence) && ir::uses_index(second_, kHead);
  }

  // What every reader divides its elements by, a number: a part of alpha, for which no pair of tokens
  // divides. Null if there is none.
  ExprRef common_divisor() const {
    ExprRef common = nullptr;
    size_t loads = 0, divided = 0;
    for (OpId user : g_.value(product_).users) {
      ir::Op op = g_.op(user);
      for (ExprRef* body : ir::expressions_of(op)) {
        ExprRef free = ir::free_expr(g_, user, *body, {});
        loads += loaded(free) == product_;
        ir::for_each_node(free, [&](ExprRef n) {
          for (ExprRef a : n->args) loads += loaded(a) == product_;
          if (n->kind != ExprKind::fdiv || loaded(n->args[0]) != product_) return;
          const auto by = ir::as_real(n->args[1]);
          if (!by || std::abs(*by) < kLeastDivisor || std::abs(*by) > kMostDivisor ||
              (common && common != n->args[1]))
            return;
          common = n->args[1];
          ++divided;
        });
      }
    }
    return loads == divided ? common : nullptr;
  }

  // ---- the product ----

  // The value itself where the element at its own indices is asked for, else an op that computes it.
  ValueId value_of(ExprRef element, const ir::Type& type, const std::string& name) {
    const auto v = loaded_at(element, ir::indices_of(pool_, type.dims));
    if (v && g_.value(*v).type == type) return *v;
    const ir::Captured c = ir::capture(element);
    return g_.add_pointwise(c.operands, c.body, type, name);
  }

  ValueId make_product() {
    const ValueId a = op_.operands[0], b = op_.operands[1];
    const auto& y = dims(product_);
    ExprRef length = y[y.size() - 2], n = y.back(), k = dims(a).back();
    const ir::Type first = {g_.value(a).type.dtype, {batch_, length, ir::mul(heads(), k)}},
                   second = {g_.value(b).type.dtype, {ir::mul(heads(), k), n}};
    const Indices at = ir::indices_of(pool_, first.dims);
    ExprRef of_rows =
        ir::expand(g_, element(a, at[0], ir::div(at[2], k), at[1], ir::mod(at[2], k)), any, {1, 1});
    ir::MatmulAttrs attrs = op_.as<ir::MatmulAttrs>();
    ExprRef row = pool_.index(0, second.dims[0]), column = pool_.index(1, n);
    Indices by(kHead + 1, nullptr);  // as it is stored: [k, n], or [n, k]
    by[attrs.trans_b ? 1 : 0] = ir::mod(row, k);
    by[attrs.trans_b ? 0 : 1] = column;
    by[kHead] = ir::div(row, k);
    attrs.heads = heads_;
    if (divisor_) attrs.alpha /= *ir::as_real(divisor_);
    attrs.trans_b = false;
    const ValueId left = value_of(of_rows, first, g_.value(a).name + ".rows"),
                  right = value_of(ir::substitute_indices(second_, by), second,
                                   g_.value(b).name + ".shared");
    const ir::Type type = {g_.value(product_).type.dtype, {batch_, length, ir::mul(heads(), n)}};
    return g_.add(OpKind::matmul, {left, right}, attrs, type, g_.value(product_).name + ".heads",
                  op_.origin);
  }

  // Of the element at these indices of the product before.
  ExprRef joined_element(ValueId joined, const Indices& at) const {
    const bool in_one = at.size() == 3;
    ExprRef b = in_one ? ir::div(at[0], heads()) : at[0],
            h = in_one ? ir::mod(at[0], heads()) : at[1];
    ExprRef n = dims(product_).back();
    return ir::load_of(g_, joined, {b, at[at.size() - 2], ir::add(ir::mul(h, n), at.back())});
  }

  void read(OpId user, ValueId joined) {
    ir::Op op = g_.op(user);
    const std::vector<ExprRef*> bodies = ir::expressions_of(op);
    std::vector<ValueId> operands = own_operands(op);
    std::vector<ExprRef> free;
    for (ExprRef* body : bodies) {
      free.push_back(ir::rewrite(ir::free_expr(g_, user, *body, {}), [&](ExprRef n) -> ExprRef {
        if (divisor_)
          return n->kind == ExprKind::fdiv && loaded(n->args[0]) == product_
                     ? joined_element(joined, n->args[0]->args)
                     : nullptr;
        return loaded(n) == product_ ? joined_element(joined, n->args) : nullptr;
      }));
    }
    free = ir::capture(free, operands);
    for (size_t i = 0; i < bodies.size(); ++i) *bodies[i] = free[i];
    g_.op(user).attrs = op.attrs;
    g_.set_operands(user, operands);
  }

  Graph& g_;
  ExprPool& pool_;
  const ir::Op op_;
  const ValueId product_;
  int64_t heads_ = 0;
  ExprRef batch_ = nullptr;
  ExprRef divisor_ = nullptr;
  ExprRef second_ = nullptr;  // element (0, 1) of the second factor of head kHead, free
};

}  // namespace

PassReport join_head_products(Graph& graph) {
  PassReport report;
  for (OpId o : std::vector<OpId>(graph.order())) {
    if (graph.op(o).kind == OpKind::matmul) report.rewrites += Joiner(graph, o).run();
  }
  return report;
}

}  // namespace tfcc::passes
