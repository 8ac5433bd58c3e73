// SPDX-License-Identifier: Apache-2.0
// split-rows: what was computed of tokens in one list, sequence after sequence, is computed of [B,S]
// again, as what stands around it is. Routers and experts of a mixture are such; a list of tokens
// times experts has these as an axis of their own.
//   before: %r = pointwise(%x) {body = (i,j) => %x[i / S,i % S,j]} : f32[B*S,64]
//           %s = softmax(%r) : f32[B*S,8]; %y = pointwise(%s) {body = (i,j,k) => %s[S*i + j,k]} : f32[B,S,8]
//   after:  %r' = pointwise(%x) {body = (i,j,k) => %x[i,j,k]} : f32[B,S,64]
//           %s' = softmax(%r') : f32[B,S,8]; %y = pointwise(%s') {body = (i,j,k) => %s'[i,j,k]}
// Requires: a product of such a list by matrices that its rows choose, as of experts: other lists are
// frames, of which each has tokens of its own. Sizes that are a batch and a length; an axis 0 that is
// their product, or so many times it. Elementwise ops, reductions, softmax, norms, grouped_matmul, and
// products whose rows or matrices these are. What is an output stays.
#include <algorithm>
#include <map>

#include "ir/matmul.h"
#include "passes/match.h"
#include "passes/passes.h"

namespace tfcc::passes {
namespace {

using Dims = std::vector<ExprRef>;

class Splitter {
 public:
  Splitter(Graph& g, ExprRef batch, ExprRef length)
      : g_(g), pool_(g.pool()), batch_(batch), length_(length) {}

  int64_t run() {
    int64_t count = 0;
    if (std::ranges::none_of(g_.order(), [&](OpId o) { return multiplies_chosen(o); })) return 0;
    for (OpId o : std::vector<OpId>(g_.order())) count += split(o);
    return count;
  }

 private:
  // A product whose rows choose what they are multiplied by.
  bool multiplies_chosen(OpId o) const {
    const ir::Op& op = g_.op(o);
    if (!split_dims(g_.value(g_.result(o)).type.dims)) return false;
    if (op.kind == OpKind::grouped_matmul) return true;
    if (op.kind != OpKind::matmul) return false;
    return std::ranges::any_of(op.operands, [&](ValueId v) {
      const ExprRef element = through_views(g_, v, ir::indices_of(g_, v));
      return element->args.size() == 3 && element->args[0]->has_load;
    });
  }

  // Dims of a list of rows as those of tokens: [B*S,..] as [B,S,..], [4*B*S,..] as [B,S,4,..].
  std::optional<Dims> split_dims(const Dims& dims) const {
    if (dims.empty()) return std::nullopt;
    const auto each = ir::exact_div(dims[0], ir::mul(batch_, length_));
    const auto count = each ? ir::as_int(*each) : std::nullopt;
    if (!count || *count < 1) return std::nullopt;
    Dims out{batch_, length_};
    if (*count > 1) out.push_back(*each);
    out.insert(out.end(), dims.begin() + 1, dims.end());
    return out;
  }

  // Indices of an element of the list, by those of the tokens.
  Indices listed(const Indices& at, const Dims& dims, const Dims& split) const {
    const size_t more = split.size() - dims.size();
    Indices out{ir::linear_index(pool_, {at.begin(), at.begin() + 1 + more},
                                 {split.begin(), split.begin() + 1 + more})};
    out.insert(out.end(), at.begin() + 1 + static_cast<std::ptrdiff_t>(more), at.end());
    return out;
  }

  // The element of v, or of what it was split into.
  ExprRef element(ValueId v, const Indices& at) const {
    const auto it = split_.find(v.value);
    if (it == split_.end()) return ir::load_of(g_, v, at);
    const Dims &from = g_.value(v).type.dims, &to = g_.value(it->second).type.dims;
    const size_t more = to.size() - from.size();
    Indices there =
        ir::reshape_indices(pool_, {at[0]}, {from[0]}, {to.begin(), to.begin() + 1 + more});
    there.insert(there.end(), at.begin() + 1, at.end());
    return ir::load_of(g_, it->second, there);
  }

  // An operand that an op reads row by row.
  ValueId rows_of(ValueId v) {
    if (const auto it = split_.find(v.value); it != split_.end()) return it->second;
    const ir::Type type = g_.value(v).type;
    const Dims dims = *split_dims(type.dims);
    const ir::Captured c =
        ir::capture(ir::load_of(g_, v, listed(ir::indices_of(pool_, dims), type.dims, dims)));
    const ValueId rows =
        g_.add_pointwise(c.operands, c.body, {type.dtype, dims}, g_.value(v).name + ".rows");
    split_.emplace(v.value, rows);
    return rows;
  }

  // Which of the op's own operands have its rows, if it is one that computes rows.
  std::optional<std::vector<size_t>> row_operands(const ir::Op& op) const {
    const auto rank = [&](size_t i) { return g_.value(op.operands[i]).type.rank(); };
    const size_t of_result = g_.value(op.results[0]).type.rank();
    switch (op.kind) {
      case OpKind::pointwise:
      case OpKind::reduce: return std::vector<size_t>{};
      case OpKind::norm:
        if (of_result < 2) return std::nullopt;  // the rows would be what it is a norm of
        return std::vector<size_t>{};
      case OpKind::softmax:
        if (of_result < 2) return std::nullopt;
        return std::vector<size_t>{0};
      case OpKind::matmul: {
        const auto& a = op.as<ir::MatmulAttrs>();
        if (!ir::is_plain_product(op)) return std::nullopt;
        const bool rows = of_result == 2 && !a.trans_a && rank(0) == 2 && rank(1) == 2,
                   matrices = of_result > 2 && rank(0) == of_result && rank(1) == of_result &&
                              same_list(op, 0) && same_list(op, 1);
        if (rows) return std::vector<size_t>{0};
        if (matrices) return std::vector<size_t>{0, 1};
        return std::nullopt;
      }
      case OpKind::grouped_matmul:
        if (rank(0) < 2) return std::nullopt;  // one row for all
        return std::vector<size_t>{0};
      default: return std::nullopt;
    }
  }
  bool same_list(const ir::Op& op, size_t i) const {
    return g_.value(op.operands[i]).type.dims[0] == g_.value(op.results[0]).type.dims[0];
  }

  bool split(OpId o) {
    const ir::Op old = g_.op(o);
    if (old.results.size() != 1 || g_.is_output(old.results[0])) return false;
    const ValueId v = old.results[0];
    const ir::Type type = g_.value(v).type;
    const auto dims = split_dims(type.dims);
    if (!dims) return false;
    const auto rows = row_operands(old);
    if (!rows) return false;
    ir::Op op = old;
    std::vector<ValueId> operands(
        op.operands.begin(), op.operands.begin() + static_cast<std::ptrdiff_t>(first_loaded(op)));
    for (size_t i : *rows) operands[i] = rows_of(operands[i]);
    const Indices at = ir::indices_of(pool_, *dims);
    const std::vector<ExprRef*> bodies = ir::expressions_of(op);
    std::vector<ExprRef> free;
    for (ExprRef* body : bodies) free.push_back(over_tokens(o, *body, at, type.dims, *dims));
    free = ir::capture(free, operands);
    for (size_t k = 0; k < bodies.size(); ++k) *bodies[k] = free[k];
    const ValueId now = g_.add(op.kind, operands, op.attrs, {type.dtype, *dims},
                               g_.value(v).name + ".rows", op.origin);
    split_.emplace(v.value, now);
    const ir::Captured c = ir::capture(element(v, ir::indices_of(pool_, type.dims)));
    const ValueId listed =
        g_.add_pointwise(c.operands, c.body, type, g_.value(v).name + ".listed", op.origin);
    g_.replace_uses(v, listed);
    split_.emplace(listed.value, now);
    return true;
  }

  // An expression over the indices of the list, and those of a reduction behind them, over the tokens.
  ExprRef over_tokens(OpId o, ExprRef body, const Indices& at, const Dims& from,
                      const Dims& to) const {
    Indices by = listed(at, from, to);
    if (const auto* reduce = std::get_if<ir::ReduceAttrs>(&g_.op(o).attrs)) {
      for (size_t k = 0; k < reduce->extents.size(); ++k)
        by.push_back(pool_.index(static_cast<int64_t>(to.size() + k), reduce->extents[k]));
    }
    return ir::rewrite(ir::free_expr(g_, o, body, by), [&](ExprRef n) -> ExprRef {
      return n->kind == ExprKind::load ? element(*loaded(n), n->args) : nullptr;
    });
  }

  Graph& g_;
  ExprPool& pool_;
  ExprRef batch_, length_;
  std::map<uint32_t, ValueId> split_;  // the same rows as those of tokens
};

}  // namespace

PassReport split_rows(Graph& graph) {
  PassReport report;
  const ir::SizeSymbol *batch = graph.size_with(SizeRole::batch),
                       *length = graph.size_with(SizeRole::length);
  if (!batch || !length) return report;  // cost: there is no such list
  Splitter splitter(graph, graph.pool().symbol(batch->name), graph.pool().symbol(length->name));
  report.rewrites = splitter.run();
  graph.clean();
  return report;
}

}  // namespace tfcc::passes
