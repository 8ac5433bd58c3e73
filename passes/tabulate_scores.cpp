// SPDX-License-Identifier: Apache-2.0
// tabulate-scores: what a score computes of the head and of j - i alone, by a function that costs,
// is computed once a run, for each distance, and not for each pair of tokens.
//   before: %a = attention(..) {score = (s,b,h,i,j) => s + @w[i64(log(f32(abs(i - j)))),h], ..}
//   after:  %t = pointwise(@w) {body = (h,k) => @w[i64(log(f32(abs(S - k - 1)))),h]} : f32[H,2*S - 1]
//           %a = attention(.., %t) {score = (s,b,h,i,j) => s + %t[h,S + j - i - 1], ..}
// The relative position bias of T5 is one. Layers that add the same have one table, of f32 whatever
// the precision is. So have integers of 32 bits, above all the index of DeBERTa's products.
// Requires: the part is f32, or an integer of known range for all heads that raises no flag; it reads neither the sum
// nor the batch, and with i + d in the place of j no i is left in it. Its loads exist for every distance, by the verifier's rules
// for the body of the table. There is a costly function in it: arithmetic and a load take no longer
// than the load of a table. Keys are no pages and there is no past: a step has one query, for which
// the table is as long as its row.
#include <algorithm>
#include <map>

#include "ir/ir.h"
#include "ir/range.h"
#include "passes/match.h"
#include "passes/passes.h"

namespace tfcc::passes {
namespace {

class Tabulator {
 public:
  explicit Tabulator(Graph& g) : g_(g) {}

  bool run(OpId o) {
    const ir::Op op = g_.op(o);
    const auto extents = ir::attention_extents(g_, op);
    queries_ = extents[ir::kQuery], keys_ = extents[ir::kKey], heads_ = extents[ir::kHead];
    name_ = g_.value(op.results[0]).name, origin_ = op.origin;
    ExprRef score = ir::free_expr(g_, o, op.as<ir::AttentionAttrs>().score, {});
    integers_ = true;
    ExprRef rewritten = with_tables(score);
    if (!ir::body_problem(g_, rewritten, extents, true)
             .empty()) {  // a place of a table may lie outside
      integers_ = false;
      rewritten = with_tables(score);
    }
    if (rewritten == score) return false;
    replace(o, op, rewritten);
    return true;
  }

 private:
  ExprPool& pool() const { return g_.pool(); }

  ExprRef with_tables(ExprRef score) {
    elements_.clear();
    look(score);
    return ir::rewrite(score, [&](ExprRef part) {
      const auto it = elements_.find(part);
      return it == elements_.end() ? nullptr : it->second;
    });
  }

  // The largest parts that have a table.
  void look(ExprRef part) {
    if (!elements_.emplace(part, nullptr).second) return;  // cost: seen before
    elements_[part] = tabulated(part);
    if (elements_[part]) return;
    for (ExprRef a : part->args) look(a);
    for (const ir::Term& t : part->terms)
      std::ranges::for_each(t.atoms, [&](ExprRef a) { look(a); });
  }

  // The load of its table; null if there is none.
  ExprRef tabulated(ExprRef part) {
    const bool integer = part->type == Scalar::i64;
    if ((part->type != Scalar::f32 && !integer) || !costs(part)) return nullptr;
    if (ir::uses_index(part, ir::kBatch)) return nullptr;  // cost: body_problem() tells that
    const ir::Interval range = ir::range_of(part);
    if (integer && (!integers_ || ir::uses_index(part, ir::kHead) || raises_flags(part) ||
                    !range.inside(INT32_MIN, INT32_MAX)))
      return nullptr;
    ExprRef last = ir::sub(queries_, pool().integer(1)),
            count = ir::add(keys_, last);  // of distances: j - i from 1 - queries to keys - 1
    const bool by_head = ir::uses_index(part, ir::kHead);
    ExprRef heads = by_head ? heads_ : pool().integer(1);
    ExprRef i = pool().index(ir::kQuery, queries_), j = pool().index(ir::kKey, keys_),
            h = by_head ? pool().index(ir::kHead, heads_) : pool().integer(0);
    ExprRef of_distance =
        ir::substitute_indices(part, {nullptr, pool().index(0, heads_), nullptr,
                                      ir::add(i, ir::sub(pool().index(1, count), last))});
    if (ir::uses_index(of_distance, ir::kQuery)) return nullptr;  // cost: and that
    const std::pair key{of_distance, count};  // what has no distance in it may be of any length
    if (tables_.count(key) == 0) {
      if (!ir::body_problem(g_, of_distance, {heads, count}).empty())
        return nullptr;  // cost: the verifier would undo the pass
      const ir::Captured c = ir::capture(of_distance);
      tables_[key] =
          g_.add_pointwise(c.operands, c.body, {integer ? DType::i32 : DType::f32, {heads, count}},
                           name_ + (integer ? ".place" : ".bias"), origin_);
    }
    ExprRef element = ir::load_of(g_, tables_.at(key), {h, ir::add(ir::sub(j, i), last)});
    return integer ? within(element, range) : element;
  }

  // What a table says is a place in a tensor still.
  ExprRef within(ExprRef element, const ir::Interval& range) const {
    return ir::max(pool().integer(range.lo), ir::min(pool().integer(range.hi), element));
  }

  // A flag speaks of pairs of tokens, and not every distance may have one.
  static bool raises_flags(ExprRef part) {
    bool found = false;
    ir::for_each_node(part, [&](ExprRef n) { found |= n->kind == ExprKind::bounded; });
    return found;
  }

  // Has a function that takes longer than a load. What has the sum in it is no body of a table.
  static bool costs(ExprRef part) {
    bool costly = false;
    ir::for_each_node(part, [&](ExprRef n) { costly |= ir::is_costly(n); });
    return costly;
  }

  void replace(OpId o, const ir::Op& op, ExprRef score) {
    ir::Op with_table = op;
    const auto own = static_cast<ptrdiff_t>(ir::first_loaded(op));
    std::vector<ValueId> operands(op.operands.begin(), op.operands.begin() + own);
    auto& attrs = with_table.as<ir::AttentionAttrs>();
    attrs.score = score;
    std::vector<ExprRef*> bodies = ir::expressions_of(with_table);
    std::vector<ExprRef> free;
    for (ExprRef* body : bodies)
      free.push_back(body == &attrs.score ? score : ir::free_expr(g_, o, *body, {}));
    free = ir::capture(free, operands);
    for (size_t k = 0; k < bodies.size(); ++k) *bodies[k] = free[k];
    const ValueId y = op.results[0];
    const std::string name = g_.value(y).name;
    g_.rename(y, name + ".without_table");
    g_.replace_uses(y,
                    g_.add(op.kind, operands, with_table.attrs, g_.value(y).type, name, op.origin));
  }

  Graph& g_;
  bool integers_ = true;  // have tables too
  ExprRef queries_ = nullptr, keys_ = nullptr, heads_ = nullptr;
  std::string name_, origin_;
  std::map<std::pair<ExprRef, ExprRef>, ValueId> tables_;  // by body and length
  std::map<ExprRef, ExprRef> elements_;  // what stands in the place of a part; null: it stays
};

}  // namespace

PassReport tabulate_scores(Graph& graph) {
  PassReport report;
  if (graph.size_with(SizeRole::past)) return report;  // cost: a step has one query
  Tabulator tabulator(graph);
  for (OpId o : std::vector<OpId>(graph.order())) {
    const ir::Op& op = graph.op(o);
    if (op.kind != OpKind::attention || op.as<ir::AttentionAttrs>().page)
      continue;  // cost: the same
    report.rewrites += tabulator.run(o);
  }
  return report;
}

}  // namespace tfcc::passes
