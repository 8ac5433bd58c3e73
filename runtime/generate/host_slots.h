// SPDX-License-Identifier: Apache-2.0
// Where sequences that gave their place in the cache to older ones keep what they held.
#pragma once

#include <algorithm>
#include <vector>

#include "runtime/tfcc.h"

namespace tfcc::generate {

/// Memory of the host for pages, or for sums, of sequences that wait: in slots of one size, of
/// which there are never more than were used at a time. `left`: bytes that may still be taken.
class HostSlots {
 public:
  HostSlots(const Model& model, size_t bytes, size_t& left)
      : model_(model), bytes_(bytes), left_(left) {}

  /// So many; none if there is no memory for all.
  std::vector<size_t> take(size_t count) {
    if (count > free_.size() && (count - free_.size()) > left_ / std::max<size_t>(bytes_, 1))
      return {};
    while (free_.size() < count) {
      auto memory = model_.allocate_host(bytes_);
      if (!memory) return {};
      left_ -= bytes_;
      free_.push_back(slots_.size());
      slots_.push_back(*std::move(memory));
    }
    std::vector<size_t> out(free_.end() - static_cast<std::ptrdiff_t>(count), free_.end());
    free_.resize(free_.size() - count);
    return out;
  }
  void release(std::vector<size_t>& slots) {
    free_.insert(free_.end(), slots.begin(), slots.end());
    slots.clear();
  }
  std::byte* data(size_t slot) const { return static_cast<std::byte*>(slots_[slot].data()); }

 private:
  Model model_;
  size_t bytes_;
  size_t& left_;
  std::vector<Memory> slots_;
  std::vector<size_t> free_;
};

}  // namespace tfcc::generate
