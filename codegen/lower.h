// SPDX-License-Identifier: Apache-2.0
// IR to plan: one launch per op, a buffer per value, kernels as source text. The plan is data (runtime/manifest.h); the
// two families differ in templates and in how a launch is sized, not in structure.
#pragma once

#include <string>
#include <vector>

#include "ir/graph.h"
#include "runtime/manifest.h"

namespace tfcc::codegen {

enum class Family { cpu, cuda };

/// A kernel to be compiled; plan.kernels has the same index.
struct KernelSource {
  std::string name;
  std::string text;
};

/// Weights of all plans, equal recipes once. Index = Manifest.weights.
class WeightPool {
 public:
  uint32_t add(const std::string& name, const ir::Constant& constant);
  struct Entry { std::string name; ir::Constant constant; };
  const std::vector<Entry>& entries() const { return entries_; }

 private:
  std::vector<Entry> entries_;
  std::vector<std::string> keys_;
};

struct LowerOptions {
  std::string precision = "f32";
  int64_t max_tokens = 0;          // CUDA: the largest batch * length; 0: what a 32-bit index allows
};

struct Lowered {
  runtime::Plan plan;
  std::vector<KernelSource> kernels;
};

/// Errors: unsupported (an op that the family has no kernel for), internal.
Result<Lowered> lower(const ir::Graph& graph, Family family, WeightPool& weights, const LowerOptions& options = {});

}  // namespace tfcc::codegen
