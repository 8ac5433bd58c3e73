// SPDX-License-Identifier: Apache-2.0
// The evaluator's attention, over rows, packed rows and pages.
#include <algorithm>
#include <cmath>
#include <limits>

#include "ir/elements.h"
#include "ir/eval_ops.h"

namespace tfcc::ir {
namespace {

/// One query row of one head at a time: scores of all keys in blocks, softmax over the visible
/// ones, weighted sum.
class Attention {
 public:
  explicit Attention(OpRun& run)
      : run_(run),
        attrs_(run.op.as<AttentionAttrs>()),
        q_(*run.operands[0]),
        k_(*run.operands[1]),
        v_(*run.operands[2]),
        score_(attrs_.score, run.operands, run.symbol),
        sink_(attrs_.sink ? attrs_.sink
                          : attrs_.score->pool->real(-std::numeric_limits<double>::infinity()),
              run.operands, run.symbol),
        visible_(attrs_.visible ? attrs_.visible : attrs_.score->pool->boolean(true), run.operands,
                 run.symbol),
        at_(4, std::vector<int64_t>(kBlock)) {}

  void run() {
    const bool packed = !attrs_.packed.empty();
    const int64_t batch = packed ? run_.operands[4]->dims[0] : q_.dims[0];
    for (int64_t b = 0; b < batch; ++b) {
      const Sequence s =
          packed ? packed_sequence(b)
                 : Sequence{b, b * q_.dims[1], q_.dims[1], b * k_.dims[1], k_.dims[1], nullptr};
      weights_.resize(static_cast<size_t>(s.keys));
      for (int64_t h = 0; h < attrs_.heads; ++h) {
        for (int64_t i = 0; i < s.queries; ++i) row(s, h, i);
      }
    }
    collect(run_, score_);
    collect(run_, sink_);
    collect(run_, visible_);
  }

 private:
  /// Rows of a sequence in q and k, and where they stand in the padded tensors: where they are, if
  /// positions is null.
  struct Sequence {
    int64_t number, first_query, queries, first_key, keys;
    const int64_t* positions;
    int64_t position(int64_t row) const { return positions ? positions[row] : row; }
  };

  Sequence packed_sequence(int64_t b) const {
    const auto &cu = run_.operands[3]->ints, &keys = run_.operands[4]->ints,
               &pos = run_.operands[6]->ints;
    const auto at = static_cast<size_t>(b);
    return {b, cu[at], cu[at + 1] - cu[at], cu[at], keys[at], pos.data() + cu[at]};
  }

  /// The row of key j in k or v.
  const double* key_row(const HostTensor& of, const Sequence& s, int64_t group, int64_t j,
                        int64_t width) const {
    if (!attrs_.page) return of.reals.data() + (s.first_key + j) * of.dims[2] + group * width;
    const HostTensor& table = *run_.operands[7];
    const int64_t entry =
        table.ints[static_cast<size_t>(s.number * table.dims[1] + j / *attrs_.page)];
    const int64_t page = std::clamp<int64_t>(entry, 0, of.dims[0] - 1);  // as kernels do
    return of.reals.data() +
           ((page * of.dims[1] + group) * *attrs_.page + j % *attrs_.page) * width;
  }

  void row(const Sequence& s, int64_t h, int64_t i) {
    const int64_t keys = s.keys, group = h / (attrs_.heads / attrs_.kv_heads);
    const int64_t width = q_.dims[2] / attrs_.heads,
                  out_width = attrs_.page ? v_.dims[3] : v_.dims[2] / attrs_.kv_heads;
    const double* query = q_.reals.data() + (s.first_query + i) * q_.dims[2] + h * width;
    for (int64_t first = 0; first < keys; first += kBlock) {
      const size_t n = static_cast<size_t>(std::min<int64_t>(kBlock, keys - first));
      double dot[kBlock];
      for (size_t l = 0; l < n; ++l) {
        const int64_t j = first + static_cast<int64_t>(l);
        const double* key = key_row(k_, s, group, j, width);
        at_[kBatch][l] = s.number;
        at_[kHead][l] = h;
        at_[kQuery][l] = s.position(i);
        at_[kKey][l] = attrs_.page ? j : s.position(j);
        dot[l] = 0;
        for (int64_t d = 0; d < width; ++d) dot[l] += query[d] * key[d];
      }
      const BlockResult scores = score_.run(n, at_, {dot}), visible = visible_.run(n, at_, {dot});
      for (size_t l = 0; l < n; ++l) {
        weights_[static_cast<size_t>(first) + l] = {scores.reals[l], visible.ints[l] != 0};
      }
    }
    at_[kBatch][0] = s.number, at_[kHead][0] = h;
    apply_softmax(sink_.run(1, at_, {}).reals[0]);
    double* out = run_.results[0].reals.data() + (s.first_query + i) * attrs_.heads * out_width +
                  h * out_width;
    std::fill_n(out, out_width, 0.0);
    for (int64_t j = 0; j < keys; ++j) {
      const Weight& w = weights_[static_cast<size_t>(j)];
      const double* value = key_row(v_, s, group, j, out_width);
      for (int64_t d = 0; w.visible && d < out_width; ++d) out[d] += w.value * value[d];
    }
  }

  void apply_softmax(double sink) {
    constexpr double kNone = -std::numeric_limits<double>::infinity();
    double top = kNone, sum = 0;
    for (const Weight& w : weights_) {
      if (w.visible && (std::isnan(w.value) || w.value > top)) top = w.value;  // NaN wins
    }
    const double beside = top == kNone ? kNone : sink - top;
    if (top == kNone) top = 0;  // no key, or none above -inf: all weights are 0, as in the kernels
    for (Weight& w : weights_) {
      if (w.visible) sum += w.value = std::exp(w.value - top);
    }
    sum += std::exp(beside);
    for (Weight& w : weights_) w.value = sum == 0 ? 0 : w.value / sum;
  }

  struct Weight {
    double value;
    bool visible;
  };
  OpRun& run_;
  const AttentionAttrs& attrs_;
  const HostTensor &q_, &k_, &v_;
  BlockProgram score_, sink_, visible_;
  std::vector<std::vector<int64_t>> at_;  // of each index, the values of a block
  std::vector<Weight> weights_;
};

}  // namespace

void eval_attention(OpRun& run) { Attention(run).run(); }

}  // namespace tfcc::ir
