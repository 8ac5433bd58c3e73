// SPDX-License-Identifier: Apache-2.0
// The host reference of every op, in float64; internal to the evaluator.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "ir/block_eval.h"

namespace tfcc::ir {

/// One op about to run: operands are there, results have type and dims and are filled in.
struct OpRun {
  const Op& op;
  SymbolValue symbol;
  std::vector<const HostTensor*> operands;
  std::vector<HostTensor> results;
  std::set<int64_t> flags;  // raised by bounded()
  std::string problem;      // an element outside a tensor was asked for
};

/// The rows that a pack of [batch, length] leaves: the size that it makes. Its results have their
/// dims only then.
int64_t count_packed(OpRun& run, int64_t batch, int64_t length);

/// Runs any op but a constant.
void eval_op(OpRun& run);

/// Takes note of what a program that has run met.
void collect(OpRun& run, const BlockProgram& program);

/// The definition of one op, of its name.
#define TFCC_OP(name, attrs, summary) void eval_##name(OpRun& run);
#include "ir/ops.def"
#undef TFCC_OP

/// c[m,n] = alpha * a[m,k] * b[k,n], row-major.
void multiply(const double* a, const double* b, double* c, int64_t m, int64_t n, int64_t k,
              double alpha);

}  // namespace tfcc::ir
