// SPDX-License-Identifier: Apache-2.0
// Tokens that are found in text before anything else is done with it: <|im_start|>, [MASK].
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/text/pattern.h"

namespace tfcc::text {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool single_word = false;                      ///< not inside of a word
  bool strip_left = false, strip_right = false;  ///< takes the spaces beside it
  bool normalized = false;                       ///< looked for after the text is normalised
  bool special = false;
};

class AddedTokens {
 public:
  void add(AddedToken token);

  /// A stretch of text, and the added token that it is; -1 if it is other text.
  struct Part {
    Range range;
    int32_t id = -1;
  };
  /// From left to right, the longest token where several start. Parts of other text are not empty.
  std::vector<Part> split(std::string_view text) const;

 private:
  const AddedToken* match(std::string_view rest) const;

  std::vector<AddedToken> tokens_;
  std::array<std::vector<size_t>, 256> by_first_byte_;  // into tokens_, longest first
};

}  // namespace tfcc::text
