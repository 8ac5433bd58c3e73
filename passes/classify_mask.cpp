// SPDX-License-Identifier: Apache-2.0
// classify-mask: splits the score of an attention into the condition for a key to take part and the score of those that do.
//   before: attention(...) {score = (s,b,h,i,j) => s * 0.125 + (1.0 - f32(%mask[b,j])) * -3.4028235e+38}
//   after:  attention(...) {key_padding = true, score = (s,b,h,i,j) => s * 0.125, visible = (b,h,i,j) => %mask[b,j] == 1}
// By substitution, never by form: pick a control (the condition of a real-valued select, or an input mask used as a number),
// put in both of its values, fold, and repeat while a large constant is left. A case is masked if its upper bound lies 104 below
// the lower bound of a live one (exp(-104) is 0 in f32), assuming |score| < 1000 before the mask (docs/numerics.md).
// Conditions that all live cases share are classified (key-padding, causal, window); what else tells cases apart stays an
// expression of `visible`.
// Requires: one live score; no condition that masks whole rows, other than of padded queries; no reduction over the batch (the scale
// of a quantised tensor) reads the result, for it would carry a row without a visible key into the others.
#include "ir/ir.h"
#include "passes/mask_cases.h"
#include "passes/mask_score.h"
#include "passes/passes.h"

#include <algorithm>
#include <map>

namespace tfcc::passes {
namespace {

class Classifier {
 public:
  Classifier(Graph& g, OpId o, PassReport& report) : g_(g), o_(o), report_(report), cases_(g, o) {}

  bool run(bool batch_is_mixed) {
    const auto& attrs = g_.op(o_).as<ir::AttentionAttrs>();
    if (attrs.visible) return false;
    ExprRef score = cases_.prepared(attrs.score);
    if (!cases_.may_mask(score)) return false;
    if (batch_is_mixed) return miss("a reduction over the batch reads the result");
    const auto cases = cases_.split(score);
    if (!cases) return miss("the score has more than ten conditions");
    std::vector<Case> live, masked;
    for (const Case& c : *cases) {
      (cases_.may_mask(c.score) ? masked : live).push_back(c);
    }
    if (live.empty() || masked.empty()) return miss("the mask is no choice between live and masked scores");
    double lowest = INFINITY;
    for (const Case& c : live) lowest = std::min(lowest, bounds(c.score).low);
    lowest = std::max(lowest, -kScoreBound);  // assumed of all of a live score
    for (const Case& c : masked) {
      if (!(upper_bound(c.score, live[0].score) + kMaskMargin <= lowest)) return miss("a masked score is not far enough below the others");
    }
    return apply(live, masked);
  }

 private:
  bool miss(const std::string& reason) {
    report_.misses.push_back({label(g_, o_), reason});
    return false;
  }

  // The condition that a choice stands for. A mask taken as a number must be 0 or 1: the kernel flags anything else.
  ExprRef literal(const Choice& c) {
    ExprPool& pool = g_.pool();
    if (c.control.node->type == Scalar::boolean) return c.value ? c.control.node : ir::logical_not(c.control.node);
    const std::string message = g_.value(g_.op(o_).operands[c.control.node->value]).name + ": a mask value is neither 0 nor 1";
    auto it = std::find(g_.flags.begin(), g_.flags.end(), message);
    const int64_t flag = it - g_.flags.begin();
    if (it == g_.flags.end()) g_.flags.push_back(message);
    ExprRef number = c.control.node;
    if (number->type != Scalar::i64) {
      auto is = [&](double v) { return ir::eq(c.control.node, pool.real(v, c.control.node->type)); };
      number = ir::select(is(1), pool.integer(1), ir::select(is(0), pool.integer(0), pool.integer(2)));
    }
    return ir::eq(ir::bounded(number, pool.integer(2), flag), pool.integer(c.value));
  }

  // A condition on the query that is also asked of the key: it hides padding from padding, whose rows nobody reads.
  bool repeats_key_condition(const Choice& c, const std::vector<Choice>& shared) {
    const auto& q = g_.value(g_.op(o_).operands[0]).type.dims;
    const auto& k = g_.value(g_.op(o_).operands[1]).type.dims;
    ExprRef query = ir::indices_of(g_.pool(), {q[0], q[0], q[1]})[2];
    if (q[1] != k[1] || !ir::has_loads(c.control.node)) return false;
    auto same = [&](const Choice& other) {
      ExprRef at_query = ir::substitute_indices(other.control.node, {nullptr, nullptr, nullptr, query});
      return other.value == c.value && ir::uses_index(other.control.node, 3) && at_query == c.control.node;
    };
    return std::any_of(shared.begin(), shared.end(), same);
  }

  // What the live cases say beyond the choices that all of them share; null if these tell live from masked by themselves.
  ExprRef remaining(const std::vector<Case>& live, const std::vector<Case>& masked, const std::vector<Choice>& shared) {
    auto is_shared = [&](const Choice& o, bool value) {
      return std::any_of(shared.begin(), shared.end(), [&](const Choice& c) { return c.control == o.control && c.value == value; });
    };
    const bool conjunction = std::all_of(masked.begin(), masked.end(), [&](const Case& m) {
      return std::any_of(m.choices.begin(), m.choices.end(), [&](const Choice& o) { return is_shared(o, !o.value); });
    });
    if (conjunction) return nullptr;
    ExprRef any = g_.pool().boolean(false);
    for (const Case& c : live) {
      ExprRef all = g_.pool().boolean(true);
      for (const Choice& o : c.choices) {
        if (!is_shared(o, o.value)) all = ir::logical_and(all, literal(o));
      }
      any = ir::logical_or(any, all);
    }
    return any;
  }

  bool apply(const std::vector<Case>& live, const std::vector<Case>& masked) {
    for (const Case& c : live) {
      if (c.score != live[0].score) return miss("live scores differ in more than the mask");
    }
    // Choices that all live cases share; every masked case must contradict one of them.
    std::vector<Choice> shared;
    for (const Choice& c : live[0].choices) {
      auto agrees = [&](const Case& other) {
        return std::any_of(other.choices.begin(), other.choices.end(),
                           [&](const Choice& o) { return o.control == c.control && o.value == c.value; });
      };
      if (std::all_of(live.begin(), live.end(), agrees)) shared.push_back(c);
    }
    // A row whose keys are all masked by finite numbers is an ordinary softmax; the op would make it 0.
    std::vector<Choice> keys;
    for (const Choice& c : shared) {
      if (ir::uses_index(c.control.node, 3)) keys.push_back(c);
      else if (!repeats_key_condition(c, shared)) return miss("a condition masks whole rows");
    }
    const size_t flags = g_.flags.size();
    ExprRef rest = remaining(live, masked, shared);
    ir::AttentionAttrs found = g_.op(o_).as<ir::AttentionAttrs>();
    found.score = live[0].score;
    found.visible = rest ? rest : g_.pool().boolean(true);
    for (const Choice& c : keys) add_condition(literal(c), found);
    const std::string problem = rest && !ir::uses_index(rest, 3) ? "a condition masks whole rows" : problem_of(found);
    if (!problem.empty()) {
      g_.flags.resize(flags);
      return miss(problem);
    }
    g_.op(o_).as<ir::AttentionAttrs>() = found;
    drop_unused_operands();
    return true;
  }

  // What a conjunct lets kernels skip.
  void add_condition(ExprRef l, ir::AttentionAttrs& attrs) {
    const auto& q = g_.value(g_.op(o_).operands[0]).type.dims;
    const auto& k = g_.value(g_.op(o_).operands[1]).type.dims;
    attrs.visible = ir::logical_and(attrs.visible, l);
    attrs.key_padding |= ir::has_loads(l) && !ir::uses_index(l, 1) && !ir::uses_index(l, 2) && ir::uses_index(l, 3);
    const auto band = ir::band_of(l, q[1], k[1]);
    if (!band) return;
    if (band->left) attrs.window_left = std::min(band->size, attrs.window_left.value_or(band->size));
    else if (band->size == 0) attrs.causal = true;
    else attrs.window_right = std::min(band->size, attrs.window_right.value_or(band->size));
  }

  std::string problem_of(const ir::AttentionAttrs& attrs) {
    const auto& q = g_.value(g_.op(o_).operands[0]).type.dims;
    const auto& k = g_.value(g_.op(o_).operands[1]).type.dims;
    return ir::body_problem(g_, ir::free_expr(g_, o_, attrs.visible, {}), {q[0], g_.pool().integer(attrs.heads), q[1], k[1]});
  }

  void drop_unused_operands() {
    const ir::AttentionAttrs before = g_.op(o_).as<ir::AttentionAttrs>();
    const std::vector<ValueId> old = g_.op(o_).operands;
    std::vector<ValueId> operands(old.begin(), old.begin() + 3);
    auto free = [&](ExprRef e) { return ir::free_expr(g_, o_, e, {}); };
    std::vector<ExprRef> bodies = ir::capture({free(before.score), free(before.visible)}, operands);
    g_.set_operands(o_, operands);
    g_.op(o_).as<ir::AttentionAttrs>().score = bodies[0];
    g_.op(o_).as<ir::AttentionAttrs>().visible = bodies[1];
  }

  Graph& g_;
  OpId o_;
  PassReport& report_;
  MaskCases cases_;
};

// For each value, whether a reduction over the batch (or over all of a tensor) is computed from it.
std::vector<bool> mixed_later(const Graph& g, ExprRef batch) {
  auto over_batch = [&](ExprRef extent) { return !ir::is_int(batch, 1) && ir::exact_div(extent, batch); };
  std::vector<bool> mixed(g.value_count());
  for (auto o = g.order().rbegin(); o != g.order().rend(); ++o) {
    const ir::Op& op = g.op(*o);
    bool here = std::any_of(op.results.begin(), op.results.end(), [&](ValueId v) { return mixed[v.value]; });
    if (op.kind == OpKind::reduce) {
      const auto& extents = op.as<ir::ReduceAttrs>().extents;
      here |= g.value(op.results[0]).type.rank() == 0 || std::any_of(extents.begin(), extents.end(), over_batch);
    }
    if (here) for (ValueId v : op.operands) mixed[v.value] = true;
  }
  return mixed;
}

}  // namespace

PassReport classify_mask(Graph& graph) {
  PassReport report;
  std::map<ExprRef, std::vector<bool>> mixed;  // by batch size: most graphs have one
  for (OpId o : std::vector<OpId>(graph.order())) {
    if (graph.op(o).kind != OpKind::attention) continue;
    ExprRef batch = graph.value(graph.op(o).operands[0]).type.dims[0];
    auto it = mixed.find(batch);
    if (it == mixed.end()) it = mixed.emplace(batch, mixed_later(graph, batch)).first;
    report.rewrites += Classifier(graph, o, report).run(it->second[graph.result(o).value]);
  }
  return report;
}

}  // namespace tfcc::passes
