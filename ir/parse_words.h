// SPDX-License-Identifier: Apache-2.0
// Small words of .tfir that several parsers read: names, numbers, element types. Internal to the
// parsers.
#pragma once

#include <fmt/format.h>

#include <charconv>
#include <map>
#include <memory>

#include "ir/graph.h"
#include "ir/lexer.h"

namespace tfcc::ir {

/// Files that constants of one text point into, by name, and whether these stand in the graph of
/// another constant.
struct ConstantSources {
  std::map<std::string, std::shared_ptr<const SourceFile>> files;
  bool inside = false;
};

class WordParser {
 public:
  explicit WordParser(Lexer& lexer) : lexer_(lexer) {}

 protected:
  /// What a name token says, without quotes.
  static std::string name_of(const Token& t);
  Error unexpected(std::string_view wanted) const;
  Result<std::string> plain_name(std::string_view what);
  Result<std::string> string(std::string_view what);
  Result<double> real();
  Result<bool> truth();
  Result<DType> dtype();
  Result<std::vector<int64_t>> integers(std::string_view open, std::string_view close);

  template <class T = int64_t> Result<T> integer(std::string_view what) {
    std::string text = lexer_.accept("-") ? "-" : "";
    if (lexer_.peek().kind != TokenKind::integer) return unexpected(what);
    text += lexer_.peek().text;
    T v = 0;
    const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), v);
    if (status != std::errc{} || end != text.data() + text.size()) {
      return lexer_.error(fmt::format("{} does not fit {}", text, what));
    }
    lexer_.next();
    return v;
  }

  Lexer& lexer_;
};

/// Reads what follows "const @name : dtype[dims] =".
Result<Constant> parse_constant(Lexer& lexer, DType dtype, const std::vector<int64_t>& dims,
                                ConstantSources& sources);
/// Reads a graph that is the source of a constant.
Result<Graph> parse_inner_graph(Lexer& lexer, ConstantSources& sources);

}  // namespace tfcc::ir
