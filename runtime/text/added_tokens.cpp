// SPDX-License-Identifier: Apache-2.0
#include "runtime/text/added_tokens.h"

#include <algorithm>

#include "runtime/text/unicode.h"

namespace tfcc::text {
namespace {

// Where the last character before `end` begins.
size_t character_before(std::string_view text, size_t end) {
  while (end > 0 && (text[--end] & 0xc0) == 0x80) {}
  return end;
}

bool word_before(std::string_view text, size_t end) {
  if (end == 0) return false;
  size_t at = character_before(text, end);
  return is_word(next_character(text, at));
}

bool word_after(std::string_view text, size_t at) {
  return at < text.size() && is_word(next_character(text, at));
}

}  // namespace

void AddedTokens::add(AddedToken token) {
  if (token.content.empty()) return;
  std::vector<size_t>& same = by_first_byte_[static_cast<unsigned char>(token.content[0])];
  const auto place = std::find_if(same.begin(), same.end(), [&](size_t i) {
    return tokens_[i].content.size() < token.content.size();
  });
  same.insert(place, tokens_.size());
  tokens_.push_back(std::move(token));
}

const AddedToken* AddedTokens::match(std::string_view rest) const {
  for (const size_t i : by_first_byte_[static_cast<unsigned char>(rest[0])])
    if (rest.starts_with(tokens_[i].content)) return &tokens_[i];
  return nullptr;
}

std::vector<AddedTokens::Part> AddedTokens::split(std::string_view text) const {
  std::vector<Part> out;
  size_t done = 0;
  for (size_t at = 0; at < text.size();) {
    const AddedToken* token = match(text.substr(at));
    if (!token) {
      ++at;
      continue;
    }
    size_t begin = at, end = at + token->content.size();
    at = end;
    if (token->single_word && (word_before(text, begin) || word_after(text, end))) continue;
    if (token->strip_left)
      while (begin > done) {
        const size_t before = character_before(text, begin);
        size_t next = before;
        if (before < done || !is_space(next_character(text, next))) break;
        begin = before;
      }
    if (token->strip_right)
      for (size_t next = end; next < text.size() && is_space(next_character(text, next));
           end = next) {}
    if (begin < done) continue;  // a token before has taken these bytes
    if (begin > done) out.push_back({{done, begin}, -1});
    out.push_back({{begin, end}, token->id});
    done = end;
  }
  if (done < text.size()) out.push_back({{done, text.size()}, -1});
  return out;
}

}  // namespace tfcc::text
