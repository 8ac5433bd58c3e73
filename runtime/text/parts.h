// SPDX-License-Identifier: Apache-2.0
// The parts of a tokenizer in the order in which text goes through them, made from the sections of
// a tokenizer.json (normalizer, pre_tokenizer, model, post_processor, decoder). All are immutable
// once made.
//
// What makes them may throw nlohmann::json's exceptions on a member that is absent or of another
// type: Tokenizer turns those into an error. Texts are valid UTF-8 throughout.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "runtime/result.h"
#include "runtime/text/pattern.h"

namespace tfcc::text {

using Json = nlohmann::json;

/// Sections may nest (Sequence); deeper than this is a file that was made to break its readers.
inline constexpr int kMaxNesting = 16;

/// The `type` of a section. Errors: bad_file (it has none).
Result<std::string> type_of(const Json& section, std::string_view what);
/// The error of a type that nothing here implements.
Error unknown_type(std::string_view what, const std::string& type);
/// {"String": s} or {"Regex": r}. Errors: bad_file.
Result<Pattern> read_pattern(const Json& pattern);

/// Text to text.
struct Normalizer {
  virtual ~Normalizer() = default;
  virtual Result<std::string> apply(std::string text) const = 0;
};
Result<std::unique_ptr<Normalizer>> make_normalizer(const Json& section, int depth = 0);

/// A part of a text; `first` if nothing of the text is before it.
struct Piece {
  std::string text;
  bool first = false;
};

/// Splits each piece into more.
struct PreTokenizer {
  virtual ~PreTokenizer() = default;
  virtual Result<void> apply(std::vector<Piece>& pieces) const = 0;
};
Result<std::unique_ptr<PreTokenizer>> make_pre_tokenizer(const Json& section, int depth = 0);

/// A piece to ids.
struct TokenModel {
  virtual ~TokenModel() = default;
  /// Appends the ids of a piece. Errors: invalid_argument (a character that the vocabulary has no
  /// id for, and no unknown token).
  virtual Result<void> append(std::string_view piece, std::vector<int32_t>& out) const = 0;
  /// The vocabulary: token i is the text of id i; empty where no token has the id.
  virtual const std::vector<std::string>& tokens() const = 0;
};
Result<std::unique_ptr<TokenModel>> make_model(const Json& section);

/// Ids and special tokens around them.
struct PostProcessor {
  std::vector<int32_t> before, after;
};
Result<PostProcessor> make_post_processor(const Json& section, int depth = 0);

/// Tokens to the texts that, joined, are the decoded text.
struct Decoder {
  virtual ~Decoder() = default;
  virtual Result<void> apply(std::vector<std::string>& tokens) const = 0;
};
Result<std::unique_ptr<Decoder>> make_decoder(const Json& section, int depth = 0);

/// GPT-2's alphabet, in which each byte is a character that can be seen: a byte to its character,
/// and back (-1: none).
const std::string& character_of_byte(unsigned char byte);
int byte_of_character(char32_t c);
/// A text whose bytes are written in that alphabet.
std::string in_byte_alphabet(std::string_view text);

/// "<0x0A>" to 10; -1 if it is not of that form.
int byte_of_token(std::string_view token);

/// Every `from` in `text` replaced. `from` is not empty.
std::string replace_all(std::string text, std::string_view from, std::string_view to);

}  // namespace tfcc::text
