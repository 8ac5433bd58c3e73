// SPDX-License-Identifier: Apache-2.0
// UTF-8 and the character classes that tokenizers ask for. The tables are utf8proc's.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tfcc::text {

/// The character at `at` of valid UTF-8; moves `at` behind it.
char32_t next_character(std::string_view text, size_t& at);
void append_utf8(char32_t c, std::string& out);
/// Bytes of the character that starts with `lead`, in valid UTF-8.
size_t character_size(char lead);
size_t count_characters(std::string_view text);

/// The same text with U+FFFD for whatever is no UTF-8: one for each longest start of a character
/// (Unicode 3.9).
std::string valid_utf8(std::string_view text);
/// The bytes at the end of `text` that may still become a character, at most 3.
size_t unfinished_bytes(std::string_view text);

bool is_space(char32_t c);        ///< White_Space
bool is_letter(char32_t c);       ///< L
bool is_number(char32_t c);       ///< N
bool is_mark(char32_t c);         ///< M
bool is_nonspacing(char32_t c);   ///< Mn
bool is_punctuation(char32_t c);  ///< P, and the ASCII symbols
bool is_control(char32_t c);      ///< Cc, Cf and Co, but tab, line feed and carriage return
bool is_ideograph(
    char32_t c);  ///< the blocks that BERT sets apart; extension F and later are not among them
bool is_word(
    char32_t c);  ///< \w of UTS 18: alphabetic, marks, decimal numbers, connectors, joiners

/// Lower case of each character alone (no final sigma).
std::string lower_case(std::string_view text);

enum class Form { nfc, nfd, nfkc, nfkd };
std::string normal_form(std::string_view text, Form form);

/// Where the grapheme cluster that starts at `at` ends.
size_t grapheme_end(std::string_view text, size_t at);

}  // namespace tfcc::text
