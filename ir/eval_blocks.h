// SPDX-License-Identifier: Apache-2.0
// Bodies over boxes of dims, a block of elements at a time; internal to the evaluator.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "ir/eval_ops.h"

namespace tfcc::ir {

/// Walks a box of dims in row-major order, a block of lanes at a time.
class Odometer {
 public:
  explicit Odometer(std::vector<int64_t> dims)
      : dims_(std::move(dims)), at_(dims_.size(), 0), lanes_(dims_.size()) {
    for (auto& l : lanes_) l.resize(kBlock);
    for (int64_t d : dims_) total_ *= d;
  }
  int64_t total() const { return total_; }

  /// The next n positions; lane k of dim d is result[d][k].
  const std::vector<std::vector<int64_t>>& take(size_t n) {
    for (size_t lane = 0; lane < n; ++lane) {
      for (size_t d = 0; d < dims_.size(); ++d) lanes_[d][lane] = at_[d];
      for (size_t d = dims_.size(); d-- > 0;) {
        if (++at_[d] < dims_[d]) break;
        at_[d] = 0;
      }
    }
    return lanes_;
  }

 private:
  std::vector<int64_t> dims_, at_;
  std::vector<std::vector<int64_t>> lanes_;
  int64_t total_ = 1;
};

/// Calls f(first, n, block) for all elements of `body` over `dims`; `params` have the parameters of
/// each.
template <class F>
void for_each_block(OpRun& run, ExprRef body, std::vector<int64_t> dims, F f,
                    const BlockParams& params = {}) {
  BlockProgram program(body, run.operands, run.symbol);
  Odometer odometer(std::move(dims));
  for (int64_t first = 0; first < odometer.total(); first += kBlock) {
    const size_t n = static_cast<size_t>(std::min<int64_t>(kBlock, odometer.total() - first));
    const auto from = [&](const double* p) { return p ? p + first : nullptr; };
    f(first, n,
      program.run(n, odometer.take(n),
                  {from(params.s), from(params.mean), from(params.rstd), nullptr, from(params.t)}));
  }
  collect(run, program);
}

// Integers wrap like the machine's; C++ would call that undefined for signed types.
inline double plus(double a, double b) { return a + b; }
inline double times(double a, double b) { return a * b; }
inline int64_t plus(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
}
inline int64_t times(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
}

}  // namespace tfcc::ir
