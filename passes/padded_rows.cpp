// SPDX-License-Identifier: Apache-2.0
#include "passes/padded_rows.h"

#include <fmt/format.h>

#include <algorithm>

#include "passes/dropped_rows.h"
#include "passes/padding_condition.h"
#include "passes/row_origins.h"
#include "passes/row_ops.h"

namespace tfcc::passes {
namespace {

constexpr int64_t kRow =
    1;  // index of the token among those of a row's op, 0 is that of the sequence

bool same_rows(const std::vector<ExprRef>& dims, const PaddedRows& rows) {
  return dims.size() >= 2 && dims[0] == rows.batch && dims[1] == rows.length;
}

// A sum over tokens or a position found by one may depend on padding in ways that no row shows.
bool counts_tokens(const Graph& g, ExprRef free) {
  for (ValueId v : ir::loads_of(free)) {
    const ir::Op* op = g.def(v);
    if (!op || op->kind == OpKind::constant) continue;
    if (op->kind != OpKind::pointwise) return true;
    const Indices at = ir::indices_of(g, v);
    if (counts_tokens(g, ir::element_of(g, v, at))) return true;
  }
  return false;
}

class Finder {
 public:
  Finder(const Graph& g, std::optional<PaddingKept>& kept, bool binary)
      : g_(g), kept_(kept), binary_(binary) {}

  std::optional<PaddedRows> run() {
    if (!find_attentions()) return std::nullopt;
    for (ExprRef size : {rows_.batch, rows_.length}) {
      if (!ir::prove_ge0(ir::sub(size, g_.pool().integer(1))))
        return keep(rows_.attentions[0],
                    fmt::format("its batch may have no token: {} may be 0", ir::print(size)));
    }
    for (OpId o : rows_.attentions) must_pack(g_.result(o));
    find_sources();
    for (uint32_t v : rows_.packed) note_readers(ValueId{v});
    if (rows_.kept && causal_sums_)
      keep(*causal_sums_, "a row of padding is needed, which would see the tokens behind it");
    if (kept_) return std::nullopt;
    return rows_;
  }

 private:
  std::nullopt_t keep(OpId o, std::string reason) {
    if (!kept_) kept_ = PaddingKept{o, std::move(reason)};
    return std::nullopt;
  }

  // ---- attentions ----

  bool find_attentions() {
    for (OpId o : g_.order()) {
      if (!hides_keys(o)) continue;
      if (!attends_to_itself(o)) continue;
      if (auto why = not_of_these_rows(o); !why.empty()) return keep(o, why), false;
      rows_.attentions.push_back(o);
    }
    if (rows_.attentions.empty() && unpacked_) kept_ = unpacked_;
    return !rows_.attentions.empty();
  }

  // A linear attention that cannot be packed is one that sees padding: it is not, nor what it
  // reads, whatever others do.
  bool hides_keys(OpId o) {
    const ir::Op& op = g_.op(o);
    if (op.kind == OpKind::attention) return op.as<ir::AttentionAttrs>().key_padding;
    if (op.kind != OpKind::linear_attention || !op.as<ir::LinearAttentionAttrs>().visible)
      return false;
    const std::string why = why_sums_need_padding(o);
    if (!why.empty() && !unpacked_) unpacked_ = {o, why};
    return why.empty();
  }

  // Queries and keys are the same tokens. Another attention is not packed; it may read packed rows as
  // its keys.
  bool attends_to_itself(OpId o) {
    const ir::Op& op = g_.op(o);
    const auto &q = g_.value(op.operands[0]).type.dims, &k = g_.value(op.operands[1]).type.dims;
    bool same = q[1] == k[1];
    for (size_t i : {1, 2}) same = same && origins_.are_same_tokens(op.operands[0], op.operands[i]);
    if (!same && !unpacked_) unpacked_ = {o, "queries and keys are different tokens"};
    return same;
  }

  std::string why_sums_need_padding(OpId o) const {
    if (g_.op(o).as<ir::LinearAttentionAttrs>().decay) return "it decays at padding too";
    const KeyCondition condition = key_condition(g_, o);
    if (!condition.keys) return "its condition on keys is not one of padding";
    if (condition.rest) return "its condition on keys is more than one of padding";
    if (compares_reals(condition.keys))
      return "its condition on keys compares reals, which may be weights of tokens";
    return "";
  }

  static bool compares_reals(ExprRef e) {
    bool found = false;
    ir::for_each_node(e, [&](ExprRef n) {
      found |= n->kind == ExprKind::feq || n->kind == ExprKind::flt || n->kind == ExprKind::fle;
    });
    return found;
  }

  // Why an attention is not over the tokens of one padded batch, with one condition for all; the
  // first says which.
  std::string not_of_these_rows(OpId o) {
    const ir::Op& op = g_.op(o);
    const auto& q = g_.value(op.operands[0]).type.dims;
    const KeyCondition condition = key_condition(g_, o);
    if (!condition.keys) return "its condition on keys is not one of padding";
    ExprRef s = g_.pool().index(kRow, q[1]);
    ExprRef live = ir::substitute_indices(condition.keys, {nullptr, nullptr, nullptr, s});
    if (op.kind == OpKind::linear_attention) {
      live = ir::substitute_indices(condition.keys, {nullptr, nullptr, s});
      if (op.as<ir::LinearAttentionAttrs>().causal && !causal_sums_) causal_sums_ = o;
    }
    if (rows_.attentions.empty()) {
      if (counts_tokens(g_, without_assertions(live)))
        return "its keys are counted from other tokens, which may be queries although no keys";
      rows_.batch = q[0];
      rows_.length = q[1];
      rows_.live = live;
      if (binary_) rows_.binary = mask_of(g_, live);
    } else if (q[0] != rows_.batch || q[1] != rows_.length) {
      return "another attention has another batch";
    } else if (without_assertions(live) != without_assertions(rows_.live)) {
      return "another attention has another condition on keys";
    }
    rows_.live = ir::logical_and(rows_.live, live);  // with what each of them asserts
    ExprRef query = g_.pool().index(ir::kQuery, q[1]);
    ExprRef self = condition.rest
                       ? ir::substitute_indices(condition.rest, {nullptr, nullptr, nullptr, query})
                       : nullptr;
    if (self && self->kind != ExprKind::btrue) return "a real token may not see itself";
    return {};
  }

  bool attends(OpId o) const {
    return std::find(rows_.attentions.begin(), rows_.attentions.end(), o) != rows_.attentions.end();
  }
  bool is_packed(ValueId v) const { return rows_.packed.count(v.value) > 0; }

  // ---- reads ----

  // f of each load of v in the op's bodies, by operand slots.
  template <class F> bool all_loads(OpId o, ValueId v, F f) const {
    ir::Op op = g_.op(o);
    bool ok = true;
    for (ExprRef* body : ir::expressions_of(op)) {
      ir::for_each_node(*body, [&](ExprRef n) {
        if (n->kind == ExprKind::load && op.operands[static_cast<size_t>(n->value)] == v)
          ok = ok && f(n, *body);
      });
    }
    return ok;
  }

  bool has_rows(const ir::Op& op) const {
    return std::all_of(op.results.begin(), op.results.end(),
                       [&](ValueId r) { return same_rows(g_.value(r).type.dims, rows_); });
  }

  // Does the op compute rows of these tokens, each from v at the same row?
  bool reads_rows(OpId o, ValueId v) const {
    const ir::Op& op = g_.op(o);
    if (!has_rows(op) || !(attends(o) || computes_rows(g_, op))) return false;
    for (size_t i = 0; i < ir::first_loaded(op); ++i) {
      if (op.operands[i] == v && !is_row_operand(op, i)) return false;
    }
    if (attends(o)) return score_reads_rows(o, v);
    const Indices own = ir::indices_of(g_, op.results[0]);
    return all_loads(o, v, [&](ExprRef load, ExprRef) { return is_at_rows(load, own); });
  }

  // A score may read what belongs to its query or to its key, which are real tokens.
  bool score_reads_rows(OpId o, ValueId v) const {
    const auto* attrs = std::get_if<ir::AttentionAttrs>(&g_.op(o).attrs);
    ExprRef b = g_.pool().index(ir::kBatch, rows_.batch),
            i = g_.pool().index(ir::kQuery, rows_.length),
            j = g_.pool().index(ir::kKey, rows_.length);
    return all_loads(o, v, [&](ExprRef load, ExprRef body) {
      return attrs && body == attrs->score && load->args[0] == b &&
             (load->args[1] == i || load->args[1] == j);
    });
  }

  std::optional<OwnToken> own_token_of(OpId o, ExprRef load) const {
    return own_token(g_, ir::free_expr(g_, o, load->args[0], {}),
                     ir::free_expr(g_, o, load->args[1], {}), rows_.length);
  }

  // One row of each sequence, at an index that follows from sizes and inputs.
  bool reads_fixed_rows(OpId o, ValueId v) const {
    if (g_.op(o).kind != OpKind::pointwise && g_.op(o).kind != OpKind::reduce) return false;
    return all_loads(o, v, [&](ExprRef load, ExprRef) {
      ExprRef b = load->args[0];
      if (b->has_load) return own_token_of(o, load).has_value();
      const bool of_each = b->kind == ExprKind::index && b->args[0] == rows_.batch;
      if (!of_each && !ir::is_int(rows_.batch, 1)) return false;
      bool other = false;
      ir::for_each_node(load->args[1], [&](ExprRef n) {
        const bool of_input = n->kind == ExprKind::load &&
                              is_given(g_, g_.op(o).operands[static_cast<size_t>(n->value)]);
        other |= (n->kind == ExprKind::index && n != b) || (n->kind == ExprKind::load && !of_input);
      });
      return !other;
    });
  }

  bool read_from_outside(OpId o, ValueId v) const {
    return reads_fixed_rows(o, v) || DroppedRows(g_, rows_).neutral_read(o, v);
  }

  // ---- the values ----

  // What follows from attention is right at real tokens alone if only they are read: all of it is
  // packed, or nothing.
  void must_pack(ValueId v) {
    if (!rows_.packed.insert(v.value).second) return;
    for (OpId user : std::vector<OpId>(g_.value(v).users)) {
      // Scores of a softmax over tokens stay with their padding, which they hide.
      if (reads_rows(user, v) && !DroppedRows(g_, rows_).masks_scores(user, v)) {
        for (ValueId r : g_.op(user).results) must_pack(r);
      } else if (!read_from_outside(user, v)) {
        keep(user, "it reads rows of other tokens, padding among them");
      }
    }
  }

  // What attention reads may be computed for real tokens too, where nobody else needs it elsewhere.
  void find_sources() {
    std::set<uint32_t> sources;
    std::vector<ValueId> wanted;
    for (uint32_t v : rows_.packed) wanted.push_back(ValueId{v});
    while (!wanted.empty()) {
      const ir::Op& op = *g_.def(wanted.back());
      wanted.pop_back();
      for (ValueId v : op.operands) {
        if (is_packed(v)) continue;  // cost: what follows from attention stays packed
        if (!may_pack(v)) continue;
        for (ValueId r : g_.def(v)->results) {
          if (sources.insert(r.value).second) wanted.push_back(r);
        }
      }
    }
    rows_.packed.insert(sources.begin(), sources.end());
    for (bool changed = true; changed;) {
      changed = false;
      for (auto it = sources.begin(); it != sources.end();) {
        if (stays(ValueId{*it})) {
          ++it;
          continue;
        }
        rows_.packed.erase(*it);
        it = sources.erase(it);
        changed = true;
      }
    }
  }

  // Rows of these tokens, computed by an op on rows that depends on where it is. An attention that
  // sees padding needs padding.
  bool may_pack(ValueId v) const {
    const ir::Op* op = g_.def(v);
    if (!op || !has_rows(*op) || !computes_rows(g_, *op)) return false;
    ir::Op copy = *op;
    const auto bodies = ir::expressions_of(copy);
    const auto uses_place = [](ExprRef* body) {
      return ir::uses_index(*body, 0) || ir::uses_index(*body, kRow);
    };
    return is_row_operand(*op, 0) || std::any_of(bodies.begin(), bodies.end(), uses_place);
  }

  bool stays(ValueId v) const {
    const auto& results = g_.def(v)->results;
    return std::all_of(results.begin(), results.end(), [&](ValueId r) { return is_packed(r); }) &&
           std::all_of(g_.value(v).users.begin(), g_.value(v).users.end(), [&](OpId user) {
             return (reads_rows(user, v) &&
                     std::all_of(g_.op(user).results.begin(), g_.op(user).results.end(),
                                 [&](ValueId r) { return is_packed(r); })) ||
                    read_from_outside(user, v);
           });
  }

  void note_readers(ValueId v) {
    for (OpId user : g_.value(v).users) {
      const bool fixed = reads_fixed_rows(user, v), factor = g_.op(user).kind == OpKind::matmul;
      // An elementwise op that became packed itself reads 0 at rows that are dropped.
      if (is_packed(g_.result(user)) && (reads_rows(user, v) || !(fixed || factor))) continue;
      const auto read = fixed ? OutsideRead::fixed : DroppedRows(g_, rows_).neutral_read(user, v);
      if (!read) {  // of a value that is packed by now, so that it says nothing of padding
        keep(user, "it reads rows of other tokens, padding among them");
        continue;
      }
      rows_.readers.push_back({user, v, *read});
      if (fixed) all_loads(user, v, [&](ExprRef load, ExprRef) { return keep_row(user, load); });
    }
  }

  // A token of the flattened batch is asked for first; then it is one of its sequence.
  bool keep_row(OpId reader, ExprRef load) {
    if (load->args[0]->has_load) {
      add_own_token(rows_.flattened, reader, *own_token_of(reader, load));
      return true;
    }
    ExprRef b = g_.pool().index(0, rows_.batch);
    ExprRef at = ir::rewrite(load->args[1], [&](ExprRef n) {
      return n->kind == ExprKind::index && n == load->args[0] ? b : nullptr;
    });
    ExprRef place = ir::free_expr(g_, reader, at, {});
    ExprRef is_it = ir::eq(g_.pool().index(kRow, rows_.length), place);
    rows_.kept = rows_.kept ? ir::logical_or(rows_.kept, is_it) : is_it;
    return true;
  }

  const Graph& g_;
  std::optional<PaddingKept>& kept_;
  const bool binary_;  // is a mask taken for 0 or 1?
  const RowOrigins origins_{g_};
  PaddedRows rows_;
  std::optional<PaddingKept> unpacked_;  // the first attention that is not packed
  std::optional<OpId>
      causal_sums_;  // a linear attention that is causal: packed, rows that are kept stand behind all of its tokens
};

}  // namespace

KeyCondition key_condition(const Graph& g, OpId attention) {
  KeyCondition c;
  const ir::Op& op = g.op(attention);
  const bool linear =
      op.kind == OpKind::linear_attention;  // whose index of a token is that of a key
  ExprRef body =
      linear ? op.as<ir::LinearAttentionAttrs>().visible : op.as<ir::AttentionAttrs>().visible;
  if (!body) return c;
  ExprRef visible = ir::free_expr(g, attention, body, {});
  const std::vector<ExprRef> conjuncts =
      visible->kind == ExprKind::band ? visible->args : std::vector<ExprRef>{visible};
  std::vector<ExprRef> keys_alone;
  for (ExprRef e : conjuncts) {
    const std::vector<ValueId> loads = ir::loads_of(e);
    const bool by_data =
        std::any_of(loads.begin(), loads.end(), [&](ValueId v) { return !g.is_constant(v); });
    if (by_data && !ir::uses_index(e, ir::kHead) && (linear || !ir::uses_index(e, ir::kQuery)))
      keys_alone.push_back(e);
  }
  const auto assertions =
      std::ranges::stable_partition(keys_alone, [](ExprRef e) { return !ir::is_assertion(e); });
  const std::vector<ExprRef> asserted(assertions.begin(), assertions.end());
  keys_alone.erase(assertions.begin(), assertions.end());
  const std::vector<bool> padding = say_padding(g, keys_alone);
  const bool any = std::ranges::find(padding, true) != padding.end();
  for (ExprRef e : conjuncts) {
    const auto at = std::find(keys_alone.begin(), keys_alone.end(), e);
    const bool says = at != keys_alone.end()
                          ? padding[static_cast<size_t>(at - keys_alone.begin())]
                          : any && std::ranges::find(asserted, e) != asserted.end();
    ExprRef& part = says ? c.keys : c.rest;
    part = part ? ir::logical_and(part, e) : e;
  }
  return c;
}

std::optional<PaddedRows> find_padded_rows(const Graph& g, std::optional<PaddingKept>& kept) {
  if (const auto rows = Finder(g, kept, false).run(); rows || !kept) return rows;
  std::optional<PaddingKept> still;
  const auto rows = Finder(g, still, true).run();
  if (rows) kept.reset();
  return rows;
}

}  // namespace tfcc::passes
