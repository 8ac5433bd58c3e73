// SPDX-License-Identifier: Apache-2.0
#include "runtime/text/charsmap.h"

#include "runtime/text/base64.h"

#include <algorithm>

#include "runtime/text/unicode.h"

namespace tfcc::text {
namespace {

Error bad(const std::string& why) {
  return {ErrorCode::bad_file, "the tokenizer's precompiled_charsmap " + why};
}

uint32_t word_at(std::string_view bytes, size_t at) {
  uint32_t value = 0;
  for (size_t i = 4; i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[at + i]);
  return value;
}

// A unit of Darts-clone: bit 31 marks a leaf, bit 8 says that a leaf hangs on it, bits 10 up are
// the offset (shifted by 8 if bit 9).
bool has_leaf(uint32_t unit) { return unit >> 8 & 1; }
uint32_t value_of(uint32_t unit) { return unit & 0x7fffffff; }
uint32_t label_of(uint32_t unit) { return unit & (1u << 31 | 0xff); }
uint32_t offset_of(uint32_t unit) { return unit >> 10 << ((unit & 1u << 9) >> 6); }

}  // namespace

Result<Charsmap> Charsmap::from_base64(std::string_view base64) {
  const auto bytes = text::from_base64(base64);
  return bytes ? from_bytes(*bytes) : bad("is not base64");
}

Result<Charsmap> Charsmap::from_bytes(std::string_view bytes) {
  if (bytes.size() < 4) return bad("is too short");
  const size_t size = word_at(bytes, 0);
  if (size % 4 || size > bytes.size() - 4) return bad("has a trie larger than itself");
  auto data = std::make_shared<Data>();
  for (size_t at = 4; at < 4 + size; at += 4) data->units.push_back(word_at(bytes, at));
  data->texts = bytes.substr(4 + size);
  Charsmap out;
  out.data_ = std::move(data);
  return out;
}

template <class F> void Charsmap::each_prefix(std::string_view text, const F& f) const {
  const std::vector<uint32_t>& units = data_->units;
  if (units.empty()) return;
  uint32_t at = offset_of(units[0]);
  for (size_t size = 1; size <= text.size(); ++size) {
    const char c = text[size - 1];
    if (c == 0) return;
    at ^= static_cast<unsigned char>(c);
    if (at >= units.size() || label_of(units[at]) != static_cast<unsigned char>(c)) return;
    const uint32_t unit = units[at];
    at ^= offset_of(unit);
    if (!has_leaf(unit)) continue;
    if (at >= units.size()) return;
    const size_t begin = value_of(units[at]);
    if (begin >= data_->texts.size()) return;
    const std::string_view found = std::string_view(data_->texts).substr(begin);
    if (!f(size, found.substr(0, found.find('\0')))) return;
  }
}

// The shortest key that `key` starts with, as the reference takes it.
std::optional<std::string_view> Charsmap::replacement(std::string_view key) const {
  std::optional<std::string_view> out;
  each_prefix(key, [&](size_t, std::string_view found) {
    out = found;
    return false;
  });
  return out;
}

std::string Charsmap::apply_longest(std::string_view text) const {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    size_t size = std::min(character_size(text[at]), text.size() - at);
    std::string_view found = text.substr(at, size);
    each_prefix(text.substr(at), [&](size_t n, std::string_view by) {
      size = n, found = by;
      return true;
    });
    out += found;
    at += size;
  }
  return valid_utf8(out);
}

std::string Charsmap::apply(std::string_view text) const {
  constexpr size_t kWhole = 6;
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t end = grapheme_end(text, at);
    const std::string_view cluster = text.substr(at, end - at);
    if (cluster.size() < kWhole) {
      if (const auto whole = replacement(cluster)) {
        out += *whole;
        at = end;
        continue;
      }
    }
    while (at < end) {
      const std::string_view character = text.substr(at, character_size(text[at]));
      out += replacement(character).value_or(character);
      at += character.size();
    }
  }
  return valid_utf8(out);
}

}  // namespace tfcc::text
