// SPDX-License-Identifier: Apache-2.0
// Character classes by binary search in generated tables.
#include "tools/tfcc/unicode.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <span>

namespace tfcc::tools {
namespace {

struct Range {
  uint32_t first, last;
};

// Characters first, first+step, ..., last become themselves plus delta.
struct Run {
  uint32_t first, last;
  int32_t step, delta;
};

// One character that becomes several; unused places are 0.
struct Sequence {
  uint32_t from;
  uint32_t to[4];
};

#include "tools/tfcc/unicode_tables.inc"

template <class T>
const T* find_range(std::span<const T> table, uint32_t c) {
  auto it = std::upper_bound(table.begin(), table.end(), c, [](uint32_t v, const T& r) { return v < r.first; });
  return it != table.begin() && c <= std::prev(it)->last ? &*std::prev(it) : nullptr;
}

bool in(std::span<const Range> table, char32_t c) { return find_range(table, c) != nullptr; }

// Runs with step 2 interlace (upper and lower case alternate), so the run that starts last need not be the one.
const Run* find_run(uint32_t c) {
  const std::span<const Run> table = kFold;
  auto it = std::upper_bound(table.begin(), table.end(), c, [](uint32_t v, const Run& r) { return v < r.first; });
  for (int tries = 0; it != table.begin() && tries < 8; ++tries) {
    --it;
    if (c <= it->last && (c - it->first) % static_cast<uint32_t>(it->step) == 0) return &*it;
  }
  return nullptr;
}

constexpr uint32_t kHangulFirst = 0xac00, kHangulLast = 0xd7a3;

// Unicode 3.12: a syllable is leading consonant, vowel and, perhaps, trailing consonant.
void append_hangul(uint32_t c, std::u32string& out) {
  constexpr uint32_t kLead = 0x1100, kVowel = 0x1161, kTrail = 0x11a7, kTrails = 28, kVowels = 21;
  const uint32_t index = c - kHangulFirst;
  out += static_cast<char32_t>(kLead + index / (kTrails * kVowels));
  out += static_cast<char32_t>(kVowel + index / kTrails % kVowels);
  if (index % kTrails) out += static_cast<char32_t>(kTrail + index % kTrails);
}

// Length of a sequence by its first byte, 0 if it cannot start one.
int utf8_length(unsigned char c) {
  if (c < 0x80) return 1;
  if (c >= 0xc2 && c < 0xe0) return 2;
  if (c >= 0xe0 && c < 0xf0) return 3;
  return c >= 0xf0 && c < 0xf5 ? 4 : 0;
}

}  // namespace

std::u32string decode_utf8(std::string_view text) {
  constexpr char32_t kReplacement = 0xfffd;
  constexpr uint32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
  std::u32string out;
  for (size_t i = 0; i < text.size();) {
    const unsigned char lead = text[i];
    const int n = utf8_length(lead);
    uint32_t c = n <= 1 ? lead : lead & (0xff >> (n + 1));
    int k = 1;
    for (; k < n && i + k < text.size() && (text[i + k] & 0xc0) == 0x80; ++k) c = c << 6 | (text[i + k] & 0x3f);
    const bool good = n > 0 && k == n && c >= kSmallest[n] && c <= 0x10ffff && (c < 0xd800 || c > 0xdfff);
    out += good ? static_cast<char32_t>(c) : kReplacement;
    i += static_cast<size_t>(k);
  }
  return out;
}

void append_utf8(char32_t c, std::string& out) {
  if (c < 0x80) {
    out += static_cast<char>(c);
    return;
  }
  const int extra = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
  constexpr unsigned char kLead[] = {0, 0xc0, 0xe0, 0xf0};
  out += static_cast<char>(kLead[extra] | (c >> (6 * extra)));
  for (int i = extra - 1; i >= 0; --i) out += static_cast<char>(0x80 | ((c >> (6 * i)) & 0x3f));
}

bool is_space(char32_t c) { return in(kSpaces, c); }

bool is_control(char32_t c) { return in(kControls, c); }

bool is_punctuation(char32_t c) {
  if (c < 0x80) return (c >= 33 && c <= 47) || (c >= 58 && c <= 64) || (c >= 91 && c <= 96) || (c >= 123 && c <= 126);
  return in(kPunctuation, c);
}

bool is_ideograph(char32_t c) {
  // The blocks that BERT lists; extension F and later are not among them.
  constexpr Range kIdeographs[] = {{0x3400, 0x4dbf},   {0x4e00, 0x9fff},   {0xf900, 0xfaff},  {0x20000, 0x2a6df},
                                   {0x2a700, 0x2b73f}, {0x2b740, 0x2b81f}, {0x2b920, 0x2ceaf}, {0x2f800, 0x2fa1f}};
  return in(kIdeographs, c);
}

void append_folded(char32_t c, std::u32string& out) {
  if (c < 0x80) {
    out += c >= 'A' && c <= 'Z' ? c + 32 : c;
    return;
  }
  if (in(kMarks, c)) return;
  if (c >= kHangulFirst && c <= kHangulLast) return append_hangul(c, out);
  const auto many = std::lower_bound(std::begin(kFoldMany), std::end(kFoldMany), static_cast<uint32_t>(c),
                                     [](const Sequence& s, uint32_t v) { return s.from < v; });
  if (many != std::end(kFoldMany) && many->from == c) {
    for (uint32_t t : many->to)
      if (t) out += static_cast<char32_t>(t);
    return;
  }
  const Run* run = find_run(c);
  out += run ? static_cast<char32_t>(static_cast<int64_t>(c) + run->delta) : c;
}

}  // namespace tfcc::tools
