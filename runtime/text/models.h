// SPDX-License-Identifier: Apache-2.0
// What the models of tokens share.
#pragma once

#include <memory>
#include <string_view>

#include "runtime/text/parts.h"
#include "runtime/text/unicode.h"
#include "runtime/text/vocabulary.h"

namespace tfcc::text {

Error no_token_for(std::string_view piece);
/// {"token": id, ..} under "vocab".
Result<Vocabulary> read_vocabulary(const Json& section);

/// Byte pair encoding (Sennrich et al., 2016): adjacent symbols are merged, the merge that comes
/// first in the list first.
Result<std::unique_ptr<TokenModel>> make_bpe(const Json& section);
/// The split of largest probability under a unigram model (Kudo, 2018), by Viterbi.
Result<std::unique_ptr<TokenModel>> make_unigram(const Json& section);

}  // namespace tfcc::text
