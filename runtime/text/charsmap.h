// SPDX-License-Identifier: Apache-2.0
// SentencePiece's precompiled normalisation: a double-array trie (Darts) from byte strings to
// replacements.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/result.h"

namespace tfcc::text {

class Charsmap {
 public:
  /// The bytes: u32 size of the trie in bytes, the trie's units of u32, then texts, each ended by a
  /// zero byte.
  /// Errors: bad_file (not base64, or sizes that lie).
  static Result<Charsmap> from_base64(std::string_view base64);
  static Result<Charsmap> from_bytes(std::string_view bytes);

  /// Each grapheme cluster of fewer than 6 bytes, or else each character, replaced where the trie
  /// has it: as the package tokenizers does.
  std::string apply(std::string_view text) const;
  /// The longest text that the trie has, from each place on, as SentencePiece does.
  std::string apply_longest(std::string_view text) const;

 private:
  /// f(bytes of a key that `text` begins with, its replacement), from the shortest on, as long as f
  /// returns true.
  template <class F> void each_prefix(std::string_view text, const F& f) const;
  std::optional<std::string_view> replacement(std::string_view key) const;

  struct Data {
    std::vector<uint32_t> units;
    std::string texts;
  };
  std::shared_ptr<const Data> data_;
};

}  // namespace tfcc::text
