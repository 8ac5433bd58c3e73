// SPDX-License-Identifier: Apache-2.0
// What the golden files do not show: refusals, broken files, streams, bytes that are no UTF-8.
#include "runtime/text/tokenizer.h"

#include <filesystem>
#include <fstream>
#include <iterator>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "runtime/text/charsmap.h"
#include "runtime/text/unicode.h"

namespace tfcc::text {
namespace {

using Json = nlohmann::json;
using Ids = std::vector<int32_t>;

const std::string kData = TFCC_SOURCE_DIR "/tests/runtime/text/data/";

std::string bytes_of(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

/// A byte-level tokenizer of some of the 256 bytes and a few merges.
Json bytes_and_merges() {
  Json vocab = Json::object();
  for (const char* token : {"a", "b", "Ġ", "ab", "abab", "ð", "Ł", "ĺ", "Ģ", "Ċ"})
    vocab[token] = vocab.size();
  return {{"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", {"a b", "ab ab"}}}},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
          {"decoder", {{"type", "ByteLevel"}}},
          {"added_tokens", {{{"id", 20}, {"content", "<end>"}, {"special", true}}}}};
}

Tokenizer made(const Json& json) {
  auto out = Tokenizer::from_json(json.dump(), "t.json");
  EXPECT_TRUE(out) << out.error().message;
  return *std::move(out);
}

std::string refusal(const Json& json) {
  const auto out = Tokenizer::from_json(json.dump(), "t.json");
  return out ? "accepted" : out.error().message;
}

Json with(Json json, const char* section, Json value) {
  json[section] = std::move(value);
  return json;
}

TEST(Tokenizer, MergesByRank) {
  const Tokenizer t = made(bytes_and_merges());
  EXPECT_EQ(*t.encode("ababab b"), (Ids{4, 3, 2, 1}));
  EXPECT_EQ(*t.decode(Ids{4, 3, 2, 1}), "ababab b");
  EXPECT_EQ(t.size(), 21);
  EXPECT_EQ(t.id("abab"), 4);
  EXPECT_EQ(t.id("nothing"), -1);
  EXPECT_EQ(t.token(19), "");
}

TEST(Tokenizer, TakesSpecialTokensOutOfText) {
  const Tokenizer t = made(bytes_and_merges());
  EXPECT_EQ(*t.encode("a<end>b"), (Ids{0, 20, 1}));
  EXPECT_EQ(*t.decode(Ids{0, 20, 1}), "ab");
  EXPECT_EQ(*t.decode(Ids{0, 20, 1}, true), "a<end>b");
  EXPECT_TRUE(t.is_special(20));
  EXPECT_FALSE(t.is_special(0));
}

TEST(Tokenizer, LeavesOutIdsWithoutToken) {
  EXPECT_EQ(*made(bytes_and_merges()).decode(Ids{0, -1, 15, 1 << 30, 1}), "ab");
}

TEST(Tokenizer, NamesWhatItDoesNotKnow) {
  EXPECT_EQ(refusal(with(bytes_and_merges(), "normalizer", {{"type", "Rot13"}})),
            "t.json: a normalizer of type Rot13 is not supported");
  EXPECT_EQ(refusal(with(bytes_and_merges(), "pre_tokenizer", {{"type", "UnicodeScripts"}})),
            "t.json: a pre-tokenizer of type UnicodeScripts is not supported");
  EXPECT_EQ(refusal(with(bytes_and_merges(), "decoder", {{"type", "CTC"}})),
            "t.json: a decoder of type CTC is not supported");
  EXPECT_EQ(refusal(with(bytes_and_merges(), "post_processor", {{"type", "Odd"}})),
            "t.json: a post-processor of type Odd is not supported");
  EXPECT_EQ(refusal(with(bytes_and_merges(), "model", {{"type", "Odd"}})),
            "t.json: a model of type Odd is not supported");
  EXPECT_EQ(
      refusal(with(bytes_and_merges(), "pre_tokenizer",
                   {{"type", "Split"}, {"behavior", "Isolated"}, {"pattern", {{"Regex", "(a"}}}})),
      "t.json: the pattern '(a' is not a regular expression: missing closing parenthesis");
  EXPECT_NE(refusal(with(bytes_and_merges(), "pre_tokenizer",
                         {{"type", "Split"},
                          {"behavior", "Isolated"},
                          {"pattern", {{"Regex", "[a-z&&[^b]]"}}}}))
                .find("&&"),
            std::string::npos);
}

TEST(Tokenizer, RefusesFilesThatDoNotFitTogether) {
  Json merge = bytes_and_merges();
  merge["model"]["merges"] = {"a c"};
  EXPECT_EQ(refusal(merge), "t.json: the merge of 'a' and 'c' is not of tokens of the vocabulary");
  Json id = bytes_and_merges();
  id["added_tokens"][0]["id"] = -7;
  EXPECT_EQ(refusal(id), "t.json: the token '<end>' has the id -7, outside [0, 2097151]");
  Json deep = {{"type", "NFC"}};
  for (int i = 0; i < 40; ++i) deep = {{"type", "Sequence"}, {"normalizers", Json::array({deep})}};
  EXPECT_EQ(refusal(with(bytes_and_merges(), "normalizer", deep)),
            "t.json: normalizers are nested too deeply");
  const Json unigram = {
      {"model",
       {{"type", "Unigram"}, {"unk_id", 5}, {"vocab", Json::array({Json::array({"a", -1.0})})}}}};
  EXPECT_EQ(refusal(unigram), "t.json: unk_id is 5, which is no token");
}

TEST(Tokenizer, SaysWhatHasNoToken) {
  const Tokenizer t =
      made({{"model", {{"type", "Unigram"}, {"vocab", Json::array({Json::array({"a", -1.0})})}}}});
  EXPECT_EQ(*t.encode("aa"), (Ids{0, 0}));
  EXPECT_EQ(t.encode("ab").error().message,
            "the tokenizer has no token for 'b', and none for what it does not know");
}

// Every file that a user could hold is refused or works; none crashes.
TEST(Tokenizer, SurvivesCutAndChangedFiles) {
  for (const auto& entry :
       std::filesystem::directory_iterator(TFCC_SOURCE_DIR "/tests/runtime/text/data")) {
    const std::string name = entry.path().filename();
    if (!name.ends_with(".json")) continue;
    std::ifstream stream(entry.path());
    const Json golden = Json::parse(stream);
    if (!golden.contains("tokenizer") && name != "tekken.json") continue;
    const std::string whole = name == "tekken.json"
                                  ? bytes_of(entry.path().parent_path() / "tekken" / name)
                                  : golden.at("tokenizer").dump();
    for (size_t size = 0; size < whole.size(); size += 1000)
      EXPECT_FALSE(Tokenizer::from_json(whole.substr(0, size), "cut"))
          << entry.path() << " " << size;
    for (size_t at = 0; at < whole.size(); at += 611)
      for (const char c : {'{', '"', '9', '-', 'n', '\xff'}) {
        std::string changed = whole;
        changed[at] = c;
        const auto t = Tokenizer::from_json(changed, "changed");
        if (t) (void)t->encode("Hello wörld 123 \u2581 <s>");
      }
  }
}

TEST(Tokenizer, ReadsWhatIsNoUtf8AsReplacement) {
  EXPECT_EQ(valid_utf8("a\xff\xe2\x82z\xf0\x9f\x98\x80"), "a\ufffd\ufffdz\U0001f600");
  EXPECT_EQ(valid_utf8("\xed\xa0\x80"), "\ufffd\ufffd\ufffd");  // half of a surrogate pair
  EXPECT_EQ(valid_utf8("\xc0\xaf"), "\ufffd\ufffd");            // too long a form
  EXPECT_EQ(unfinished_bytes("ab\xf0\x9f"), 2u);
  EXPECT_EQ(unfinished_bytes("ab\xf0\x9f\x98\x80"), 0u);
  EXPECT_EQ(unfinished_bytes("\x80"), 0u);
  EXPECT_TRUE(made(bytes_and_merges()).encode("\xff\xfe"));
}

TEST(Tokenizer, EndsOnLongTextsWithoutSpaces) {
  const Tokenizer t = made(bytes_and_merges());
  const auto ids = t.encode(std::string(1 << 20, 'a') + std::string(1 << 20, 'b'));
  EXPECT_EQ(ids->size(), (size_t{2} << 20) - 1);
}

const std::string kPieces = kData + "sentencepiece-bpe.model";

TEST(SentencePiece, IsReadAsAFileAndInAFolder) {
  const auto file = Tokenizer::load(kPieces);
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_EQ(file->token(1), "<s>");
  EXPECT_TRUE(file->is_special(2));
  EXPECT_EQ(*file->decode(*file->encode("two  spaces, \u2615")), "two  spaces, \u2615");
  EXPECT_EQ(file->encode("a")->front(), 1);
  EXPECT_EQ(file->encode("a", {.special = false})->front(), file->encode("a")->at(1));
  const auto folder = std::filesystem::temp_directory_path() / "tfcc-sentencepiece";
  std::filesystem::create_directories(folder);
  std::filesystem::copy_file(kPieces, folder / "tokenizer.model",
                             std::filesystem::copy_options::overwrite_existing);
  const auto in_folder = Tokenizer::load(folder);
  ASSERT_TRUE(in_folder) << in_folder.error().message;
  EXPECT_EQ(*in_folder->encode("hello world"), *file->encode("hello world"));
  std::filesystem::remove_all(folder);
}

// Whatever is cut off or altered: an error, or a tokenizer that works.
TEST(SentencePiece, BrokenFiles) {
  const std::string whole = bytes_of(kPieces);
  ASSERT_GT(whole.size(), 1000u);
  const auto works = [](const std::string& bytes) {
    const auto t = Tokenizer::from_sentencepiece(bytes, "m.model");
    const auto ids = t ? t->encode("hello \u2615") : Result<Ids>(t.error());
    EXPECT_TRUE(!ids || t->decode(*ids));
    EXPECT_TRUE(t || t.error().message.starts_with("m.model: "));
    return static_cast<bool>(t);
  };
  for (size_t size = 0; size < whole.size(); size += 61) works(whole.substr(0, size));
  for (size_t at = 0; at < whole.size(); at += 37) {
    std::string altered = whole;
    altered[at] = static_cast<char>(altered[at] ^ 0x15);
    works(altered);
  }
  EXPECT_FALSE(works(whole.substr(0, whole.size() - 1)));
  EXPECT_EQ(Tokenizer::from_sentencepiece("", "m").error().message,
            "m: not a SentencePiece model, or a part of one");
}

TEST(SentencePiece, RefusesWhatItDoesNotRead) {
  // A piece <unk> of type unknown, then the trainer's fields.
  const std::string unknown("\x0a\x09\x0a\x05<unk>\x18\x02", 11);
  const auto refusal = [&](const std::string& more) {
    const auto t = Tokenizer::from_sentencepiece(more, "m");
    return t ? "accepted" : t.error().message;
  };
  EXPECT_EQ(refusal(unknown + std::string("\x12\x02\x18\x02", 4)), "accepted");
  EXPECT_EQ(refusal(unknown + std::string("\x12\x02\x18\x03", 4)),
            "m: its pieces are whole words or characters; BPE and Unigram are supported");
  EXPECT_EQ(refusal(unknown + std::string("\x12\x03\xc0\x01\x01", 5)),
            "m: it puts white space behind words, which is not supported");
  EXPECT_EQ(refusal(std::string("\x0a\x03\x0a\x01"
                                "a",
                                5)),
            "m: the SentencePiece model has no piece for what it does not know");
  EXPECT_EQ(refusal(unknown + std::string("\x0a\x08\x0a\x01"
                                          "a\x15\x00\x00\xc0\x7f",
                                          10)),
            "m: the score of 'a' is no number");
  EXPECT_EQ(refusal(unknown + std::string("\x0a\x03\x0a\x01\xff", 5)),
            "m: a piece is empty or no UTF-8");
}

TEST(Tekken, IsReadByItsName) {
  const auto t = Tokenizer::load(kData + "tekken/tekken.json"),
             folder = Tokenizer::load(kData + "tekken");
  ASSERT_TRUE(t && folder) << t.error().message;
  EXPECT_EQ(t->size(), 518);
  EXPECT_EQ(t->token(1), "<s>");
  EXPECT_EQ(t->end_id(), 2);
  EXPECT_EQ(t->encode("a[INST]")->back(), 3);
  EXPECT_EQ(*folder->encode("hello world"), *t->encode("hello world"));
}

TEST(Tekken, RefusesWhatDoesNotFit) {
  const Json good = Json::parse(bytes_of(kData + "tekken/tekken.json"));
  Json json = good;
  json["config"]["default_vocab_size"] = 10000;
  EXPECT_EQ(refusal(json), "t.json: it has 500 tokens of text, not 9980");
  json["config"]["default_vocab_size"] = 20;
  EXPECT_EQ(refusal(json), "t.json: it has 20 tokens, 20 of them special");
  json["config"]["default_vocab_size"] = 2000498;
  json["config"]["default_num_special_tokens"] = 2000000;
  EXPECT_EQ(refusal(json), "t.json: it has 2000498 tokens, 2000000 of them special");
  json = good;
  json["vocab"][300]["token_bytes"] = "*";
  EXPECT_EQ(refusal(json), "t.json: the bytes of the token of rank 300 are not base64");
}

// "aaa" is a and aa, or aa and a.
TEST(Tekken, MergesOfOneTokenAreOfOneRank) {
  Json vocab = Json::array();
  const auto add = [&](const char* base64) {
    vocab.push_back({{"rank", vocab.size()}, {"token_bytes", base64}});
  };
  add("YQ==");  // a
  add("YWE=");  // aa
  add("YWFh");  // aaa
  const Json file = {
      {"config", {{"pattern", "a+"}, {"default_vocab_size", 3}, {"default_num_special_tokens", 0}}},
      {"vocab", vocab}};
  // aa aa a, then the last two.
  EXPECT_EQ(*made(file).encode("aaaaa"), (Ids{1, 2}));
  EXPECT_EQ(*made(file).encode("aaa"), (Ids{2}));
}

// The metadata of a GGUF file, as a writer of it would.
class GgufText {
 public:
  GgufText& text(const char* key, std::string_view value) { return entry(key, 8).string(value); }
  GgufText& number(const char* key, uint32_t value) { return entry(key, 4).word(value); }
  GgufText& texts(const char* key, const std::vector<std::string>& values) {
    entry(key, 9).word(8).wide(values.size());
    for (const std::string& v : values) string(v);
    return *this;
  }
  std::string bytes(uint32_t version = 3) const {
    GgufText head;
    head.out_ = "GGUF";
    head.word(version).wide(7).wide(entries_);
    return head.out_ + out_;
  }
  GgufText& entry(const char* key, uint32_t type) {
    ++entries_;
    return string(std::string("tokenizer.ggml.") + key).word(type);
  }
  GgufText& word(uint32_t w) {
    for (int i = 0; i < 4; ++i) out_ += static_cast<char>(w >> 8 * i & 0xff);
    return *this;
  }
  GgufText& wide(uint64_t w) {
    return word(static_cast<uint32_t>(w)).word(static_cast<uint32_t>(w >> 32));
  }
  GgufText& string(std::string_view s) {
    wide(s.size());
    out_ += s;
    return *this;
  }

 private:
  std::string out_;
  uint64_t entries_ = 0;
};

TEST(Gguf, IsReadWithoutItsTensors) {
  const std::string whole = bytes_of(kData + "gguf-llama3.gguf");
  const auto folder = std::filesystem::temp_directory_path() / "tfcc-gguf";
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "m.gguf", std::ios::binary)
      << whole << std::string(5 << 20, 'x');  // what tensors would be
  const auto t = Tokenizer::load(folder / "m.gguf"), bare = Tokenizer::from_bytes(whole, "b");
  ASSERT_TRUE(t && bare) << t.error().message;
  EXPECT_EQ(*t->encode("hello 2026"), *bare->encode("hello 2026"));
  EXPECT_EQ(t->end_id(), 2);
  std::ifstream stream(folder / "m.gguf", std::ios::binary);
  EXPECT_EQ(gguf_metadata(stream)->size(), whole.size());
  std::filesystem::remove_all(folder);
}

TEST(Gguf, RefusesWhatItDoesNotRead) {
  const auto refusal = [](const std::string& bytes) {
    const auto t = Tokenizer::from_gguf(bytes, "m");
    return t ? "accepted" : t.error().message;
  };
  const auto model = [](const char* kind) { return GgufText().text("model", kind); };
  EXPECT_EQ(refusal("GGUX" + std::string(40, 'x')), "m: not a GGUF file");
  EXPECT_EQ(refusal(model("gpt2").bytes(1)), "m: is GGUF of version 1; 2 and 3 are read");
  EXPECT_EQ(refusal(model("bert").bytes()),
            "m: its vocabulary is of the kind 'bert'; gpt2, llama and t5 are supported, for others "
            "give the model's tokenizer.json or vocab.txt");
  EXPECT_EQ(
      refusal(model("gpt2").text("pre", "odd").bytes()),
      "m: text split into words as 'odd' does is not supported; give the model's tokenizer.json");
  EXPECT_EQ(refusal(model("gpt2").bytes()),
            "m: it does not say how text is split into words; give the model's tokenizer.json");
  EXPECT_EQ(refusal(model("gpt2").text("pre", "gpt-2").bytes()), "m: it has no vocabulary");
  EXPECT_EQ(refusal(model("llama").texts("tokens", {"a"}).bytes()), "m: its tokens have no scores");
  EXPECT_EQ(refusal(model("gpt2").text("pre", "gpt-2").texts("tokens", {"a", "b"}).bytes()),
            "m: its vocabulary has no merges");
  EXPECT_EQ(refusal(model("gpt2")
                        .text("pre", "gpt-2")
                        .texts("tokens", {"a"})
                        .texts("merges", {"ab"})
                        .bytes()),
            "m: the merge 'ab' is not two tokens");
  EXPECT_EQ(refusal(model("gpt2").text("pre", "gpt-2").texts("tokens", {"\xff"}).bytes()),
            "m: token 0 is no UTF-8");
  EXPECT_EQ(refusal(model("gpt2").entry("odd", 99).bytes()),
            "m: its metadata has a value of unknown type");
  EXPECT_EQ(refusal(model("gpt2").entry("long", 9).word(8).wide(uint64_t{1} << 60).bytes()),
            "m: ends in the middle of its metadata");
  EXPECT_EQ(refusal(model("gpt2").entry("long", 9).word(4).wide(uint64_t{1} << 62).bytes()),
            "m: ends in the middle of its metadata");
}

// Whatever is cut off or altered: an error, or a tokenizer that works.
TEST(Gguf, BrokenFiles) {
  for (const char* name : {"gguf-bpe.gguf", "gguf-bytes.gguf", "gguf-unigram.gguf"}) {
    const std::string whole = bytes_of(kData + name);
    for (size_t size = 0; size < whole.size(); size += 61)
      EXPECT_FALSE(Tokenizer::from_gguf(whole.substr(0, size), "cut")) << name << " " << size;
    for (size_t at = 0; at < whole.size(); at += 37) {
      std::string altered = whole;
      altered[at] = static_cast<char>(altered[at] ^ 0x15);
      const auto t = Tokenizer::from_gguf(altered, "altered");
      const auto ids = t ? t->encode("hello \u2615") : Result<Ids>(t.error());
      EXPECT_TRUE(!ids || t->decode(*ids));
    }
  }
}

TEST(TextStream, HoldsBackHalfCharacters) {
  const Tokenizer t = made(bytes_and_merges());  // ð Ł ĺ Ģ are the bytes f0 9f 98 80
  TextStream stream(t);
  EXPECT_EQ(*stream.push(0), "a");
  for (const int32_t id : {5, 6, 7}) EXPECT_EQ(*stream.push(id), "");
  EXPECT_EQ(*stream.push(8), "\U0001f600");
  EXPECT_EQ(*stream.push(5), "");
  EXPECT_EQ(*stream.finish(), "\ufffd");
}

TEST(TextStream, LeavesSpecialTokensOut) {
  TextStream stream(made(bytes_and_merges()));
  EXPECT_EQ(*stream.push(20), "");
  EXPECT_EQ(*stream.push(3), "ab");
  EXPECT_EQ(*stream.finish(), "");
}

std::string little_endian(std::initializer_list<uint32_t> words) {
  std::string out;
  for (const uint32_t w : words)
    for (int i = 0; i < 4; ++i) out += static_cast<char>(w >> 8 * i & 0xff);
  return out;
}

// The trie has the one key "A": unit 0 leads to 1 ^ 'A', whose leaf stands at its offset 1.
TEST(Charsmap, ReplacesCharacters) {
  std::vector<uint32_t> units(128, 0);
  units[0] = 1u << 10;
  units[1 ^ 'A'] = 1u << 10 | 1u << 8 | 'A';
  units[1 ^ 'A' ^ 1] = 1u << 31 | 2;
  std::string bytes = little_endian({static_cast<uint32_t>(units.size() * 4)});
  for (const uint32_t u : units) bytes += little_endian({u});
  const auto map = Charsmap::from_bytes(bytes + std::string("x\0yz\0", 5));
  ASSERT_TRUE(map) << map.error().message;
  EXPECT_EQ(map->apply("BAé"), "Byzé");
}

TEST(Charsmap, RefusesSizesThatLie) {
  EXPECT_FALSE(Charsmap::from_bytes("ab"));
  EXPECT_FALSE(Charsmap::from_bytes(little_endian({8, 1})));
  EXPECT_FALSE(Charsmap::from_bytes(little_endian({3, 1})));
  EXPECT_FALSE(Charsmap::from_base64("!!"));
  // offsets that lead out of the trie, and a text that is not there
  std::string wild = little_endian({8, 0xfffffe00, 0xffffffff});
  EXPECT_EQ(Charsmap::from_bytes(wild)->apply("abc"), "abc");
}

}  // namespace
}  // namespace tfcc::text
