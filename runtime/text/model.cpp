// SPDX-License-Identifier: Apache-2.0
// The section `model` of a tokenizer.json: which of the models it is, and the two simple ones.
#include "runtime/text/models.h"
#include "runtime/text/trie.h"

namespace tfcc::text {
namespace {

/// A word is one token.
struct WordLevel : TokenModel {
  Vocabulary vocabulary;
  int32_t unknown = -1;

  Result<void> append(std::string_view piece, std::vector<int32_t>& out) const override {
    const int32_t id = vocabulary.find(piece);
    if (id < 0 && unknown < 0) return no_token_for(piece);
    out.push_back(id < 0 ? unknown : id);
    return {};
  }
  const std::vector<std::string>& tokens() const override { return vocabulary.tokens(); }
};

/// A word is its longest token at the start, then the longest of the rest with a prefix, and so on;
/// unknown as a whole if that does not go through, or if it is too long.
struct WordPiece : TokenModel {
  Vocabulary vocabulary;
  int32_t unknown = -1;
  size_t longest_word = 100;  // characters
  Trie starts{{}},
      rests{{}};  // tokens at the start of a word; those behind it, without their prefix

  Result<void> append(std::string_view piece, std::vector<int32_t>& out) const override {
    const size_t before = out.size();
    if (count_characters(piece) <= longest_word) {
      size_t at = 0;
      for (size_t size = 1; at < piece.size() && size > 0; at += size) {
        size = 0;
        int32_t id = -1;
        (at ? rests : starts).prefixes(piece.substr(at), [&](size_t n, int32_t found) {
          size = n, id = found;
        });
        if (size) out.push_back(id);
      }
      if (at == piece.size() && out.size() > before) return {};
    }
    out.resize(before);
    if (unknown < 0) return no_token_for(piece);
    out.push_back(unknown);
    return {};
  }
  const std::vector<std::string>& tokens() const override { return vocabulary.tokens(); }
};

int32_t unknown_of(const Json& section, const Vocabulary& vocabulary) {
  return vocabulary.find(section.value("unk_token", "[UNK]"));
}

Result<std::unique_ptr<TokenModel>> word_level(const Json& section) {
  auto model = std::make_unique<WordLevel>();
  TFCC_TRY(model->vocabulary, read_vocabulary(section));
  model->unknown = unknown_of(section, model->vocabulary);
  return std::unique_ptr<TokenModel>(std::move(model));
}

Result<std::unique_ptr<TokenModel>> word_piece(const Json& section) {
  auto model = std::make_unique<WordPiece>();
  TFCC_TRY(model->vocabulary, read_vocabulary(section));
  model->unknown = unknown_of(section, model->vocabulary);
  model->longest_word = section.value("max_input_chars_per_word", size_t{100});
  const std::string prefix = section.value("continuing_subword_prefix", "##");
  std::vector<std::string> rests = model->vocabulary.tokens();
  for (std::string& token : rests)
    token = token.starts_with(prefix) ? token.substr(prefix.size()) : std::string();
  model->starts = Trie(model->vocabulary.tokens());
  model->rests = Trie(rests);
  return std::unique_ptr<TokenModel>(std::move(model));
}

// Files from before the type was written: told by what is in them.
std::string kind_of(const Json& section) {
  if (section.contains("type")) return section["type"].get<std::string>();
  if (section.contains("merges")) return "BPE";
  if (section.at("vocab").is_array()) return "Unigram";
  return section.contains("max_input_chars_per_word") ? "WordPiece" : "WordLevel";
}

}  // namespace

Error no_token_for(std::string_view piece) {
  constexpr size_t kShown = 40;
  return {ErrorCode::invalid_argument, "the tokenizer has no token for '" +
                                           valid_utf8(piece.substr(0, kShown)) +
                                           "', and none for what it does not know"};
}

Result<Vocabulary> read_vocabulary(const Json& section) {
  Vocabulary out;
  for (const auto& [token, id] : section.at("vocab").items())
    TFCC_TRY_VOID(out.add(token, id.template get<int64_t>()));
  return out;
}

Result<std::unique_ptr<TokenModel>> make_model(const Json& section) {
  const std::string kind = kind_of(section);
  if (kind == "BPE") return make_bpe(section);
  if (kind == "Unigram") return make_unigram(section);
  if (kind == "WordPiece") return word_piece(section);
  if (kind == "WordLevel") return word_level(section);
  return unknown_type("model", kind);
}

}  // namespace tfcc::text
