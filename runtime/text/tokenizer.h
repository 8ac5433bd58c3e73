// SPDX-License-Identifier: Apache-2.0
// Text to the ids that a model reads, and back, as the tokenizer.json beside a model of the Hugging
// Face hub says.
//
//     auto tokenizer = tfcc::text::Tokenizer::load("model/tokenizer.json");
//     std::vector<int32_t> ids = *tokenizer->encode("Hello, world");
//     tfcc::text::TextStream stream(*tokenizer);
//     for (int32_t id : ids) std::cout << *stream.push(id);   // never half a character
//
// Models: BPE (of bytes, or with a fallback to bytes), Unigram, WordPiece, WordLevel; their
// normalizers, pre-tokenizers, post-processors and decoders by name. What is not known is refused
// when the file is read. Truncation and padding of the file are left to the caller. Immutable, and
// safe to share between threads.
#pragma once

#include <cstdint>
#include <istream>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/result.h"

namespace tfcc::text {

/// Names of the file in a model's folder, the first of them that is there.
inline constexpr const char* kTokenizerFiles[] = {"tokenizer.json", "tokenizer.model",
                                                  "tekken.json", "tokenizer.gguf"};

/// The metadata of a GGUF file, for Tokenizer::from_gguf(): all before its tensors, of which it says
/// that there are none. Reads no further than it needs. Errors: io, bad_file.
Result<std::string> gguf_metadata(std::istream& file);

struct EncodeOptions {
  bool special = true;  ///< with the tokens that the file puts around a text ([CLS], <s>)
  size_t max_tokens =
      0;  ///< most ids, those around the text among them: the text's last ones are left out; 0: no limit
};

class Tokenizer {
 public:
  /// A tokenizer.json, a SentencePiece .model, Mistral's tekken.json, a .gguf file, the folder that
  /// holds one (kTokenizerFiles, in this order), or a BERT's vocab.txt (a token in each line; without
  /// case and accents).
  /// Errors: io, bad_file (and where in it), unsupported (a part of unknown type).
  static Result<Tokenizer> load(const std::string& path);
  /// The same of the bytes of such a file, but vocab.txt; of a GGUF file those before its tensors do.
  /// `name` is what messages call it.
  static Result<Tokenizer> from_bytes(std::string_view bytes, const std::string& name);
  /// A BERT's vocab.txt. Errors: io, bad_file ([CLS], [SEP] or [UNK] missing).
  static Result<Tokenizer> load_bert(const std::string& path, bool lower_case);
  /// The same from tokens in the order of their ids.
  static Result<Tokenizer> bert(const std::vector<std::string>& tokens, bool lower_case,
                                const std::string& name);
  /// From the text of a tokenizer.json or a tekken.json.
  static Result<Tokenizer> from_json(std::string_view json, const std::string& name);
  /// A SentencePiece .model, of BPE or Unigram. Its control pieces are special tokens. Around a
  /// text stands the piece that begins one, or, where it has none, the one that ends it. Errors:
  /// bad_file, unsupported.
  static Result<Tokenizer> from_sentencepiece(std::string_view model, const std::string& name);
  /// The vocabulary of a GGUF file. Errors: bad_file, unsupported (its kind, or how it splits text
  /// into words, is not known).
  static Result<Tokenizer> from_gguf(std::string_view file, const std::string& name);

  /// What is no UTF-8 is read as U+FFFD. Errors: invalid_argument (a character without a token in a
  /// vocabulary that has none for what it does not know, or a text that takes the tokenizer's
  /// patterns past their limits).
  Result<std::vector<int32_t>> encode(std::string_view text,
                                      const EncodeOptions& options = {}) const;
  /// Valid UTF-8. Ids without a token are left out, special tokens as `special` says.
  Result<std::string> decode(std::span<const int32_t> ids, bool special = false) const;

  /// -1 if there is no such token.
  int32_t id(std::string_view token) const;
  /// Empty if no token has the id.
  std::string_view token(int32_t id) const;
  bool is_special(int32_t id) const;
  /// The token that ends an answer; -1 if the file does not say, as a tokenizer.json does not.
  int32_t end_id() const;
  /// One more than the largest id.
  int32_t size() const;

 private:
  struct Impl;
  explicit Tokenizer(std::shared_ptr<const Impl> impl);
  std::shared_ptr<const Impl> impl_;
};

/// Text of ids that come one after another. What a call returns is never changed by a later one:
/// bytes of an unfinished character, and spaces that a later token decides about, are held back.
class TextStream {
 public:
  explicit TextStream(Tokenizer tokenizer, bool special = false)
      : tokenizer_(std::move(tokenizer)), special_(special) {}
  /// The text that the id adds, perhaps none.
  Result<std::string> push(int32_t id);
  /// What was held back at the end.
  Result<std::string> finish();

 private:
  Result<std::string> text_of(size_t begin) const;

  Tokenizer tokenizer_;
  bool special_;
  std::vector<int32_t> ids_;
  size_t before_ = 0,
         given_ = 0;  // ids_[before_, given_) are those whose text is out, as context of the next
};

}  // namespace tfcc::text
