// SPDX-License-Identifier: Apache-2.0
// A SentencePiece .model as the tokenizer.json that says the same.
#pragma once

#include <string_view>

#include "runtime/text/parts.h"

namespace tfcc::text {

/// BPE (with a fallback to bytes or without) and Unigram. Control pieces are special tokens that a
/// text may have; one that begins a text stands before each, where the model has none the one that
/// ends a text stands behind.
/// Errors: bad_file, unsupported (whole words or characters as pieces; white space behind a word).
Result<Json> read_sentencepiece(std::string_view bytes);

}  // namespace tfcc::text
