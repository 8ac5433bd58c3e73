// SPDX-License-Identifier: Apache-2.0
// Words of the text form: splits .tfir text into tokens, once, so that the parsers can look ahead
// and come back. Used by parse.cpp and parse_expr.cpp only; names are spelled here for print.cpp
// too.
#pragma once

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ir/expr.h"
#include "runtime/result.h"

namespace tfcc::ir {

enum class TokenKind : uint8_t {
  end,
  word,      // identifier or keyword
  string,    // "..." ; text is the content, escapes and all
  value,     // %name ; text is the name
  constant,  // @name
  integer,
  real,  // contains '.' or 'e'; may end in the suffix d
  mark,  // punctuation
};

struct Token {
  TokenKind kind = TokenKind::end;
  bool quoted = false;  // value and constant: the name was written in quotes
  uint32_t line = 1;
  std::string_view text;  // a view of the source text
};

/// The tokens of a text and a position in them.
class Lexer {
 public:
  /// Errors: bad_file with "name:line: reason".
  static Result<Lexer> split(std::string_view text, std::string name);

  const Token& peek(size_t ahead = 0) const {
    return tokens_[std::min(at_ + ahead, tokens_.size() - 1)];
  }
  Token next();
  bool is(std::string_view mark_or_word, size_t ahead = 0) const;
  /// Takes the token if it is this mark or word.
  bool accept(std::string_view mark_or_word);
  Result<void> expect(std::string_view mark_or_word);
  size_t position() const { return at_; }
  void seek(size_t position) { at_ = position; }
  /// Moves from an opening bracket past the one that closes it.
  Result<void> skip_brackets();
  /// An error at the current token.
  Error error(std::string_view reason) const;
  /// An error about what was just read.
  Error error_before(std::string_view reason) const;
  /// What stands here, for messages: "'foo'" or "the end of the text".
  std::string found() const;

 private:
  std::vector<Token> tokens_;
  std::string name_;
  size_t at_ = 0;
};

/// The characters that a quoted token stands for.
std::string unquote(std::string_view content);
/// "..." with \" \\ \n \t \r and \xNN escapes.
std::string quote(std::string_view s);
/// A name after a sigil, or of a symbol: as it is, or quoted.
std::string value_name(std::string_view name);
std::string symbol_name(std::string_view name);
/// i, j, k, ... z, i18, i19, ...: index variables of bodies.
std::string index_name(int64_t number);

/// Parses an expression at the lexer's position; the callbacks are those of ir.h's parse_expr.
using NameScope = std::function<ExprRef(std::string_view)>;
using SlotScope = std::function<std::optional<std::pair<int64_t, DType>>(std::string_view)>;
Result<ExprRef> parse_expr(Lexer& lexer, ExprPool& pool, const NameScope& name,
                           const SlotScope& slot);

}  // namespace tfcc::ir
