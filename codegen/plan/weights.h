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

 private:
  std::vector<Entry> entries_;
  std::vector<std::string> keys_;
};

}  // namespace tfcc::codegen
