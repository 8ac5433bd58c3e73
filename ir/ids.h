// SPDX-License-Identifier: Apache-2.0
// Typed indices of the graph's arrays. A ValueId is not an OpId, and the compiler knows it.
#pragma once

#include <cstdint>
#include <functional>

namespace tfcc::ir {

template <class Tag> struct Id {
  uint32_t value = UINT32_MAX;
  bool valid() const { return value != UINT32_MAX; }
  auto operator<=>(const Id&) const = default;
};

using OpId = Id<struct OpTag>;
using ValueId = Id<struct ValueTag>;

}  // namespace tfcc::ir

template <class Tag> struct std::hash<tfcc::ir::Id<Tag>> {
  size_t operator()(tfcc::ir::Id<Tag> id) const { return id.value; }
};
