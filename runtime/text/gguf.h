// SPDX-License-Identifier: Apache-2.0
// The vocabulary of a GGUF file as the tokenizer.json that says the same.
#pragma once

#include <string_view>

#include "runtime/text/parts.h"

namespace tfcc::text {

/// BPE of bytes (`gpt2`), and SentencePiece's BPE (`llama`) and Unigram (`t5`). Errors: bad_file,
/// unsupported (another model; words split in a way of unknown name).
Result<Json> read_gguf(std::string_view bytes);

}  // namespace tfcc::text
