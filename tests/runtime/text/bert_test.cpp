// SPDX-License-Identifier: Apache-2.0
// WordPiece against ids that Hugging Face's tokenizer gave for the same small vocabulary.
#include <gtest/gtest.h>

#include "runtime/text/tokenizer.h"

namespace tfcc::text {
namespace {

const std::vector<std::string> kVocabulary = {
    "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "on", "mat", "a", "un",
    "##aff", "##able", "run", "##ning", "##s", "don", "t", "'", ".", ",", "!", "?", "-", "—", "“",
    "”", "$", "5", "##0", "##00", "100", "%", "cafe", "na", "##ive", "strasse", "stra", "##ße",
    "angstrom", "##ß", "istanbul", "東", "京", "カ", "##カ", "привет", "мир", "##о", "ε", "##λ",
    "##λας", "##α", "##σ", "ε##λ", "한국", "##어", "word", "##piece", "token", "##ization", "##ize",
    "##r", "is", "fast", "##er", "(", ")", "[", "]", "_", "/", ":", "hello", "world",
    // Hangul as the tokenizer sees it: decomposed
    "\u1112\u1161\u11ab\u1100\u116e\u11a8", "##\u110b\u1165"};

Tokenizer tokenizer(bool lower_case = true) {
  return *Tokenizer::bert(kVocabulary, lower_case, "vocab.txt");
}

using Ids = std::vector<int32_t>;

TEST(WordPieceTest, GivesTheReferenceIds) {
  const std::pair<std::string, Ids> cases[] = {
      {"The cat sat on the mat.", {2, 5, 6, 7, 8, 5, 9, 20, 3}},
      {"unaffable running", {2, 11, 12, 13, 14, 15, 3}},
      {"Don't run!", {2, 17, 19, 18, 14, 22, 3}},
      {"Hello,   world?\t(fast)", {2, 74, 21, 75, 23, 67, 65, 68, 3}},
      {"Café NAÏVE", {2, 34, 35, 36, 3}},
      {"Straße Ångström İstanbul", {2, 38, 39, 40, 42, 3}},
      {"cafe\u0301 na\u0308ive", {2, 34, 35, 36, 3}},
      {"東京カカ", {2, 43, 44, 45, 46, 3}},
      {"Привет, Мир — “hello”", {2, 47, 21, 48, 25, 26, 74, 27, 3}},
      {"Ελλας ΕΛΛΑΣ", {2, 50, 51, 52, 50, 51, 51, 53, 54, 3}},
      {"한국어", {2, 76, 77, 3}},
      {"$5000 100% a_cat [word]/:", {2, 28, 29, 31, 30, 32, 33, 10, 71, 6, 69, 58, 70, 72, 73, 3}},
      {"wordpiece tokenization is faster, tokenizer",
       {2, 58, 59, 60, 61, 64, 65, 66, 21, 60, 62, 63, 3}},
      {"zebra unaffablex cat", {2, 1, 1, 6, 3}},
      {"", {2, 3}},
      {"hel\u200blo\u00a0wor\u00adld", {2, 74, 75, 3}},
      {std::string("cat\0s \xef\xbf\xbd"
                   "cat",
                   12),
       {2, 6, 16, 6, 3}},
      {std::string(101, 'a') + " a", {2, 1, 10, 3}},
  };
  const Tokenizer w = tokenizer();
  for (const auto& [text, ids] : cases) EXPECT_EQ(*w.encode(text), ids) << text;
}

TEST(WordPieceTest, PiecesAreReadable) {
  const Tokenizer w = tokenizer();
  const Ids ids = *w.encode("Unaffable cats", {.special = false});
  std::vector<std::string> pieces;
  for (const int32_t id : ids) pieces.emplace_back(w.token(id));
  EXPECT_EQ(pieces, (std::vector<std::string>{"un", "##aff", "##able", "cat", "##s"}));
  EXPECT_EQ(*w.decode(ids), "unaffable cats");
}

TEST(WordPieceTest, CasedVocabularyKeepsCaseAndAccents) {
  const Tokenizer w = tokenizer(false);
  EXPECT_EQ(*w.encode("the Cat"), (Ids{2, 5, 1, 3}));
  EXPECT_EQ(*w.encode("cafe café"), (Ids{2, 34, 1, 3}));
}

TEST(WordPieceTest, CutsToTheMostTokens) {
  const Tokenizer w = tokenizer();
  EXPECT_EQ(*w.encode("the cat sat on the mat", {.max_tokens = 5}), (Ids{2, 5, 6, 7, 3}));
  EXPECT_EQ(*w.encode("the cat", {.max_tokens = 2}), (Ids{2, 3}));
  EXPECT_EQ(*w.encode("the cat", {.max_tokens = 1}), (Ids{2, 3}));
  EXPECT_EQ(*w.encode("the cat", {.special = false, .max_tokens = 1}), (Ids{5}));
  EXPECT_EQ(*w.encode("the cat", {.max_tokens = 4}), (Ids{2, 5, 6, 3}));
}

TEST(WordPieceTest, VocabularyWithoutSpecialTokensIsRefused) {
  const auto w = Tokenizer::bert({"[PAD]", "[UNK]", "[CLS]", "the"}, true, "v.txt");
  ASSERT_FALSE(w);
  EXPECT_EQ(w.error().code, ErrorCode::bad_file);
  EXPECT_EQ(w.error().message, "v.txt: no [SEP] in it; a BERT vocab.txt (WordPiece) is needed");
  EXPECT_FALSE(Tokenizer::load("/no/such/vocab.txt"));
}

}  // namespace
}  // namespace tfcc::text
