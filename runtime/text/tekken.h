// SPDX-License-Identifier: Apache-2.0
// Mistral's tekken.json as the tokenizer.json that says the same.
#pragma once

#include "runtime/text/parts.h"

namespace tfcc::text {

bool is_tekken(const Json& file);

/// Byte pair encoding by rank, as tiktoken has it: of two neighbours those are merged first that
/// make the token of the lowest rank, and a word that is a token is that token. `<s>` stands before
/// a text. Special tokens have the first ids; a text may have them. The file may hold more tokens
/// than the model has: default_vocab_size counts.
/// What is absent or of another type throws, as in parts.h. Errors: bad_file.
Result<Json> read_tekken(const Json& file);

}  // namespace tfcc::text
