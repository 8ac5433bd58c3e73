// SPDX-License-Identifier: Apache-2.0
// What an input of a transformer says, shared by the IR and the artifact.
#pragma once

#include <cstdint>
#include <string_view>

#include "runtime/dtype.h"

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
  // Of tokens without padding, sequence after sequence. Executor::set() makes them of cu_seqlens.
  cu_seqlens = 5,     ///< where each sequence begins, and behind it the number of tokens
  seqlens = 6,        ///< tokens of each sequence
  longest_first = 7,  ///< sequences by their length, the longest first
  row_sequences = 8,  ///< the sequence of each token
  row_positions = 9,  ///< its place in the sequence
  longest = 10,       ///< nobody reads it: its size is that of the longest sequence
};

inline constexpr int kInputRoleCount = 11;
/// Roles of what a model takes, as `--role` names them; those behind them are of rows.
inline constexpr int kGivenRoleCount = 5;

/// The spelling of `.tfir`, of `--role` and of `inspect`.
constexpr std::string_view to_string(InputRole role) {
  constexpr std::string_view kNames[kInputRoleCount] = {
      "none",    "ids",           "mask",          "positions",     "types",  "cu_seqlens",
      "seqlens", "longest_first", "row_sequences", "row_positions", "longest"};
  return kNames[static_cast<int>(role)];
}

/// What an input is by its name, where nothing told it: of a name that says nothing, none. Whole
/// numbers alone are ids, positions and types.
constexpr InputRole role_by_name(std::string_view name, DType dtype) {
  const auto has = [name](std::string_view part) { return name.find(part) != name.npos; };
  if (has("mask")) return InputRole::mask;
  if (dtype != DType::i64 && dtype != DType::i32) return InputRole::none;
  if (has("type") || has("segment")) return InputRole::types;
  if (has("position")) return InputRole::positions;
  return has("ids") || has("tokens") ? InputRole::ids : InputRole::none;
}

}  // namespace v1
}  // namespace tfcc
