// SPDX-License-Identifier: Apache-2.0
#include "passes/shifted_rows.h"

#include <algorithm>

#include "ir/ir.h"
#include "ir/range.h"
#include "passes/row_ops.h"

namespace tfcc::passes {
namespace {

constexpr int64_t kMostRows = 16;  // before a token

// A type that states have.
bool is_kept_type(DType t) { return is_float(t) && t != DType::f64; }

// Axes of [B,..] but the batch and one.
size_t other_axis(size_t axis) { return axis == 1 ? 2 : 1; }

}  // namespace

bool ShiftedRows::find_shifted_rows() {
  find_kept();
  if (!kept_.empty() && ir::is_int(past_, 0))
    return miss(g_.value(kept_[0].past).name, "it holds earlier rows, and the graph has no past");
  for (Kept& k : kept_) k.rows = value_of(k);
  for (OpId o : std::vector<OpId>(g_.order())) rewrite_op(o);
  for (Shifted& s : shifted_) define(s);
  g_.clean();
  return true;
}

void ShiftedRows::find_kept() {
  for (ValueId p : g_.inputs()) {
    const ir::Type& type = g_.value(p).type;
    if (type.rank() != 3 || !is_kept_type(type.dtype)) continue;
    if (type.dims[0] != batch_) continue;  // cost: new rows are of every sequence
    for (size_t i = 0; i < g_.outputs.size(); ++i) {
      if (!(g_.value(g_.outputs[i].value).type == type) || carried_outputs_.count(i)) continue;
      Kept found;
      if (!is_kept(p, g_.outputs[i].value, 1, found) && !is_kept(p, g_.outputs[i].value, 2, found))
        continue;
      kept_.push_back(found);
      carried_outputs_.emplace(i, p);
      break;
    }
  }
}

// Is an output the input with new rows behind it along this axis, cut to the last ones? With L of
// them, its element k is that of row k + S of both: for k = m - S row m of the input, for k = L - S +
// s the new row s.
bool ShiftedRows::is_kept(ValueId past, ValueId present, size_t axis, Kept& out) {
  const auto& dims = g_.value(past).type.dims;
  const auto length = ir::as_int(dims[axis]);
  if (!length || !ir::as_int(dims[other_axis(axis)])) return false;
  const Indices at = ir::indices_of(g_, past);
  Indices old = at, now = at;
  old[axis] = ir::sub(at[axis], length_);
  now[axis] = ir::add(ir::sub(dims[axis], length_), s_);
  ExprRef row = given(from_rows(present, now), nullptr);
  if (*length > 1) {
    if (given(from_rows(present, old), nullptr) != ir::load_of(g_, past, at)) return false;
  } else {  // the last one has no index, and is row s of s + 1 new ones
    row = ir::rewrite(
        row, [&](ExprRef n) { return n == length_ ? ir::add(s_, pool_.integer(1)) : nullptr; });
  }
  bool of_token = true;
  ir::for_each_node(row, [&](ExprRef n) {
    if (n->kind != ExprKind::load || is_fixed(*loaded(n))) return;
    // Others would be rounded where a token reads its own row too.
    of_token &= g_.value(*loaded(n)).type.dtype == g_.value(past).type.dtype;
    of_token &= is_rows(*loaded(n)) && is_at_rows(n, {b_, s_});
  });
  if (!of_token) return false;
  out = {past, axis, *length, row, {}};
  return true;
}

// The rows [B,S,C] that an output keeps the last ones of.
ValueId ShiftedRows::value_of(const Kept& k) {
  const ir::Value& past = g_.value(k.past);
  const size_t other = other_axis(k.axis);
  ExprRef index = pool_.index(static_cast<int64_t>(other), past.type.dims[other]),
          channel = pool_.index(2, past.type.dims[other]);
  ExprRef row = ir::rewrite(k.row, [&](ExprRef n) { return n == index ? channel : nullptr; });
  const ir::Type type{past.type.dtype, {batch_, length_, past.type.dims[other]}};
  if (const auto same = loaded_at(row, {b_, s_, channel})) return *same;
  const ir::Captured c = ir::capture(row);
  return g_.add_pointwise(c.operands, c.body, type, past.name + ".rows");
}

// Rows with one axis of channels.
ValueId ShiftedRows::flat(ValueId rows) {
  const ir::Type type = g_.value(rows).type;
  if (type.rank() == 3) return rows;
  if (const auto known = flat_.find(rows.value); known != flat_.end()) return known->second;
  ExprRef width = pool_.integer(1);
  for (size_t k = 2; k < type.dims.size(); ++k) width = ir::mul(width, type.dims[k]);
  ExprRef left = pool_.index(2, width);
  Indices at(type.dims.size());
  for (size_t k = type.dims.size(); k-- > 2;) {
    at[k] = ir::mod(left, type.dims[k]);
    left = ir::div(left, type.dims[k]);
  }
  at[0] = b_, at[1] = s_;
  const ir::Captured c = ir::capture(ir::load_of(g_, rows, at));
  return flat_[rows.value] =
             g_.add_pointwise(c.operands, c.body, {type.dtype, {batch_, length_, width}},
                              g_.value(rows).name + ".flat");
}

ShiftedRows::Shifted& ShiftedRows::shifted(ValueId rows) {
  const auto found = std::ranges::find_if(shifted_, [&](const auto& s) { return s.rows == rows; });
  if (found != shifted_.end()) return *found;
  const ir::Value& x = g_.value(rows);
  const std::vector<ExprRef> dims = {batch_, length_, pool_.integer(kMostRows), x.type.dims[2]};
  // A stand-in: how many rows are kept is known when all ops are rewritten, which define() follows.
  const ValueId earlier = g_.add_input(x.name + ".earlier", {x.type.dtype, dims});
  return shifted_.emplace_back(Shifted{rows, 0, earlier});
}

// What the rows before a token are in a first step. In later ones lift-kv-cache has a state of them.
void ShiftedRows::define(Shifted& s) {
  const ir::Value x = g_.value(s.rows);
  const ir::Type type{x.type.dtype, {batch_, length_, pool_.integer(s.kept), x.type.dims[2]}};
  Indices at = ir::indices_of(pool_, type.dims);
  ExprRef back = ir::add(at[2], pool_.integer(1));
  ExprRef row = ir::load_of(g_, s.rows, {b_, ir::sub(s_, back), at[3]});
  const ir::Captured c = ir::capture(ir::select(ir::le(back, s_), row, pool_.real(0.0, row->type)));
  const ValueId made = g_.add_pointwise(c.operands, c.body, type, x.name + ".earlier");
  g_.set_type(s.earlier, type);
  g_.replace_uses(s.earlier, made);
  s.earlier = made;
}

// Element `channel` of the row `back` rows before s; null if that is not known to be few rows back.
ExprRef ShiftedRows::earlier(ValueId rows, ExprRef back, ExprRef channel) {
  const ir::Interval range = ir::range_of(back);
  if (!range.inside(0, kMostRows)) return nullptr;
  ExprRef own = ir::load_of(g_, rows, {b_, s_, channel}), one = pool_.integer(1);
  if (range.hi == 0) return own;
  Shifted& s = shifted(rows);
  s.kept = std::max(s.kept, range.hi);
  ExprRef before = ir::load_of(g_, s.earlier, {b_, s_, ir::sub(ir::max(back, one), one), channel});
  return ir::select(ir::le(one, back), before, own);
}

// What stands for v by now.
ValueId ShiftedRows::current(ValueId v) const {
  while (g_.value(v).replacement.valid()) v = g_.value(v).replacement;
  return v;
}

// A choice between an input with the last rows, at an index before the new ones, and these.
ExprRef ShiftedRows::of_kept(ExprRef choice) {
  const auto past = loaded(choice->args[1]);
  if (!past) return nullptr;
  const auto k = std::ranges::find_if(kept_, [&](const Kept& x) { return x.past == *past; });
  if (k == kept_.end()) return nullptr;
  if (choice->args[0]->kind != ExprKind::ge0) return nullptr;  // cost: it has no such place
  const Indices& at = choice->args[1]->args;
  const size_t other = other_axis(k->axis);
  ExprRef last = pool_.integer(k->length - 1), place = ir::sub(last, choice->args[0]->args[0]);
  if (at[0] != b_) return nullptr;  // cost: new rows are of this sequence, or of none
  const bool one = k->length == 1 && ir::is_int(at[k->axis], 0);  // has no index
  if (at[k->axis] != place && !one)
    return nullptr;  // cost: at another index an element of one of both would not exist
  ExprRef token = ir::sub(place, pool_.integer(k->length));
  ExprRef channel = pool_.index(static_cast<int64_t>(other), g_.value(*past).type.dims[other]);
  ExprRef now = ir::rewrite(k->row, [&](ExprRef n) -> ExprRef {
    if (n == s_) return token;
    if (n == channel) return at[other];
    return n->kind == ExprKind::load ? ir::load_of(g_, current(*loaded(n)), n->args) : nullptr;
  });
  if (now != choice->args[2]) return nullptr;
  return earlier(current(k->rows), ir::sub(s_, token), at[other]);
}

// A row of another token.
ExprRef ShiftedRows::of_rows(ExprRef load) {
  const ValueId v = *loaded(load);
  const Indices& at = load->args;
  if (!is_rows(v) || at[0] != b_) return nullptr;
  if (at[1] == s_) return nullptr;  // cost: it is its own row
  const ir::Type& type = g_.value(v).type;
  if (!is_kept_type(type.dtype)) return nullptr;
  ExprRef channel = pool_.integer(0);
  for (size_t k = 2; k < at.size(); ++k) {
    if (!ir::as_int(type.dims[k])) return nullptr;  // cost: such rows are not lifted
    channel = ir::add(ir::mul(channel, type.dims[k]), at[k]);
  }
  ExprRef back = ir::sub(s_, at[1]);
  if (!ir::range_of(back).inside(0, kMostRows)) return nullptr;  // cost: before a value is made
  return earlier(flat(v), back, channel);
}

ExprRef ShiftedRows::without_shifts(ExprRef e) {
  std::map<ExprRef, ExprRef> kept;  // choices as they are, before their parts are rewritten
  ir::for_each_node(e, [&](ExprRef n) {
    if (n->kind != ExprKind::select) return;
    if (ExprRef row = of_kept(n)) kept[n] = row;
  });
  e = ir::rewrite(e, [&](ExprRef n) -> ExprRef {
    const auto it = kept.find(n);
    return it == kept.end() ? nullptr : it->second;
  });
  return ir::rewrite(e,
                     [&](ExprRef n) { return n->kind == ExprKind::load ? of_rows(n) : nullptr; });
}

void ShiftedRows::rewrite_op(OpId o) {
  const ir::Op old = g_.op(o);
  if (!computes_rows(g_, old)) return;   // cost: its indices are others
  if (!is_rows(old.results[0])) return;  // cost: none of its indices is a token
  ir::Op op = old;
  const std::vector<ExprRef*> bodies = ir::expressions_of(op);
  std::vector<ExprRef> free;
  bool changed = false;
  for (ExprRef* body : bodies) {
    ExprRef e = ir::free_expr(g_, o, *body, {});
    ExprRef all =
        given(ir::expand(g_, e, [&](ValueId v) { return !is_rows(v) && !is_fixed(v); }), nullptr);
    ExprRef own = without_shifts(all);
    changed |= own != all;
    free.push_back(own != all ? own : e);
  }
  if (!changed) return;
  std::vector<ValueId> operands(old.operands.begin(),
                                old.operands.begin() + static_cast<ptrdiff_t>(first_loaded(old)));
  free = ir::capture(free, operands);
  for (size_t k = 0; k < bodies.size(); ++k) *bodies[k] = free[k];
  std::vector<ir::Type> types;
  std::vector<std::string> names;
  for (ValueId r : old.results) {
    types.push_back(g_.value(r).type);
    names.push_back(g_.value(r).name + ".of_earlier");
  }
  const OpId made = g_.add_op(op.kind, operands, op.attrs, types, names, old.origin);
  for (size_t k = 0; k < old.results.size(); ++k)
    g_.replace_uses(old.results[k], g_.result(made, k));
}

}  // namespace tfcc::passes
