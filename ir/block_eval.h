// SPDX-License-Identifier: Apache-2.0
// Expressions evaluated a block of elements at a time; internal to the evaluator. An expression
// becomes a list of nodes, children first, each with one register of kBlock numbers.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "ir/ir.h"

namespace tfcc::ir {

inline constexpr size_t kBlock = 256;

using SymbolValue = std::function<int64_t(std::string_view)>;

/// The parameters of each lane, by name: s of an epilogue or score, mean and rstd of the row that
/// it stands in, z of a linear attention, t of a gate.
struct BlockParams {
  const double* s = nullptr;
  const double* mean = nullptr;
  const double* rstd = nullptr;
  const double* z = nullptr;
  const double* t = nullptr;
};

/// Elements computed for a block: one of the two, by the expression's type.
struct BlockResult {
  const int64_t* ints = nullptr;
  const double* reals = nullptr;
};

/// A compiled expression over fixed operands.
class BlockProgram {
 public:
  BlockProgram(ExprRef e, std::vector<const HostTensor*> operands, const SymbolValue& symbol);

  /// Lanes 0..n-1; indices[k][lane] is index variable k. Valid until
  /// the next run. Loads out of range and bounded() count only where no lazy select skips them.
  BlockResult run(size_t n, std::span<const std::vector<int64_t>> indices,
                  const BlockParams& params);

  /// Flags raised so far, ascending; and whether an element outside a tensor was asked for, with
  /// the words for it.
  const std::vector<int64_t>& flags() const { return flags_; }
  const std::string& problem() const { return problem_; }

 private:
  struct Step {
    ExprRef node;
    std::vector<size_t> args;  // registers: args, then atoms of each term in order
    bool uniform = false;      // the same in every lane of every block
  };

  void compute(const Step& s, size_t n, std::span<const std::vector<int64_t>> indices,
               const BlockParams& params);
  void load(const Step& s, size_t n);
  void bounded(const Step& s, size_t n);
  void poly(const Step& s, size_t n);
  void at_least(const Step& s, size_t n);
  void compute_from_parts(const Step& s, size_t n);
  void decide(const Step& s, size_t n);
  void real_binary(const Step& s, size_t n);
  void real_unary(const Step& s, size_t n);
  void blame(size_t n);
  void mark(const Step& s, size_t lane);
  int64_t* ints(size_t reg) { return ints_.data() + reg * kBlock; }
  double* reals(size_t reg) { return reals_.data() + reg * kBlock; }
  size_t reg_of(const Step& s) const { return static_cast<size_t>(&s - steps_.data()); }

  std::vector<Step> steps_;
  std::vector<const HostTensor*> operands_;
  SymbolValue symbol_;
  std::vector<int64_t> ints_;
  std::vector<double> reals_;
  std::vector<std::pair<size_t, size_t>>
      marks_;  // (step, lane) that would be wrong if the lane is wanted
  bool uniform_done_ = false;
  std::vector<int64_t> flags_;
  std::string problem_;
};

}  // namespace tfcc::ir
