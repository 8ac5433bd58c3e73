// SPDX-License-Identifier: Apache-2.0
// What a size of a run counts, shared by the IR and the artifact.
#pragma once

#include <cstdint>
#include <string_view>

namespace tfcc {
inline namespace v1 {

/// Told where a size is made, by the frontend or a pass, and never guessed later. The numbers are
/// those of the artifact and never change. A graph has at most one size of each role but none.
enum class SizeRole : uint8_t {
  none = 0,
  batch = 1,    ///< sequences
  length = 2,   ///< tokens of a sequence that are new in this run
  tokens = 3,   ///< tokens of all sequences: the rows of most products
  past = 4,     ///< tokens of a sequence that earlier runs left in a cache
  context = 5,  ///< tokens of a sequence that may be attended to, where no other size says how many
  packed =
      6,  ///< tokens that are left without padding: an op of the run counts them, and they are no more than `tokens`
};

inline constexpr int kSizeRoleCount = 7;

/// The spelling of `.tfir`, of messages and of `inspect`.
constexpr std::string_view to_string(SizeRole role) {
  constexpr std::string_view kNames[kSizeRoleCount] = {"none", "batch",   "length", "tokens",
                                                       "past", "context", "packed"};
  return kNames[static_cast<int>(role)];
}

}  // namespace v1
}  // namespace tfcc
