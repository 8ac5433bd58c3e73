// SPDX-License-Identifier: Apache-2.0
#include "runtime/text/unicode.h"

#include <algorithm>
#include <cstdlib>

#include <utf8proc.h>

namespace tfcc::text {
namespace {

constexpr char32_t kReplacement = 0xfffd;

utf8proc_category_t category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

bool in(char32_t c, utf8proc_category_t first, utf8proc_category_t last) {
  const utf8proc_category_t k = category(c);
  return k >= first && k <= last;
}

/// Bytes of a character by its first byte, 0 if none starts with it; and the range of the second
/// byte (table 3-7 of Unicode).
struct Lead {
  size_t size;
  unsigned char low, high;
};

Lead lead_of(unsigned char c) {
  if (c < 0x80) return {1, 0, 0};
  if (c >= 0xc2 && c < 0xe0) return {2, 0x80, 0xbf};
  if (c >= 0xe0 && c < 0xf0)
    return {3, static_cast<unsigned char>(c == 0xe0 ? 0xa0 : 0x80),
            static_cast<unsigned char>(c == 0xed ? 0x9f : 0xbf)};
  if (c >= 0xf0 && c < 0xf5)
    return {4, static_cast<unsigned char>(c == 0xf0 ? 0x90 : 0x80),
            static_cast<unsigned char>(c == 0xf4 ? 0x8f : 0xbf)};
  return {0, 0, 0};
}

/// How many bytes at the start of `text` are a character or the start of one; 0 if the first byte
/// starts none.
size_t well_formed(std::string_view text, const Lead& lead) {
  if (lead.size <= 1) return lead.size;
  size_t n = 1;
  for (; n < lead.size && n < text.size(); ++n) {
    const unsigned char c = static_cast<unsigned char>(text[n]);
    if (n == 1 ? c < lead.low || c > lead.high : (c & 0xc0) != 0x80) break;
  }
  return n;
}

}  // namespace

size_t character_size(char lead) {
  const unsigned char c = static_cast<unsigned char>(lead);
  return c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
}

char32_t next_character(std::string_view text, size_t& at) {
  const size_t n = std::min(character_size(text[at]), text.size() - at);
  const unsigned char lead = static_cast<unsigned char>(text[at]);
  char32_t c = n == 1 ? lead : lead & (0xff >> (n + 1));
  for (size_t i = 1; i < n; ++i) c = c << 6 | (text[at + i] & 0x3f);
  at += n;
  return c;
}

void append_utf8(char32_t c, std::string& out) {
  utf8proc_uint8_t bytes[4];
  const auto n = utf8proc_encode_char(static_cast<utf8proc_int32_t>(c), bytes);
  out.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(n));
}

size_t count_characters(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

std::string valid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Lead lead = lead_of(static_cast<unsigned char>(text[0]));
    const size_t n = well_formed(text, lead);
    if (n == lead.size && n > 0) out += text.substr(0, n);
    else append_utf8(kReplacement, out);
    text.remove_prefix(std::max<size_t>(n, 1));
  }
  return out;
}

size_t unfinished_bytes(std::string_view text) {
  for (size_t back = 1; back <= std::min<size_t>(3, text.size()); ++back) {
    const std::string_view tail = text.substr(text.size() - back);
    const Lead lead = lead_of(static_cast<unsigned char>(tail[0]));
    if (lead.size > back && well_formed(tail, lead) == back) return back;
  }
  return 0;
}

bool is_space(char32_t c) {
  return (c >= 9 && c <= 13) || c == 0x85 || in(c, UTF8PROC_CATEGORY_ZS, UTF8PROC_CATEGORY_ZP);
}
bool is_letter(char32_t c) { return in(c, UTF8PROC_CATEGORY_LU, UTF8PROC_CATEGORY_LO); }
bool is_number(char32_t c) { return in(c, UTF8PROC_CATEGORY_ND, UTF8PROC_CATEGORY_NO); }
bool is_mark(char32_t c) { return in(c, UTF8PROC_CATEGORY_MN, UTF8PROC_CATEGORY_ME); }
bool is_nonspacing(char32_t c) { return category(c) == UTF8PROC_CATEGORY_MN; }

bool is_punctuation(char32_t c) {
  if (c < 0x80)
    return c > 32 && c < 127 && !(c >= '0' && c <= '9') && !((c | 32) >= 'a' && (c | 32) <= 'z');
  return in(c, UTF8PROC_CATEGORY_PC, UTF8PROC_CATEGORY_PO);
}

bool is_control(char32_t c) {
  const utf8proc_category_t k = category(c);
  return (k == UTF8PROC_CATEGORY_CC || k == UTF8PROC_CATEGORY_CF || k == UTF8PROC_CATEGORY_CO) &&
         c != '\t' && c != '\n' && c != '\r';
}

bool is_ideograph(char32_t c) {
  constexpr struct {
    char32_t first, last;
  } kBlocks[] = {{0x3400, 0x4dbf},   {0x4e00, 0x9fff},   {0xf900, 0xfaff},   {0x20000, 0x2a6df},
                 {0x2a700, 0x2b73f}, {0x2b740, 0x2b81f}, {0x2b920, 0x2ceaf}, {0x2f800, 0x2fa1f}};
  return std::any_of(std::begin(kBlocks), std::end(kBlocks),
                     [c](const auto& b) { return c >= b.first && c <= b.last; });
}

bool is_word(char32_t c) {
  constexpr struct {
    char32_t first, last;
  } kLetterSymbols[] = {
      {0x24b6, 0x24e9}, {0x1f130, 0x1f149}, {0x1f150, 0x1f169}, {0x1f170, 0x1f189}};
  constexpr char32_t kNonJoiner = 0x200c, kJoiner = 0x200d;
  return is_letter(c) || is_mark(c) || in(c, UTF8PROC_CATEGORY_ND, UTF8PROC_CATEGORY_NL) ||
         category(c) == UTF8PROC_CATEGORY_PC || c == kNonJoiner || c == kJoiner ||
         std::any_of(std::begin(kLetterSymbols), std::end(kLetterSymbols),
                     [c](const auto& b) { return c >= b.first && c <= b.last; });
}

std::string lower_case(std::string_view text) {
  constexpr char32_t kDottedI = 0x130,
                     kDotAbove = 0x307;  // the one letter whose lower case is two characters
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const char32_t c = next_character(text, at);
    append_utf8(c == kDottedI
                    ? U'i'
                    : static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))),
                out);
    if (c == kDottedI) append_utf8(kDotAbove, out);
  }
  return out;
}

std::string normal_form(std::string_view text, Form form) {
  if (std::all_of(text.begin(), text.end(),
                  [](char c) { return static_cast<unsigned char>(c) < 0x80; }))
    return std::string(text);
  const bool composed = form == Form::nfc || form == Form::nfkc,
             compatible = form == Form::nfkc || form == Form::nfkd;
  const int options = UTF8PROC_STABLE | (composed ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
                      (compatible ? UTF8PROC_COMPAT : 0);
  utf8proc_uint8_t* made = nullptr;
  const auto n = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                              static_cast<utf8proc_ssize_t>(text.size()), &made,
                              static_cast<utf8proc_option_t>(options));
  if (n < 0) return std::string(text);  // not UTF-8, which callers exclude
  std::string out(reinterpret_cast<const char*>(made), static_cast<size_t>(n));
  std::free(made);
  return out;
}

size_t grapheme_end(std::string_view text, size_t at) {
  utf8proc_int32_t state = 0;
  char32_t before = next_character(text, at);
  while (at < text.size()) {
    size_t next = at;
    const char32_t c = next_character(text, next);
    if (utf8proc_grapheme_break_stateful(static_cast<utf8proc_int32_t>(before),
                                         static_cast<utf8proc_int32_t>(c), &state))
      break;
    before = c;
    at = next;
  }
  return at;
}

}  // namespace tfcc::text
