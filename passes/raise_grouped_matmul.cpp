// SPDX-License-Identifier: Apache-2.0
// raise-grouped-matmul: a product of each row by a matrix that was copied out for it, as exporters
// write the experts of a mixture, is one op that reads the matrices where they are.
//   before: %g = pointwise(@w, %e) {body = (i,j,k,l,m) => @w[bounded(%e[i,j,k], 8),l,m]} : f32[B,S,2,48,32]
//           %r = pointwise(%x) {body = (i,j,k,l,m) => %x[i,j,l]} : f32[B,S,2,32,1]
//           %y = matmul(%g, %r) : f32[B,S,2,48,1]
//   after:  %y' = grouped_matmul(%x, @w, %e) {which = (i,j,k) => bounded(%e[i,j,k], 8)} : f32[B,S,2,48]
//           %y = pointwise(%y') {body = (i,j,k,l,m) => %y'[i,j,k,l]} : f32[B,S,2,48,1]
// Either factor may be the matrix, and it may be stored either way. Requires: a product of one row or
// column, of reals of at most 32 bits; a matrix whose number names neither its rows nor its columns,
// which are read each at its own place; at most 4096 matrices, constant, or an input as it is.
#include "ir/matmul.h"
#include "passes/match.h"
#include "passes/passes.h"

namespace tfcc::passes {
namespace {

using Dims = std::vector<ExprRef>;

constexpr int64_t kMostMatrices = 4096;  // of which a GPU keeps the numbers in shared memory

class Raiser {
 public:
  Raiser(Graph& g, OpId o) : g_(g), pool_(g.pool()), o_(o), y_(g.result(o)) {}

  bool run() {
    const ir::Op& op = g_.op(o_);
    const auto& attrs = op.as<ir::MatmulAttrs>();
    if (!ir::is_plain_product(op))
      return false;  // cost: the others have fewer dims, or more columns
    if (attrs.epilogue || attrs.alpha != 1) return false;
    const ir::Type &a = g_.value(op.operands[0]).type, &b = g_.value(op.operands[1]).type,
                   &y = g_.value(y_).type;
    if (!is_float(a.dtype) || size_of(a.dtype) > 4 || size_of(y.dtype) > 4) return false;
    if (a.rank() != y.rank() || b.rank() != y.rank() || y.rank() < 3) return false;
    const size_t rank = y.rank();
    k_ = a.dims[rank - (attrs.trans_a ? 2 : 1)];
    if (ir::is_int(y.dims[rank - 1], 1)) return try_factors(0, attrs.trans_a, attrs.trans_b);
    if (ir::is_int(y.dims[rank - 2], 1)) return try_factors(1, !attrs.trans_b, !attrs.trans_a);
    return false;
  }

 private:
  // The matrices are operand `of`, [n, k] or if `turned` [k, n]; the other is [k, 1], or [1, k].
  bool try_factors(size_t of, bool turned, bool turned_row) {
    const ir::Op op = g_.op(o_);
    const Dims& y = g_.value(y_).type.dims;
    const size_t leading = y.size() - 2;
    n_ = y[leading + (of == 0 ? 0 : 1)];
    Dims rows(y.begin(), y.begin() + static_cast<std::ptrdiff_t>(leading));
    rows.push_back(n_);
    Indices at = ir::indices_of(pool_, rows);
    ExprRef j = at.back(), p = pool_.index(static_cast<int64_t>(leading) + 1, k_);
    at.pop_back();
    const auto of_factor = [&](size_t i, ExprRef first, ExprRef second, bool swap) {
      Indices here = at;
      here.push_back(swap ? second : first);
      here.push_back(swap ? first : second);
      const Dims& dims = g_.value(op.operands[i]).type.dims;
      return through_views(g_, op.operands[i], ir::broadcast_indices(pool_, dims, here));
    };
    ExprRef matrix = of_factor(of, j, p, turned);
    const ValueId w = *loaded(matrix);
    if (g_.value(w).type.rank() != 3) return false;
    which_ = matrix->args[0];
    // That it chooses by what is computed: else it is a batch of products.
    if (!which_->has_load || ir::uses_index(which_, j->value) || ir::uses_index(which_, p->value))
      return false;
    const bool as_stored = matrix->args[1] == j && matrix->args[2] == p,
               other_way = matrix->args[1] == p && matrix->args[2] == j;
    const Dims& stored = g_.value(w).type.dims;
    if (!as_stored && !other_way) return false;
    if (stored[as_stored ? 1 : 2] != n_ || stored[as_stored ? 2 : 1] != k_) return false;
    const int64_t count = ir::as_int(stored[0]).value_or(0);
    if (count < 1 || count > kMostMatrices || !has_many(n_) || !has_many(k_)) return false;
    // Others are computed or copied as a whole: better those that were chosen.
    if (!g_.is_constant(w) && (g_.def(w) || !as_stored)) return false;
    ExprRef row = of_factor(1 - of, p, pool_.integer(0), turned_row);
    replace(as_stored ? w : transposed(w), row_value(row, rows, p), rows);
    return true;
  }

  static bool has_many(ExprRef size) { return ir::as_int(size).value_or(0) > 1; }

  ValueId transposed(ValueId w) {
    const ir::Type from = g_.value(w).type, to{from.dtype, {from.dims[0], n_, k_}};
    const Indices at = ir::indices_of(pool_, to.dims);
    const ir::Captured c = ir::capture(ir::load_of(g_, w, {at[0], at[2], at[1]}));
    return g_.add_pointwise(c.operands, c.body, to, g_.value(w).name + ".t");
  }

  // x [.., k] of as few of the rows' axes as it depends on.
  ValueId row_value(ExprRef row, const Dims& rows, ExprRef p) {
    size_t count = rows.size() - 1;
    while (count > 0 && !ir::uses_index(row, static_cast<int64_t>(count) - 1)) --count;
    ir::Type type{g_.value(g_.op(o_).operands[0]).type.dtype,
                  {rows.begin(), rows.begin() + static_cast<std::ptrdiff_t>(count)}};
    type.dims.push_back(k_);
    const Indices at = ir::indices_of(pool_, type.dims);
    Indices by(static_cast<size_t>(p->value) + 1, nullptr);
    by[static_cast<size_t>(p->value)] = at.back();
    ExprRef element = ir::substitute_indices(row, by);
    const auto x = loaded_at(element, at);
    if (x && g_.value(*x).type == type) return *x;
    const ir::Captured c = ir::capture(element);
    return g_.add_pointwise(c.operands, c.body, type, g_.value(y_).name + ".x");
  }

  void replace(ValueId w, ValueId x, const Dims& rows) {
    const ir::Op& op = g_.op(o_);
    const ir::Type type = g_.value(y_).type;
    const std::string name = g_.value(y_).name, origin = op.origin;
    std::vector<ValueId> operands{x, w};
    ir::GroupedMatmulAttrs attrs;
    attrs.which = ir::capture({which_}, operands)[0];
    const ValueId grouped = g_.add(OpKind::grouped_matmul, operands, attrs, {type.dtype, rows},
                                   name + ".grouped", origin);
    Indices at = ir::indices_of(pool_, type.dims);
    at.erase(at.end() - (ir::is_int(type.dims.back(), 1) ? 1 : 2));
    const ir::Captured c = ir::capture(ir::load_of(g_, grouped, at));
    g_.replace_uses(y_, g_.add_pointwise(c.operands, c.body, type, name, origin));
  }

  Graph& g_;
  ExprPool& pool_;
  OpId o_;
  ValueId y_;
  ExprRef n_ = nullptr, k_ = nullptr, which_ = nullptr;
};

}  // namespace

PassReport raise_grouped_matmul(Graph& graph) {
  PassReport report;
  for (OpId o : std::vector<OpId>(graph.order())) {
    if (graph.op(o).kind == OpKind::matmul) report.rewrites += Raiser(graph, o).run();
  }
  graph.clean();
  return report;
}

}  // namespace tfcc::passes
