// SPDX-License-Identifier: Apache-2.0
// IR to plan: one launch per op, a buffer per value, kernels as source text. The plan is data
// (runtime/core/manifest.h); the two families differ in templates and in how a launch is sized, not
// in structure.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "codegen/plan/weights.h"
#include "codegen/target.h"
#include "ir/graph.h"
#include "runtime/core/manifest.h"

namespace tfcc::codegen {

/// A kernel to be compiled; plan.kernels has the same index.
struct KernelSource {
  std::string name;
  std::string text;

  bool operator==(const KernelSource&) const = default;
};

/// What the user promised of a size beside its range, which is in the graph.
struct SizeOption {
  int64_t typical = 0;             // memory is planned for it; 0: not said
  std::string min_from, max_from;  // options that set the range, for messages: "--max-batch 32"
};

struct LowerOptions {
  bool batch_variance =
      false;  // generation: a library may compute products of many rows, in an order of its own
  std::string precision = "f32";            // of products and stores; runtime::kTf32: stores of f32
  std::map<std::string, SizeOption> sizes;  // by name of the symbol
  std::vector<int64_t>
      lengths;  // CUDA: a set of kernels and graphs up to each, ascending; none: attention_lengths() and any
};

struct Lowered {
  runtime::Plan plan;
  std::vector<KernelSource> kernels;

  bool operator==(const Lowered&) const = default;
};

/// Errors: unsupported (an op that the family has no kernel for), internal.
Result<Lowered> lower(const ir::Graph& graph, const TargetClass& target, WeightPool& weights,
                      const LowerOptions& options = {});

}  // namespace tfcc::codegen
