// SPDX-License-Identifier: Apache-2.0
// fuse-attention: the two products, everything elementwise between them and the softmax as one op.
//   before: %s = matmul(%q, %k) {trans_b = true}; %m = pointwise(%s, %mask) {...}; %p = softmax(%m); %o = matmul(%p, %v)
//   after:  %ctx = attention(%q2, %k2, %v2, %mask) {heads, score = (s,b,h,i,j) => ...}; %o = a view of %ctx
// q2, k2, v2 are token-major [B, S, heads * d]: an existing tensor where the graph has one, else
// one pointwise op each. Scales on q, k or the product move into the score. A guard that turns NaN
// into 0 after the softmax is dropped: a row without a visible key is 0 in the op. k and v that
// several heads share (GQA through Expand and Reshape: h / group) are not repeated. Scores have any
// leading dims: [B, H], [B * H], [B, H / group, group], none. Of several products at the score's
// own row and column the first is that of q and k; the others stay loads, as gathered ones do
// (relative positions). A product with its bias that q, k and v are pieces of stays a value, for
// fuse-linear-bias. Probabilities that are rounded to 16 bits before the product with v stay f32.
// A last column of scores that is no product is a sink: what stands behind the keys' own columns,
// or at a key whose value is 0.
//   before: %c = concat(%s, %sinks); %p = softmax(%c); %o = matmul(%p[.., :-1], %v)
//   after:  %ctx = attention(%q2, %k2, %v2, %sinks) {sink = (b,h) => %sinks[h], ..}
// Requires: the score reads the product at its own row and column alone; probabilities and scores
// have no other use; heads are known, at most 65535 of them, and at most 256 wide.
#include <algorithm>

#include "passes/heads.h"
#include "ir/ir.h"
#include "ir/matmul.h"
#include "passes/passes.h"

namespace tfcc::passes {
namespace {

struct Match {
  OpId softmax, product, context;  // product: q.k; context: p.v
  ExprRef load = nullptr;          // of the product, in raw_score
  ExprRef raw_score = nullptr;     // free, over (b,h,i,j)
  ExprRef score = nullptr;         // the same with param s for the scaled product
  ExprRef sink = nullptr;          // free, over (b,h); null: there is none
  ExprRef q = nullptr, k = nullptr,
          v = nullptr;  // free elements at (b,h,i,d), (b,h,j,d), (b,h,j,d)
  TokenMajor operands[3];
};

class Fuser {
 public:
  Fuser(Graph& g, OpId softmax, PassReport& report) : g_(g), report_(report) {
    m_.softmax = softmax;
  }

  bool run() {
    if (!find()) {
      if (!last_has_value_) return false;
      splits_ = false;
      if (!find()) return false;
    }
    rewrite();
    return true;
  }

 private:
  bool find() {
    m_ = Match{m_.softmax};
    return find_heads() && find_score() && find_context() && find_operands() && lay_out();
  }

  ExprPool& pool() { return g_.pool(); }
  const ir::Type& type(ValueId v) const { return g_.value(v).type; }

  bool miss(const std::string& reason) {
    report_.misses.push_back({label(g_, m_.softmax), reason});
    return false;
  }

  static std::vector<ExprRef> leading(const std::vector<ExprRef>& dims) {
    return {dims.begin(), dims.end() - 2};
  }

  // Indices of the matrix (b, h) in a tensor with these leading dims.
  Indices matrix(const std::vector<ExprRef>& dims) {
    const std::vector<ExprRef> pair{d_.batch, pool().integer(d_.heads)};
    return ir::reshape_indices(pool(), {at_[0], at_[1]}, pair, dims);
  }

  // What the leading dims of the scores are in terms of batch and heads.
  bool find_heads() {
    const ValueId x = g_.op(m_.softmax).operands[0];
    const auto& dims = type(x).dims;
    if (dims.size() < 2) return miss("the scores are no matrices");
    std::vector<ExprRef> among;
    if (dims.size() == 3) {
      // Where the batch is known too, only what is read tells heads from it.
      among.push_back(expanded(g_, x, ir::indices_of(g_, x)));
      for (ValueId v : ir::loads_of(among[0])) {
        const ir::Op* op = g_.def(v);
        if (op && ir::is_plain_product(*op))
          among.push_back(expanded(g_, op->operands[0], ir::indices_of(g_, op->operands[0])));
      }
    }
    const auto d = head_dims(g_, leading(dims), among);
    if (!d) return miss("the number of heads is not known at compile time");
    if (d->heads > kMostHeads) return miss("there are more than 65535 heads");
    d_ = *d;
    keys_ = dims.back();
    at_ =
        ir::indices_of(pool(), {d_.batch, pool().integer(d_.heads), dims[dims.size() - 2], keys_});
    return true;
  }

  Indices with_matrix(const std::vector<ExprRef>& dims, ExprRef row, ExprRef column) {
    Indices at = matrix(leading(dims));
    at.insert(at.end(), {row, column});
    return at;
  }

  // A product that the softmax's argument reads at the softmax's own row and column, and nowhere
  // else.
  bool find_score() {
    const ValueId x = g_.op(m_.softmax).operands[0];
    m_.raw_score = expanded(g_, x, with_matrix(type(x).dims, at_[2], at_[3]));
    if (products_in(m_.raw_score).empty()) return miss("no product in the score");
    split_sink();
    const std::vector<ExprRef> products = products_in(m_.raw_score);
    auto once = [&](ExprRef n) {
      return std::ranges::count_if(products, [&](ExprRef p) { return p->value == n->value; }) == 1;
    };
    for (ExprRef n : products) {
      const size_t r = n->args.size();
      if (!m_.load && n->args[r - 2] == at_[2] && n->args[r - 1] == at_[3] && once(n)) m_.load = n;
    }
    if (!m_.load) return miss("the score reads a product at other indices than its own");
    m_.product = g_.value(value_of(m_.load)).def;
    if (g_.op(m_.product).as<ir::MatmulAttrs>().epilogue)
      return miss("the product of q and k has a bias");
    return true;
  }

  std::vector<ExprRef> products_in(ExprRef e) const {
    std::vector<ExprRef> products;
    ir::for_each_node(e, [&](ExprRef n) {
      if (n->kind == ExprKind::load && is_product(n)) products.push_back(n);
    });
    return products;
  }

  static ExprRef with_key(ExprRef e, ExprRef j) {
    return ir::substitute_indices(e, {nullptr, nullptr, nullptr, j});
  }

  // A last column without a product, the same for all queries, is none of a key.
  void split_sink() {
    ExprRef last = ir::sub(keys_, pool().integer(1)), sink = with_key(m_.raw_score, last);
    if (!splits_ || !ir::prove_ge0(last)) return;
    if (ir::uses_index(sink, ir::kQuery) || !products_in(sink).empty()) return;
    m_.sink = sink;
    keys_ = last;
    at_[3] = ir::indices_of(pool(), {keys_, keys_, keys_, keys_})[3];
    m_.raw_score = with_key(m_.raw_score, at_[3]);
  }

  static ValueId value_of(ExprRef load) { return ValueId{static_cast<uint32_t>(load->value)}; }
  bool is_product(ExprRef load) const {
    const ir::Op* op = g_.def(value_of(load));
    return op && ir::is_plain_product(*op);
  }

  // IsNaN and Where are two ops: the guard is the one that reads the other.
  bool only_for(OpId condition, OpId guard) {
    const ValueId c = g_.result(condition);
    return !g_.is_output(c) &&
           std::ranges::all_of(g_.value(c).users, [&](OpId u) { return u == guard; });
  }

  // Follows the probabilities through single-use elementwise ops to the product with v.
  bool find_context() {
    ValueId p = g_.result(m_.softmax);
    const ValueId first = p;
    for (int step = 0; step < 8; ++step) {
      if (g_.is_output(p)) return miss("the probabilities are an output");
      for (OpId user : g_.value(p).users) {
        const ir::Op& op = g_.op(user);
        if (ir::is_plain_product(op) && op.operands[0] == p && op.operands[1] != p) {
          if (g_.use_count(p) != 1) return miss("the probabilities have another use");
          return check_context(user, first);
        }
      }
      // A guard reads its operand twice in one op: one user, perhaps several uses.
      const auto& users = g_.value(p).users;
      if (users.empty()) return miss("the probabilities are not used");
      OpId next = users[0];
      for (OpId u : users) {
        if (type(g_.result(u)).dtype != DType::boolean) next = u;
      }
      for (OpId u : users) {
        if (u != next && !only_for(u, next)) return miss("the probabilities have another use");
      }
      if (g_.op(next).kind != OpKind::pointwise)
        return miss("the probabilities are not multiplied by values");
      p = g_.result(next);
    }
    return miss("the probabilities are not multiplied by values");
  }

  bool check_context(OpId context, ValueId probabilities) {
    const ir::Op& op = g_.op(context);
    const auto& attrs = op.as<ir::MatmulAttrs>();
    if (attrs.trans_a) return miss("the product with v is scaled, transposed or has a bias");
    const auto& dims = type(op.operands[0]).dims;
    const auto& out = type(op.results[0]).dims;
    ExprRef matrices = ir::mul(d_.batch, pool().integer(d_.heads));
    if (ir::element_count(pool(), leading(dims)) != matrices ||
        ir::element_count(pool(), leading(out)) != matrices) {
      return miss("the product with v has other leading dims than the scores");
    }
    const auto& scores = type(probabilities).dims;
    ExprRef p = ir::load_of(g_, probabilities, with_matrix(scores, at_[2], at_[3]));
    if (!is_probability(expanded(g_, op.operands[0], with_matrix(dims, at_[2], at_[3])), p)) {
      return miss("the probabilities are changed before the product with v");
    }
    if (attrs.alpha != 1 || attrs.epilogue)
      return miss("the product with v is scaled, transposed or has a bias");
    m_.context = context;
    return true;
  }

  // The element of operand i of a product, whose leading dims have these indices, at (row, column)
  // of the untransposed operand.
  ExprRef operand(OpId product, size_t i, bool swap, const Indices& lead, ExprRef row,
                  ExprRef column) {
    const ValueId v = g_.op(product).operands[i];
    const Indices at = ir::factor_indices(g_, v, swap, lead, row, column);
    return expanded(g_, v, at, [&](ValueId x) { return is_biased_product(g_, x); });
  }

  bool find_operands() {
    const ir::Op& product = g_.op(m_.product);
    const auto& qk = product.as<ir::MatmulAttrs>();
    const auto& dq = type(product.operands[0]).dims;
    ExprRef size = qk.trans_a ? dq[dq.size() - 2] : dq.back();
    const auto& pv = g_.op(m_.context).as<ir::MatmulAttrs>();
    const auto& out = type(g_.op(m_.context).results[0]).dims;
    if (!ir::as_int(size) || !ir::as_int(out.back()))
      return miss("the head size is not known at compile time");
    if (*ir::as_int(size) > kLargestHead || *ir::as_int(out.back()) > kLargestHead)
      return miss("the head size is over 256");
    if (m_.load->type != Scalar::f32)
      return miss("the scores are " + ir::to_string(type(g_.result(m_.product))) +
                  "; the op computes in f32");
    if (type(g_.op(m_.context).operands[1]).dtype != type(product.operands[0]).dtype)
      return miss("q and v have different types");
    const Indices lead(m_.load->args.begin(), m_.load->args.end() - 2);
    ExprRef d = ir::indices_of(pool(), {size, size, size, size})[3],
            dv = ir::indices_of(pool(), {size, size, size, out.back()})[3];
    m_.q = operand(m_.product, 0, qk.trans_a, lead, at_[2], d);
    m_.k = operand(m_.product, 1, !qk.trans_b, lead, key(),
                   d);  // stored [.., j, d] with trans_b, else [.., d, j]
    m_.v = operand(m_.context, 1, pv.trans_b, matrix(leading(out)), key(), dv);
    const double scale = qk.alpha * peel_scale(m_.q) * peel_scale(m_.k);
    ExprRef s = pool().param("s", Scalar::f32);
    ExprRef scaled = scale == 1 ? s : ir::mul(s, pool().real(scale));
    m_.score =
        ir::rewrite(m_.raw_score, [&](ExprRef n) { return n == m_.load ? scaled : nullptr; });
    if (m_.score->type != Scalar::f32)
      return miss("the score is not f32");  // cost: nor are v or the probabilities then
    if (const ExprRef more = ir::sub(columns_of_context(), keys_); !ir::is_int(more, 0)) {
      if (!m_.sink || !ir::is_int(more, 1))
        return miss("the probabilities are changed before the product with v");
      ExprRef of_sink = operand(m_.context, 1, pv.trans_b, matrix(leading(out)), keys_, dv);
      last_has_value_ = ir::as_real(of_sink) != 0.0;
      if (last_has_value_) return false;  // a key, whose score is no product for a mask hides it
    }
    sizes_ = {size, out.back()};
    return true;
  }

  // Keys are tokens: index variable 2 of their layout.
  ExprRef key() { return ir::indices_of(pool(), {d_.batch, d_.batch, keys_})[2]; }
  // Of the probabilities that are multiplied by v.
  ExprRef columns_of_context() { return type(g_.op(m_.context).operands[0]).dims.back(); }
  ExprRef queries() {
    const auto& dims = type(g_.op(m_.softmax).operands[0]).dims;
    return dims[dims.size() - 2];
  }

  // The element over heads that `group` query heads share, if e is the same for all of a group.
  ExprRef shared(ExprRef e, int64_t group) {
    ExprRef h = ir::indices_of(pool(), {d_.batch, pool().integer(d_.heads / group)})[1];
    ExprRef member = pool().index(4, pool().integer(group));
    ExprRef r =
        ir::substitute_indices(e, {nullptr, ir::add(ir::mul(h, pool().integer(group)), member)});
    return ir::uses_index(r, 4) ? nullptr : r;
  }

  // Grouped and multi-query attention: k and v read h only as h / group, so they are not repeated.
  int64_t find_group() {
    for (int64_t group = d_.heads; group > 1; --group) {
      if (d_.heads % group != 0) continue;  // cost: such heads are not shared
      ExprRef k = shared(m_.k, group);
      ExprRef v = k ? shared(m_.v, group) : nullptr;
      if (!v) continue;
      m_.k = k;
      m_.v = v;
      return group;
    }
    return 1;
  }

  bool lay_out() {
    const DType dtype = type(g_.op(m_.product).operands[0]).dtype;
    kv_heads_ = d_.heads / find_group();
    ExprRef heads = pool().integer(d_.heads), kv_heads = pool().integer(kv_heads_);
    m_.operands[0] = token_major(g_, m_.q, {d_.batch, heads, queries(), sizes_[0]}, dtype);
    m_.operands[1] = token_major(g_, m_.k, {d_.batch, kv_heads, keys_, sizes_[0]}, dtype);
    m_.operands[2] = token_major(g_, m_.v, {d_.batch, kv_heads, keys_, sizes_[1]}, dtype);
    for (const TokenMajor& t : m_.operands) {
      const std::string problem = t.existing ? "" : ir::body_problem(g_, t.body, t.type.dims);
      if (!problem.empty())
        return miss("q, k or v by token: " + problem);  // cost: the verifier would undo the pass
    }
    const std::string problem =
        ir::body_problem(g_, m_.score, {d_.batch, heads, queries(), keys_}, true);
    if (!problem.empty())
      return miss("the score: " + problem);  // cost: the verifier would undo the pass
    const std::string of_sink =
        m_.sink ? ir::body_problem(g_, m_.sink, {d_.batch, heads}) : std::string();
    if (!of_sink.empty())
      return miss("the sink: " + of_sink);  // cost: the verifier would undo the pass
    return true;
  }

  void rewrite() {
    const ValueId out = g_.op(m_.context).results[0];
    const ir::Type out_type = type(out);
    const std::string base = g_.value(out).name, origin = g_.op(m_.softmax).origin;
    static constexpr const char* kNames[] = {".q", ".k", ".v"};
    std::vector<ValueId> operands;
    for (size_t i = 0; i < 3; ++i)
      operands.push_back(add_token_major(g_, m_.operands[i], base + kNames[i], origin));
    ir::AttentionAttrs attrs;
    attrs.heads = d_.heads;
    attrs.kv_heads = kv_heads_;
    std::vector<ExprRef> bodies{m_.score};
    if (m_.sink) bodies.push_back(m_.sink);
    bodies = ir::capture(bodies, operands);
    attrs.score = bodies[0];
    if (m_.sink) attrs.sink = bodies[1];
    ExprRef heads = pool().integer(d_.heads);
    const ir::Type t{out_type.dtype, {d_.batch, queries(), ir::mul(heads, sizes_[1])}};
    const ValueId ctx = g_.add(OpKind::attention, operands, attrs, t, base + ".ctx", origin);
    // Back to the layout that the readers of the product with v expect.
    const Indices at = ir::indices_of(pool(), out_type.dims);
    const Indices pair = ir::reshape_indices(pool(), {at.begin(), at.end() - 2},
                                             leading(out_type.dims), {d_.batch, heads});
    ExprRef element = ir::load_of(
        g_, ctx, {pair[0], at[at.size() - 2], ir::add(ir::mul(pair[1], sizes_[1]), at.back())});
    ir::Captured c = ir::capture(element);
    g_.replace_uses(out,
                    g_.add_pointwise(c.operands, c.body, out_type, base, g_.op(m_.context).origin));
  }

  static constexpr int64_t kLargestHead = 256;
  Graph& g_;
  PassReport& report_;
  Match m_;
  HeadDims d_;
  Indices at_;  // b, h, i, j
  ExprRef keys_ = nullptr;
  bool splits_ = true, last_has_value_ = false;
  std::vector<ExprRef> sizes_;  // of a head of q and k, of a head of v
  int64_t kv_heads_ = 0;
};

}  // namespace

PassReport fuse_attention(Graph& graph) {
  PassReport report;
  for (OpId o : std::vector<OpId>(graph.order())) {
    if (graph.op(o).kind != OpKind::softmax || graph.use_count(graph.result(o)) == 0) continue;
    report.rewrites += Fuser(graph, o, report).run();
  }
  return report;
}

}  // namespace tfcc::passes
