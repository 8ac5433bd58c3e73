// SPDX-License-Identifier: Apache-2.0
// What a tokenizer looks for in text: a string or a regular expression (PCRE2 with Unicode
// classes).
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/result.h"

namespace tfcc::text {

/// A stretch of text, from byte `begin` to before byte `end`.
struct Range {
  size_t begin = 0, end = 0;
};

class Pattern {
 public:
  static Pattern literal(std::string text);
  /// Errors: bad_file (not a regular expression, or one that PCRE2 reads differently from
  /// Oniguruma).
  static Result<Pattern> regex(const std::string& source);

  /// Every match, from left to right, none empty. Errors: invalid_argument (the text takes PCRE2
  /// past its limits).
  Result<std::vector<Range>> find_all(std::string_view text) const;

 private:
  struct Code;
  std::string literal_;
  std::shared_ptr<const Code> code_;
};

/// What becomes of a match when text is split at it.
enum class Behaviour { removed, isolated, merged_with_previous, merged_with_next, contiguous };

/// The pieces between and of the matches, as Hugging Face's tokenizers split; empty ones are left
/// out.
std::vector<Range> split(size_t size, const std::vector<Range>& matches, Behaviour behaviour,
                         bool invert = false);

/// Every character for which `wanted` holds, each a match of its own.
std::vector<Range> find_characters(std::string_view text,
                                   const std::function<bool(char32_t)>& wanted);

}  // namespace tfcc::text
