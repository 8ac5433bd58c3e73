// SPDX-License-Identifier: Apache-2.0
#include "tools/tfcc/html.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace tfcc::tools::html {
namespace {

constexpr std::string_view kStyle =
#include "tools/page_style.inc"
    ;
constexpr std::string_view kInspectScript =
#include "tools/page_script.inc"
    ;

// Bytes of the UTF-8 character that starts here; 0 if none does.
size_t utf8_length(std::string_view s) {
  const auto at = [&](size_t i) { return static_cast<unsigned char>(s[i]); };
  const size_t n = at(0) < 0x80                    ? 1
                   : at(0) >= 0xC2 && at(0) < 0xE0 ? 2
                   : at(0) >= 0xE0 && at(0) < 0xF0 ? 3
                   : at(0) >= 0xF0 && at(0) < 0xF5 ? 4
                                                   : 0;
  if (n == 0 || n > s.size()) return 0;
  for (size_t i = 1; i < n; ++i) {
    if ((at(i) & 0xC0) != 0x80) return 0;
  }
  const bool overlong =
      n > 1 && ((at(0) == 0xE0 && at(1) < 0xA0) || (at(0) == 0xF0 && at(1) < 0x90));
  const bool beyond = n > 1 && ((at(0) == 0xED && at(1) > 0x9F) || (at(0) == 0xF4 && at(1) > 0x8F));
  return overlong || beyond ? 0 : n;
}

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

bool is_control(std::string_view c) {
  const auto first = static_cast<unsigned char>(c[0]);
  if (c.size() == 1) return (first < 0x20 && c[0] != '\n' && c[0] != '\t') || first == 0x7F;
  if (c.size() == 2) return first == 0xC2 && static_cast<unsigned char>(c[1]) < 0xA0;
  // Marks that turn the direction of what follows, and non-characters.
  return (c >= "\xE2\x80\xAA" && c <= "\xE2\x80\xAE") ||
         (c >= "\xE2\x81\xA6" && c <= "\xE2\x81\xA9") || c == "\xEF\xBF\xBE" || c == "\xEF\xBF\xBF";
}

std::string_view entity(char c) {
  switch (c) {
    case '&': return "&amp;";
    case '<': return "&lt;";
    case '>': return "&gt;";
    case '"': return "&quot;";
    case '\'': return "&#39;";
    default: return {};
  }
}

std::string with_unit(double v, std::string_view unit) {
  constexpr std::array kPrefixes = {"", "k", "M", "G", "T", "P", "E"};
  size_t p = 0;
  for (; v >= 999.5 && p + 1 < kPrefixes.size(); ++p) v /= 1000;
  return fmt::format("{:.{}f} {}{}", v,
                     p == 0 || v >= 99.95 ? 0
                     : v >= 9.995         ? 1
                                          : 2,
                     kPrefixes[p], unit);
}

bool is_word(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

bool is_keyword(std::string_view w) {
  constexpr std::array<std::string_view, 48> kWords = {
      "alignas",   "auto",      "bool",    "break",       "case",    "char",   "class",    "const",
      "constexpr", "continue",  "default", "do",          "double",  "else",   "enum",     "extern",
      "false",     "float",     "for",     "goto",        "if",      "inline", "int",      "long",
      "mutable",   "namespace", "nullptr", "operator",    "private", "public", "return",   "short",
      "signed",    "sizeof",    "static",  "static_cast", "struct",  "switch", "template", "this",
      "true",      "typename",  "union",   "unsigned",    "using",   "void",   "volatile", "while"};
  return std::binary_search(kWords.begin(), kWords.end(), w);
}

// The token at the start of s: its length and the class of its span (empty: none).
std::pair<size_t, std::string_view> token(std::string_view s, bool line_start) {
  const auto upto = [&](std::string_view end, size_t from) {
    return std::min(s.find(end, from), s.size());
  };
  if (s.starts_with("//")) return {upto("\n", 0), "c"};
  if (s.starts_with("/*")) return {std::min(upto("*/", 2) + 2, s.size()), "c"};
  if (line_start && s[0] == '#') return {upto("\n", 0), "p"};
  if (s[0] == '"' || s[0] == '\'') {
    size_t n = 1;
    while (n < s.size() && s[n] != s[0] && s[n] != '\n') n += s[n] == '\\' ? 2 : 1;
    return {std::min(n + 1, s.size()), "s"};
  }
  if (!is_word(s[0])) return {1, ""};
  size_t n = 1;
  const bool number = s[0] >= '0' && s[0] <= '9';
  while (n < s.size() && (is_word(s[n]) || (number && s[n] == '.'))) ++n;
  return {n, number ? "n" : is_keyword(s.substr(0, n)) ? "k" : ""};
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const size_t n = utf8_length(text);
    const std::string_view c = text.substr(0, std::max<size_t>(n, 1));
    if (n == 0 || is_control(c)) out += kReplacement;
    else if (const auto e = n == 1 ? entity(c[0]) : std::string_view(); !e.empty()) out += e;
    else out += c;
    text.remove_prefix(c.size());
  }
  return out;
}

std::string shortened(std::string_view text, size_t limit) {
  if (text.size() <= limit) return std::string(text);
  size_t head = limit / 3, tail = text.size() - (limit - head - 1);
  const auto inside = [&](size_t i) {
    return i < text.size() && (static_cast<unsigned char>(text[i]) & 0xC0) == 0x80;
  };
  while (head > 0 && inside(head)) --head;
  while (inside(tail)) ++tail;
  return std::string(text.substr(0, head)) + "\xE2\x80\xA6" + std::string(text.substr(tail));
}

std::string bytes(std::optional<int64_t> n) {
  if (!n) return "-";
  return *n < 1000 ? fmt::format("{} bytes", *n) : with_unit(static_cast<double>(*n), "B");
}

std::string count(std::optional<int64_t> n) {
  return n ? with_unit(static_cast<double>(*n), "") : "-";
}

std::string code(std::string_view text) {
  std::string out = "<code>";
  for (const char c : escaped(text)) {
    out += c;
    if (c == '.' || c == '/' || c == '_' || c == ',') out += "<wbr>";
  }
  return out + "</code>";
}

std::string highlighted(std::string_view source) {
  std::string out;
  bool line_start = true;
  while (!source.empty()) {
    const auto [n, kind] = token(source, line_start);
    const std::string text = escaped(source.substr(0, n));
    out += kind.empty() ? text : fmt::format("<i class={}>{}</i>", kind, text);
    line_start = source[n - 1] == '\n' || (line_start && source[0] == ' ');
    source.remove_prefix(n);
  }
  return out;
}

std::string page(const std::string& title, const std::string& body, std::string_view script) {
  std::string out = "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n";
  out += "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n";
  // Nothing is ever asked of a network, whatever a name contains.
  out +=
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:\">\n";
  out += "<link rel=\"icon\" href=\"data:,\">\n<title>" + escaped(shortened(title, 120)) +
         "</title>\n<style>";
  out += kStyle;
  out += "</style></head><body>\n" + body;
  if (!script.empty()) out += "<script>" + std::string(script) + "</script>\n";
  return out + "</body></html>\n";
}

std::string_view inspect_script() { return kInspectScript; }

}  // namespace tfcc::tools::html
