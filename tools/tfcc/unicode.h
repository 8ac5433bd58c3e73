// SPDX-License-Identifier: Apache-2.0
// What the WordPiece tokenizer asks about characters: classes, and the form without accents and case.
#pragma once

#include <string>
#include <string_view>

namespace tfcc::tools {

/// UTF-8 to code points. A byte that is not UTF-8 becomes U+FFFD.
std::u32string decode_utf8(std::string_view text);
/// One code point as UTF-8.
void append_utf8(char32_t c, std::string& out);

bool is_space(char32_t c);
bool is_control(char32_t c);
/// ASCII signs and Unicode category P.
bool is_punctuation(char32_t c);
/// Ideographs, which BERT takes as one word each. Kana and Hangul are not among them.
bool is_ideograph(char32_t c);

/// Appends `c` canonically decomposed, without nonspacing marks, in lower case; nothing for a mark.
void append_folded(char32_t c, std::u32string& out);

}  // namespace tfcc::tools
