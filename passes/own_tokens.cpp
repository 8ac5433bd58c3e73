// SPDX-License-Identifier: Apache-2.0
#include "passes/own_tokens.h"

#include <algorithm>

#include "ir/ir.h"

namespace tfcc::passes {
namespace {

constexpr int64_t kAny = 1 << 20;  // an index that no op has

ExprRef replaced(ExprRef e, ExprRef what, ExprRef by) {
  return ir::rewrite(e, [&](ExprRef n) { return n == what ? by : nullptr; });
}

// Is it a number of sequence b that data says: of whole numbers made of inputs?
bool is_number(const Graph& g, ExprRef e, ExprRef b) {
  bool is = e->has_load;
  ir::for_each_node(e, [&](ExprRef n) {
    if (n->kind == ExprKind::load) is &= is_given(g, *loaded(n));
    if (n->kind == ExprKind::index) is &= n == b;
  });
  return is;
}

// The summand of `own` that is no constant, if there is one.
ExprRef only_atom(ExprRef own) {
  if (own->kind != ExprKind::poly) return own;
  const bool one =
      own->terms.size() == 1 && own->terms[0].coefficient == 1 && own->terms[0].atoms.size() == 1;
  return one ? own->terms[0].atoms[0] : nullptr;
}

}  // namespace

ExprRef spelled_out(const Graph& g, ExprRef index) {
  return index->has_load ? ir::expand(g, index, [](ValueId) { return true; }) : index;
}

std::optional<OwnToken> own_token(const Graph& g, ExprRef batch, ExprRef token, ExprRef length) {
  batch = spelled_out(g, batch);
  token = spelled_out(g, token);
  std::vector<ExprRef> sequences, places;
  ir::for_each_node(batch, [&](ExprRef n) {
    if (n->kind == ExprKind::index) sequences.push_back(n);
    if (n->kind == ExprKind::poly && n->has_load) places.push_back(n);
  });
  ExprRef any = g.pool().index(kAny, length);
  for (ExprRef b : sequences) {
    for (ExprRef place : places) {
      ExprRef own = ir::sub(place, ir::mul(b, length)), number = only_atom(own);
      if (!number || !is_number(g, number, b)) continue;
      ExprRef there = ir::sub(any, ir::sub(own, number));  // what number is if own is any token
      if (replaced(batch, number, there) == b && replaced(token, number, there) == any)
        return OwnToken{number, b, own, length};
    }
  }
  return std::nullopt;
}

namespace {

ExprRef question(const OwnToken& own, int64_t flag) {
  return ir::bounded(own.token, own.length, flag);
}

ExprRef with_question(const Graph& g, ExprRef index, const OwnToken& own, int64_t flag) {
  ExprRef asked = ir::sub(question(own, flag), ir::sub(own.token, own.number));
  return replaced(spelled_out(g, index), own.number, asked);
}

}  // namespace

bool can_ask(const Graph& g, ExprRef index, const OwnToken& own) {
  bool is_left = false;
  ir::for_each_node(with_question(g, index, own, 0),
                    [&](ExprRef n) { is_left |= n == question(own, 0); });
  return is_left;
}

void add_own_token(OwnTokens& all, OpId reader, const OwnToken& own) {
  std::vector<OwnToken>& of = all[reader];
  const auto same = [&](const OwnToken& x) {
    return x.token == own.token && x.length == own.length;
  };
  if (std::ranges::none_of(of, same)) of.push_back(own);
}

namespace {

void ask(Graph& g, OpId reader, const OwnToken& own, int64_t flag) {
  ir::Op op = g.op(reader);
  const auto first = op.operands.begin();
  std::vector<ValueId> operands(first, first + static_cast<ptrdiff_t>(ir::first_loaded(op)));
  const std::vector<ExprRef*> bodies = ir::expressions_of(op);
  std::vector<ExprRef> free;
  for (ExprRef* body : bodies) {
    free.push_back(ir::rewrite(ir::free_expr(g, reader, *body, {}), [&](ExprRef n) -> ExprRef {
      if (n->kind != ExprKind::load) return nullptr;
      if (std::ranges::none_of(n->args, [&](ExprRef x) { return can_ask(g, x, own); }))
        return nullptr;  // cost: where no flag is raised it would read the same
      Indices at = n->args;
      for (ExprRef& x : at) x = with_question(g, x, own, flag);
      return ir::load_of(g, *loaded(n), std::move(at));
    }));
  }
  free = ir::capture(free, operands);
  for (size_t k = 0; k < bodies.size(); ++k) *bodies[k] = free[k];
  g.op(reader).attrs = op.attrs;
  g.set_operands(reader, operands);
}

}  // namespace

void ask_for_own_tokens(Graph& g, const OwnTokens& all, std::string_view way_out) {
  for (const auto& [reader, tokens] : all) {
    g.flags.push_back(
        label(g, reader) +
        " reads one token of each sequence by its place in the batch, and of one sequence that is none of its tokens; leave out sequences without tokens, or " +
        std::string(way_out));
    for (const OwnToken& own : tokens)
      ask(g, reader, own, static_cast<int64_t>(g.flags.size()) - 1);
  }
}

}  // namespace tfcc::passes
