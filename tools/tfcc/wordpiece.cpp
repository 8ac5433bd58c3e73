// SPDX-License-Identifier: Apache-2.0
// WordPiece in two steps, as BERT does it: text to words (clean, fold, split), words to pieces (greedy, longest first).
#include "tools/tfcc/wordpiece.h"

#include <algorithm>
#include <fstream>

#include "tools/tfcc/unicode.h"

namespace tfcc::tools {
namespace {

constexpr size_t kMaxWordCharacters = 100;  // a longer word is [UNK] as a whole

size_t count_characters(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

}  // namespace

Result<WordPiece> WordPiece::load(const std::string& path, const Options& options) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return Error{ErrorCode::io, path + ": cannot open; give the vocab.txt that lies beside the model"};
  std::vector<std::string> tokens;
  for (std::string line; std::getline(file, line);) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    tokens.push_back(std::move(line));
  }
  return from_tokens(std::move(tokens), options, path);
}

Result<WordPiece> WordPiece::from_tokens(std::vector<std::string> tokens, const Options& options,
                                         const std::string& name) {
  WordPiece out;
  out.options_ = options;
  out.tokens_ = std::move(tokens);
  for (size_t i = 0; i < out.tokens_.size(); ++i) out.ids_[out.tokens_[i]] = static_cast<int64_t>(i);
  const std::pair<const char*, int64_t*> special[] = {
      {"[CLS]", &out.cls_}, {"[SEP]", &out.sep_}, {"[UNK]", &out.unk_}, {"[PAD]", &out.pad_}};
  for (const auto& [token, id] : special) {
    const auto it = out.ids_.find(token);
    if (it == out.ids_.end())
      return Error{ErrorCode::bad_file, name + ": no " + token + " in it; a BERT vocab.txt (WordPiece) is needed"};
    *id = it->second;
  }
  return out;
}

// Words in UTF-8: separated by spaces; punctuation and ideographs are words of their own.
std::vector<std::string> WordPiece::words(std::string_view text) const {
  std::u32string clean;
  for (char32_t c : decode_utf8(text)) {
    if (is_space(c)) {
      clean += U' ';
    } else if (c == 0 || c == 0xfffd || is_control(c)) {
      continue;
    } else {
      const bool ideograph = is_ideograph(c);
      if (ideograph) clean += U' ';
      if (options_.lower_case) append_folded(c, clean);
      else clean += c;
      if (ideograph) clean += U' ';
    }
  }
  std::vector<std::string> out;
  bool open = false;
  for (char32_t c : clean) {
    const bool alone = is_punctuation(c);
    if (c == U' ') {
      open = false;
      continue;
    }
    if (alone || !open) out.emplace_back();
    append_utf8(c, out.back());
    open = !alone;
  }
  return out;
}

void WordPiece::append_pieces(const std::string& word, std::vector<int64_t>& out) const {
  const size_t before = out.size();
  if (count_characters(word) > kMaxWordCharacters) return out.push_back(unk_);
  for (size_t start = 0; start < word.size();) {
    size_t end = word.size();
    int64_t id = -1;
    for (; end > start; --end) {
      if (end < word.size() && (word[end] & 0xc0) == 0x80) continue;  // inside a character
      const std::string piece = (start ? "##" : "") + word.substr(start, end - start);
      const auto it = ids_.find(piece);
      if (it != ids_.end()) {
        id = it->second;
        break;
      }
    }
    if (id < 0) {  // one piece that is missing makes the whole word unknown
      out.resize(before);
      return out.push_back(unk_);
    }
    out.push_back(id);
    start = end;
  }
}

std::vector<int64_t> WordPiece::pieces(std::string_view text) const {
  std::vector<int64_t> out;
  for (const std::string& word : words(text)) append_pieces(word, out);
  return out;
}

std::vector<int64_t> WordPiece::encode(std::string_view text, size_t max_length) const {
  std::vector<int64_t> out = pieces(text);
  out.resize(std::min(out.size(), std::max<size_t>(max_length, 2) - 2));
  out.insert(out.begin(), cls_);
  out.push_back(sep_);
  return out;
}

std::vector<std::string> WordPiece::tokenize(std::string_view text) const {
  std::vector<std::string> out;
  for (int64_t id : pieces(text)) out.push_back(token(id));
  return out;
}

const std::string& WordPiece::token(int64_t id) const {
  TFCC_CHECK(id >= 0 && static_cast<size_t>(id) < tokens_.size());
  return tokens_[static_cast<size_t>(id)];
}

TokenBatch WordPiece::encode_batch(std::span<const std::string> texts, size_t max_length) const {
  std::vector<std::vector<int64_t>> rows;
  size_t columns = 0;
  for (const std::string& text : texts) {
    rows.push_back(encode(text, max_length));
    columns = std::max(columns, rows.back().size());
  }
  TokenBatch out{static_cast<int64_t>(rows.size()), static_cast<int64_t>(columns), {}, {}, {}};
  out.ids.assign(rows.size() * columns, pad_);
  out.mask.assign(rows.size() * columns, 0);
  out.types.assign(rows.size() * columns, 0);
  for (size_t r = 0; r < rows.size(); ++r) {
    std::copy(rows[r].begin(), rows[r].end(), out.ids.begin() + static_cast<std::ptrdiff_t>(r * columns));
    std::fill_n(out.mask.begin() + static_cast<std::ptrdiff_t>(r * columns), rows[r].size(), 1);
  }
  return out;
}

}  // namespace tfcc::tools
