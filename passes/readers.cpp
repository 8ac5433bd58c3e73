// SPDX-License-Identifier: Apache-2.0
#include "passes/readers.h"

#include <algorithm>
#include <unordered_map>

#include "ir/ir.h"
#include "ir/matmul.h"

namespace tfcc::passes {
namespace {

// Which row of the attentions' results an element of a value reads, over the value's index
// variables.
struct Rows {
  ExprRef batch;
  ExprRef token;  // null: several tokens of that sequence
  bool
      padded;  // the row of a padded query is undefined; else only those of a sequence without keys
  bool chosen = false;  // read on one side of a choice
};

// What of an expression the loads of certain rows decide. A product with 0 depends on nothing: rows
// are finite.
class Dependence {
 public:
  explicit Dependence(const std::function<bool(ExprRef)>& is_row) : is_row_(is_row) {}

  bool of(ExprRef e) {
    if (auto it = known_.find(e); it != known_.end()) return it->second;  // cost: computed once
    std::vector<ExprRef> parts = e->args;
    for (const ir::Term& t : e->terms) parts.insert(parts.end(), t.atoms.begin(), t.atoms.end());
    const bool depends =
        !is_zero(e) &&
        (is_row_(e) || std::any_of(parts.begin(), parts.end(), [&](ExprRef a) { return of(a); }));
    known_.emplace(e, depends);
    return depends;
  }

 private:
  static bool is_zero(ExprRef e) {
    if (e->kind == ExprKind::fmul) return is_zero(e->args[0]) || is_zero(e->args[1]);
    if (e->kind == ExprKind::fdiv) return is_zero(e->args[0]);  // mask / count
    return ir::as_real(e) == 0.0;
  }

  const std::function<bool(ExprRef)>& is_row_;
  std::unordered_map<ExprRef, bool> known_;
};

// Is e an axis of a value that has it as its index, or as part of a merged one: r / n, r mod n?
// With a length, an index that counts as many from 0.
bool is_axis(ExprRef e, ExprRef length = nullptr) {
  if (e->kind == ExprKind::index) return true;
  if (e->kind == ExprKind::floordiv) return !length && is_axis(e->args[0]);
  for (const ir::Term& t : e->terms) {
    for (ExprRef f : t.atoms) {
      if (f->kind != ExprKind::floordiv || ir::mod(f->args[0], f->args[1]) != e) continue;
      return is_axis(f->args[0]) && (!length || f->args[1] == length);
    }
  }
  return false;
}

class Walk {
 public:
  Walk(const Graph& g, const std::vector<const MaskFacts*>& undefined,
       const std::map<OpId, MaskFacts>& all)
      : g_(g), origins_(undefined), all_(all), first_(*undefined[0]) {}

  Readers run() {
    for (OpId o : g_.order()) {
      op_ = o;
      reader_ = label(g_, o);
      is_reduction_ = g_.op(o).kind == OpKind::reduce;
      found_.reset();
      visit(o);
      if (!found_readers_.problem.empty()) return found_readers_;  // cost: the first one is kept
      if (!found_) continue;
      for (ValueId v : g_.op(o).results) rows_.emplace(v.value, *found_);
    }
    for (const Graph::Output& output : g_.outputs) {
      reader_ = "the output " + output.name;
      is_reduction_ = false;
      const auto it = rows_.find(output.value.value);
      if (it != rows_.end()) put_out(it->second);
    }
    return found_readers_;
  }

 private:
  ExprPool& pool() const { return g_.pool(); }
  const std::vector<ExprRef>& dims(ValueId v) const { return g_.value(v).type.dims; }
  bool is_undefined(ValueId v) const { return rows_.count(v.value) != 0; }
  static ValueId value_of(ExprRef load) { return ValueId{static_cast<uint32_t>(load->value)}; }
  bool is_row(ExprRef n) const { return n->kind == ExprKind::load && is_undefined(value_of(n)); }
  bool is_origin(OpId o) const {
    return std::any_of(origins_.begin(), origins_.end(),
                       [&](const MaskFacts* f) { return f->attention == o; });
  }

  void problem(const std::string& text) {
    if (found_readers_.problem.empty()) found_readers_.problem = text;
  }
  void mixes_batch() {
    problem(is_reduction_ ? "a reduction over the batch reads the result"
                          : "a row of the batch is read for another one by " + reader_);
  }

  // An index of a sum, or of whatever reads several elements: it is none of the result's.
  ExprRef many(ExprRef extent) { return pool().index(kMany + next_many_++, extent); }
  bool uses_many(ExprRef e) const {
    bool found = false;
    ir::for_each_node(e, [&](ExprRef n) {
      found |= n->kind == ExprKind::index && n->value >= static_cast<int64_t>(rank_);
    });
    return found;
  }

  // What the results of an op read, as free expressions over their indices and over those of what
  // it sums.
  void visit(OpId o) {
    const ir::Op& op = g_.op(o);
    if (std::none_of(op.operands.begin(), op.operands.end(),
                     [&](ValueId v) { return is_undefined(v); }) &&
        !is_origin(o))
      return;  // cost: reads nothing undefined
    rank_ = g_.value(op.results[0]).type.rank();
    const Indices at = ir::indices_of(g_, op.results[0]);
    switch (op.kind) {
      case OpKind::constant: return;
      case OpKind::pointwise:
        return read(ir::free_expr(g_, o, op.as<ir::PointwiseAttrs>().body, at));
      case OpKind::reduce: return visit_reduce(o, at);
      case OpKind::cumsum:
        return read(ir::load_of(g_, op.operands[0], along(at, op.as<ir::CumsumAttrs>().axis)));
      case OpKind::matmul: return visit_matmul(o, at);
      case OpKind::grouped_matmul: return visit_grouped_matmul(o, at);
      case OpKind::attention: return visit_attention(o);
      case OpKind::linear_attention: return problem("a linear attention reads the result");
      case OpKind::pack:
      case OpKind::kv_append:
      case OpKind::rope_append:
      case OpKind::sample:
      case OpKind::earlier_rows:
      case OpKind::linear_attention_step: return;  // come after the masks are classified
      case OpKind::norm:
        read(ir::free_expr(g_, o, op.as<ir::NormAttrs>().body, along(at, rank_ - 1)));
        return visit_row_op(op, at, ir::first_loaded(op));
      case OpKind::softmax: return visit_row_op(op, at, 1);
      case OpKind::rope:
        if (op.operands.size() > 3) read(gamma_of(op.operands[3]));
        return visit_row_op(op, at, 3);
    }
  }

  Indices along(Indices at, size_t axis) {
    at[axis] = many(at[axis]->args[0]);
    return at;
  }

  // What the heads of a rope are multiplied by.
  ExprRef gamma_of(ValueId v) { return ir::load_of(g_, v, {many(dims(v)[0])}); }

  // Softmax, norms and rope: operands have the axes of the result, or the last one alone, and all
  // of that is read.
  void visit_row_op(const ir::Op& op, const Indices& at, size_t operands) {
    const Indices row = along(at, rank_ - 1);
    for (size_t i = 0; i < operands; ++i) {
      const auto& d = dims(op.operands[i]);
      Indices x(row.end() - d.size(), row.end());
      for (size_t k = 0; k < d.size(); ++k) {
        if (ir::is_int(d[k], 1)) x[k] = pool().integer(0);
      }
      read(ir::load_of(g_, op.operands[i], x));
    }
  }

  void visit_reduce(OpId o, Indices at) {
    const auto& attrs = g_.op(o).as<ir::ReduceAttrs>();
    for (ExprRef extent : attrs.extents) at.push_back(pool().index(at.size(), extent));
    read(ir::free_expr(g_, o, attrs.body, at));
  }

  void visit_grouped_matmul(OpId o, const Indices& at) {
    const ir::Op& op = g_.op(o);
    const auto& x = dims(op.operands[0]);
    Indices row(at.begin(), at.begin() + std::ssize(x) - 1);
    row.push_back(many(x.back()));
    read(ir::load_of(g_, op.operands[0], row));
    if (!op.as<ir::GroupedMatmulAttrs>().weight) {
      const auto& w = dims(op.operands[1]);
      read(ir::load_of(g_, op.operands[1], {many(w[0]), at.back(), many(w[2])}));
    }
    read(ir::free_expr(g_, o, op.as<ir::GroupedMatmulAttrs>().which, at));
  }

  void visit_matmul(OpId o, const Indices& at) {
    const ir::Op& op = g_.op(o);
    const auto& attrs = op.as<ir::MatmulAttrs>();
    const auto& a = dims(op.operands[0]);
    ExprRef k = many(attrs.trans_a ? a[a.size() - 2] : a.back());
    ExprRef left = ir::factor_element(g_, op.operands[0], attrs.trans_a, at, at[at.size() - 2], k);
    const auto read_column = [&](ExprRef column) {
      read(ir::mul(left, ir::factor_element(g_, op.operands[1], attrs.trans_b, at, k, column)));
    };
    if (attrs.heads) {
      read(left);
      read(ir::load_of(g_, op.operands[1], {k, ir::mod(at.back(), dims(op.operands[1])[1])}));
    } else if (attrs.weight) {
      read(left);  // the rest is constant
    } else if (attrs.gate) {
      for (const bool second : {false, true})
        read_column(ir::gated_column(pool(), at.back(), second));
    } else {
      read_column(at.back());
    }
    if (attrs.epilogue) read(ir::free_epilogue(g_, o, at));
  }

  // The rows that an element with these indices reads.
  Rows rows_of(ExprRef load) {
    Rows r = rows_.at(value_of(load).value);
    r.batch = spelled_out(g_, ir::substitute_indices(r.batch, load->args));
    if (!r.token) return r;
    r.token = spelled_out(g_, ir::substitute_indices(r.token, load->args));
    const auto own = own_token(g_, r.batch, r.token, dims(g_.op(first_.attention).operands[0])[1]);
    // The op itself has to have the number; else nothing can be asked there.
    if (!own || std::ranges::none_of(load->args, [&](ExprRef x) { return can_ask(g_, x, *own); }))
      return r;
    add_own_token(found_readers_.flattened, op_, *own);
    r.batch = own->batch;
    r.token = own->token;
    return r;
  }

  void read(ExprRef e) {
    std::vector<Rows> rows;
    collect(e, rows);
    if (rows.empty() || is_selected(e, rows)) return;
    for (const Rows& r : rows) add(r);
  }

  // The rows that e reads. Of a choice by where an index is, as that of past and new keys, each side
  // is read where it is chosen: there r / n of a row r = b n + (j - p) is b.
  void collect(ExprRef e, std::vector<Rows>& rows) {
    if (e->kind == ExprKind::select) {
      collect(e->args[0], rows);
      for (const bool value : {true, false}) {
        const size_t first = rows.size();
        collect(e->args[value ? 1 : 2], rows);
        for (size_t k = first; k < rows.size(); ++k) rows[k].chosen = true;
        const auto from = least_of(e->args[0], value);
        for (size_t k = first; from && k < rows.size(); ++k) {
          rows[k].batch = from_there(rows[k].batch, from->first, from->second);
          if (rows[k].token) rows[k].token = from_there(rows[k].token, from->first, from->second);
        }
      }
      return;
    }
    ir::for_each_node(e, [&](ExprRef n) {
      if (is_row(n)) rows.push_back(rows_of(n));
    });
  }

  // An index x and what it is not less than where the condition has this value, if it says that:
  // x = from + rest, where rest is not negative.
  static std::optional<std::pair<ExprRef, ExprRef>> least_of(ExprRef condition, bool value) {
    ExprRef known = value ? condition : ir::logical_not(condition);
    if (known->kind != ExprKind::ge0) return std::nullopt;  // cost: others have no sum, or one of 0
    ExprRef p = known->args[0];
    for (const ir::Term& t : p->terms) {
      if (t.coefficient < 0) continue;  // cost: what is behind it is not known to be there
      if (t.atoms[0]->kind != ExprKind::index) continue;
      return std::pair(t.atoms[0], ir::sub(t.atoms[0], p));
    }
    return std::nullopt;
  }

  // e where the index x is not less than `from`.
  ExprRef from_there(ExprRef e, ExprRef x, ExprRef from) {
    ExprRef rest = many(ir::sub(x->args[0], from));
    ExprRef there =
        ir::rewrite(e, [&](ExprRef n) { return n == x ? ir::add(from, rest) : nullptr; });
    return ir::rewrite(there, [&](ExprRef n) { return n == rest ? ir::sub(x, from) : nullptr; });
  }

  // Is nothing left of rows whose own key is hidden: x * mask, select(mask, x, 0)?
  bool is_selected(ExprRef e, const std::vector<Rows>& rows) {
    const Rows& r = rows[0];
    const std::vector<ValueId> loads = ir::loads_of(e);
    if (std::all_of(loads.begin(), loads.end(),
                    [&](ValueId v) { return is_undefined(v) || g_.is_constant(v); }))
      return false;  // cost: no mask
    if (!r.token) return false;
    for (const Rows& other : rows) {
      if (other.batch != r.batch || other.token != r.token) return false;
    }
    const std::function<bool(ExprRef)> row = [&](ExprRef n) { return is_row(n); };
    e = ir::expand(
        g_, e, [&](ValueId v) { return !is_undefined(v); }, kNearby);
    const std::vector<Choice> keys = keys_of(r);
    return std::all_of(keys.begin(), keys.end(), [&](const Choice& c) {
      return !Dependence(row).of(decide(e, c.control, !c.value));
    });
  }

  // The conditions for a row to be that of a token which is no padding.
  std::vector<Choice> keys_of(const Rows& r) const {
    std::vector<Choice> keys = first_.keys;
    ExprRef key = ir::substitute_indices(first_.own_key, {nullptr, nullptr, r.token});
    for (Choice& c : keys)
      c.control.node = ir::substitute_indices(c.control.node, {r.batch, nullptr, nullptr, key});
    return keys;
  }

  // The element at hand reads these rows too.
  void add(Rows r) {
    if (uses_many(r.batch)) return mixes_batch();
    if (r.token && uses_many(r.token)) read_several_tokens(r);
    else if (const auto token = token_alone(r)) read_one_token(r, *token);
    if (!found_) found_ = r;
    found_->chosen |= r.chosen;
    if (found_->batch != r.batch) mixes_batch();
    found_->padded |= r.padded;
    if (!r.token)
      return;  // undefined in a sequence without keys alone: there no token of it is real
    if (!found_->token) found_->token = r.token;
    if (found_->token != r.token) read_several_tokens(*found_);
  }

  void read_several_tokens(Rows& r) {
    r.token = nullptr;
    if (r.padded) problem("rows of padded tokens are read by " + reader_);
  }

  // The place of the token, if it is one of each sequence: over b = index 0, of whole numbers that
  // reductions make of inputs. A place that is an input may be any token; one that is read on one
  // side of a choice may be nobody's there.
  std::optional<ExprRef> token_alone(const Rows& r) {
    if (!r.token) return std::nullopt;
    if (!r.token->has_index && !r.token->has_load) return r.token;
    if (r.chosen) return std::nullopt;
    ExprRef batch = dims(g_.op(first_.attention).operands[0])[0], b = pool().index(0, batch);
    bool alone = r.batch->kind == ExprKind::index || ir::is_int(batch, 1);
    ir::for_each_node(r.token, [&](ExprRef n) {
      if (n->kind == ExprKind::index) alone &= n == r.batch && n->args[0] == batch;
      if (n->kind != ExprKind::load) return;
      const ir::Op* op = g_.def(value_of(n));
      alone &= op && op->kind == OpKind::reduce && is_given(g_, value_of(n));
    });
    if (!alone) return std::nullopt;
    return ir::rewrite(r.token, [&](ExprRef n) { return n == r.batch ? b : nullptr; });
  }

  // A token that sees every key that is no padding is undefined in a sequence of padding alone.
  // Where it does not, the first one (CLS) may be told to be no padding, and one that whole numbers
  // name to see a key.
  void read_one_token(Rows& r, ExprRef token) {
    auto sees_all = [&](const auto& entry) {
      const MaskFacts& f = entry.second;
      return !f.padded_rows ||
             ir::substitute_indices(f.beyond, {nullptr, nullptr, r.token})->kind == ExprKind::btrue;
    };
    if (std::all_of(all_.begin(), all_.end(), sees_all)) r.padded = false;
    if (r.padded && (ir::is_int(token, 0) || token->has_load)) {
      const auto same = [&](const TokenAlone& t) { return t.token == token; };
      if (std::ranges::none_of(found_readers_.alone, same))
        found_readers_.alone.push_back({token, reader_});
      r.padded = false;
    }
    read_several_tokens(r);
  }

  // A row of the result is undefined where its query is, and where it sees no key; keys that are
  // hidden are not read.
  void visit_attention(OpId o) {
    const ir::Op& op = g_.op(o);
    const auto& q = dims(op.operands[0]);
    ExprRef b = pool().index(0, q[0]), i = pool().index(1, q[1]),
            j = pool().index(ir::kKey, dims(op.operands[1])[1]);
    const Indices at{b, many(pool().integer(op.as<ir::AttentionAttrs>().heads)), i, j};
    std::vector<ExprRef> loads;
    for (size_t k = 0; k < 3; ++k)
      loads.push_back(
          ir::load_of(g_, op.operands[k], {b, k == 0 ? i : j, many(dims(op.operands[k])[2])}));
    const auto& attrs = op.as<ir::AttentionAttrs>();
    for (ExprRef e : {attrs.score, attrs.sink, attrs.visible}) {
      if (e) ir::for_each_node(ir::free_expr(g_, o, e, at), [&](ExprRef n) { loads.push_back(n); });
    }
    for (ExprRef load : loads) {
      if (is_row(load)) read_of_attention(o, rows_of(load), i);
    }
    if (is_origin(o)) add({b, first_.own_key ? i : nullptr, all_.at(o).padded_rows});
  }

  // Of a key (index kKey is its number) or of a query.
  void read_of_attention(OpId o, Rows r, ExprRef query) {
    const auto it = all_.find(o);
    if (it == all_.end() || !r.token || !ir::uses_index(r.token, ir::kKey) || !hides(it->second, r))
      return add(r);
    const MaskFacts& facts = it->second;
    r.padded &= facts.padded_rows;
    ExprRef key =
        facts.own_key ? ir::substitute_indices(facts.own_key, {nullptr, nullptr, query}) : nullptr;
    r.token = key ? ir::substitute_indices(r.token, {nullptr, nullptr, nullptr, key}) : nullptr;
    add(r);
  }

  // Does the mask hide the keys that come from rows of padding, and for certain no others?
  bool hides(const MaskFacts& facts, const Rows& r) const {
    const std::vector<Choice> keys = keys_of(r);
    auto is_asked = [&](const Choice& c) {
      return std::find(facts.keys.begin(), facts.keys.end(), c) != facts.keys.end();
    };
    return keys.size() == facts.keys.size() && std::all_of(keys.begin(), keys.end(), is_asked);
  }

  // Rows of an output may be undefined at their own place: that of their sequence, and of their
  // token or its key in a cache.
  void put_out(Rows r) {
    const auto& q = dims(g_.op(first_.attention).operands[0]);
    if (!ir::is_int(q[0], 1) && !is_axis(r.batch)) mixes_batch();
    if (!r.padded) return;  // cost: then any place will do
    const bool in_place =
        is_axis(r.token, q[1]) ||
        is_axis(ir::substitute_indices(first_.own_key, {nullptr, nullptr, r.token}), q[1]);
    if (!in_place) read_several_tokens(r);
  }

  static constexpr int64_t kMany = 1 << 16;
  const Graph& g_;
  const std::vector<const MaskFacts*>& origins_;
  const std::map<OpId, MaskFacts>& all_;
  const MaskFacts& first_;
  std::unordered_map<uint32_t, Rows> rows_;  // by value; none: it reads nothing undefined
  OpId op_;                                  // the op at hand
  std::optional<Rows> found_;                // of it
  std::string reader_;
  Readers found_readers_;
  bool is_reduction_ = false;
  size_t rank_ = 0;
  int64_t next_many_ = 0;
};

}  // namespace

Readers readers_of_undefined(const Graph& graph, const std::vector<const MaskFacts*>& undefined,
                             const std::map<OpId, MaskFacts>& all) {
  return Walk(graph, undefined, all).run();
}

}  // namespace tfcc::passes
