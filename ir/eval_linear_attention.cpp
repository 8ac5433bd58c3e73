// SPDX-License-Identifier: Apache-2.0
// The evaluator's linear attention: sums run over the tokens in order, in float64; with `causal` a
// query follows the key of its token.
#include <algorithm>
#include <cmath>

#include "ir/elements.h"
#include "ir/eval_ops.h"

namespace tfcc::ir {
namespace {

class LinearAttention {
 public:
  explicit LinearAttention(OpRun& run)
      : run_(run),
        attrs_(run.op.as<LinearAttentionAttrs>()),
        at_(4, std::vector<int64_t>(kBlock)) {}

  void run() {
    const bool packed = !attrs_.packed.empty();
    const int64_t heads = attrs_.heads, group = heads / attrs_.kv_heads;
    const int64_t batch = packed ? run_.operands[4]->dims[0] : q().dims[0];
    for (int64_t b = 0; b < batch; ++b) {
      for (int64_t h = 0; h < heads; ++h)
        sequence(packed ? packed_rows(b)
                        : Rows{b * q().dims[1], q().dims[1], b * k().dims[1], k().dims[1], nullptr},
                 b, h, h / group, h % group == 0);
    }
    collect_all();
  }

  void run_step() {
    run_.results[1].reals = run_.operands[6]->reals;
    for (int64_t n = 0; n < run_.operands[4]->dims[0]; ++n) {
      for (int64_t h = 0; h < attrs_.heads; ++h) go_on(n, h);
    }
    collect_all();
  }

 private:
  struct Body {
    std::optional<BlockProgram> program;
    Body(ExprRef e, OpRun& run) {
      if (e) program.emplace(e, run.operands, run.symbol);
    }
  };
  /// Rows of a sequence in q and in k, and the tokens that they stand for: their numbers if
  /// `positions` is null.
  struct Rows {
    int64_t first_query, queries, first_key, keys;
    const int64_t* positions;
    int64_t token(int64_t row) const { return positions ? positions[row] : row; }
  };

  void collect_all() {
    for (const Body* body : {&q_map_, &k_map_, &visible_, &decay_, &beta_, &epilogue_}) {
      if (body->program) collect(run_, *body->program);
    }
  }

  const HostTensor& q() const { return *run_.operands[0]; }
  const HostTensor& k() const { return *run_.operands[1]; }
  const HostTensor& v() const { return *run_.operands[2]; }

  Rows packed_rows(int64_t b) const {
    const auto &cu = run_.operands[3]->ints, &keys = run_.operands[4]->ints,
               &pos = run_.operands[6]->ints;
    const auto at = static_cast<size_t>(b);
    return {cu[at], cu[at + 1] - cu[at], cu[at], keys[at], pos.data() + cu[at]};
  }

  /// x becomes its softmax.
  static void soften(std::vector<double>& x) {
    const double top = *std::ranges::max_element(x);
    double sum = 0;
    for (double& e : x) sum += e = std::exp(e - top);
    for (double& e : x) e /= sum;
  }

  /// The features of a token: its row of a head in q or k, under softmax and map.
  std::vector<double> features(Body& map, bool softmax, int64_t b, int64_t h, int64_t t,
                               const double* row) {
    std::vector<double> x(row, row + d());
    if (softmax) soften(x);
    return channels(map, b, h, t, d(), x.data(), nullptr);
  }

  /// `body` of `n` channels of a token; without one they are s.
  std::vector<double> channels(Body& body, int64_t b, int64_t h, int64_t t, int64_t n,
                               const double* s, const double* z) {
    std::vector<double> out(s, s + n);
    if (!body.program) return out;
    for (int64_t first = 0; first < n; first += kBlock) {
      const auto count = static_cast<size_t>(std::min<int64_t>(kBlock, n - first));
      for (size_t l = 0; l < count; ++l)
        at_[kOfBatch][l] = b, at_[kOfHead][l] = h, at_[kOfToken][l] = t,
        at_[kOfChannel][l] = first + static_cast<int64_t>(l);
      const double* r =
          body.program->run(count, at_, {.s = s + first, .z = z ? z + first : nullptr}).reals;
      std::copy(r, r + count, out.begin() + first);
    }
    return out;
  }

  BlockResult of_token(Body& body, int64_t b, int64_t h, int64_t t) {
    at_[kOfBatch][0] = b, at_[kOfHead][0] = h, at_[kOfToken][0] = t;
    return body.program->run(1, at_, {});
  }

  /// The sums of a head: keys times values [d, dv], and keys [d].
  struct Sums {
    std::vector<double> products, keys;
  };

  int64_t d() const { return q().dims[2] / attrs_.heads; }
  int64_t dv() const { return v().dims[2] / attrs_.kv_heads; }
  Sums no_sums() const {
    return {std::vector<double>(static_cast<size_t>(d() * dv())),
            std::vector<double>(static_cast<size_t>(d()))};
  }

  // Token t, whose key is row `row`, joins the sums.
  void add_key(Sums& sums, int64_t b, int64_t h, int64_t g, int64_t t, int64_t row) {
    if (decay_.program) {
      const double factor = std::exp(of_token(decay_, b, h, t).reals[0]);
      for (double& x : sums.products) x *= factor;
      for (double& x : sums.keys) x *= factor;
    }
    if (visible_.program && of_token(visible_, b, g, t).ints[0] == 0) return;
    const std::vector<double> key = features(k_map_, attrs_.k_softmax(), b, g, t,
                                             k().reals.data() + row * k().dims[2] + g * d());
    const double* stored = v().reals.data() + row * v().dims[2] + g * dv();
    std::vector<double> value(stored, stored + dv());
    if (beta_.program) {
      const double rate = of_token(beta_, b, g, t).reals[0];
      for (int64_t m = 0; m < dv(); ++m) {
        double known = 0;
        for (int64_t e = 0; e < d(); ++e)
          known += key[static_cast<size_t>(e)] * sums.products[static_cast<size_t>(e * dv() + m)];
        value[static_cast<size_t>(m)] = rate * (value[static_cast<size_t>(m)] - known);
      }
    }
    for (int64_t e = 0; e < d(); ++e) {
      sums.keys[static_cast<size_t>(e)] += key[static_cast<size_t>(e)];
      for (int64_t m = 0; m < dv(); ++m)
        sums.products[static_cast<size_t>(e * dv() + m)] +=
            key[static_cast<size_t>(e)] * value[static_cast<size_t>(m)];
    }
  }

  // What token t, whose query is row `row`, sees of the sums.
  void answer(const Sums& sums, int64_t b, int64_t h, int64_t t, int64_t row) {
    const std::vector<double> query = features(q_map_, attrs_.q_softmax(), b, h, t,
                                               q().reals.data() + row * q().dims[2] + h * d());
    std::vector<double> s(static_cast<size_t>(dv())), z(static_cast<size_t>(dv()));
    double all = 0;
    for (int64_t e = 0; e < d(); ++e) {
      const double f = query[static_cast<size_t>(e)];
      all += f * sums.keys[static_cast<size_t>(e)];
      for (int64_t m = 0; m < dv(); ++m)
        s[static_cast<size_t>(m)] += f * sums.products[static_cast<size_t>(e * dv() + m)];
    }
    std::fill(z.begin(), z.end(), all);
    const std::vector<double> y = channels(epilogue_, b, h, t, dv(), s.data(), z.data());
    std::copy(y.begin(), y.end(),
              run_.results[0].reals.begin() + row * attrs_.heads * dv() + h * dv());
  }

  // `first`: of the heads with these keys, which leaves their sums.
  void sequence(const Rows& rows, int64_t b, int64_t h, int64_t g, bool first) {
    Sums sums = no_sums();
    if (attrs_.state) {
      const HostTensor& before = *run_.operands[3];
      each_of(sums, before.dims[2], b, g, [&](size_t i, double& x) { x = before.reals[i]; });
    }
    const auto query = [&](int64_t i) { answer(sums, b, h, rows.token(i), rows.first_query + i); };
    for (int64_t j = 0; j < rows.keys; ++j) {
      add_key(sums, b, h, g, rows.token(j), rows.first_key + j);
      if (attrs_.causal && j < rows.queries) query(j);
    }
    for (int64_t i = attrs_.causal ? rows.keys : 0; i < rows.queries; ++i) query(i);
    if (attrs_.state && first)
      each_of(sums, run_.operands[3]->dims[2], b, g,
              [&](size_t i, double& x) { run_.results[1].reals[i] = x; });
  }

  // f of each number of head g in a slot of states of `rows` rows, and its place in the sums, where
  // row dv is that of the keys.
  template <class F> void each_of(Sums& sums, int64_t rows, int64_t slot, int64_t g, const F& f) {
    for (int64_t m = 0; m < rows; ++m) {
      for (int64_t e = 0; e < d(); ++e) {
        f(static_cast<size_t>(((slot * attrs_.kv_heads + g) * rows + m) * d() + e),
          m < dv() ? sums.products[static_cast<size_t>(e * dv() + m)]
                   : sums.keys[static_cast<size_t>(e)]);
      }
    }
  }

  // Head h of the sequence at `n` goes on. Heads with the same keys have the same sums, which the
  // first of them leaves.
  void go_on(int64_t n, int64_t h) {
    const auto at = static_cast<size_t>(n);
    const HostTensor& before = *run_.operands[6];
    const int64_t g = h / (attrs_.heads / attrs_.kv_heads), slots = before.dims[0],
                  rows = before.dims[2], from = run_.operands[4]->ints[at],
                  to = run_.operands[5]->ints[at];
    Sums sums = no_sums();
    if (from >= 0 && from < slots)
      each_of(sums, rows, from, g, [&](size_t i, double& x) { x = before.reals[i]; });
    for (int64_t t = run_.operands[3]->ints[at]; t < run_.operands[3]->ints[at + 1]; ++t) {
      add_key(sums, 0, h, g, t, t);
      answer(sums, 0, h, t, t);
    }
    if (to >= 0 && to < slots && h % (attrs_.heads / attrs_.kv_heads) == 0)
      each_of(sums, rows, to, g, [&](size_t i, double& x) { run_.results[1].reals[i] = x; });
  }

  OpRun& run_;
  const LinearAttentionAttrs& attrs_;
  Body q_map_{attrs_.q_map, run_}, k_map_{attrs_.k_map, run_}, visible_{attrs_.visible, run_},
      decay_{attrs_.decay, run_}, beta_{attrs_.beta, run_}, epilogue_{attrs_.epilogue, run_};
  std::vector<std::vector<int64_t>> at_;
};

}  // namespace

void eval_linear_attention(OpRun& run) { LinearAttention(run).run(); }
void eval_linear_attention_step(OpRun& run) { LinearAttention(run).run_step(); }

}  // namespace tfcc::ir
