// SPDX-License-Identifier: Apache-2.0
// classify-mask: splits the score of an attention into the condition for a key to take part and the
// score of those that do.
//   before: attention(...) {score = (s,b,h,i,j) => s * 0.125 + (1.0 - f32(%mask[b,j])) * -3.4028235e+38}
//   after:  attention(...) {key_padding = true, score = (s,b,h,i,j) => s * 0.125, visible = (b,h,i,j) => %mask[b,j] == 1}
// By substitution, never by form: pick a control (the condition of a real-valued select, or an
// input mask used as a number), put in both of its values, fold, and repeat while a large constant
// is left. A case is masked if its upper bound lies 104 below the lower bound of a live one
// (exp(-104) is 0 in f32), assuming |score| < 1000 before the mask (docs/numerics.md). Conditions
// that all live cases share are classified; what else tells cases apart (a prefix or a triangle,
// sinks or a window) stays an expression of `visible`. A loaded condition on the query that is also
// asked of the key (m_i * m_j) hides padding from padding alone and is dropped. What masks are, and
// what they are not: passes/mask_cases.h.
// `key_padding`: a conjunct loads and depends on (b, j) alone. `causal`: one is exactly
// j <= i + (Sk - Sq). `window_left`, `window_right`: one is j >= i + (Sk - Sq) - n or
// j <= i + (Sk - Sq) + n. Kernels neither read nor compute the keys outside.
// Requires: one live score; each row of a token that is no padding is proved to see a key (a row
// without one is 0 in the op, and an average in the graph); a sequence of padding alone and the row
// of a padded query, which may see none, are read for nothing else (passes/readers.h). Where the
// first token of each sequence is read by itself, the kernel checks that it is no padding; one that
// whole numbers made of inputs name has to see a key, which a sum counts. Where masked scores are
// -inf, a row without a key is 0 with the mask in the score too, and a condition on the query is
// put back where its rows are read.
// Each row sees a key if what positions and data say holds at some key: the query's own (j = i,
// behind the keys of a cache), the first, the last, or min(i, Sk - 1). A condition of padding (on the
// key alone: it loads, and uses neither h nor i; passes/padding_condition.h) may hide all keys of a
// sequence. Beside other conditions
// only the own key proves a row then, and a query whose own key is hidden counts as padding. So
// triangles, windows, blocks and segments with the token itself are classified. Not classified are
// j < i, j <= i - 2, the block before, all keys but the own, and a threshold as x_i + x_j > 0.
#include "ir/ir.h"
#include "passes/mask_cases.h"
#include "passes/mask_score.h"
#include "passes/padding_condition.h"
#include "passes/passes.h"
#include "passes/readers.h"

#include <algorithm>
#include <map>

namespace tfcc::passes {
namespace {

class Classifier {
 public:
  Classifier(Graph& g, OpId o, PassReport& report) : g_(g), o_(o), report_(report), cases_(g, o) {}

  /// What the mask says, without a change; nothing where it is none, or where a miss says why not.
  std::optional<MaskFacts> find() {
    const auto& attrs = g_.op(o_).as<ir::AttentionAttrs>();
    if (attrs.visible) return std::nullopt;
    ExprRef score = cases_.prepared(
        attrs.score, [this](const std::string& message) { return flag_of(message); });
    if (!cases_.may_mask(score)) return std::nullopt;
    const auto cases = cases_.split(score);
    if (!cases) return miss("the score has more than ten conditions");
    for (const Case& c : *cases) {
      (cases_.may_mask(c.score) ? masked_ : live_).push_back(c);
    }
    if (live_.empty() || masked_.empty())
      return miss("the mask is no choice between live and masked scores");
    double lowest = INFINITY;
    for (const Case& c : live_) lowest = std::min(lowest, bounds(c.score).low);
    lowest = std::max(lowest, -kScoreBound);  // assumed of all of a live score
    for (const Case& c : masked_) {
      if (!(upper_bound(c.score, live_[0].score) + kMaskMargin <= lowest))
        return miss("a masked score is not far enough below the others");
    }
    for (const Case& c : live_) {
      if (c.score != live_[0].score) return miss("live scores differ in more than the mask");
    }
    return sort_conditions();
  }

  /// Puts the mask in, unless what is undefined then is read.
  bool apply(const MaskFacts& facts, const Readers& readers) {
    const bool keep_queries =
        !readers.empty() && !facts.without_keys;  // then the row is 0, as it is in the graph
    if (!readers.problem.empty() && !keep_queries) return miss(readers.problem), false;
    const size_t flags = g_.flags.size();
    ExprRef rest = remaining([&](const Choice& c) { return literal(c); });
    ir::AttentionAttrs found = g_.op(o_).as<ir::AttentionAttrs>();
    found.score = live_[0].score;
    found.visible = rest ? rest : g_.pool().boolean(true);
    for (const Choice& c : keys_) add_condition(literal(c), found);
    if (keep_queries) {
      for (const Choice& c : queries_) add_condition(literal(c), found);
    } else {
      for (const TokenAlone& t : readers.alone) {
        ExprRef is_defined =
            ir::is_int(t.token, 0) ? first_is_visible(facts, t.reader) : token_sees_a_key(facts, t);
        if (!is_defined) {
          g_.flags.resize(flags);
          return miss("a token that is read by itself may see no key"), false;
        }
        found.visible = ir::logical_and(found.visible, is_defined);
      }
    }
    const std::string problem = problem_of(found);
    if (!problem.empty()) {
      g_.flags.resize(flags);
      return miss(problem), false;
    }
    g_.op(o_).as<ir::AttentionAttrs>() = found;
    drop_unused_operands();
    if (!keep_queries) flattened_ = readers.flattened;
    return true;
  }

  /// What the mask that was put in asks of those that read a token in the flattened batch.
  const OwnTokens& flattened() const { return flattened_; }

 private:
  std::nullopt_t miss(const std::string& reason) {
    report_.misses.push_back({label(g_, o_), reason});
    return std::nullopt;
  }

  // The condition that a choice stands for, where masks that are taken as numbers are 0 or 1.
  ExprRef meaning(const Choice& c) {
    ExprPool& pool = g_.pool();
    ExprRef n = c.control.node;
    if (n->type == Scalar::boolean)
      return c.value ? n : ir::logical_not(n);  // cost: of a number it is a poison, and no mask
    return n->type == Scalar::i64 ? ir::eq(n, pool.integer(c.value))
                                  : ir::eq(n, pool.real(c.value, n->type));
  }

  int64_t flag_of(const std::string& message) {
    const auto it = std::find(g_.flags.begin(), g_.flags.end(), message);
    if (it != g_.flags.end()) return it - g_.flags.begin();
    g_.flags.push_back(message);
    return static_cast<int64_t>(g_.flags.size()) - 1;
  }

  // The same for the kernel, which flags a mask taken as a number that is anything else.
  ExprRef literal(const Choice& c) {
    ExprPool& pool = g_.pool();
    if (c.control.node->type == Scalar::boolean)
      return c.value ? c.control.node : ir::logical_not(c.control.node);
    const std::string message =
        g_.value(g_.op(o_).operands[c.control.node->value]).name +
        ": a mask value is neither 0 nor 1; compile with --skip-passes=classify-mask if it is no mask";
    const int64_t flag = flag_of(message);
    ExprRef number = c.control.node;
    if (number->type != Scalar::i64) {
      auto is = [&](double v) {
        return ir::eq(c.control.node, pool.real(v, c.control.node->type));
      };
      number =
          ir::select(is(1), pool.integer(1), ir::select(is(0), pool.integer(0), pool.integer(2)));
    }
    return ir::eq(ir::bounded(number, pool.integer(2), flag), pool.integer(c.value));
  }

  // True at every key, and a flag where it is visible and the first token's own key is not.
  ExprRef first_is_visible(const MaskFacts& facts, const std::string& reader) {
    ExprPool& pool = g_.pool();
    ExprRef first = ir::substitute_indices(facts.own_key, {nullptr, nullptr, pool.integer(0)});
    first = ir::min(
        first,
        ir::sub(keys(), pool.integer(1)));  // there is one wherever there is a key of index 3
    ExprRef first_visible = pool.boolean(true);
    for (const Choice& c : padding_) {
      first_visible = ir::logical_and(
          first_visible, ir::substitute_indices(literal(c), {nullptr, nullptr, nullptr, first}));
    }
    const int64_t flag = flag_of(
        reader +
        " reads the first token of each sequence by itself, and in one it is padding; pad on the right, or compile with --skip-passes=classify-mask");
    return ir::asserted(ir::logical_or(ir::logical_not(is_no_padding()), first_visible), flag);
  }

  // True at every key, and a flag where it is visible and this token sees none. Null where that
  // cannot be counted.
  ExprRef token_sees_a_key(const MaskFacts& facts, const TokenAlone& alone) {
    if (ir::uses_index(facts.beyond, ir::kHead)) return nullptr;
    ExprPool& pool = g_.pool();
    const Indices own = at();
    ExprRef batch = g_.value(g_.op(o_).operands[0]).type.dims[0];
    ExprRef b = own[0], j = pool.index(1, keys());
    ExprRef seen = ir::substitute_indices(facts.beyond, {b, own[1], alone.token, j});
    for (const Choice& c : padding_)
      seen = ir::logical_and(seen, ir::substitute_indices(ir::free_expr(g_, o_, meaning(c), {}),
                                                          {b, own[1], own[2], j}));
    seen = ir::select(seen, pool.integer(1), pool.integer(0));
    ir::Captured c = ir::capture(seen);
    const std::string name = g_.value(g_.result(o_)).name + ".seen";
    const ValueId count =
        g_.add(OpKind::reduce, c.operands, ir::ReduceAttrs{c.body, {keys()}, ir::ReduceKind::sum},
               {DType::i64, {batch}}, name, g_.op(o_).origin);
    std::vector<ValueId> operands = g_.op(o_).operands;
    ExprRef some = ir::le(pool.integer(1), ir::capture({ir::load_of(g_, count, {b})}, operands)[0]);
    g_.set_operands(o_, operands);
    const int64_t flag = flag_of(
        alone.reader +
        " reads one token of each sequence by itself, and in one it is padding that sees no token; pad on the right, or compile with --skip-passes=classify-mask");
    return ir::asserted(ir::logical_or(ir::logical_not(is_no_padding()), some), flag);
  }

  // Whether the key is a token.
  ExprRef is_no_padding() {
    ExprRef all = g_.pool().boolean(true);
    for (const Choice& c : padding_) all = ir::logical_and(all, literal(c));
    return all;
  }

  // Conditions on a key that say what padding is: on the key alone, data, not positions, and the same
  // for all queries and heads.
  std::vector<Choice> padding_of(const std::vector<Choice>& keys) {
    std::vector<Choice> all;
    std::vector<ExprRef> conditions;
    for (const Choice& c : keys) {
      ExprRef n = c.control.node;
      if (ir::uses_index(n, ir::kHead) || ir::uses_index(n, ir::kQuery)) continue;
      all.push_back(c);
      conditions.push_back(ir::free_expr(g_, o_, meaning(c), {}));
    }
    const std::vector<bool> are = say_padding(g_, conditions);
    std::vector<Choice> padding;
    for (size_t i = 0; i < all.size(); ++i) {
      if (are[i]) padding.push_back(all[i]);
    }
    return padding;
  }
  bool is_of_key(const Choice& c) const {
    return std::find(padding_.begin(), padding_.end(), c) != padding_.end();
  }

  static Choice with_indices(Choice c, const std::vector<ExprRef>& by) {
    c.control.node = ir::substitute_indices(c.control.node, by);
    return c;
  }

  // A condition on the query that is also asked of the key: it hides padding from padding.
  bool repeats_key_condition(const Choice& c) {
    if (queries() != keys()) return false;
    return std::any_of(keys_.begin(), keys_.end(), [&](const Choice& other) {
      return is_of_key(other) &&
             with_indices(other, {nullptr, nullptr, nullptr, at()[ir::kQuery]}) == c;
    });
  }

  // What the live cases say beyond the choices that all of them share; null if these tell live from
  // masked by themselves.
  ExprRef remaining(const std::function<ExprRef(const Choice&)>& condition) {
    auto is_shared = [&](const Choice& o, bool value) {
      return std::any_of(shared_.begin(), shared_.end(), [&](const Choice& c) {
        return c.control == o.control && c.value == value;
      });
    };
    const bool conjunction = std::all_of(masked_.begin(), masked_.end(), [&](const Case& m) {
      return std::any_of(m.choices.begin(), m.choices.end(),
                         [&](const Choice& o) { return is_shared(o, !o.value); });
    });
    if (conjunction) return nullptr;
    ExprRef any = g_.pool().boolean(false);
    for (const Case& c : live_) {
      ExprRef all = g_.pool().boolean(true);
      for (const Choice& o : c.choices) {
        if (!is_shared(o, o.value)) all = ir::logical_and(all, condition(o));
      }
      any = ir::logical_or(any, all);
    }
    return any;
  }

  // Choices that all live cases share become conjuncts; every masked case must contradict one of
  // them, or the rest.
  std::optional<MaskFacts> sort_conditions() {
    for (const Choice& c : live_[0].choices) {
      auto agrees = [&](const Case& other) {
        return std::find(other.choices.begin(), other.choices.end(), c) != other.choices.end();
      };
      if (std::all_of(live_.begin(), live_.end(), agrees)) shared_.push_back(c);
    }
    for (const Choice& c : shared_) {
      if (ir::uses_index(c.control.node, ir::kKey)) keys_.push_back(c);
    }
    padding_ = padding_of(keys_);
    for (const Choice& c : shared_) {
      if (ir::uses_index(c.control.node, ir::kKey)) continue;
      if (!repeats_key_condition(c)) return miss("a condition masks whole rows");
      queries_.push_back(c);
    }
    ExprRef rest = remaining([&](const Choice& c) { return meaning(c); });
    if (rest && !ir::uses_index(rest, ir::kKey)) return miss("a condition masks whole rows");
    return facts(rest);
  }

  // Which rows see a key for certain. A masked score of -inf makes a row without one NaN, which is
  // 0 in the op, as it is after the guard that fuse-attention takes in.
  std::optional<MaskFacts> facts(ExprRef rest) {
    MaskFacts f{o_, {}, rest ? rest : g_.pool().boolean(true), own_key(), false, false};
    for (const Choice& c : keys_) {
      if (is_of_key(c)) f.keys.push_back(c);
      else f.beyond = ir::logical_and(f.beyond, meaning(c));
    }
    const bool infinite = std::all_of(masked_.begin(), masked_.end(), [](const Case& c) {
      return bounds(c.score).high == -INFINITY;
    });
    const bool by_keys = f.beyond->kind == ExprKind::btrue;
    if (!infinite && !by_keys && !sees_key(f))
      return miss("a row that is no padding may see no key");
    f.without_keys = !infinite && !f.keys.empty();
    f.padded_rows = !queries_.empty() || (f.without_keys && !by_keys);
    for (const Choice& c : queries_) f.beyond = ir::logical_and(f.beyond, meaning(c));
    for (Choice& c : f.keys) c.control.node = ir::free_expr(g_, o_, c.control.node, {});
    std::sort(f.keys.begin(), f.keys.end(), [](const Choice& a, const Choice& b) {
      return ir::compare(a.control.node, b.control.node) < 0;
    });
    f.beyond = ir::free_expr(g_, o_, f.beyond, {});
    return f;
  }

  // One key for each row, at which what is beyond the conditions on keys holds; it is the query's
  // own token if there are such.
  bool sees_key(const MaskFacts& f) {
    ExprPool& pool = g_.pool();
    ExprRef zero = pool.integer(0), last = ir::sub(keys(), pool.integer(1)),
            any = pool.boolean(false);
    std::vector<ExprRef> candidates;
    if (f.own_key) candidates.push_back(f.own_key);
    if (f.keys.empty()) candidates.insert(candidates.end(), {zero, ir::min(at()[2], last), last});
    for (ExprRef key : candidates) {
      ExprRef holds = ir::substitute_indices(f.beyond, {nullptr, nullptr, nullptr, key});
      for (const Choice& c : f.keys) {
        const Choice own = with_indices(c, {nullptr, nullptr, nullptr, key});
        holds = decide(holds, own.control, own.value);
      }
      any = ir::logical_or(any, holds);
    }
    return any->kind == ExprKind::btrue;
  }

  // The key that is query i's own token: i, behind the keys of a cache. Null if lengths differ in
  // another way.
  ExprRef own_key() {
    ExprRef key = ir::add(at()[2], ir::sub(keys(), queries()));
    const bool exists = ir::prove_le(g_.pool().integer(0), key) &&
                        ir::prove_le(ir::add(key, g_.pool().integer(1)), keys());
    return exists ? key : nullptr;
  }

  ExprRef queries() { return g_.value(g_.op(o_).operands[0]).type.dims[1]; }
  ExprRef keys() { return g_.value(g_.op(o_).operands[1]).type.dims[1]; }
  Indices at() {
    ExprRef batch = g_.value(g_.op(o_).operands[0]).type.dims[0];
    return ir::indices_of(g_.pool(), {batch, batch, queries(), keys()});
  }

  // What a conjunct lets kernels skip.
  void add_condition(ExprRef l, ir::AttentionAttrs& attrs) {
    attrs.visible = ir::logical_and(attrs.visible, l);
    attrs.key_padding |= ir::has_loads(l) && !ir::uses_index(l, ir::kHead) &&
                         !ir::uses_index(l, ir::kQuery) && ir::uses_index(l, ir::kKey);
    const auto band = ir::band_of(l, queries(), keys());
    if (!band) return;
    if (band->left)
      attrs.window_left = std::min(band->size, attrs.window_left.value_or(band->size));
    else if (band->size == 0) attrs.causal = true;
    else attrs.window_right = std::min(band->size, attrs.window_right.value_or(band->size));
  }

  std::string problem_of(const ir::AttentionAttrs& attrs) {
    ExprRef batch = g_.value(g_.op(o_).operands[0]).type.dims[0];
    return ir::body_problem(g_, ir::free_expr(g_, o_, attrs.visible, {}),
                            {batch, g_.pool().integer(attrs.heads), queries(), keys()});
  }

  void drop_unused_operands() {
    const ir::AttentionAttrs before = g_.op(o_).as<ir::AttentionAttrs>();
    const std::vector<ValueId> old = g_.op(o_).operands;
    std::vector<ValueId> operands(old.begin(), old.begin() + 3);
    auto free = [&](ExprRef e) { return ir::free_expr(g_, o_, e, {}); };
    std::vector<ExprRef> bodies = {free(before.score), free(before.visible)};
    if (before.sink) bodies.push_back(free(before.sink));
    bodies = ir::capture(bodies, operands);
    g_.set_operands(o_, operands);
    auto& after = g_.op(o_).as<ir::AttentionAttrs>();
    after.score = bodies[0], after.visible = bodies[1];
    if (before.sink) after.sink = bodies[2];
  }

  Graph& g_;
  OpId o_;
  PassReport& report_;
  MaskCases cases_;
  OwnTokens flattened_;
  std::vector<Case> live_, masked_;
  std::vector<Choice> shared_, keys_, padding_,
      queries_;  // of all live cases; those with a key in them; of these those that say what padding is; those on padded queries
};

// Attentions with the same padding are followed together; only where somebody reads what they leave
// undefined, each by itself.
std::map<OpId, Readers> readers(const Graph& graph, const std::map<OpId, MaskFacts>& facts) {
  std::vector<std::vector<const MaskFacts*>> groups;
  for (const auto& [o, f] : facts) {
    if (!f.without_keys && !f.padded_rows) continue;  // cost: readers are asked for nothing
    auto same = [&](const std::vector<const MaskFacts*>& group) {
      const auto& a = graph.value(graph.op(o).operands[0]).type.dims;
      const auto& b = graph.value(graph.op(group[0]->attention).operands[0]).type.dims;
      return group[0]->keys == f.keys && group[0]->own_key == f.own_key && a[0] == b[0];
    };
    auto group = std::find_if(groups.begin(), groups.end(), same);
    if (group == groups.end()) groups.push_back({&f});
    else group->push_back(&f);
  }
  std::map<OpId, Readers> found;
  for (const auto& group : groups) {
    const Readers together = readers_of_undefined(graph, group, facts);
    for (const MaskFacts* f : group) {
      found[f->attention] =
          together.problem.empty() ? together : readers_of_undefined(graph, {f}, facts);
    }
  }
  return found;
}

}  // namespace

PassReport classify_mask(Graph& graph) {
  PassReport report;
  const size_t flags = graph.flags.size();
  std::map<OpId, MaskFacts> facts;
  std::map<OpId, Classifier> classifiers;
  for (OpId o : graph.order()) {
    if (graph.op(o).kind != OpKind::attention) continue;
    Classifier& c = classifiers.try_emplace(o, graph, o, report).first->second;
    if (auto found = c.find()) facts.emplace(o, *std::move(found));
  }
  std::map<OpId, Readers> read = readers(graph, facts);
  for (auto& [o, c] : classifiers) {
    if (facts.count(o)) report.rewrites += c.apply(facts.at(o), read[o]);
  }
  OwnTokens flattened;
  for (const auto& [o, c] : classifiers) {
    for (const auto& [reader, tokens] : c.flattened())
      for (const OwnToken& own : tokens) add_own_token(flattened, reader, own);
  }
  ask_for_own_tokens(graph, flattened, "compile with --skip-passes=classify-mask");
  if (report.rewrites == 0) graph.flags.resize(flags);  // of conditions that came to nothing
  return report;
}

}  // namespace tfcc::passes
