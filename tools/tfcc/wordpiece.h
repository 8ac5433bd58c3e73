// SPDX-License-Identifier: Apache-2.0
// BERT's WordPiece tokenizer: text to ids, from the vocab.txt that lies beside a model.
// Gives what Hugging Face's fast BERT tokenizer gives; special tokens written out in the text ("[MASK]") are not
// recognised and become punctuation and letters.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "runtime/result.h"

namespace tfcc::tools {

/// Sentences as the three inputs of an encoder: row-major [rows, columns], padded on the right.
struct TokenBatch {
  int64_t rows = 0, columns = 0;
  std::vector<int64_t> ids, mask, types;
};

class WordPiece {
 public:
  struct Options {
    bool lower_case = true;  ///< also strips accents; false for cased vocabularies
  };

  /// Reads vocab.txt: one token a line, the line number is the id.
  /// Errors: io, bad_file ([CLS], [SEP], [UNK] or [PAD] missing).
  static Result<WordPiece> load(const std::string& path, const Options& options);
  static Result<WordPiece> load(const std::string& path) { return load(path, Options()); }
  /// The same from tokens; `name` is what messages call the vocabulary.
  static Result<WordPiece> from_tokens(std::vector<std::string> tokens, const Options& options,
                                       const std::string& name);

  /// [CLS] pieces [SEP], cut to `max_length` ids (at least 2).
  std::vector<int64_t> encode(std::string_view text, size_t max_length = 512) const;
  /// Several sentences, padded to the longest.
  TokenBatch encode_batch(std::span<const std::string> texts, size_t max_length = 512) const;

  /// The pieces alone, without [CLS] and [SEP].
  std::vector<std::string> tokenize(std::string_view text) const;
  /// The token of an id; the id must be one of the vocabulary.
  const std::string& token(int64_t id) const;
  size_t vocabulary_size() const { return tokens_.size(); }

 private:
  std::vector<std::string> words(std::string_view text) const;
  void append_pieces(const std::string& word, std::vector<int64_t>& out) const;
  std::vector<int64_t> pieces(std::string_view text) const;

  Options options_;
  std::vector<std::string> tokens_;
  std::unordered_map<std::string, int64_t> ids_;
  int64_t cls_ = 0, sep_ = 0, unk_ = 0, pad_ = 0;
};

}  // namespace tfcc::tools
