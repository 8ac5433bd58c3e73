// SPDX-License-Identifier: Apache-2.0
//   before: %y[b,h,n,c,m] = %within + %across, within = (q k^T where s <= c) v over the tokens s of chunk n, across = q (the sum of k^T v
//           over the chunks before n: a running sum less its own chunk, an exclusive one, or one moved on by a chunk)
//   after:  %w = q k^T where j <= t, %o = matmul(%w, %v) over all tokens; y[b,h,n,c,m] = o[b,h,64*n + c,m]
// Requires: both have the same queries, keys and values, chunks are of a known number of tokens and
// follow each other.
#include "passes/join_chunks.h"

#include <algorithm>

#include "ir/ir.h"
#include "passes/linear_form.h"

namespace tfcc::passes {
namespace {

constexpr int kMostSteps = 8;  // from a sum in chunks to one by token
constexpr int64_t kKey = 100, kFeature = 101,
                  kEarlier =
                      102;  // numbers of what is summed: a token of the chunk, a feature, a chunk
constexpr int64_t kStray = 103;  // of an index that has no place by token

ExprRef element(const Graph& g, ValueId v) {
  return expanded(g, v, ir::indices_of(g, v), [&](ValueId x) { return is_biased_product(g, x); });
}

std::vector<ExprRef> sorted(std::vector<ExprRef> list) {
  std::sort(list.begin(), list.end());
  return list;
}

ExprRef at_index(ExprRef e, int64_t number, ExprRef by) {
  std::vector<ExprRef> all(static_cast<size_t>(number) + 1, nullptr);
  all.back() = by;
  return ir::substitute_indices(e, all);
}

/// A sum over the tokens up to one, in chunks.
struct Chunked {
  double scale = 1;
  std::vector<ExprRef> q, k,
      v;  // factors over the dims of the value, kKey and kFeature; v is empty for a sum of weights
  ExprRef chunk = nullptr, place = nullptr;  // index variables: of the chunk, of the token in it
};

class Matcher {
 public:
  explicit Matcher(const Graph& g) : g_(g) {}

  std::optional<Chunked> match(ValueId sum) const {
    if (g_.value(sum).type.rank() < 3)
      return std::nullopt;  // cost: no place for a chunk and a token
    ExprRef e = element(g_, sum);
    if (e->kind != ExprKind::fadd) return std::nullopt;  // cost: its body is a sum
    for (size_t i : {0, 1}) {
      std::optional<Chunked> found = within(e->args[i]);
      if (found && across(e->args[1 - i], *found)) return found;
    }
    return std::nullopt;
  }

 private:
  // The sum of a chunk's own tokens: the place of the query, and the factors.
  std::optional<Chunked> within(ExprRef load) const {
    ExprRef p = summand(g_, load, kKey);
    if (!p) return std::nullopt;
    const LinearForm f = linear_form(g_, p, kKey, kFeature);
    if (!f.problem.empty() || f.state)
      return std::nullopt;  // cost: such factors are not those of a triangle
    if (f.conditions.size() != 1 || !f.exponents.empty() || !f.rows.empty() ||
        !f.row_divisors.empty())
      return std::nullopt;
    Chunked c;
    c.scale = f.scale;
    c.q = sorted(f.q);
    c.k = sorted(f.k);
    c.v = sorted(f.inside);
    ExprRef condition = over_integers(f.conditions[0]);
    for (ExprRef i : indices_in(condition)) {
      if (i->value == kKey) continue;  // cost: no key is at most itself in a condition that is left
      const ExprRef key = g_.pool().index(kKey, i->args[0]);
      if (condition == ir::le(key, i)) c.place = i;
    }
    return c.place && ir::as_int(c.place->args[0]) ? std::optional(c) : std::nullopt;
  }

  static std::vector<ExprRef> indices_in(ExprRef e) {
    std::vector<ExprRef> all;
    ir::for_each_node(e, [&](ExprRef n) {
      if (n->kind == ExprKind::index) all.push_back(n);
    });
    return all;
  }

  // The sum of the chunks before, with the same factors; which index is that of the chunk.
  bool across(ExprRef load, Chunked& c) const {
    ExprRef p = summand(g_, load, kFeature);
    if (!p) return false;
    Factors parts = factors_of(p);
    if (!parts.down.empty()) return false;
    for (size_t i = 0; i < parts.up.size(); ++i) {
      ExprRef chunk = nullptr, earlier = sum_before(parts.up[i], chunk);
      if (!earlier) continue;
      if (ir::uses_index(earlier, chunk->value))
        return false;  // what is summed is another for each chunk that asks
      std::vector<ExprRef> q = parts.up;
      q.erase(q.begin() + static_cast<ptrdiff_t>(i));
      ExprRef own = summand(g_, at_index(earlier, kEarlier, chunk), kKey);
      if (!own) return false;
      const Factors inner = factors_of(own);
      std::vector<ExprRef> keys = c.k;
      keys.insert(keys.end(), c.v.begin(), c.v.end());
      c.chunk = chunk;
      return inner.down.empty() && parts.scale * inner.scale == c.scale && sorted(q) == c.q &&
             sorted(inner.up) == sorted(keys) && chunk != c.place;
    }
    return false;
  }

  // What the sum over the chunks before `chunk` adds up, as a load at chunk number kEarlier; null
  // if it is none.
  ExprRef sum_before(ExprRef e, ExprRef& chunk) const {
    ExprRef end = nullptr;
    if (e->kind == ExprKind::fsub) {  // up to the chunk, less it
      ExprRef each = running_summand(g_, e->args[0], kEarlier, &end);
      chunk = end;
      return each && end->kind == ExprKind::index && at_index(each, kEarlier, end) == e->args[1]
                 ? each
                 : nullptr;
    }
    if (e->kind == ExprKind::select) {  // up to the chunk before, and nothing before the first
      const bool zero_first = ir::as_real(e->args[1]) == 0.0;
      if (!zero_first && ir::as_real(e->args[2]) != 0.0) return nullptr;
      ExprRef each = running_summand(g_, e->args[zero_first ? 2 : 1], kEarlier, &end);
      ExprRef there = zero_first ? ir::logical_not(e->args[0]) : e->args[0];
      for (ExprRef i : each ? indices_in(end) : std::vector<ExprRef>{}) {
        if (end != ir::sub(i, g_.pool().integer(1)) || there != ir::le(g_.pool().integer(1), i))
          continue;
        chunk = i;
        return each;
      }
      return nullptr;
    }
    const auto v = loaded(e);  // an exclusive one
    const ir::Op* op = v ? g_.def(*v) : nullptr;
    if (!op || op->kind != OpKind::cumsum || !op->as<ir::CumsumAttrs>().exclusive ||
        op->as<ir::CumsumAttrs>().reverse)
      return nullptr;
    ExprRef each = running_summand(g_, e, kEarlier, &end, true);
    chunk = end;
    return each && end->kind == ExprKind::index ? each : nullptr;
  }

  const Graph& g_;
};

class Joiner {
 public:
  Joiner(Graph& g, const Chunked& c, OpId add)
      : g_(g), c_(c), origin_(g.op(add).origin), size_(*ir::as_int(c.place->args[0])) {
    tokens_ = ir::mul(c.chunk->args[0], g.pool().integer(size_));
  }

  /// The weights over tokens and tokens, of which a graph that is worth having keeps none.
  ValueId weights() const { return weights_; }

  // The sum as one over tokens.
  std::optional<OpId> join(ValueId y) {
    const ir::Type type = g_.value(y).type;
    const std::string base = g_.value(y).name;
    const std::optional<ExprRef> channel = channel_of(type.dims.size());
    ExprRef of_q = extent(c_.q, kFeature);
    if (!channel || !of_q || c_.k.empty()) return std::nullopt;
    lead_ = leading(type.dims, c_, channel);
    ExprRef e = g_.pool().index(kFeature, of_q);
    const ValueId q = by_token(product_of(c_.q), c_.place, e, type.dtype, base + ".q"),
                  k = by_token(product_of(c_.k), key(), e, type.dtype, base + ".k");
    std::vector<ExprRef> dims = lead_extents();
    dims.insert(dims.end(), {tokens_, tokens_});
    ir::MatmulAttrs scores;
    scores.alpha = c_.scale;
    scores.trans_b = true;
    const ValueId s =
        g_.add(OpKind::matmul, {q, k}, scores, {type.dtype, dims}, base + ".scores", origin_);
    const Indices at = ir::indices_of(g_.pool(), dims);
    ir::Captured shown = ir::capture(ir::select(ir::le(at.back(), at[at.size() - 2]),
                                                ir::load_of(g_, s, at), g_.pool().real(0)));
    weights_ = g_.add_pointwise(shown.operands, shown.body, {type.dtype, dims}, base + ".weights",
                                origin_);
    const ValueId values = by_token(product_of(c_.v), key(), *channel, type.dtype, base + ".v");
    dims.back() = (*channel)->args[0];
    const ValueId o = g_.add(OpKind::matmul, {weights_, values}, ir::MatmulAttrs{},
                             {type.dtype, dims}, base + ".joined", origin_);
    if (stray_) return std::nullopt;  // cost: such an index has no place in an op either
    sum_ = o;
    view_ = replace(y, o, c_, lead_, channel);
    return g_.value(o).def;
  }

  // What is made of the sum in chunks until tokens follow each other again is made of it at once.
  void leave_chunks() {
    ValueId v = view_;
    for (int steps = 0; steps < kMostSteps && g_.value(v).users.size() == 1 && !g_.is_output(v);
         ++steps) {
      const OpId user = g_.value(v).users[0];
      if (g_.op(user).kind != OpKind::pointwise) return;  // cost: the sum stays in chunks
      v = g_.result(user);
      ExprRef e = element(g_, v);
      bool plain = true;
      ir::for_each_node(e, [&](ExprRef n) {
        if (loaded(n) == sum_)
          plain = plain && std::ranges::all_of(n->args, [](ExprRef i) {
                    return i->kind == ExprKind::index || ir::as_int(i);
                  });
      });
      if (!plain) continue;
      ir::Captured body = ir::capture(e);
      g_.replace_uses(v, g_.add_pointwise(body.operands, body.body, g_.value(v).type,
                                          g_.value(v).name, g_.op(user).origin));
      return;
    }
  }

  // z, if it is a sum of the same weights, with its dims in any order.
  void join_weights(ValueId z, const Chunked& of) {
    const ir::Type type = g_.value(z).type;
    const std::string base = g_.value(z).name;
    Indices own = leading(type.dims, of, std::nullopt);
    if (own.size() != lead_.size()) return;  // cost: sums over other dims have other factors
    if (of.scale != c_.scale) return;
    std::sort(own.begin(), own.end());
    while (!same_weights(of, own)) {
      if (!std::next_permutation(own.begin(), own.end())) return;
    }
    std::vector<ExprRef> dims = lead_extents();
    dims.push_back(tokens_);
    Indices at = ir::indices_of(g_.pool(), dims);
    at.push_back(g_.pool().index(static_cast<int64_t>(at.size()), tokens_));
    ir::Captured weight = ir::capture(ir::load_of(g_, weights_, at));
    const ValueId sums = g_.add(OpKind::reduce, weight.operands,
                                ir::ReduceAttrs{weight.body, {tokens_}, ir::ReduceKind::sum},
                                {type.dtype, dims}, base + ".joined", origin_);
    replace(z, sums, of, own, std::nullopt);
  }

 private:
  // Are its factors those of the sum where its leading indices stand for `lead_` in this order?
  bool same_weights(const Chunked& of, const Indices& own) const {
    std::vector<ExprRef> by(static_cast<size_t>(kEarlier), nullptr);
    const auto stands = [&](ExprRef i, ExprRef for_this) {
      by[static_cast<size_t>(i->value)] = for_this;
      return i->args[0] == for_this->args[0];
    };
    bool same = stands(of.chunk, c_.chunk) && stands(of.place, c_.place);
    for (size_t d = 0; d < own.size(); ++d) same = same && stands(own[d], lead_[d]);
    const auto here = [&](std::vector<ExprRef> list) {
      for (ExprRef& e : list) e = ir::substitute_indices(e, by);
      return sorted(list);
    };
    if (!same) return false;  // cost: indices of other extents make other factors
    return here(of.q) == c_.q && here(of.k) == c_.k;
  }
  ExprRef key() const { return g_.pool().index(kKey, c_.place->args[0]); }
  static ExprRef extent(const std::vector<ExprRef>& factors, int64_t number) {
    ExprRef found = nullptr;
    for (ExprRef f : factors) {
      ir::for_each_node(f, [&](ExprRef n) {
        if (n->kind == ExprKind::index && n->value == number) found = n->args[0];
      });
    }
    return found;
  }
  // The one index that v alone depends on, beside those of the chunk and of the sum.
  std::optional<ExprRef> channel_of(size_t rank) const {
    std::set<int64_t> own, others{c_.chunk->value};
    for (ExprRef f : c_.v) own.merge(numbers_of(f));
    for (const auto* list : {&c_.q, &c_.k}) {
      for (ExprRef f : *list) others.merge(numbers_of(f));
    }
    std::erase_if(own,
                  [&](int64_t n) { return others.count(n) || n >= static_cast<int64_t>(rank); });
    return own.size() == 1
               ? std::optional(g_.pool().index(*own.begin(), extent(c_.v, *own.begin())))
               : std::nullopt;
  }
  Indices leading(const std::vector<ExprRef>& dims, const Chunked& of,
                  const std::optional<ExprRef>& channel) const {
    Indices lead;
    for (ExprRef i : ir::indices_of(g_.pool(), dims)) {
      if (i != of.chunk && i != of.place && i != channel && i->kind == ExprKind::index &&
          !ir::is_int(i->args[0], 1))
        lead.push_back(i);
    }
    return lead;
  }
  std::vector<ExprRef> lead_extents() const {
    std::vector<ExprRef> extents;
    for (ExprRef i : lead_) extents.push_back(i->args[0]);
    return extents;
  }
  // [leading dims, tokens, column] of an expression over a chunk, a place in it and the column.
  ValueId by_token(ExprRef e, ExprRef place, ExprRef column, DType dtype, const std::string& name) {
    std::vector<ExprRef> dims = lead_extents();
    dims.insert(dims.end(), {tokens_, column->args[0]});
    const Indices at = ir::indices_of(g_.pool(), dims);
    std::vector<ExprRef> by(static_cast<size_t>(kEarlier) + 1, nullptr);
    for (int64_t n : numbers_of(e))
      by[static_cast<size_t>(n)] =
          g_.pool().index(kStray, tokens_);  // a key that depends on the place of the query
    for (size_t d = 0; d < lead_.size(); ++d) by[static_cast<size_t>(lead_[d]->value)] = at[d];
    ExprRef token = at[lead_.size()], size = g_.pool().integer(size_);
    by[static_cast<size_t>(c_.chunk->value)] = ir::div(token, size);
    by[static_cast<size_t>(place->value)] = ir::mod(token, size);
    by[static_cast<size_t>(column->value)] = at.back();
    e = ir::substitute_indices(e, by);
    stray_ |= ir::uses_index(e, kStray);
    ir::Captured body = ir::capture(e);
    return g_.add_pointwise(body.operands, body.body, {dtype, dims}, name, origin_);
  }
  ValueId replace(ValueId y, ValueId o, const Chunked& of, Indices at,
                  const std::optional<ExprRef>& channel) {
    const ir::Type type = g_.value(y).type;
    at.push_back(ir::add(ir::mul(of.chunk, g_.pool().integer(size_)), of.place));
    if (channel) at.push_back(*channel);
    ir::Captured view = ir::capture(ir::load_of(g_, o, at));
    const ValueId there = g_.add_pointwise(view.operands, view.body, type, g_.value(y).name,
                                           g_.op(g_.value(y).def).origin);
    g_.replace_uses(y, there);
    return there;
  }

  Graph& g_;
  const Chunked& c_;
  std::string origin_;
  int64_t size_;
  ExprRef tokens_ = nullptr;
  Indices lead_;
  ValueId weights_, sum_, view_;
  bool stray_ = false;  // an index has no place in what is laid out by tokens
};

// A sum of two that something reads.
bool adds(const Graph& g, OpId o) {
  const ir::Op& op = g.op(o);
  if (op.kind != OpKind::pointwise || g.use_count(op.results[0]) == 0)
    return false;  // cost: nothing else is a sum
  return op.as<ir::PointwiseAttrs>().body->kind ==
         ExprKind::fadd;  // cost: the matcher asks again, of what it reads too
}

}  // namespace

std::optional<JoinedChunks> join_chunks(const Graph& graph, OpId add) {
  if (!adds(graph, add)) return std::nullopt;  // cost: the matcher refuses it
  const std::optional<Chunked> sum = Matcher(graph).match(graph.result(add));
  if (!sum) return std::nullopt;
  JoinedChunks joined{graph, {}, {}};
  Joiner joiner(joined.graph, *sum, add);
  const std::optional<OpId> root = joiner.join(graph.result(add));
  if (!root) return std::nullopt;
  joined.root = *root;
  for (OpId o : graph.order()) {
    if (!adds(graph, o)) continue;  // cost: the matcher refuses it
    const auto weights = Matcher(graph).match(graph.result(o));
    if (weights && weights->v.empty()) joiner.join_weights(graph.result(o), *weights);
  }
  joiner.leave_chunks();
  joined.graph.clean();
  joined.weights = joiner.weights();
  return joined;
}

}  // namespace tfcc::passes
