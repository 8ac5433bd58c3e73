// SPDX-License-Identifier: Apache-2.0
// Names, numbers and element types of .tfir.
#include "ir/parse_words.h"

#include <limits>

namespace tfcc::ir {

Error WordParser::unexpected(std::string_view wanted) const {
  return lexer_.error(fmt::format("expected {}, found {}", wanted, lexer_.found()));
}

std::string WordParser::name_of(const Token& t) {
  return t.quoted || t.kind == TokenKind::string ? unquote(t.text) : std::string(t.text);
}

Result<std::string> WordParser::plain_name(std::string_view what) {
  if (lexer_.peek().kind != TokenKind::word && lexer_.peek().kind != TokenKind::string)
    return unexpected(what);
  return name_of(lexer_.next());
}

Result<std::string> WordParser::string(std::string_view what) {
  if (lexer_.peek().kind != TokenKind::string) return unexpected(what);
  return unquote(lexer_.next().text);
}

Result<double> WordParser::real() {
  const double sign = lexer_.accept("-") ? -1 : 1;
  if (lexer_.accept("inf")) return sign * std::numeric_limits<double>::infinity();
  if (lexer_.accept("nan")) return std::numeric_limits<double>::quiet_NaN();
  const Token token = lexer_.peek();
  if (token.kind != TokenKind::integer && token.kind != TokenKind::real)
    return unexpected("a number");
  double v = 0;
  const auto [end, status] =
      std::from_chars(token.text.data(), token.text.data() + token.text.size(), v);
  if (status != std::errc{} || end != token.text.data() + token.text.size()) {
    return lexer_.error(fmt::format("{} is no number", token.text));
  }
  lexer_.next();
  return sign * v;
}

Result<DType> WordParser::dtype() {
  for (int t = 0; t < kDTypeCount; ++t) {
    if (lexer_.accept(tfcc::to_string(static_cast<DType>(t)))) return static_cast<DType>(t);
  }
  return unexpected("an element type");
}

Result<std::vector<int64_t>> WordParser::integers(std::string_view open, std::string_view close) {
  TFCC_TRY_VOID(lexer_.expect(open));
  std::vector<int64_t> out;
  if (lexer_.accept(close)) return out;
  do {
    TFCC_TRY(int64_t v, integer("an integer"));
    out.push_back(v);
  } while (lexer_.accept(","));
  TFCC_TRY_VOID(lexer_.expect(close));
  return out;
}

Result<bool> WordParser::truth() {
  if (lexer_.accept("true")) return true;
  if (lexer_.accept("false")) return false;
  return unexpected("true or false");
}

}  // namespace tfcc::ir
