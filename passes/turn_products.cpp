// SPDX-License-Identifier: Apache-2.0
// turn-products: a product by a weight from the left, of tokens that stand in columns, becomes one of
// tokens in rows. Exporters write convolutions over one token so, which are linear layers
// (SqueezeBERT). Weights of groups become heads that stand side by side.
//   before: %t = pointwise(%x) {body = (i,j,k) => %x[i,k,j]} : f32[B,64,S]
//           %y = matmul(@w, %t) : f32[B,32,S]
//   after:  %y' = matmul(%x, @w) {trans_b = true} : f32[B,S,32];  %y = pointwise(%y') {body = (i,j,k) => %y'[i,k,j]} : f32[B,32,S]
//   before: %t = pointwise(%x) {body = (i,j,k,l) => %x[i,l,16*j + k]} : f32[B,4,16,S]
//           %y = matmul(@w, %t) : f32[B,4,32,S]
//   after:  const @v = @w |> transpose(0,2,1) |> reshape(64,32)
//           %y' = matmul(%x, @v) {heads = 4} : f32[B,S,128];  %y = pointwise(%y') {body = (i,j,k,l) => %y'[i,l,32*j + k]} : f32[B,4,32,S]
// Requires: @w is a constant; the product has alpha alone, and groups of 16 columns at least; the second
// factor, with the elementwise producers inlined that may move, reads rows of the token, in the order
// of the sum; what reads the result, through elementwise ops and such products, has tokens in rows.
// Runs before: fusions, which look for rows of tokens, and fuse-pointwise, which inlines %y.
#include <algorithm>
#include <map>

#include "passes/match.h"
#include "passes/passes.h"

namespace tfcc::passes {
namespace {

using Kind = ir::ConstantStep::Kind;

constexpr size_t kLargestBody = 96;    // nodes
constexpr int kMostReaders = 16;       // one behind the other
constexpr int64_t kLeastOfGroup = 16;  // columns, which vectors of a CPU need

bool is_move(const Graph& g, ValueId v) {
  return g.def(v)->as<ir::PointwiseAttrs>().body->kind == ExprKind::load;
}

class Turner {
 public:
  Turner(Graph& g, OpId o) : g_(g), pool_(g.pool()), op_(g.op(o)), product_(g.result(o)) {}

  bool run() {
    if (!has_shape() || !are_rows_read(product_, kMostReaders)) return false;
    const ExprRef element = element_of_rows();
    if (!reads_rows(element)) return false;
    const ValueId rows = value_of(element);
    ir::MatmulAttrs attrs;
    attrs.alpha = op_.as<ir::MatmulAttrs>().alpha;
    if (groups_ > 1) attrs.heads = groups_;
    else attrs.trans_b = true;
    const ValueId w = grouped() ? weight_of_rows() : op_.operands[0];
    const ir::Type type = {g_.value(product_).type.dtype,
                           {y().front(), y().back(), pool_.integer(groups_ * n_)}};
    const std::string name = g_.value(product_).name;
    const ValueId turned =
        g_.add(OpKind::matmul, {rows, w}, attrs, type, name + ".rows", op_.origin);
    Indices at = ir::indices_of(g_, product_);
    ExprRef column = at[at.size() - 2];
    if (grouped()) column = ir::add(ir::mul(at[1], pool_.integer(n_)), column);
    const ir::Captured c = ir::capture(ir::load_of(g_, turned, {at.front(), at.back(), column}));
    g_.replace_uses(product_, g_.add_pointwise(c.operands, c.body, g_.value(product_).type, name));
    return true;
  }

 private:
  const std::vector<ExprRef>& y() const { return g_.value(product_).type.dims; }
  bool grouped() const { return y().size() == 4; }

  // [n, k] times [B, k, S], or [G, n, k] times [B, G, k, S].
  bool has_shape() {
    const auto& attrs = op_.as<ir::MatmulAttrs>();
    ir::Op plain = op_;
    plain.attrs = ir::MatmulAttrs{.alpha = attrs.alpha, .trans_b = attrs.trans_b};
    if (attributes_key(op_) != attributes_key(plain)) return false;
    const ir::Type &w = g_.value(op_.operands[0]).type, &x = g_.value(op_.operands[1]).type;
    const size_t rank = x.rank();
    if (!g_.is_constant(op_.operands[0]) || !is_float(w.dtype) ||
        std::max(size_of(w.dtype), size_of(g_.value(product_).type.dtype)) > sizeof(float))
      return false;
    if (w.rank() != (rank == 3 ? 2 : rank == 4 ? 3 : 0)) return false;
    n_ = *ir::as_int(w.dims[rank - 3]);
    k_ = *ir::as_int(w.dims[rank - 2]);
    if (rank == 4) groups_ = *ir::as_int(w.dims[0]);
    if (rank == 4 && n_ < kLeastOfGroup) return false;
    return k_ > 0 && groups_ > 0 && (rank == 3 || ir::is_int(x.dims[1], groups_));
  }

  std::vector<ExprRef> row_dims() const {
    return {y().front(), y().back(), pool_.integer(groups_ * k_)};
  }

  // Is this value read by one op alone, and so on to the product?
  bool is_read_here_alone(ValueId v) const {
    for (int k = 0; k < kMostReaders; ++k) {
      if (g_.value(v).users.size() != 1 || g_.is_output(v)) return false;
      const ir::Op& user = g_.op(g_.value(v).users[0]);
      if (user.results[0] == product_) return true;
      v = user.results[0];
    }
    return false;
  }

  // The element of the second factor at (sequence, token, place in a row). What is computed moves
  // there with the product where nothing else reads it.
  ExprRef element_of_rows() const {
    const Indices at = ir::indices_of(pool_, row_dims());
    Indices of_x{at[0]};
    if (grouped()) of_x.push_back(ir::div(at[2], pool_.integer(k_)));
    ExprRef place = grouped() ? ir::mod(at[2], pool_.integer(k_)) : at[2];
    const bool turned = op_.as<ir::MatmulAttrs>().trans_b;
    of_x.insert(of_x.end(), {turned ? at[1] : place, turned ? place : at[1]});
    return ir::expand(
        g_, ir::load_of(g_, op_.operands[1], of_x),
        [this](ValueId v) { return is_move(g_, v) || is_read_here_alone(v); }, kNearby);
  }

  bool reads_rows(ExprRef element) const {
    const Indices at = ir::indices_of(pool_, row_dims());
    bool rows = false, others = false;
    ir::for_each_node(element, [&](ExprRef n) {
      if (n->kind != ExprKind::load || !ir::uses_index(n, 1)) return;
      const size_t rank = n->args.size();
      const bool row = rank >= 2 && n->args[rank - 2] == at[1] && n->args[rank - 1] == at[2];
      (row ? rows : others) = true;
    });
    return rows && !others && ir::node_count(element) <= kLargestBody;
  }

  // Has all that reads v, whose last axes are channels and tokens, tokens in rows? Then the view behind
  // the product goes. An elementwise op may have them in columns if the same is true of it.
  bool are_rows_read(ValueId v, int more) {
    const auto known = known_.find(v.value);
    if (known != known_.end()) return known->second;
    const bool all =
        more > 0 && !g_.is_output(v) && std::ranges::all_of(g_.value(v).users, [&](OpId u) {
          const ValueId y = g_.op(u).results[0];
          const Layout read = layout_in(u, v);
          return read == Layout::rows || (read == Layout::columns && are_rows_read(y, more - 1));
        });
    return known_[v.value] = all;
  }

  // How op u has the tokens and channels of v that it reads.
  enum class Layout { rows, columns, other };
  Layout layout_in(OpId u, ValueId v) const {
    ir::Op op = g_.op(u);
    if (op.kind == OpKind::matmul)
      return Turner(g_, u).has_shape() ? Layout::columns : Layout::other;
    if (op.kind != OpKind::pointwise && op.kind != OpKind::norm) return Layout::other;
    const Indices at = ir::indices_of(g_, op.results[0]);
    const auto last = static_cast<int64_t>(at.size()) - 1;
    bool rows = last > 0, columns = last > 0 && op.kind == OpKind::pointwise;
    for (const ExprRef* body : ir::expressions_of(op)) {
      ir::for_each_node(ir::free_expr(g_, u, *body, {}), [&](ExprRef n) {
        if (loaded(n) != v) return;
        ExprRef token = n->args.back(), channel = n->args[n->args.size() - 2];
        rows = rows && token == at[last - 1] && ir::uses_index(channel, last);
        columns = columns && token == at[last] && !ir::uses_index(channel, last);
      });
    }
    return rows ? Layout::rows : columns ? Layout::columns : Layout::other;
  }

  // The value itself whose element it is, else an op that computes it.
  ValueId value_of(ExprRef element) {
    const ir::Type type = {g_.value(op_.operands[1]).type.dtype, row_dims()};
    const auto v = loaded_at(element, ir::indices_of(pool_, type.dims));
    if (v && g_.value(*v).type == type) return *v;
    const ir::Captured c = ir::capture(element);
    return g_.add_pointwise(c.operands, c.body, type, g_.value(op_.operands[1]).name + ".rows");
  }

  // [G, n, k] as [G * k, n], of one group as [n, k].
  ValueId weight_of_rows() {
    ir::Constant c = *g_.constant(op_.operands[0]);
    const DType t = c.result_dtype();
    if (groups_ > 1) {
      c.steps.push_back({Kind::transpose, {0, 2, 1}, t});
      c.steps.push_back({Kind::reshape, {groups_ * k_, n_}, t});
    } else {
      c.steps.push_back({Kind::reshape, {n_, k_}, t});
    }
    return g_.add_constant(g_.value(op_.operands[0]).name + ".rows", c);
  }

  Graph& g_;
  ExprPool& pool_;
  const ir::Op op_;
  const ValueId product_;
  int64_t groups_ = 1, n_ = 0, k_ = 0;
  std::map<uint32_t, bool> known_;  // of values, whether tokens in rows are read
};

}  // namespace

PassReport turn_products(Graph& graph) {
  PassReport report;
  for (OpId o : std::vector<OpId>(graph.order()))
    if (graph.op(o).kind == OpKind::matmul) report.rewrites += Turner(graph, o).run();
  return report;
}

}  // namespace tfcc::passes
