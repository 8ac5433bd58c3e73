// SPDX-License-Identifier: Apache-2.0
#include "codegen/plan/weights.h"

#include <algorithm>
#include <map>

namespace tfcc::codegen {

uint32_t WeightPool::add(const std::string& name, const ir::Constant& constant) {
  std::string key = ir::recipe_key(constant);
  auto it = std::find(keys_.begin(), keys_.end(), key);
  if (it != keys_.end()) return static_cast<uint32_t>(it - keys_.begin());
  keys_.push_back(std::move(key));
  entries_.push_back({name, constant});
  return static_cast<uint32_t>(entries_.size() - 1);
}

std::vector<std::vector<WeightPool::Part>> WeightPool::parts() const {
  // Bytes of more than these are the same if they are one object.
  constexpr size_t kMostCompared = 4096;
  struct Place {
    size_t whole, offset;
  };
  std::map<std::string, Place> places;  // by the recipe of the part
  for (size_t w = 0; w < entries_.size(); ++w) {
    const ir::Constant& whole = entries_[w].constant;
    size_t offset = 0;
    for (const ir::Constant& part : whole.parts) {
      places.emplace(ir::recipe_key(part, kMostCompared), Place{w, offset});
      offset += static_cast<size_t>(part.element_count()) * size_of(whole.result_dtype());
    }
  }
  std::vector<std::vector<Part>> all(entries_.size());
  for (size_t w = 0; w < entries_.size() && !places.empty(); ++w) {
    ir::Constant own = entries_[w].constant;
    // Its layout is made by its last steps: the part is what stands before some of them.
    while (true) {
      const auto found = places.find(ir::recipe_key(own, kMostCompared));
      if (found != places.end() && found->second.whole != w) {
        all[found->second.whole].push_back({w, found->second.offset});
        break;
      }
      if (own.steps.empty()) break;
      own.steps.pop_back();
    }
  }
  return all;
}

}  // namespace tfcc::codegen
