// SPDX-License-Identifier: Apache-2.0
// A SentencePiece .model as the tokenizer.json that says the same.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/text/parts.h"

namespace tfcc::text {

/// What a token is for: ModelProto.SentencePiece.Type, and `token_type` of GGUF.
enum class PieceType : uint64_t {
  normal = 1,
  unknown = 2,
  control = 3,
  user_defined = 4,
  unused = 5,
  byte = 6
};

struct SentencePiece {
  std::string text;
  float score = 0;
  PieceType type = PieceType::normal;
};

struct SentencePieceModel {
  std::vector<SentencePiece> pieces;
  uint64_t kind = 1;  // ModelType: 1 unigram, 2 BPE, 3 words, 4 characters
  bool byte_fallback = false, space_behind = false;
  int32_t begin = 1, end = 2;                // ids
  bool adds_begin = true, adds_end = false;  // around a text
  std::string charsmap;
  bool leading_space = true, clean_spaces = true, escapes_spaces = true;
};

/// BPE (with a fallback to bytes or without) and Unigram. Control pieces are special tokens that a
/// text may have.
/// Errors: bad_file, unsupported (whole words or characters as pieces; white space behind a word).
Result<Json> tokenizer_of(const SentencePieceModel& model);

/// The same of a .model. A piece that begins a text stands before each; where the model has none
/// the one that ends a text stands behind.
Result<Json> read_sentencepiece(std::string_view bytes);

}  // namespace tfcc::text
