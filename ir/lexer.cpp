// SPDX-License-Identifier: Apache-2.0
// Tokens of the text form, and the spelling of names in it.
#include "ir/lexer.h"

#include "ir/expr.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "ir/ir.h"

namespace tfcc::ir {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_word_char(char c) { return is_letter(c) || is_digit(c); }
bool is_name_char(char c) { return is_word_char(c) || c == '.'; }

/// Reads tokens off the front of a text.
class Splitter {
 public:
  explicit Splitter(std::string_view text) : text_(text) {}
  std::vector<Token> tokens;
  uint32_t line = 1;
  std::string problem;

  bool run() {
    while (skip_space()) {
      if (!one()) return false;
    }
    tokens.push_back({TokenKind::end, false, line, {}});
    return true;
  }

 private:
  char at(size_t k = 0) const { return at_ + k < text_.size() ? text_[at_ + k] : '\0'; }

  void take(TokenKind kind, size_t begin, size_t end, bool quoted = false) {
    tokens.push_back({kind, quoted, line, text_.substr(begin, end - begin)});
  }

  bool skip_space() {
    while (at_ < text_.size()) {
      if (at() == '\n') {
        ++line;
        ++at_;
      } else if (at() == ' ' || at() == '\t' || at() == '\r') {
        ++at_;
      } else if (at() == '/' && at(1) == '/') {
        while (at_ < text_.size() && at() != '\n') ++at_;
      } else {
        return true;
      }
    }
    return false;
  }

  bool one() {
    const char c = at();
    if (is_letter(c)) return run_of(TokenKind::word, is_word_char);
    if (is_digit(c)) return number();
    if (c == '"') return string(TokenKind::string);
    if ((c == '%' || c == '@') && (is_name_char(at(1)) || at(1) == '"')) {
      const TokenKind kind = c == '%' ? TokenKind::value : TokenKind::constant;
      ++at_;
      return at() == '"' ? string(kind) : run_of(kind, is_name_char);
    }
    return mark();
  }

  bool run_of(TokenKind kind, bool (*accepts)(char)) {
    const size_t begin = at_;
    while (at_ < text_.size() && accepts(at())) ++at_;
    take(kind, begin, at_);
    return true;
  }

  void digits() {
    while (is_digit(at())) ++at_;
  }

  bool number() {
    const size_t begin = at_;
    bool real = false;
    digits();
    if (at() == '.' && is_digit(at(1))) {  // "1..9" is a range, not a real
      real = true;
      ++at_;
      digits();
    }
    const size_t sign = at(1) == '-' || at(1) == '+' ? 1 : 0;
    if (at() == 'e' && is_digit(at(1 + sign))) {
      real = true;
      at_ += 1 + sign;
      digits();
    }
    if (real && at() == 'd' && !is_word_char(at(1))) ++at_;
    take(real ? TokenKind::real : TokenKind::integer, begin, at_);
    return true;
  }

  bool string(TokenKind kind) {
    const size_t begin = ++at_;
    while (at_ < text_.size() && at() != '"' && at() != '\n') at_ += at() == '\\' ? 2 : 1;
    if (at() != '"') {
      problem = "a string that does not end on its line";
      return false;
    }
    take(kind, begin, at_, true);
    ++at_;
    return true;
  }

  bool mark() {
    static constexpr std::array<std::string_view, 7> kPairs = {
        "==", "!=", "<=", ">=", "=>", "|>", ".."};
    const std::string_view two = text_.substr(at_, 2);
    size_t length = std::find(kPairs.begin(), kPairs.end(), two) != kPairs.end() ? 2 : 1;
    if (length == 1 && std::string_view("()[]{},:=+-*/%<>.").find(at()) == std::string_view::npos) {
      problem = fmt::format("'{}' has no meaning here", at());
      return false;
    }
    take(TokenKind::mark, at_, at_ + length);
    at_ += length;
    return true;
  }

  std::string_view text_;
  size_t at_ = 0;
};

int hex(char c) {
  if (is_digit(c)) return c - '0';
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : 0;
}

}  // namespace

Result<Lexer> Lexer::split(std::string_view text, std::string name) {
  Splitter splitter(text);
  if (!splitter.run()) {
    return Error{ErrorCode::bad_file,
                 fmt::format("{}:{}: {}", name, splitter.line, splitter.problem)};
  }
  Lexer lexer;
  lexer.tokens_ = std::move(splitter.tokens);
  lexer.name_ = std::move(name);
  return lexer;
}

Token Lexer::next() {
  const Token token = peek();
  if (token.kind != TokenKind::end) ++at_;
  return token;
}

bool Lexer::is(std::string_view s, size_t ahead) const {
  const Token& token = peek(ahead);
  return (token.kind == TokenKind::mark || token.kind == TokenKind::word) && token.text == s;
}

bool Lexer::accept(std::string_view s) {
  if (!is(s)) return false;
  ++at_;
  return true;
}

Result<void> Lexer::expect(std::string_view s) {
  if (accept(s)) return {};
  return error(fmt::format("expected '{}', found {}", s, found()));
}

Result<void> Lexer::skip_brackets() {
  const Error unclosed = error(fmt::format("{} is never closed", found()));
  int open = 0;
  do {
    if (peek().kind == TokenKind::end) return unclosed;
    if (is("(") || is("[") || is("{")) ++open;
    if (is(")") || is("]") || is("}")) --open;
    ++at_;
  } while (open > 0);
  return {};
}

Error Lexer::error(std::string_view reason) const {
  return Error{ErrorCode::bad_file, fmt::format("{}:{}: {}", name_, peek().line, reason)};
}

Error Lexer::error_before(std::string_view reason) const {
  const uint32_t line = tokens_[at_ > 0 ? at_ - 1 : 0].line;
  return Error{ErrorCode::bad_file, fmt::format("{}:{}: {}", name_, line, reason)};
}

std::string Lexer::found() const {
  const Token& token = peek();
  switch (token.kind) {
    case TokenKind::end: return "the end of the text";
    case TokenKind::string: return "a string";
    case TokenKind::value:
      return "%" + value_name(token.quoted ? unquote(token.text) : std::string(token.text));
    case TokenKind::constant:
      return "@" + value_name(token.quoted ? unquote(token.text) : std::string(token.text));
    default: return fmt::format("'{}'", token.text);
  }
}

std::string unquote(std::string_view s) {
  std::string out;
  for (size_t i = 0; i < s.size(); ++i) {
    if (s[i] != '\\' || i + 1 == s.size()) {
      out += s[i];
      continue;
    }
    switch (s[++i]) {
      case 'n': out += '\n'; break;
      case 't': out += '\t'; break;
      case 'r': out += '\r'; break;
      case 'x':
        if (i + 2 < s.size()) out += static_cast<char>(hex(s[i + 1]) * 16 + hex(s[i + 2]));
        i += 2;
        break;
      default: out += s[i];
    }
  }
  return out;
}

std::string quote(std::string_view s) {
  std::string out = "\"";
  for (char c : s) {
    switch (c) {
      case '"': out += "\\\""; break;
      case '\\': out += "\\\\"; break;
      case '\n': out += "\\n"; break;
      case '\t': out += "\\t"; break;
      case '\r': out += "\\r"; break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
        } else {
          out += c;
        }
    }
  }
  return out + '"';
}

std::string value_name(std::string_view name) {
  const bool plain = !name.empty() && std::all_of(name.begin(), name.end(), is_name_char);
  return plain ? std::string(name) : quote(name);
}

std::string symbol_name(std::string_view name) {
  const bool plain =
      !name.empty() && is_letter(name[0]) && std::all_of(name.begin(), name.end(), is_word_char);
  return plain ? std::string(name) : quote(name);
}

std::string index_name(int64_t number) {
  constexpr int64_t kLetters = 'z' - 'i' + 1;
  return number < kLetters ? std::string(1, static_cast<char>('i' + number))
                           : fmt::format("i{}", number);
}

bool is_reserved_name(std::string_view name) {
  static constexpr std::string_view kWords[] = {
      "abs",   "and",  "bf16", "bitand", "bool", "bounded", "f16",    "f32", "f64",
      "false", "fmod", "i64",  "in",     "inf",  "infd",    "isnan",  "let", "max",
      "min",   "nan",  "nand", "not",    "or",   "pow",     "select", "true"};
  if (std::find(std::begin(kWords), std::end(kWords), name) != std::end(kWords)) return true;
  for (const UnaryFunction& f : unary_functions()) {
    if (f.name == name) return true;
  }
  if (name.empty()) return false;
  if (name.size() == 1) return name[0] >= 'a' && name[0] <= 'z';
  return (name[0] == 'i' || name[0] == 't') && std::all_of(name.begin() + 1, name.end(), is_digit);
}

}  // namespace tfcc::ir
