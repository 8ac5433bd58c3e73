// SPDX-License-Identifier: Apache-2.0
// Runs a case of the table: compiles its graph to a file, loads that with the public API, and
// compares every output with the evaluator's.
#pragma once

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "tools/compiler/compile_graph.h"
#include "runtime/tfcc.h"
#include "tests/templates/cases.h"

namespace tfcc::test {

/// What a case is compiled for and where it runs.
struct Where {
  std::string target;  // "x86-64-v2", "sm_90", "compute_80"
  Family family = Family::cpu;
  DType storage = DType::f32;  // f16, bf16: after convert-precision-f16, -bf16
  int tf32 = 0;                // products in TF32 for one of f32: none, 1 or 3

  bool half() const { return storage != DType::f32; }
};

/// A file that is gone with the object.
class ScratchFile {
 public:
  ScratchFile();
  ~ScratchFile();
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// Compiles and runs `c` at all its shapes, up and down again on one executor, then on another one
/// that must give the same bits; fails the test on any difference.
void check_case(const Case& c, const Where& where);
/// Runs a case over packed rows (inputs x, mask and p, output y) with one sequence, and with the
/// same one first and last among others that make the batch longer: its rows of y must have the
/// same bits.
void check_sequence_alone(const Case& c, const Where& where);
/// Runs a case of one sequence at growing lengths: results of its first rows must have the same bits
/// whatever rows follow, but those of `left_out`. Inputs are reals [.., rows, width] or whole numbers.
void check_first_rows(const Case& c, const Where& where, const std::set<std::string>& left_out);
/// Runs a case by twelve executors at once, each many times: all give the bits that one gave alone.
void check_at_once(const Case& c, const Where& where, const std::vector<int64_t>& shape);
/// Compiles alone: kernels that spill registers fail the test.
void compile_case(const Case& c, const Where& where);

}  // namespace tfcc::test
