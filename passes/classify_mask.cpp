// SPDX-License-Identifier: Apache-2.0
// classify-mask: splits the score of an attention into the condition for a key to take part and the score of those that do.
//   before: attention(...) {score = (s,b,h,i,j) => s * 0.125 + (1.0 - f32(%mask[b,j])) * -3.4028235e+38}
//   after:  attention(...) {key_padding = true, score = (s,b,h,i,j) => s * 0.125, visible = (b,h,i,j) => %mask[b,j] == 1}
// By substitution, never by form: pick a control (the condition of a real-valued select, or an integer input used as a number),
// put in both of its values, fold, and repeat while a large constant is left. A case is masked if its upper bound lies 104 below
// the lower bound of a live one (exp(-104) is 0 in f32), assuming |score| < 1000 before the mask (docs/numerics.md).
// Requires: one live score; every masked case contradicts a control that all live cases share; no reduction over the batch (the
// scale of a quantised tensor) reads the result, for it would carry a row without a visible key into the others.
#include "passes/match.h"
#include "passes/passes.h"

#include <algorithm>
#include <map>

namespace tfcc::passes {
namespace {

constexpr double kScoreBound = 1000;     // assumed of scores before the mask
constexpr double kMargin = 104;          // exp(-104) == 0 in f32
constexpr double kLargeConstant = 1200;  // what may mask: beyond the bound and the margin
constexpr size_t kControls = 10;

struct Interval {
  double low, high;
};

constexpr Interval kAny{-INFINITY, INFINITY};

Interval times(Interval a, Interval b) {
  double lo = INFINITY, hi = -INFINITY;
  for (double x : {a.low, a.high}) {
    for (double y : {b.low, b.high}) {
      const double p = x == 0 || y == 0 ? 0 : x * y;
      lo = std::min(lo, p);
      hi = std::max(hi, p);
    }
  }
  return {lo, hi};
}

// Bounds of a real expression; `s` and real loads are taken within the assumed bound.
Interval bounds(ExprRef e) {
  if (auto c = ir::as_real(e)) return {*c, *c};
  auto a = [&](size_t i) { return bounds(e->args[i]); };
  switch (e->kind) {
    case ExprKind::param: case ExprKind::load: return {-kScoreBound, kScoreBound};
    case ExprKind::fadd: return {a(0).low + a(1).low, a(0).high + a(1).high};
    case ExprKind::fsub: return {a(0).low - a(1).high, a(0).high - a(1).low};
    case ExprKind::fneg: return {-a(0).high, -a(0).low};
    case ExprKind::fmul: {
      // A scale on the product: it is the scaled score that the bound is about.
      const bool scaled = (e->args[0]->kind == ExprKind::param && ir::as_real(e->args[1])) ||
                          (e->args[1]->kind == ExprKind::param && ir::as_real(e->args[0]));
      return scaled ? Interval{-kScoreBound, kScoreBound} : times(a(0), a(1));
    }
    case ExprKind::fdiv: {
      auto c = ir::as_real(e->args[1]);
      return c && *c != 0 ? times(a(0), {1 / *c, 1 / *c}) : kAny;
    }
    case ExprKind::fmin: return {std::min(a(0).low, a(1).low), std::min(a(0).high, a(1).high)};
    case ExprKind::fmax: return {std::max(a(0).low, a(1).low), std::max(a(0).high, a(1).high)};
    case ExprKind::select: return {std::min(a(1).low, a(2).low), std::max(a(1).high, a(2).high)};
    case ExprKind::tanh: case ExprKind::erf: return {-1, 1};
    default: return kAny;
  }
}

// NaN counts: it masks nothing, but it is no live score either.
bool has_large_constant(ExprRef e) {
  bool large = false;
  ir::for_each_node(e, [&](ExprRef n) {
    if (auto c = ir::as_real(n)) large |= !(std::fabs(*c) < kLargeConstant);
  });
  return large;
}

// A decision that cases differ in: a condition, or an integer input taken as 0 or 1.
struct Control {
  ExprRef node = nullptr;  // boolean condition, or i64 load
  bool operator==(const Control&) const = default;
};

struct Choice {
  Control control;
  bool value;
};

struct Case {
  std::vector<Choice> choices;
  ExprRef score;
};

class Classifier {
 public:
  Classifier(Graph& g, OpId o, PassReport& report) : g_(g), o_(o), report_(report) {}

  bool run(bool batch_is_mixed) {
    const auto& attrs = g_.op(o_).as<ir::AttentionAttrs>();
    if (attrs.visible || !has_large_constant(attrs.score)) return false;
    if (batch_is_mixed) return miss("a reduction over the batch reads the result");
    split({{}, attrs.score});
    if (failed_) return miss("the score has more than ten conditions");
    std::vector<Case> live, masked;
    for (Case& c : cases_) {
      (has_large_constant(c.score) ? masked : live).push_back(std::move(c));
    }
    if (live.empty() || masked.empty()) return miss("the mask is no choice between live and masked scores");
    double lowest = INFINITY;
    for (const Case& c : live) lowest = std::min(lowest, bounds(c.score).low);
    lowest = std::max(lowest, -kScoreBound);
    for (const Case& c : masked) {
      if (!(bounds(c.score).high + kMargin <= lowest)) return miss("a masked score is not far enough below the others");
    }
    return apply(live, masked);
  }

 private:
  bool miss(const std::string& reason) {
    report_.misses.push_back({label(g_, o_), reason});
    return false;
  }

  // An integer graph input indexed by batch and one position, reached through integer arithmetic by a conversion to real.
  bool is_mask_load(ExprRef load) const {
    if (load->kind != ExprKind::load || load->type != Scalar::i64) return false;
    const ValueId v = g_.op(o_).operands[load->value];
    if (g_.def(v) || load->args.size() != 2) return false;
    return load->args[0]->kind == ExprKind::index && load->args[0]->value == 0 && load->args[1]->kind == ExprKind::index &&
           load->args[1]->value >= 2;
  }

  std::optional<Control> find_control(ExprRef e) const {
    std::optional<Control> found;
    ir::for_each_node(e, [&](ExprRef n) {
      if (found) return;
      if (n->kind == ExprKind::select && (n->type == Scalar::f32 || n->type == Scalar::f64)) {
        // A conjunction is decided one literal at a time, so that each can be classified by its indices.
        ExprRef c = n->args[0];
        while (c->kind == ExprKind::band || c->kind == ExprKind::bor || c->kind == ExprKind::bnot) c = c->args[0];
        found = Control{c};
      } else if (n->kind == ExprKind::i2f) {
        ir::for_each_node(n->args[0], [&](ExprRef m) {
          if (!found && is_mask_load(m)) found = Control{m};
        });
      }
    });
    return found;
  }

  // The score with a control decided. `mask == 1` being true says what the mask is.
  static ExprRef decide(ExprRef e, const Control& c, bool value) {
    ExprPool& pool = *e->pool;
    ExprRef known = nullptr, is = nullptr;
    if (value && c.node->kind == ExprKind::eq0) {
      ExprRef p = c.node->args[0];
      if (p->kind == ExprKind::load) known = p, is = pool.integer(0);
      if (p->kind == ExprKind::poly && p->terms.size() == 1 && p->terms[0].atoms.size() == 1 &&
          p->terms[0].coefficient == 1 && p->terms[0].atoms[0]->kind == ExprKind::load) {
        known = p->terms[0].atoms[0];
        is = pool.integer(-p->value);
      }
    }
    return ir::rewrite(e, [&](ExprRef n) -> ExprRef {
      if (n == c.node) return n->type == Scalar::boolean ? pool.boolean(value) : pool.integer(value);
      return n == known ? is : nullptr;
    });
  }

  void split(Case c) {
    if (failed_) return;  // cost: the rest of the cases
    std::optional<Control> control;
    if (has_large_constant(c.score)) control = find_control(c.score);
    if (!control) {
      cases_.push_back(std::move(c));
      return;
    }
    if (c.choices.size() >= kControls) {
      failed_ = true;
      return;
    }
    for (bool value : {true, false}) {
      Case next = c;
      next.choices.push_back({*control, value});
      next.score = decide(c.score, *control, value);
      split(std::move(next));
    }
  }

  // The condition that a choice stands for. A mask taken as a number must be 0 or 1: the kernel flags anything else.
  ExprRef literal(const Choice& c) {
    ExprPool& pool = g_.pool();
    if (c.control.node->type == Scalar::boolean) return c.value ? c.control.node : ir::logical_not(c.control.node);
    const std::string message = g_.value(g_.op(o_).operands[c.control.node->value]).name + ": a mask value is neither 0 nor 1";
    auto it = std::find(g_.flags.begin(), g_.flags.end(), message);
    const int64_t flag = it - g_.flags.begin();
    if (it == g_.flags.end()) g_.flags.push_back(message);
    return ir::eq(ir::bounded(c.control.node, pool.integer(2), flag), pool.integer(c.value));
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
    for (const Case& m : masked) {
      const bool contradicts = std::any_of(m.choices.begin(), m.choices.end(), [&](const Choice& o) {
        return std::any_of(shared.begin(), shared.end(), [&](const Choice& c) { return c.control == o.control && c.value != o.value; });
      });
      if (!contradicts) return miss("what is visible is no conjunction of conditions");
    }
    // A row whose keys are all masked by finite numbers is an ordinary softmax; the op would make it 0.
    for (const Choice& c : shared) {
      if (!ir::uses_index(c.control.node, 3)) return miss("a condition masks whole rows");
    }
    ExprRef visible = g_.pool().boolean(true);
    bool key_padding = false, causal = false;
    for (const Choice& c : shared) {
      ExprRef l = literal(c);
      visible = ir::logical_and(visible, l);
      key_padding |= ir::has_loads(l) && !ir::uses_index(l, 1) && !ir::uses_index(l, 2) && ir::uses_index(l, 3);
      causal |= l == diagonal();
    }
    auto& attrs = g_.op(o_).as<ir::AttentionAttrs>();
    attrs.score = live[0].score;
    attrs.visible = visible;
    attrs.key_padding = key_padding;
    attrs.causal = causal;
    drop_unused_operands();
    return true;
  }

  // j <= i + (Sk - Sq)
  ExprRef diagonal() {
    const auto& q = g_.value(g_.op(o_).operands[0]).type.dims;
    const auto& k = g_.value(g_.op(o_).operands[1]).type.dims;
    ExprPool& pool = g_.pool();
    return ir::le(pool.index(3, k[1]), ir::add(pool.index(2, q[1]), ir::sub(k[1], q[1])));
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
  std::vector<Case> cases_;
  bool failed_ = false;
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
