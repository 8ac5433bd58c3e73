// SPDX-License-Identifier: Apache-2.0
// The weights of a file: recipes, each once.
#pragma once

#include <string>
#include <vector>

#include "ir/constant.h"

namespace tfcc::codegen {

/// Weights of all plans, equal recipes once. Index = Manifest.weights.
class WeightPool {
 public:
  uint32_t add(const std::string& name, const ir::Constant& constant);
  struct Entry {
    std::string name;
    ir::Constant constant;
  };
  const std::vector<Entry>& entries() const { return entries_; }

  /// A weight that may be the bytes of another from `offset` on: what is joined there, in one layout.
  /// Only the bytes can say (a layout that mixes the parts has others).
  struct Part {
    size_t weight;
    size_t offset;
  };
  /// For each weight, the others that may lie in it. None is in two.
  std::vector<std::vector<Part>> parts() const;

 private:
  std::vector<Entry> entries_;
  std::vector<std::string> keys_;
};

}  // namespace tfcc::codegen
