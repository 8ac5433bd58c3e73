// SPDX-License-Identifier: Apache-2.0
// What several parts of a tokenizer share.
#include "runtime/text/parts.h"

#include <array>
#include <unordered_map>

#include "runtime/text/unicode.h"

namespace tfcc::text {
namespace {

struct ByteAlphabet {
  std::array<std::string, 256> characters;
  std::unordered_map<char32_t, int> bytes;

  // Bytes that are printable in Latin-1 stand for themselves, the others for 256 and up, in order.
  ByteAlphabet() {
    char32_t next = 256;
    for (int b = 0; b < 256; ++b) {
      const bool itself = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
      const char32_t c = itself ? static_cast<char32_t>(b) : next++;
      append_utf8(c, characters[static_cast<size_t>(b)]);
      bytes[c] = b;
    }
  }
};

const ByteAlphabet& alphabet() {
  static const ByteAlphabet made;
  return made;
}

}  // namespace

Result<std::string> type_of(const Json& section, std::string_view what) {
  if (!section.is_object() || !section.contains("type") || !section["type"].is_string())
    return Error{ErrorCode::bad_file, "a " + std::string(what) + " has no type"};
  return section["type"].get<std::string>();
}

Error unknown_type(std::string_view what, const std::string& type) {
  return {ErrorCode::unsupported,
          "a " + std::string(what) + " of type " + type + " is not supported"};
}

Result<Pattern> read_pattern(const Json& pattern) {
  if (pattern.contains("String")) return Pattern::literal(pattern["String"].get<std::string>());
  if (pattern.contains("Regex")) return Pattern::regex(pattern["Regex"].get<std::string>());
  return Error{ErrorCode::bad_file, "a pattern is neither a String nor a Regex"};
}

const std::string& character_of_byte(unsigned char byte) { return alphabet().characters[byte]; }

int byte_of_character(char32_t c) {
  const auto found = alphabet().bytes.find(c);
  return found == alphabet().bytes.end() ? -1 : found->second;
}

std::string in_byte_alphabet(std::string_view text) {
  std::string out;
  out.reserve(text.size() * 2);
  for (const char c : text) out += character_of_byte(static_cast<unsigned char>(c));
  return out;
}

int byte_of_token(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  int value = 0;
  for (const char c : token.substr(3, 2)) {
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                             : -1;
    if (digit < 0) return -1;
    value = value * 16 + digit;
  }
  return value;
}

std::string replace_all(std::string text, std::string_view from, std::string_view to) {
  size_t at = text.find(from);
  if (at == text.npos) return text;
  std::string out;
  size_t begin = 0;
  for (; at != text.npos; at = text.find(from, begin)) {
    out.append(text, begin, at - begin);
    out += to;
    begin = at + from.size();
  }
  return out.append(text, begin);
}

}  // namespace tfcc::text
