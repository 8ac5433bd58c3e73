// SPDX-License-Identifier: Apache-2.0
#include "passes/context_rows.h"

#include <algorithm>

#include "ir/ir.h"
#include "passes/row_ops.h"

namespace tfcc::passes {
namespace {

// Where axis k of a tensor goes when `token` becomes axis 1.
size_t moved(size_t k, size_t token) {
  if (k == token) return 1;
  return k >= 1 && k < token ? k + 1 : k;
}

std::vector<ExprRef> with_tokens_first(const std::vector<ExprRef>& dims, size_t token) {
  std::vector<ExprRef> out = dims;
  for (size_t k = 0; k < dims.size(); ++k) out[moved(k, token)] = dims[k];
  return out;
}

std::vector<ExprRef> with_tokens_back(const std::vector<ExprRef>& at, size_t token) {
  std::vector<ExprRef> out = at;
  for (size_t k = 0; k < at.size(); ++k) out[k] = at[moved(k, token)];
  return out;
}

}  // namespace

bool ContextRows::is_rows(ValueId v) const {
  const auto& d = g_.value(v).type.dims;
  return d.size() >= 2 && d[1] == length_ && (d[0] == batch_ || ir::is_int(d[0], 1));
}

ExprRef ContextRows::from_rows(ValueId v, const Indices& at) const {
  return ir::expand(g_, ir::load_of(g_, v, at), [&](ValueId x) { return !is_rows(x); });
}

ExprRef ContextRows::from_all(ExprRef e) {
  return given(ir::expand(g_, e, [](ValueId) { return true; }), nullptr);
}

void ContextRows::arrange() {
  for (OpId o : std::vector<OpId>(g_.order())) unlist_rows(o);
  for (OpId o : std::vector<OpId>(g_.order())) cut_to_rows(o);
  for (OpId o : std::vector<OpId>(g_.order())) put_tokens_first(o);
  g_.clean();
  find_carried();
  if (carried_.empty()) return;  // cost: then nothing reads one
  for (OpId o : std::vector<OpId>(g_.order())) {
    if (g_.op(o).kind == OpKind::attention) {
      for (size_t i : {1, 2}) carry_element(g_.op(o).operands[i]);
    } else {
      carry_op(o);
    }
  }
  g_.clean();
}

// A sum over more places than there are tokens, as a convolution with padding at both ends has them:
// the first S are rows.
void ContextRows::cut_to_rows(OpId o) {
  const ir::Op old = g_.op(o);
  if (old.kind != OpKind::reduce) return;
  const ir::Value v = g_.value(old.results[0]);
  const size_t rank = v.type.dims.size();
  size_t token = 1;
  const auto more = [&](ExprRef n) { return ir::as_int(ir::sub(n, length_)).value_or(0); };
  while (token < rank && more(v.type.dims[token]) <= 0) ++token;
  if (token >= rank) return;
  ir::Op op = old;
  std::vector<ValueId> operands;
  ir::Type cut = v.type;
  cut.dims[token] = length_;
  ExprRef& body = *ir::expressions_of(op)[0];
  body = ir::capture({ir::free_expr(g_, o, body, ir::indices_of(pool_, cut.dims))}, operands)[0];
  const ValueId rows = g_.add(old.kind, operands, op.attrs, cut, v.name + ".cut", old.origin);
  const ValueId rest = g_.add(old.kind, old.operands, old.attrs, v.type, v.name + ".uncut");
  const Indices at = ir::indices_of(pool_, v.type.dims);
  const ir::Captured c =
      ir::capture(ir::select(ir::le(ir::add(at[token], pool_.integer(1)), length_),
                             ir::load_of(g_, rows, at), ir::load_of(g_, rest, at)));
  g_.replace_uses(old.results[0], g_.add_pointwise(c.operands, c.body, v.type, v.name, old.origin));
}

// A sum of each row where these are listed along one axis, [B*S,..].
void ContextRows::unlist_rows(OpId o) {
  const ir::Op old = g_.op(o);
  if (old.kind != OpKind::reduce) return;
  const ir::Value v = g_.value(old.results[0]);
  if (v.type.dims.empty() || v.type.dims[0] != ir::mul(batch_, length_)) return;
  ir::Op op = old;
  ir::Type type = v.type;
  type.dims[0] = length_;
  type.dims.insert(type.dims.begin(), batch_);
  std::vector<ExprRef> all = type.dims;  // and what is summed over
  const auto& extents = op.as<ir::ReduceAttrs>().extents;
  all.insert(all.end(), extents.begin(), extents.end());
  Indices own = ir::indices_of(pool_, all);
  own[1] = ir::add(ir::mul(own[0], length_), own[1]);
  own.erase(own.begin());
  std::vector<ValueId> operands;
  ExprRef& body = *ir::expressions_of(op)[0];
  ExprRef free = ir::expand(g_, ir::free_expr(g_, o, body, own),
                            [&](ValueId x) { return !is_rows(x) && !is_fixed(x); });
  body = ir::capture({free}, operands)[0];
  const ValueId rows = g_.add(old.kind, operands, op.attrs, type, v.name + ".rows", old.origin);
  Indices at = ir::indices_of(pool_, v.type.dims);
  at.insert(at.begin(), ir::div(at[0], length_));
  at[1] = ir::mod(at[1], length_);
  const ir::Captured c = ir::capture(ir::load_of(g_, rows, at));
  g_.replace_uses(old.results[0], g_.add_pointwise(c.operands, c.body, v.type, v.name, old.origin));
}

// A product of rows [B,C,S], which it reads turned.
void ContextRows::turn_rows(OpId o) {
  const ir::Op old = g_.op(o);
  ir::MatmulAttrs attrs = old.as<ir::MatmulAttrs>();
  const ir::Type& x = g_.value(old.operands[0]).type;
  if (x.rank() != 3 || x.dims[2] != length_) return;
  const ir::Type type{x.dtype, {x.dims[0], x.dims[2], x.dims[1]}};
  const Indices at = ir::indices_of(pool_, type.dims);
  const ir::Captured c = ir::capture(from_rows(old.operands[0], {at[0], at[2], at[1]}));
  std::vector<ValueId> operands = old.operands;
  operands[0] = g_.add_pointwise(c.operands, c.body, type, g_.value(old.operands[0]).name + ".rows",
                                 old.origin);
  attrs.trans_a = false;
  const ir::Value& y = g_.value(old.results[0]);
  g_.replace_uses(old.results[0],
                  g_.add(OpKind::matmul, operands, attrs, y.type, y.name, old.origin));
}

// An op on rows whose tokens lie behind heads, or behind an axis of one.
void ContextRows::put_tokens_first(OpId o) {
  const ir::Op old = g_.op(o);
  if (old.kind == OpKind::matmul && old.as<ir::MatmulAttrs>().trans_a) return turn_rows(o);
  const bool of_operand = old.kind == OpKind::matmul || old.kind == OpKind::softmax;
  const bool of_body = old.kind == OpKind::norm || old.kind == OpKind::reduce;
  if (!of_operand && !of_body) return;
  const ir::Type& type = g_.value(old.results[0]).type;
  const size_t rank = type.dims.size();
  size_t token = 1;
  while (token < rank && !is_token_axis(type.dims[token])) ++token;
  const size_t own = old.kind == OpKind::reduce ? 0 : 1;  // axes of a row
  if (token == 1 || token + own >= rank || !computes_rows(g_, old)) return;
  ir::Op op = old;
  const std::vector<ExprRef*> bodies = ir::expressions_of(op);
  if (of_operand && !bodies.empty()) return;
  const ir::Type first{type.dtype, with_tokens_first(type.dims, token)};
  std::vector<ValueId> operands(old.operands.begin(),
                                old.operands.begin() + static_cast<ptrdiff_t>(first_loaded(old)));
  if (of_operand) {
    const ir::Type& x = g_.value(operands[0]).type;
    const std::vector<ExprRef> dims = with_tokens_first(x.dims, token);
    const ir::Captured c =
        ir::capture(from_rows(operands[0], with_tokens_back(ir::indices_of(pool_, dims), token)));
    operands[0] = g_.add_pointwise(c.operands, c.body, {x.dtype, dims},
                                   g_.value(operands[0]).name + ".rows", old.origin);
  } else {
    const Indices at = with_tokens_back(ir::indices_of(pool_, first.dims), token);
    ExprRef free = ir::expand(g_, ir::free_expr(g_, o, *bodies[0], at),
                              [&](ValueId x) { return !is_rows(x) && !is_fixed(x); });
    *bodies[0] = ir::capture({free}, operands)[0];
  }
  const ValueId rows = g_.add(old.kind, operands, op.attrs, first,
                              g_.value(old.results[0]).name + ".rows", old.origin);
  Indices at = ir::indices_of(pool_, type.dims), there = at;
  for (size_t k = 0; k < rank; ++k) there[moved(k, token)] = at[k];
  const ir::Captured c = ir::capture(ir::load_of(g_, rows, there));
  g_.replace_uses(old.results[0], g_.add_pointwise(c.operands, c.body, type,
                                                   g_.value(old.results[0]).name, old.origin));
}

// Outputs that are an input with new rows behind it, along one axis.
void ContextRows::find_carried() {
  for (ValueId p : g_.inputs()) {
    const std::vector<ExprRef>& dims = g_.value(p).type.dims;
    for (size_t axis = 0; axis < dims.size(); ++axis) {
      if (dims[axis] == past_) find_present(p, axis);
    }
  }
}

void ContextRows::find_present(ValueId past, size_t axis) {
  const Indices at = ir::indices_of(g_, past);
  for (size_t i = 0; i < g_.outputs.size(); ++i) {
    const ValueId present = g_.outputs[i].value;
    const auto& dims = g_.value(present).type.dims;
    if (dims.size() != at.size()) continue;  // cost: loads of other ranks differ
    if (given(dims[axis], nullptr) != ir::add(past_, length_)) continue;
    if (given(from_rows(present, at), nullptr) != ir::load_of(g_, past, at)) continue;
    carried_.push_back({past, present, axis});
    carried_outputs_.emplace(i, past);
    return;
  }
}

bool ContextRows::is_token_axis(ExprRef n) const { return n == length_ || is_context_axis(n); }

bool ContextRows::is_context_axis(ExprRef n) const {
  return n == total_ || n == ir::add(past_, length_);
}

bool ContextRows::is_context(ValueId v) const {
  const ir::Type& type = g_.value(v).type;
  return type.rank() >= 2 && is_context_axis(type.dims[1]);  // cost: others read no past
}

bool ContextRows::reads_carried(ExprRef e) const {
  const std::vector<ValueId> loads = ir::loads_of(e);
  return std::any_of(carried_.begin(), carried_.end(), [&](const Carried& c) {
    return std::find(loads.begin(), loads.end(), c.past) != loads.end();
  });
}

// An expression over the tokens of the context at one of them.
ExprRef ContextRows::at_token(ExprRef element, ExprRef token) {
  return ir::rewrite(element, [&](ExprRef n) -> ExprRef {
    return n->kind == ExprKind::index && n->value == 1 ? token : nullptr;
  });
}

// Does an element at token j of the past read nothing but row j of pasts and constants, and say
// nothing of the step: of how many tokens are new or old, of the place of its sequence?
bool ContextRows::is_of_row(ExprRef element, ExprRef j) {
  bool known = true;
  ExprRef e = ir::rewrite(element, [&](ExprRef n) -> ExprRef {
    if (n->kind != ExprKind::load) return nullptr;
    const auto c = std::find_if(carried_.begin(), carried_.end(),
                                [&](const Carried& x) { return x.past == *loaded(n); });
    if (c == carried_.end()) {
      known &= is_fixed(*loaded(n));
      return nullptr;
    }
    known &= n->args[0] == b_ && n->args[c->axis] == j;
    Indices at = n->args;
    at[0] = at[c->axis] = pool_.integer(0);
    return ir::load_of(g_, c->past, std::move(at));
  });
  ExprRef any = pool_.index(1, pool_.integer(ir::kLargestSize));
  e = ir::rewrite(e, [&](ExprRef n) { return n == j ? any : nullptr; });
  ir::for_each_node(e, [&](ExprRef n) {
    known &= n->kind != ExprKind::symbol && (n->kind != ExprKind::index || n != b_);
  });
  return known;
}

// Is an element at token j of the context the same function for j of the past and for a new one? A
// load of a past at j is there what its output has at P + s.
bool ContextRows::is_function_of_rows(ExprRef element) {
  ExprRef j = pool_.index(1, past_), now = ir::add(past_, s_);
  ExprRef before = from_all(at_token(element, j));
  if (!reads_carried(before)) return false;  // cost: it is as it was without a past of its own
  if (!is_of_row(before, j)) return false;
  ExprRef later = ir::rewrite(before, [&](ExprRef n) -> ExprRef {  // arguments first
    if (n == j) return now;
    if (n->kind != ExprKind::load) return nullptr;
    const auto c = std::find_if(carried_.begin(), carried_.end(),
                                [&](const Carried& x) { return x.past == *loaded(n); });
    return c == carried_.end() ? nullptr : from_all(ir::load_of(g_, c->present, n->args));
  });
  return later == from_all(at_token(element, now));
}

// A value of the context whose new rows are known: the others are an input.
void ContextRows::carry(ValueId v, ValueId new_rows) {
  const ir::Value& old = g_.value(v);
  ir::Type past = old.type;
  past.dims[1] = past_;
  const std::string name = old.name;
  const ValueId input = g_.add_input(name + ".past", past);
  const Indices at = ir::indices_of(pool_, old.type.dims);
  Indices later = at;
  later[1] = ir::sub(at[1], past_);
  const ir::Captured c =
      ir::capture(ir::select(ir::le(ir::add(at[1], pool_.integer(1)), past_),
                             ir::load_of(g_, input, at), ir::load_of(g_, new_rows, later)));
  const ValueId all = g_.add_pointwise(c.operands, c.body, old.type, name);
  g_.replace_uses(v, all);
  carried_.push_back({input, all, 1});
  carried_outputs_.emplace(g_.outputs.size(), input);
  g_.outputs.push_back({g_.value(input).name, all});
}

// A product, a norm, .. of each token of the context. That its other operands are the same in all
// steps is asked where it is lifted.
void ContextRows::carry_op(OpId o) {
  const ir::Op old = g_.op(o);
  if (!is_context(old.results[0])) return;  // cost: another reads no past
  ir::Op op = old;
  ir::Type type = g_.value(old.results[0]).type;
  type.dims[1] = length_;
  const std::vector<ExprRef*> bodies = ir::expressions_of(op);
  std::vector<ValueId> operands(old.operands.begin(),
                                old.operands.begin() + static_cast<ptrdiff_t>(first_loaded(old)));
  const size_t rows = is_row_operand(old, 0) + is_row_operand(old, 1);
  if (old.kind == OpKind::pointwise || !computes_rows(g_, old) || bodies.size() + rows != 1) return;
  const ExprRef now = ir::add(past_, s_);
  if (rows) {
    ir::Type x = g_.value(operands[0]).type;
    ExprRef element = ir::load_of(g_, operands[0], ir::indices_of(pool_, x.dims));
    if (!is_function_of_rows(element)) return;
    x.dims[1] = length_;
    Indices at = ir::indices_of(pool_, x.dims);
    at[1] = now;
    const ir::Captured c = ir::capture(given(from_rows(operands[0], at), nullptr));
    operands[0] =
        g_.add_pointwise(c.operands, c.body, x, g_.value(operands[0]).name + ".new", old.origin);
  } else {
    ExprRef element = ir::free_expr(g_, o, *bodies[0], {});
    if (!is_function_of_rows(element)) return;
    ExprRef later = ir::expand(g_, at_token(element, now), [&](ValueId x) { return !is_rows(x); });
    *bodies[0] = ir::capture({given(later, nullptr)}, operands)[0];
  }
  carry(old.results[0], g_.add(old.kind, operands, op.attrs, type,
                               g_.value(old.results[0]).name + ".new", old.origin));
}

// Keys or values that are made of what is kept of each token, and are not it.
void ContextRows::carry_element(ValueId v) {
  if (!is_context(v)) return;  // cost: another reads no past
  ir::Type type = g_.value(v).type;
  const Indices at = ir::indices_of(pool_, type.dims);
  Indices old = at;
  old[1] = pool_.index(1, past_);
  const auto past = loaded(given(from_rows(v, old), nullptr));
  // An element of an input as it is, which keys or values of one layer may have.
  if (past && !g_.def(*past) && read_.insert(past->value).second) return;
  if (!is_function_of_rows(ir::load_of(g_, v, at))) return;
  type.dims[1] = length_;
  Indices now = ir::indices_of(pool_, type.dims);
  now[1] = ir::add(past_, s_);
  const ir::Captured c = ir::capture(given(from_rows(v, now), nullptr));
  carry(v, g_.add_pointwise(c.operands, c.body, type, g_.value(v).name + ".new"));
}

}  // namespace tfcc::passes
