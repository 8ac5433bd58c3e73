// SPDX-License-Identifier: Apache-2.0
#include "codegen/plan/weights.h"

#include <algorithm>

namespace tfcc::codegen {

uint32_t WeightPool::add(const std::string& name, const ir::Constant& constant) {
  std::string key = ir::recipe_key(constant);
  auto it = std::find(keys_.begin(), keys_.end(), key);
  if (it != keys_.end()) return static_cast<uint32_t>(it - keys_.begin());
  keys_.push_back(std::move(key));
  entries_.push_back({name, constant});
  return static_cast<uint32_t>(entries_.size() - 1);
}

}  // namespace tfcc::codegen
