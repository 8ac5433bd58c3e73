// SPDX-License-Identifier: Apache-2.0
// Tokens and their ids.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "runtime/result.h"

namespace tfcc::text {

class Vocabulary {
 public:
  /// Ids are not negative and at most this.
  static constexpr int64_t kMaxId = (1 << 21) - 1;

  /// A second token of one id or a second id of one token replaces the first. Errors: bad_file (the
  /// id is out of range).
  Result<void> add(std::string token, int64_t id) {
    if (id < 0 || id > kMaxId)
      return Error{ErrorCode::bad_file, "the token '" + token + "' has the id " +
                                            std::to_string(id) + ", outside [0, " +
                                            std::to_string(kMaxId) + "]"};
    if (tokens_.size() <= static_cast<size_t>(id)) tokens_.resize(static_cast<size_t>(id) + 1);
    tokens_[static_cast<size_t>(id)] = token;
    ids_[std::move(token)] = static_cast<int32_t>(id);
    return {};
  }

  /// -1 if there is no such token.
  int32_t find(std::string_view token) const {
    const auto found = ids_.find(token);
    return found == ids_.end() ? -1 : found->second;
  }

  const std::vector<std::string>& tokens() const { return tokens_; }

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
  };
  std::vector<std::string> tokens_;
  std::unordered_map<std::string, int32_t, Hash, std::equal_to<>> ids_;
};

}  // namespace tfcc::text
