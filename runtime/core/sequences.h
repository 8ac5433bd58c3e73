// SPDX-License-Identifier: Apache-2.0
// Tokens without padding, sequence after sequence: what a program over them is told beside the
// tokens, all made of cu_seqlens.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/core/manifest.h"
#include "runtime/tfcc.h"

namespace tfcc::runtime {

/// Whether an input is one that Sequences makes.
constexpr bool is_of_sequences(InputRole role) { return role >= InputRole::cu_seqlens; }

/// Why this is no program over tokens without padding; empty if it is.
std::string no_ragged_program(const Program& program);

class Sequences {
 public:
  /// `manifest` is of a program over tokens without padding, or of another, which has none.
  explicit Sequences(const Manifest& manifest);

  /// Whether the program takes them.
  bool taken() const { return taken_; }
  /// cu_seqlens: 0, then where each sequence ends. Errors: shape, with what is wrong where: a number
  /// falls, a sequence is empty or too long, there are too many sequences or tokens; memory. Then what
  /// was there before stays.
  Result<void> set(std::span<const int64_t> cu_seqlens);
  /// Whether it is what was set last.
  bool are(std::span<const int64_t> cu_seqlens) const;
  /// The length of the longest, and the errors of set(), which it leaves to do.
  Result<int64_t> check(std::span<const int64_t> cu_seqlens) const;
  /// The sizes alone, of sequences that nobody has. Errors: shape.
  Result<void> check_sizes(int64_t batch, int64_t tokens, int64_t longest) const;
  int64_t tokens() const { return tokens_; }
  /// The longest sequence of such a run: of the one that is set if it has these sizes, else what
  /// there may be.
  int64_t longest_of(int64_t batch, int64_t tokens) const;

  /// What the input of this role is now, i32.
  std::span<const int32_t> table(InputRole role) const { return tables_[index(role)]; }
  /// How many numbers the input of this role has for these sizes.
  static int64_t count(InputRole role, int64_t batch, int64_t tokens, int64_t longest);

 private:
  static constexpr int kFirst = static_cast<int>(InputRole::cu_seqlens);
  static constexpr size_t index(InputRole role) {
    return static_cast<size_t>(static_cast<int>(role) - kFirst);
  }
  std::vector<int32_t>& spare(InputRole role) { return spare_[index(role)]; }
  void make(std::span<const int64_t> cu_seqlens, int64_t longest);

  bool taken_ = false;
  int64_t most_batch_, most_tokens_, most_length_;
  int64_t tokens_ = 0;
  std::array<std::vector<int32_t>, kInputRoleCount - kFirst> tables_, spare_;
};

}  // namespace tfcc::runtime
