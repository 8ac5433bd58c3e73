// SPDX-License-Identifier: Apache-2.0
// lift-kv-cache: a decoder over a padded batch, with or without a past, becomes one over tokens of
// any sequences, with a cache in pages.
//   before: @main(%ids: i64[B,S], %mask: i64[B,P + S], %positions: i64[B,S], %past.k: f32[B,2,P,16], ..)
//           %k = pointwise(%past.k, %new) {body = (i,j,k) => select(j + 1 <= P, %past.k[i,k / 16,j,k % 16], %new[i,j - P,k])} : f32[B,P + S,32]
//           %a = attention(%q, %k, %v, %mask) {causal = true, visible = (b,h,i,j) => j <= i + P and 0 != %mask[b,j], ..} : f32[B,S,64]
//           return logits = %y, present.k = ..
//   after:  @main(%ids: i64[1,T], %positions: i32[T], %slots: i32[T], %context: i32[N], .., %cache.0.keys: f32[C,2,64,16], ..)
//           %keys, %values = kv_append(%cache.0.keys, %cache.0.values, %new, %new_v, %slots)
//           %a = attention(%q, %keys, %values, %first, %context, %order, %positions, %table) {page = 64, visible = (b,h,i,j) => j <= i, ..} : f32[1,T,64]
//           return logits = %y, cache.0.keys = %keys, ..                  the rows %wanted[r] alone
//
// Proved by substitution, for each attention (1, 2 and 5 in passes/cached_layers.cpp) and then for
// the graph; with the inputs as a generator gives them, mask = 1, positions = P + s, token types = 0, and all lengths P + S:
//   1. Element (b,j,c) of the keys is, for j < P, one element of a graph input, and for j = P + i something of row i alone, without P.
//   2. An output is the same function in the layout of that input: what a step appends is what later steps read. So for the values.
//   3. With i := q - P neither B, S nor P is left in score and visible: they speak of absolute positions alone. So in every op on rows.
//   4. A query sees no key behind it, and everything from ids to logits is row by row but attention. So what a token's row is
//      depends on the tokens before it alone, and steps of any size are the whole.
//   5. One output has a row for each token, the logits; the others are those of 2.
// Keys may be computed of a past that is no cache of them; passes/context_rows.cpp gives 1 and 2 then.
// A score may count from the last key where a softmax does not see it (passes/score_origin.h).
// Without a past, keys are rows of the new tokens. Sums of a mask and running sums follow from the
// inputs. A load that the sizes of the graph had proved (a position table) is clamped, with a flag.
// Inputs are known by their roles, or by use (passes/decoder_inputs.h). A cache may be written in place: then P is what a
// vector [B] says, and the cache has room for P + S and more. Not lifted: a mask over the query that data
// decides, cross attention, a circular cache and dynamic quantisation (its scale is of all tokens).
// A linear attention has no cache but sums, f32 [C, heads, ..]: a sequence goes on with those in
// slot %state_from[n] (none: -1) and leaves its own in %state_to[n]. Its expressions are over rows,
// as those of all else. Requires: it is causal, sees all but padding, has one decay for heads that
// share keys. Where attentions have a past, or there are none, it may go on from sums that an input
// holds, and an output gives them back (find_sums).
//   before: %a = linear_attention(%q, %k, %v, ..) {causal = true, ..} : f32[B,S,64]
//   after:  %a, %sums = linear_attention_step(%q, %k, %v, %first, %state_from, %state_to, %state.0, ..) {..} : f32[1,T,64], f32[C,4,16,16]
// What a token reads of the few rows before it comes from a state too (passes/shifted_rows.h).
//   after:  %e, %last = earlier_rows(%x, %first, %state_from, %state_to, %state.1) : f32[1,T,2,64], f32[C,1,2,64]
// Rows of logits are computed for the tokens that are asked for; so is all between the last
// attention and them. Runs after fuse-pointwise, when keys and values are one expression, and
// before fuse-qkv, for which a past stands in the way.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "ir/ir.h"
#include "passes/cached_layers.h"
#include "passes/mask_cases.h"
#include "passes/mask_score.h"
#include "passes/row_ops.h"
#include "passes/score_origin.h"

namespace tfcc::passes {
namespace {

constexpr int64_t kPage = 64;  // tokens

class Lifter : CachedLayers {
 public:
  Lifter(Graph& g, const std::vector<Count>& counts, PassReport& report)
      : CachedLayers(g, counts, report) {}

  bool run() {
    if (g_.size_with(SizeRole::packed))
      return false;  // rows of a packed batch are no tokens in order
    if (!find_attentions() || !find_inputs() || !find_sizes()) return false;
    arrange();
    if (!find_shifted_rows() || !find_sums()) return false;
    make_inputs();
    if (!find_layers() || !match_outputs()) return false;
    find_wanted();
    for (OpId o : std::vector<OpId>(g_.order())) lift(o);
    return finish();
  }

 private:
  // ---- what the lifted graph is given ----

  ExprRef add_size(std::string name, uint32_t axis, SizeRole role) {
    const auto taken = [&] {
      return std::any_of(g_.symbols.begin(), g_.symbols.end(),
                         [&](const auto& s) { return s.name == name; });
    };
    while (taken()) name += "_";
    pool_.set_range(name, {1, ir::kLargestSize});
    ir::SizeSymbol symbol;
    symbol.name = name;
    symbol.input = static_cast<uint32_t>(made_.size());  // the next one
    symbol.axis = axis;
    symbol.role = role;
    symbols_.push_back(symbol);
    return pool_.symbol(name);
  }

  ValueId add_input(const std::string& name, DType dtype, std::vector<ExprRef> dims) {
    if (const ValueId holder = g_.find_value(name); holder.valid())
      g_.rename(holder, name + std::string(kBefore));
    made_.push_back(g_.add_input(name, {dtype, std::move(dims)}));
    return made(made_.back());
  }

  void make_inputs() {
    tokens_ = add_size("step_tokens", 1, SizeRole::tokens);
    new_ids_ = add_input("ids", g_.value(in_.ids).type.dtype, {pool_.integer(1), tokens_});
    positions_ = add_input("positions", DType::i32, {tokens_});
    if (!attentions_.empty()) slots_ = add_input("slots", DType::i32, {tokens_});
    sequences_ = add_size("sequences", 0, SizeRole::batch);
    context_ = add_input("context", DType::i32, {sequences_});
    first_ = add_input("first", DType::i32, {ir::add(sequences_, pool_.integer(1))});
    if (!attentions_.empty()) {
      order_ = add_input("order", DType::i32, {sequences_});
      ExprRef pages = add_size("context_pages", 1, SizeRole::none);
      table_ = add_input("table", DType::i32, {sequences_, pages});
      longest_ = ir::mul(pages, pool_.integer(kPage));
    }
    if (sums_ || !shifted_.empty()) {
      state_from_ = add_input("state_from", DType::i32, {sequences_});
      state_to_ = add_input("state_to", DType::i32, {sequences_});
    }
    rows_ = add_size("wanted_rows", 0, SizeRole::none);
    wanted_ = add_input("wanted", DType::i32, {rows_});
    flag_ = static_cast<int64_t>(g_.flags.size());
    g_.flags.push_back("positions: a token lies outside of what the model has a position for");
    wanted_flag_ = static_cast<int64_t>(g_.flags.size());
    g_.flags.push_back("wanted: a row lies outside of the tokens");
  }

  // ---- rows ----

  bool is_row_op(OpId o) const {
    const ir::Op& op = g_.op(o);
    return computes_rows(g_, op) &&
           std::all_of(op.results.begin(), op.results.end(), [&](ValueId r) { return is_rows(r); });
  }

  // What leads to logits alone is computed for the rows that are wanted.
  void find_wanted() {
    std::vector<OpId> order = g_.order();
    for (size_t i = order.size(); i-- > 0;) {
      const ir::Op& op = g_.op(order[i]);
      if (!is_row_op(order[i]) || is_earlier(op.results[0])) continue;
      const bool only = std::all_of(op.results.begin(), op.results.end(), [&](ValueId r) {
        const auto& users = g_.value(r).users;
        return std::all_of(users.begin(), users.end(),
                           [&](OpId u) { return is_wanted(g_.result(u)); });
      });
      if (!only) continue;
      for (ValueId r : op.results) wanted_values_.insert(r.value);
    }
  }

  ir::Type row_type(ValueId v, bool wanted) const {
    ir::Type t = g_.value(v).type;
    t.dims[0] = pool_.integer(1);
    t.dims[1] = wanted ? rows_ : tokens_;
    return t;
  }

  // The rows of v for an op; invalid, with the reason kept, if they are not known.
  ValueId rows_of(ValueId v, bool wanted) {
    const auto it = lifted_.find(v.value);
    if (it == lifted_.end()) return {};
    if (!wanted || is_wanted(v)) return it->second;
    auto [chosen, added] = chosen_.emplace(v.value, ValueId{});
    if (!added) return chosen->second;
    const ir::Type type = row_type(v, true);
    Indices at = ir::indices_of(pool_, type.dims);
    at[0] = pool_.integer(0);
    at[1] = row_of(true).token;
    ir::Captured c = ir::capture(ir::load_of(g_, it->second, at));
    return chosen->second =
               made(g_.add_pointwise(c.operands, c.body, type, name_before(v) + ".wanted"));
  }

  bool has_fixed_width(const ir::Op& op) const {
    return std::ranges::all_of(op.results, [&](ValueId r) {
      const auto& dims = g_.value(r).type.dims;
      return std::all_of(dims.begin() + 2, dims.end(),
                         [](ExprRef d) { return ir::as_int(d).has_value(); });
    });
  }

  // The rows before tokens, which are lifted with those.
  bool is_earlier(ValueId v) const {
    return std::ranges::any_of(shifted_, [&](const Shifted& s) { return s.earlier == v; });
  }

  void lift(OpId o) {
    if (g_.op(o).kind == OpKind::attention) return lift_attention(o);
    if (g_.op(o).kind == OpKind::linear_attention) return lift_sums(o);
    if (!is_row_op(o)) return;
    if (is_earlier(g_.result(o))) return;  // cost: it stands for that already
    const ir::Op old = g_.op(o);
    if (!has_fixed_width(old)) return not_lifted(old, "its rows are as wide as sizes say");
    const bool wanted = is_wanted(old.results[0]);
    const Row row = row_of(wanted);
    ir::Op op = old;
    std::vector<ValueId> operands;
    for (size_t i = 0; i < ir::first_loaded(op); ++i) {
      const ValueId v = is_row_operand(op, i) ? rows_of(op.operands[i], wanted) : op.operands[i];
      if (!v.valid() || (!is_row_operand(op, i) && !is_fixed(v)))
        return not_lifted(old, fmt::format("its operand '{}' is no row of the same token",
                                           name_before(op.operands[i])));
      operands.push_back(v);
    }
    const std::vector<ExprRef*> bodies = ir::expressions_of(op);
    std::vector<ExprRef> free;
    for (ExprRef* body : bodies) {
      ExprRef e = ir::expand(g_, ir::free_expr(g_, o, *body, {}),
                             [&](ValueId v) { return !is_rows(v) && !is_fixed(v); });
      e = given(given(e, nullptr), &row);  // first with s, whose range is known
      if (const std::string why = left_over(e); !why.empty()) return not_lifted(old, why);
      free.push_back(guarded(e));
    }
    if (op.kind == OpKind::reduce && std::any_of(op.as<ir::ReduceAttrs>().extents.begin(),
                                                 op.as<ir::ReduceAttrs>().extents.end(),
                                                 [](ExprRef n) { return !ir::as_int(n); }))
      return not_lifted(old, "it sums over tokens");
    free = ir::capture(free, operands);
    for (size_t k = 0; k < bodies.size(); ++k) *bodies[k] = free[k];
    std::vector<ir::Type> types;
    std::vector<std::string> names;
    for (ValueId r : old.results) {
      types.push_back(row_type(r, wanted));
      names.push_back(take_name(r));
    }
    const OpId lifted = g_.add_op(op.kind, operands, op.attrs, types, names, old.origin);
    for (size_t k = 0; k < old.results.size(); ++k)
      stands_for(old.results[k], g_.result(lifted, k));
  }

  std::string take_name(ValueId v) {
    std::string name = g_.value(v).name;
    g_.rename(v, name + std::string(kBefore));
    return name;
  }

  void stands_for(ValueId before, ValueId after) {
    lifted_[before.value] = made(after);
    g_.set_replacement(before, after);
    for (const Shifted& s : shifted_) {
      if (s.rows == before) lift_earlier(s, after);
    }
  }

  ExprRef state_slots() {
    if (!state_slots_) state_slots_ = add_size("state_slots", 0, SizeRole::none);
    return state_slots_;
  }
  std::string state_name() const { return "state." + std::to_string(states_.size() - 2 * caches_); }

  // The rows before each token of `rows`.
  void lift_earlier(const Shifted& s, ValueId rows) {
    const ir::Type type = g_.value(rows).type;
    ExprRef kept = pool_.integer(s.kept), width = type.dims[2];
    const ValueId state =
        add_input(state_name(), type.dtype, {state_slots(), pool_.integer(1), kept, width});
    const OpId o = g_.add_op(
        OpKind::earlier_rows, {rows, first_, state_from_, state_to_, state}, ir::EarlierRowsAttrs{},
        {{type.dtype, {type.dims[0], type.dims[1], kept, width}}, g_.value(state).type},
        {take_name(s.earlier), g_.value(rows).name + ".last"}, g_.op(g_.value(rows).def).origin);
    states_.push_back({g_.value(state).name, made(g_.result(o, 1))});
    stands_for(s.earlier, g_.result(o));
  }

  void not_lifted(const ir::Op& op, std::string why) {
    for (ValueId r : op.results)
      why_.emplace(r.value, Miss{op.origin.empty() ? g_.value(r).name : op.origin, why});
  }

  // New keys or values as rows [1, T, width].
  ValueId new_rows(OpId attention, const Appended& a, ValueId like, const std::string& name) {
    // Of reals with these arguments: a load.
    if (a.rows->args == Indices{b_, s_, pool_.index(2, g_.value(like).type.dims[2])})
      return rows_of(*loaded(a.rows), false);
    const Row row = row_of(false);
    ExprRef e = given(a.rows, &row);
    if (const std::string why = left_over(e); !why.empty())
      return not_lifted(g_.op(attention), "its new keys: " + why), ValueId{};
    ir::Type type = row_type(like, false);
    ir::Captured c = ir::capture(guarded(e));
    return made(g_.add_pointwise(c.operands, c.body, type, name));
  }

  ValueId add_cache(const std::string& name, ValueId like, int64_t heads) {
    const ir::Type& type = g_.value(like).type;
    const int64_t width = *ir::as_int(type.dims[2]);
    if (!cache_pages_) cache_pages_ = add_size("cache_pages", 0, SizeRole::none);
    return add_input(
        name, type.dtype,
        {cache_pages_, pool_.integer(heads), pool_.integer(kPage), pool_.integer(width / heads)});
  }

  void lift_attention(OpId o) {
    const Layer& layer = *std::find_if(layers_.begin(), layers_.end(),
                                       [&](const Layer& l) { return l.attention == o; });
    const ir::Op old = g_.op(o);
    ir::AttentionAttrs attrs = old.as<ir::AttentionAttrs>();
    const ValueId q = rows_of(old.operands[0], false);
    if (!q.valid()) return not_lifted(old, "its queries are no rows of tokens");
    const std::string base = g_.value(old.results[0]).name;
    const ValueId k = new_rows(o, layer.keys, old.operands[1], base + ".k.new"),
                  v = new_rows(o, layer.values, old.operands[2], base + ".v.new");
    if (!k.valid() || !v.valid())
      return not_lifted(old, "its keys and values are no rows of tokens");
    ExprRef score = nullptr, visible = nullptr;
    if (std::string why = over_positions(o, attrs.score, score); !why.empty())
      return not_lifted(old, "its score: " + why);
    if (!attrs.visible) {
      if (!split_mask(score, visible)) return not_lifted(old, "a token sees those behind it");
    } else if (std::string why = over_positions(o, attrs.visible, visible); !why.empty()) {
      return not_lifted(old, "what it sees: " + why);
    }
    ExprRef sink = attrs.sink;
    if (sink) {
      if (std::string why = over_positions(o, attrs.sink, sink); !why.empty())
        return not_lifted(old, "its sink: " + why);
    }
    // Causality and windows again, of absolute positions.
    attrs.causal = attrs.key_padding = false;
    attrs.window_left = attrs.window_right = std::nullopt;
    const std::vector<ExprRef> conjuncts =
        visible->kind == ExprKind::band ? visible->args : std::vector<ExprRef>{visible};
    for (ExprRef x : conjuncts) {
      const auto band = ir::band_of(inside(x), longest_, longest_);
      if (band && !band->left && band->size == 0) attrs.causal = true;
      if (band && band->left)
        attrs.window_left = std::min(attrs.window_left.value_or(INT64_MAX), band->size);
    }
    if (!attrs.causal) return not_lifted(old, "a token sees those behind it");
    const std::string number = std::to_string(caches_++);
    const ValueId keys = add_cache("cache." + number + ".keys", old.operands[1], attrs.kv_heads);
    const ValueId values =
        add_cache("cache." + number + ".values", old.operands[2], attrs.kv_heads);
    const OpId append = g_.add_op(OpKind::kv_append, {keys, values, k, v, slots_},
                                  ir::KvAppendAttrs{}, {g_.value(keys).type, g_.value(values).type},
                                  {base + ".keys", base + ".values"}, old.origin);
    for (size_t i : {0, 1})
      states_.push_back({g_.value(g_.op(append).operands[i]).name, made(g_.result(append, i))});
    std::vector<ValueId> operands = {
        q,     g_.result(append, 0), g_.result(append, 1), first_, context_, order_, positions_,
        table_};
    std::vector<ExprRef> free = {guarded(score), guarded(visible)};
    if (sink) free.push_back(guarded(sink));
    free = ir::capture(free, operands);
    attrs.score = free[0], attrs.visible = free[1];
    if (sink) attrs.sink = free[2];
    attrs.packed = {sequences_, longest_};
    attrs.page = kPage;
    ir::Type type = row_type(old.results[0], false);
    stands_for(old.results[0], g_.add(OpKind::attention, operands, attrs, type,
                                      take_name(old.results[0]), old.origin));
  }

  // A linear attention whose tokens go on with the sums of those before them.
  void lift_sums(OpId o) {
    const ir::Op old = g_.op(o);
    ir::LinearAttentionAttrs attrs = old.as<ir::LinearAttentionAttrs>();
    if (!attrs.causal) return not_lifted(old, "a token sees those behind it");
    if (!attrs.state && !ir::is_int(past_, 0))
      return not_lifted(old, "its sums leave the past out");
    attrs.state = false;
    std::vector<ValueId> operands;
    for (size_t i = 0; i < 3; ++i) {
      operands.push_back(rows_of(old.operands[i], false));
      if (!operands.back().valid())
        return not_lifted(old, fmt::format("its operand '{}' is no row of the same token",
                                           name_before(old.operands[i])));
    }
    const std::vector<ExprRef*> bodies = {&attrs.q_map,    &attrs.k_map, &attrs.decay,
                                          &attrs.epilogue, &attrs.beta,  &attrs.visible};
    std::vector<ExprRef> free;
    for (ExprRef* body : bodies) {
      free.push_back(nullptr);
      if (std::string why = over_rows(o, *body, free.back()); !why.empty())
        return not_lifted(old, why);
    }
    // A map that hid padding alone is none.
    std::replace(free.begin(), free.end(), pool_.param("s", Scalar::f32), ExprRef{nullptr});
    if (free.back() && free.back()->kind != ExprKind::btrue)
      return not_lifted(old, "which tokens it sees is no padding");
    free.back() = nullptr;
    attrs.decay = free[2];
    if (ir::decays_apart(g_, attrs)) return not_lifted(old, "heads that share keys decay apart");
    attrs.epilogue = free[3];  // which may ask for less than it did
    const int64_t rows = *ir::as_int(g_.value(old.operands[2]).type.dims[2]) / attrs.kv_heads +
                         ir::normalises(attrs),
                  d = *ir::as_int(g_.value(old.operands[1]).type.dims[2]) / attrs.kv_heads;
    const ValueId state = add_input(
        state_name(), DType::f32,
        {state_slots(), pool_.integer(attrs.kv_heads), pool_.integer(rows), pool_.integer(d)});
    operands.insert(operands.end(), {first_, state_from_, state_to_, state});
    free = ir::capture(free, operands);
    for (size_t k = 0; k < bodies.size(); ++k) *bodies[k] = free[k];
    const std::string base = g_.value(old.results[0]).name;
    const OpId step = g_.add_op(OpKind::linear_attention_step, operands, attrs,
                                {row_type(old.results[0], false), g_.value(state).type},
                                {take_name(old.results[0]), base + ".sums"}, old.origin);
    states_.push_back({g_.value(state).name, made(g_.result(step, 1))});
    stands_for(old.results[0], g_.result(step));
  }

  // An expression of a linear attention where its tokens are those of the run.
  std::string over_rows(OpId o, ExprRef e, ExprRef& out) {
    if (!e) return {};
    const Row row = row_of(false);
    ExprRef t = pool_.index(ir::kOfToken, length_), own = pool_.index(ir::kOfToken, tokens_);
    ExprRef free =
        ir::rewrite(ir::free_expr(g_, o, e, {}), [&](ExprRef n) { return n == t ? s_ : nullptr; });
    free = given(given(free, nullptr), &row);
    if (std::string why = left_over(free); !why.empty()) return why;
    out = ir::rewrite(guarded(free), [&](ExprRef n) { return n == row.own ? own : nullptr; });
    return {};
  }

  // Score or visible with absolute positions for i and j. They are what they were at i + P, and
  // keys run from 0 to P + S.
  std::string over_positions(OpId o, ExprRef e, ExprRef& out) {
    const std::vector<ExprRef> extents = ir::attention_extents(g_, g_.op(o));
    ExprRef all = ir::add(past_, length_), i = pool_.index(ir::kQuery, extents[ir::kQuery]),
            j = pool_.index(ir::kKey, all);
    ExprRef free = ir::rewrite(ir::free_expr(g_, o, e, {}), [&](ExprRef n) -> ExprRef {
      return n->kind == ExprKind::index && n->value == ir::kKey ? j : nullptr;
    });
    free = given(free, nullptr);
    // Beside a sink a softmax sees what is added to all scores of a row.
    const bool alone = !g_.op(o).as<ir::AttentionAttrs>().sink;
    if (alone && e->type != Scalar::boolean) free = counted_from_query(g_, free, i, j, length_);
    out = ir::rewrite(free, [&](ExprRef n) -> ExprRef {
      if (n == i) return ir::sub(pool_.index(ir::kQuery, longest_), past_);
      return n == j ? pool_.index(ir::kKey, longest_) : nullptr;
    });
    return left_over(out);
  }

  // A mask that was left in the score, for in the graph as exported data might hide all keys of a
  // row: of absolute positions it is proved to leave each token its own key. By the bounds of
  // classify-mask.
  bool split_mask(ExprRef& score, ExprRef& visible) {
    visible = pool_.boolean(true);
    while (has_large_constant(score)) {
      ExprRef choice = nullptr;  // the innermost
      ir::for_each_node(score, [&](ExprRef n) {
        if (!choice && n->kind == ExprKind::select && has_large_constant(n)) choice = n;
      });
      if (!choice) return false;
      const bool sees = !has_large_constant(choice->args[1]);
      ExprRef live = decide(score, {choice->args[0]}, sees),
              masked = decide(score, {choice->args[0]}, !sees);
      const double lowest = std::max(bounds(live).low, -kScoreBound);
      if (!(upper_bound(masked, live) + kMaskMargin <= lowest)) return false;
      visible = ir::logical_and(visible, sees ? choice->args[0] : ir::logical_not(choice->args[0]));
      score = live;
    }
    ExprRef own = ir::rewrite(visible, [&](ExprRef n) -> ExprRef {
      const bool key = n->kind == ExprKind::index && n->value == ir::kKey;
      return key ? pool_.index(ir::kQuery, longest_) : nullptr;
    });
    return own->kind == ExprKind::btrue;
  }

  // What an expression is where no flag is raised: a triangle read at positions that a table may be
  // too short for is a triangle.
  ExprRef inside(ExprRef e) const {
    return ir::rewrite(e, [&](ExprRef n) -> ExprRef {
      if (n->kind == ExprKind::bounded) return n->args[0];
      if (n->kind != ExprKind::load) return nullptr;
      const ir::Constant* constant = g_.constant(*loaded(n));
      return constant ? ir::constant_element(pool_, *constant, n->args) : nullptr;
    });
  }

  // ---- the graph ----

  bool finish() {
    const auto it = lifted_.find(logits_.value);
    if (it == lifted_.end()) return miss_of(logits_);
    const auto name = std::find_if(g_.outputs.begin(), g_.outputs.end(), [&](const auto& o) {
                        return o.value == logits_;
                      })->name;
    ValueId logits = it->second;
    if (!is_wanted(logits_)) logits = rows_of(logits_, true);
    g_.outputs = {{name, logits}};
    for (const auto& state : states_) g_.outputs.push_back(state);
    g_.symbols = symbols_;
    g_.checks = {{ir::le(rows_, tokens_),
                  fmt::format("{} must be at most {}", ir::print(rows_),
                              ir::print(tokens_))}};  // few tokens have few rows of logits
    g_.set_inputs(made_);
    return true;
  }

  // Of what leads to v, the first that could not be lifted.
  bool miss_of(ValueId v) {
    std::set<uint32_t> ancestors;
    std::vector<ValueId> worklist{v};
    while (!worklist.empty()) {
      const ValueId x = worklist.back();
      worklist.pop_back();
      if (lifted_.count(x.value)) continue;             // cost: nor is anything before it in why_
      if (!ancestors.insert(x.value).second) continue;  // cost: seen before
      if (const ir::Op* op = g_.def(x))
        worklist.insert(worklist.end(), op->operands.begin(), op->operands.end());
    }
    for (OpId o : g_.order()) {
      const auto why = why_.find(g_.result(o).value);
      if (why != why_.end() && ancestors.count(g_.result(o).value))
        return miss(why->second.node, why->second.reason);
    }
    return miss(g_.name, "logits are not computed row by row");
  }

  // Of the lifted graph.
  size_t caches_ = 0;  // made so far
  std::vector<ir::SizeSymbol> symbols_;
  std::vector<ValueId> made_;  // its inputs
  ExprRef sequences_ = nullptr, cache_pages_ = nullptr, state_slots_ = nullptr, longest_ = nullptr;
  ValueId slots_, context_, first_, order_, table_, state_from_, state_to_;
  std::map<uint32_t, ValueId> chosen_;  // rows that are wanted of a value of the graph before
  std::map<uint32_t, Miss> why_;
  std::vector<Graph::Output> states_;
};

}  // namespace

PassReport lift_kv_cache(Graph& graph) {
  PassReport first;
  std::optional<Graph> lifted;
  for (const std::vector<Count>& counts : counts_of(graph)) {
    PassReport report;
    Graph attempt = graph;
    if (!Lifter(attempt, counts, report).run()) {
      if (first.misses.empty()) first = std::move(report);
      continue;
    }
    attempt.clean();
    Graph own = ir::with_own_pool(attempt);  // which has the sizes of the new inputs alone
    if (!lifted) {
      lifted = std::move(own);
    } else if (ir::print(*lifted) != ir::print(own)) {
      PassReport unclear;
      unclear.misses.push_back(
          {graph.name, "what its vectors of whole numbers count is not clear"});
      return unclear;
    }
  }
  if (!lifted) return first;
  graph = *std::move(lifted);
  PassReport report;
  for (ir::OpId o : graph.order()) report.rewrites += !ir::states_of(graph.op(o)).empty();
  return report;
}

}  // namespace tfcc::passes
