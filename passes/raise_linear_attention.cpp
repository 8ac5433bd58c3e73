// SPDX-License-Identifier: Apache-2.0
// raise-linear-attention: attention without a softmax as one op that never holds a product of
// tokens and tokens, or a state for each token.
//   before: %s = cumsum(%kv) {axis = 1}; %o = matmul(%q, %s); %z = matmul(%q, %cumsum_of_k); %y = pointwise(%o, %z) {.. / (.. + 1e-6)}
//           with %kv = k'[b,t,h,e] * v[b,t,h,m]; or %o = matmul(%w, %v) with %w = select(j <= i, matmul(q', k'), 0), perhaps times a decay;
//           or %o = matmul(%q, matmul(k'^T, %v)), which sees all tokens
//   after:  %ctx = linear_attention(%q2, %k2, %v2, ..) {causal, heads, q_map, k_map, decay, visible, epilogue = (s,z,b,h,t,c) => s / (z + 1e-6)}
// q2, k2, v2 are token-major [B, S, heads * d]: an existing tensor where the graph has one, else
// one pointwise op each. A feature map (elu + 1, relu, exp) is the expression of one element of it;
// a softmax over the features of a head is `softmax` of the op. The normaliser is what divides by the sum of the
// weights of a row, wherever it stands, with its own epsilon; what divides by something else stays
// behind. Both sums, the one outside and the one inside, are taken apart into factors. The indices
// that a factor depends on tell whether it is of the query, the key, the value, a mask, a decay or
// a row. So Einsum, MatMul, Mul and ReduceSum are one case; tests/models/linear_attention_forms.py
// has the spellings. q, k and v may be products of tokens and weights: these are never the sum
// inside. Sums in chunks are joined to one triangle first (passes/join_chunks.h), on a copy of the
// graph that is kept if the op takes its place.
// Requires: sums run from the first token on; what is multiplied depends on a query, a key or a
// value alone; a decay is of tokens, for each head or each token; a condition on query and key is a
// triangle; heads are known and at most 512 wide. A known length that is shorter than a head is
// wide is less work as products of tokens and tokens.
// Assumes: 0 times an element of k or v that a mask hides is 0, so that hidden tokens need not be
// read; a mask that compares indices as f32 means the integers, of which f32 has all below 2^24.
#include <algorithm>

#include "ir/ir.h"
#include "passes/join_chunks.h"
#include "passes/linear_form.h"
#include "passes/linear_operands.h"
#include "passes/passes.h"

namespace tfcc::passes {
namespace {

constexpr int64_t kLargestHead = 512;

/// What a dim of a value counts.
enum class Role : uint8_t { lead, token, channel, unit };

class Fuser {
 public:
  Fuser(Graph& g, OpId root, PassReport& report)
      : g_(g), root_(root), value_(g.result(root)), report_(report) {}

  bool run() {
    const ExprRef element = ir::load_of(g_, value_, ir::indices_of(g_, value_));
    ExprRef product = summand(g_, element, kFresh);
    if (!product) return false;
    const LinearForm plain = linear_form(g_, product, kFresh, kFresh + 1);
    if (!plain.inner || !find_roles(plain, element->args)) return false;
    if (!place_heads() || !read_canonical() || !classify()) return false;
    if (!find_normaliser() || !lay_out()) return false;
    rewrite();
    return true;
  }

 private:
  static constexpr int64_t kFresh = 100;  // of index variables beside those of a value's dims

  ExprPool& pool() const { return g_.pool(); }
  const ir::Type& type(ValueId v) const { return g_.value(v).type; }
  bool miss(const std::string& reason) {
    report_.misses.push_back({label(g_, root_), reason});
    return false;
  }

  static std::set<int64_t> numbers(const std::vector<ExprRef>& list) {
    std::set<int64_t> all;
    for (ExprRef e : list) all.merge(numbers_of(e));
    return all;
  }
  // The one dim of the value that is in a and not in b; -1 if there is none or there are more.
  int64_t only_in(const std::set<int64_t>& a, const std::set<int64_t>& b) const {
    int64_t found = -1;
    for (int64_t n : a) {
      if (b.count(n)) continue;
      if (found >= 0) return -1;
      found = n;
    }
    return found;
  }

  // Which dim of the value is the token of the query, and which the channel of v.
  bool find_roles(const LinearForm& f, const Indices& at) {
    int64_t token = -1, channel = -1;
    const std::set<int64_t> inner = numbers_of(f.inner);
    if (f.state) {
      channel = only_in(inner, numbers(f.q));
      if (f.running) {
        token = f.end->kind == ExprKind::index ? f.end->value : -1;
        if (channel == token) channel = -1;
      } else {
        token = query_token(numbers(f.q), inner);
      }
    } else {
      for (ExprRef c : f.conditions) {
        if (ir::has_loads(c)) continue;  // a mask of tokens
        const auto n = numbers_of(over_integers(c));
        for (int64_t i : n) {
          if (i < kFresh && inner.count(i) && n.count(kFresh)) token = i;
        }
      }
      channel = only_in(numbers(f.inside), inner);
    }
    if (token < 0 || channel < 0) return false;  // cost: another product of products
    roles_.clear();
    for (size_t d = 0; d < at.size(); ++d) {
      roles_.push_back(static_cast<int64_t>(d) == token      ? Role::token
                       : static_cast<int64_t>(d) == channel  ? Role::channel
                       : ir::is_int(type(value_).dims[d], 1) ? Role::unit
                                                             : Role::lead);
    }
    return true;
  }

  // With heads that share keys a head is not in the state either; then the token is the dim that no
  // constant bounds.
  int64_t query_token(const std::set<int64_t>& of_q, const std::set<int64_t>& of_state) const {
    int64_t found = only_in(of_q, of_state);
    if (found >= 0) return found;
    for (int64_t n : of_q) {
      if (of_state.count(n) || ir::as_int(type(value_).dims[static_cast<size_t>(n)])) continue;
      if (found >= 0) return -1;
      found = n;
    }
    return found;
  }

  bool place_heads() {
    std::vector<ExprRef> lead;
    const auto& dims = type(value_).dims;
    for (size_t d = 0; d < dims.size(); ++d) {
      if (roles_[d] == Role::lead) lead.push_back(dims[d]);
      if (roles_[d] == Role::token) tokens_ = dims[d];
      if (roles_[d] == Role::channel) v_size_ = dims[d];
    }
    const auto heads = head_dims(g_, lead, {});
    if (!heads)
      return miss(
          "the number of heads is not known at compile time, or the sum runs along another axis than the tokens");
    if (heads->heads > kMostHeads) return miss("there are more than 65535 heads");
    heads_ = *heads;
    return true;
  }

  // Indices of a value with these dims and roles, over canonical index variables.
  Indices canonical(const std::vector<ExprRef>& dims, const std::vector<Role>& roles) const {
    std::vector<ExprRef> lead;
    for (size_t d = 0; d < dims.size(); ++d) {
      if (roles[d] == Role::lead) lead.push_back(dims[d]);
    }
    ExprRef heads = pool().integer(heads_.heads);
    const Indices base = ir::indices_of(pool(), {heads_.batch, heads, tokens_, v_size_});
    const Indices leading =
        ir::reshape_indices(pool(), {base[kB], base[kH]}, {heads_.batch, heads}, lead);
    Indices at;
    size_t next = 0;
    for (Role r : roles)
      at.push_back(r == Role::lead      ? leading[next++]
                   : r == Role::token   ? base[kT]
                   : r == Role::channel ? base[kC]
                                        : pool().integer(0));
    return at;
  }

  bool read_canonical() {
    t_ = ir::indices_of(pool(), {heads_.batch, heads_.batch, tokens_})[kT];
    at_ = canonical(type(value_).dims, roles_);
    ExprRef element = ir::load_of(g_, value_, at_);
    ExprRef probe = summand(g_, element, kE);
    const LinearForm first = linear_form(g_, probe, kE, kJ);
    form_ = first.state ? first : linear_form(g_, summand(g_, element, kJ), kJ, kE);
    return form_.problem.empty() ? true : miss(form_.problem);
  }

  ExprRef index_extent(const std::vector<ExprRef>& list, int64_t number) const {
    ExprRef extent = nullptr;
    for (ExprRef e : list) {
      ir::for_each_node(e, [&](ExprRef n) {
        if (n->kind == ExprKind::index && n->value == number) extent = n->args[0];
      });
    }
    return extent;
  }

  bool uses(ExprRef e, int64_t n) const { return ir::uses_index(e, n); }

  // Factors and conditions as parts of q', k', v, what is visible, and what decays.
  bool classify() {
    const LinearForm& f = form_;
    q_ = f.q;
    rows_ = f.rows;
    scale_ = f.scale;
    if (!f.state) k_ = f.k;
    for (ExprRef x : f.inside) {
      if (uses(x, kC)) v_.push_back(x);
      else if (uses(x, kT) && !f.state)
        return miss("a weight depends on query and key otherwise than by a decay");
      else k_.push_back(x);
    }
    for (const auto& [list, wrong, what] :
         {std::tuple{&q_, int64_t{kC}, "the query depends on a channel of the values"},
          {&q_, int64_t{kJ}, "the query depends on the key"},
          {&k_, int64_t{kT}, "the key depends on the query"},
          {&k_, int64_t{kC}, "the key depends on a channel of the values"},
          {&v_, int64_t{kT}, "the value depends on the query"},
          {&v_, int64_t{kE}, "the value depends on a feature"}}) {
      for (ExprRef x : *list) {
        if (uses(x, wrong)) return miss(what);
      }
    }
    keys_ = index_extent(v_, kJ);
    ExprRef size = index_extent(q_, kE);
    if (q_.empty() || v_.empty() || !keys_ || !size)
      return false;  // cost: a factor that is one number for all
    if (!index_extent(k_, kE)) return miss("the key does not depend on a feature");
    for (const auto* list : {&q_, &k_, &v_}) {
      if (!computed(*list)) return false;  // cost: a weight, which is no token's
    }
    j_ = pool().index(kJ, keys_);
    size_ = size;
    if (!ir::as_int(size_) || !ir::as_int(v_size_)) return false;  // cost: a product of tokens
    if (*ir::as_int(size_) > kLargestHead || *ir::as_int(v_size_) > kLargestHead)
      return miss("the head size is over 512");
    causal_ = f.state && f.running;
    for (ExprRef c : f.conditions) {
      if (!take_condition(over_integers(c))) return false;
    }
    for (ExprRef e : f.exponents) {
      if (!take_exponent(e)) return false;
    }
    return worth_it() && find_visible();
  }

  // Is a part of it computed in a run?
  bool computed(const std::vector<ExprRef>& factors) const {
    return std::ranges::any_of(factors, [&](ExprRef f) {
      return std::ranges::any_of(ir::loads_of(f), [&](ValueId v) { return !g_.is_constant(v); });
    });
  }

  bool take_condition(ExprRef c) {
    if (c->kind == ExprKind::band)
      return std::ranges::all_of(c->args, [&](ExprRef a) { return take_condition(a); });
    if (c == ir::le(j_, t_) && keys_ == tokens_) {
      causal_ = true;
      return true;
    }
    if (uses(c, kT) || uses(c, kH)) return miss("a condition on query and key that is no triangle");
    visible_ = visible_ ? ir::logical_and(visible_, c) : c;
    return true;
  }

  bool take_exponent(ExprRef e) {
    if (!uses(e, kT) || !uses(e, kJ)) {
      (uses(e, kJ) ? k_ : rows_).push_back(ir::unary(ExprKind::exp, e));
      return true;
    }
    ExprRef d = decay_of(g_, e, t_, j_);
    if (!d) return miss("a weight depends on query and key otherwise than by a decay");
    decay_ = decay_ ? ir::add(decay_, d) : d;
    return true;
  }

  // With few tokens the product of tokens and tokens is less work than states; then the graph is
  // left as it is.
  bool worth_it() {
    const auto n = ir::as_int(tokens_);
    if (form_.state || !n ||
        *n * (*ir::as_int(size_) + *ir::as_int(v_size_)) >=
            2 * *ir::as_int(size_) * *ir::as_int(v_size_))
      return true;
    return miss("so few tokens are less work as products of tokens and tokens");
  }

  // A mask that the graph is given, as integers or reals; what the graph computes of its tokens is
  // a gate, which is 0 by chance.
  bool is_given_mask(ExprRef f) const {
    const std::vector<ValueId> loads = ir::loads_of(f);
    return (f->kind == ExprKind::load || f->kind == ExprKind::i2f) &&
           std::ranges::none_of(loads, [&](ValueId v) { return g_.def(v); });
  }

  // A factor of the key that is a mask hides a token where it is 0.
  bool find_visible() {
    std::erase_if(k_, [&](ExprRef f) {
      if (uses(f, kE) || uses(f, kH) || !ir::has_loads(f)) return false;
      const bool truth = f->kind == ExprKind::select && ir::as_real(f->args[1]) == 1.0 &&
                         ir::as_real(f->args[2]) == 0.0;
      if (!truth && !is_given_mask(f)) return false;
      ExprRef shown = truth ? f->args[0] : ir::logical_not(ir::eq(f, pool().real(0)));
      visible_ = visible_ ? ir::logical_and(visible_, shown) : shown;
      return truth;
    });
    // Where a condition chooses between a key and 0, it is the same.
    for (ExprRef& f : k_) {
      if (f->kind != ExprKind::select || ir::as_real(f->args[2]) != 0.0 || uses(f->args[0], kE) ||
          uses(f->args[0], kH))
        continue;
      visible_ = visible_ ? ir::logical_and(visible_, f->args[0]) : f->args[0];
      f = f->args[1];
    }
    return true;
  }

  // ---- the normaliser ----

  static std::vector<ExprRef> sorted(std::vector<ExprRef> list) {
    std::sort(list.begin(), list.end());
    return list;
  }

  // The scale of the sum of weights that a load over b, h and t is; nothing if it is another value.
  std::optional<double> weight_sum(ExprRef load) const {
    if (uses(load, kC)) return std::nullopt;  // cost: no sum of weights depends on a channel
    if (!form_.state) {
      ExprRef p = summand(g_, load, kJ);
      if (!p) return std::nullopt;
      LinearForm z = linear_form(g_, p, kJ, kE);
      const bool same = z.problem.empty() && z.inner == form_.inner &&
                        z.conditions == form_.conditions && z.exponents == form_.exponents &&
                        z.rows.empty() && z.row_divisors.empty();
      std::vector<ExprRef> keys = form_.inside;
      std::erase_if(keys, [&](ExprRef f) { return uses(f, kC); });
      return same && sorted(z.inside) == sorted(keys) ? std::optional(z.scale) : std::nullopt;
    }
    ExprRef p = summand(g_, load, kE);
    if (!p) return std::nullopt;
    Factors parts = factors_of(p);
    std::vector<ExprRef> keys = form_.inside;
    std::erase_if(keys, [&](ExprRef f) { return uses(f, kC); });
    for (size_t i = 0; i < parts.up.size(); ++i) {
      ExprRef end = nullptr, inside = parts.up[i]->kind == ExprKind::load
                                          ? running_summand(g_, parts.up[i], kJ, &end)
                                          : nullptr;
      if ((end == t_) != form_.running) continue;
      if (!form_.running)
        inside = parts.up[i]->kind == ExprKind::load ? summand(g_, parts.up[i], kJ) : nullptr;
      if (!inside) continue;
      const Factors key = factors_of(inside);
      std::vector<ExprRef> rest = parts.up;
      rest.erase(rest.begin() + static_cast<ptrdiff_t>(i));
      if (key.down.empty() && parts.down.empty() && sorted(key.up) == sorted(keys) &&
          sorted(rest) == sorted(form_.q))
        return parts.scale * key.scale;
    }
    return std::nullopt;
  }

  // e with sums of weights as z.
  ExprRef with_z(ExprRef e) {
    return ir::rewrite(e, [&](ExprRef n) -> ExprRef {
      const auto scale = weight_sum(n);
      if (!scale) return nullptr;
      has_z_ = true;
      ExprRef z = pool().param("z", Scalar::f32);
      return *scale == 1 ? z : ir::mul(z, pool().real(*scale));
    });
  }

  // The value and what follows it at its own places: views, then the op that divides by the sum of
  // weights.
  bool find_normaliser() {
    ExprRef s = pool().param("s", Scalar::f32);
    sum_ = scale_ == 1 ? s : ir::mul(s, pool().real(scale_));
    if (ExprRef rows = product_of(rows_)) sum_ = ir::mul(sum_, with_z(rows));
    for (ExprRef d : form_.row_divisors) sum_ = ir::div(sum_, with_z(d));
    epilogue_ = sum_;
    result_ = value_;
    for (ValueId v = value_; !g_.is_output(v) && g_.value(v).users.size() == 1 && !has_z_;) {
      const OpId user = g_.value(v).users[0];
      if (g_.op(user).kind != OpKind::pointwise || !follow(v, user)) break;
      v = g_.result(user);
    }
    return true;
  }

  // One op further: true if it is a view, or has the normaliser, and then it is the result.
  bool follow(ValueId v, OpId user) {
    const ValueId y = g_.result(user);
    const Indices plain = ir::indices_of(g_, y);
    std::vector<Role> roles(plain.size(), Role::unit);
    ExprRef read = nullptr;
    size_t reads = 0;
    ir::for_each_node(ir::element_of(g_, y, plain), [&](ExprRef n) {
      if (loaded(n) != v) return;
      ++reads;
      read = n;
    });
    if (reads != 1) return false;
    for (size_t d = 0; d < read->args.size(); ++d) {
      const auto own = std::find(plain.begin(), plain.end(),
                                 read->args[d]);  // another expression leaves the role out
      if (own != plain.end() && roles_[d] != Role::unit)
        roles[static_cast<size_t>(own - plain.begin())] = roles_[d];
    }
    for (size_t d = 0; d < plain.size(); ++d) {
      if (roles[d] == Role::unit && !ir::is_int(type(y).dims[d], 1)) return false;
    }
    if (type(y).dtype == DType::f64 || !is_float(type(y).dtype)) return false;
    const Indices at = canonical(type(y).dims, roles);
    // The order of leading dims is that of the heads.
    ExprRef here = ir::load_of(g_, v, canonical(type(v).dims, roles_));
    ExprRef e = expanded(g_, y, at, [&](ValueId x) { return x == v || is_biased_product(g_, x); });
    bool reads_it = false;
    e = ir::rewrite(with_z(e), [&](ExprRef n) -> ExprRef {
      if (n != here) return nullptr;
      reads_it = true;
      return epilogue_;
    });
    if (!reads_it) return false;
    if (e != epilogue_ && !has_z_) return false;  // another op, which others may fuse
    epilogue_ = e;
    result_ = y;
    roles_ = roles;
    return true;
  }

  bool lay_out() {
    operands_ = linear_operands(g_, {heads_, tokens_, keys_, size_, v_size_}, product_of(q_),
                                product_of(k_), product_of(v_));
    if (!operands_.problem.empty())  // cost: the verifier would undo the pass
      return miss("q, k or v by token: " + operands_.problem);
    if (visible_)
      visible_ = ir::substitute_indices(
          visible_,
          {nullptr, nullptr, nullptr, nullptr, nullptr,
           ir::indices_of(pool(), {heads_.batch, pool().integer(operands_.kv_heads), keys_})[kT]});
    return true;
  }

  void rewrite() {
    const ir::Type out_type = type(result_);
    const std::string base = g_.value(result_).name, origin = g_.op(root_).origin,
                      result_origin = g_.op(g_.value(result_).def).origin;
    static constexpr const char* kNames[] = {".q", ".k", ".v"};
    std::vector<ValueId> operands;
    for (size_t i = 0; i < 3; ++i)
      operands.push_back(add_token_major(g_, operands_.all[i].tensor, base + kNames[i], origin));
    ir::LinearAttentionAttrs attrs;
    attrs.causal = causal_;
    attrs.heads = heads_.heads;
    attrs.kv_heads = operands_.kv_heads;
    const auto& [q, k, v] = operands_.all;
    if (q.softmax || k.softmax)
      attrs.softmax = !k.softmax   ? ir::FeatureSoftmax::q
                      : !q.softmax ? ir::FeatureSoftmax::k
                                   : ir::FeatureSoftmax::both;
    std::vector<ExprRef> bodies;
    std::vector<ExprRef*> places;
    const auto add = [&](ExprRef& place, ExprRef body) {
      bodies.push_back(body);
      places.push_back(&place);
    };
    add(attrs.decay, decay_);
    if (epilogue_->kind != ExprKind::param || epilogue_->name != "s")
      add(attrs.epilogue, epilogue_);
    add(attrs.k_map, k.map);
    add(attrs.q_map, q.map);
    add(attrs.visible, visible_);
    bodies = ir::capture(bodies, operands);
    for (size_t i = 0; i < bodies.size(); ++i) *places[i] = bodies[i];
    ExprRef heads = pool().integer(heads_.heads);
    const ir::Type t{out_type.dtype, {heads_.batch, tokens_, ir::mul(heads, v_size_)}};
    const ValueId ctx = g_.add(OpKind::linear_attention, operands, attrs, t, base + ".ctx", origin);
    // Back to the layout that readers expect.
    const Indices at = ir::indices_of(pool(), out_type.dims);
    std::vector<ExprRef> lead, lead_dims;
    ExprRef token = nullptr, channel = nullptr;
    for (size_t d = 0; d < at.size(); ++d) {
      if (roles_[d] == Role::lead) lead.push_back(at[d]), lead_dims.push_back(out_type.dims[d]);
      if (roles_[d] == Role::token) token = at[d];
      if (roles_[d] == Role::channel) channel = at[d];
    }
    const Indices pair = ir::reshape_indices(pool(), lead, lead_dims, {heads_.batch, heads});
    ir::Captured c = ir::capture(
        ir::load_of(g_, ctx, {pair[0], token, ir::add(ir::mul(pair[1], v_size_), channel)}));
    g_.replace_uses(result_, g_.add_pointwise(c.operands, c.body, out_type, base, result_origin));
  }

  Graph& g_;
  OpId root_;
  ValueId value_, result_;
  PassReport& report_;
  std::vector<Role> roles_;  // of result_
  HeadDims heads_;
  ExprRef tokens_ = nullptr, keys_ = nullptr, size_ = nullptr, v_size_ = nullptr, t_ = nullptr,
          j_ = nullptr;
  Indices at_;
  LinearForm form_;
  double scale_ = 1;
  bool causal_ = false, has_z_ = false;
  std::vector<ExprRef> q_, k_, v_, rows_;
  ExprRef visible_ = nullptr, decay_ = nullptr, sum_ = nullptr, epilogue_ = nullptr;
  LinearOperands operands_;
};

}  // namespace

PassReport raise_linear_attention(Graph& graph) {
  PassReport report;
  for (OpId o : std::vector<OpId>(graph.order())) {
    auto joined = join_chunks(graph, o);
    PassReport of_joined;
    if (!joined || !Fuser(joined->graph, joined->root, of_joined).run())
      continue;  // cost: chunks stay as they are
    joined->graph.clean();
    if (joined->graph.use_count(joined->weights) > 0) {
      report.misses.push_back(
          {label(graph, o),
           "the sum of the weights of a chunk is used otherwise than to divide by it"});
      continue;
    }
    ++report.rewrites;
    graph = std::move(joined->graph);
  }
  for (OpId o : std::vector<OpId>(graph.order())) {
    const OpKind kind = graph.op(o).kind;
    if ((kind != OpKind::matmul && kind != OpKind::reduce) || graph.use_count(graph.result(o)) == 0)
      continue;  // cost: no sum
    if (!Fuser(graph, o, report).run()) continue;
    ++report.rewrites;
    graph.clean();
  }
  return report;
}

}  // namespace tfcc::passes
