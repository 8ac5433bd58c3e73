// SPDX-License-Identifier: Apache-2.0
// What an input of a transformer says, shared by the IR and the artifact.
#pragma once

#include <cstdint>
#include <string_view>

namespace tfcc {
inline namespace v1 {

/// Told once, by the frontend or by `--role`, and read everywhere after. The numbers are those of
/// the artifact and never change.
enum class InputRole : uint8_t {
  none = 0,       ///< another, or not known
  ids = 1,        ///< tokens, as places in a vocabulary
  mask = 2,       ///< which tokens take part: 1, or 0 for padding
  positions = 3,  ///< of the tokens
  types = 4,      ///< which segment a token belongs to, from 0
};

inline constexpr int kInputRoleCount = 5;

/// The spelling of `.tfir`, of `--role` and of `inspect`.
constexpr std::string_view to_string(InputRole role) {
  constexpr std::string_view kNames[kInputRoleCount] = {"none", "ids", "mask", "positions",
                                                        "types"};
  return kNames[static_cast<int>(role)];
}

}  // namespace v1
}  // namespace tfcc
