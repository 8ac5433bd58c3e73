// SPDX-License-Identifier: Apache-2.0
// GGUF: "GGUF", a version, counts of tensors and of metadata, then each key with the type of its
// value and the value; little endian. Read by hand, as no package for C++ has it.
#include "runtime/text/gguf.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <variant>

#include "runtime/text/sentencepiece.h"
#include "runtime/text/tokenizer.h"
#include "runtime/text/unicode.h"

namespace tfcc::text {
namespace {

enum class Kind : uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, text, array, u64, i64, f64 };

// Of a value; 0: a text or an array.
size_t size_of(Kind k) {
  switch (k) {
    case Kind::u8:
    case Kind::i8:
    case Kind::boolean: return 1;
    case Kind::u16:
    case Kind::i16: return 2;
    case Kind::u32:
    case Kind::i32:
    case Kind::f32: return 4;
    case Kind::u64:
    case Kind::i64:
    case Kind::f64: return 8;
    default: return 0;
  }
}

/// What of a value matters to a vocabulary: text, numbers, or many of them.
struct Value {
  std::vector<std::string_view> texts;
  std::vector<double> numbers;
  std::string_view bytes;  // of numbers of one byte
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : all_(bytes) {}
  bool ended() const { return ended_; }  ///< something was asked for behind the end
  bool wrong() const { return wrong_; }
  size_t at() const { return at_; }

  std::string_view take(uint64_t n) {
    ended_ |= n > all_.size() - at_;
    if (ended_) return {};
    at_ += n;
    return all_.substr(at_ - n, n);
  }
  template <class T> T number() {
    T out{};
    const std::string_view bytes = take(sizeof(T));
    if (bytes.size() == sizeof(T)) std::memcpy(&out, bytes.data(), sizeof(T));
    return out;
  }
  std::string_view text() { return take(number<uint64_t>()); }

  Value value() {
    Value out;
    auto kind = number<Kind>();
    uint64_t count = 1;
    if (kind == Kind::array) {
      kind = number<Kind>();
      count = number<uint64_t>();
    }
    const size_t each = size_of(kind);
    if (kind == Kind::text) {
      for (uint64_t i = 0; i < count && !ended_; ++i) out.texts.push_back(text());
      return out;
    }
    wrong_ |= each == 0;  // arrays of arrays, and types to come
    ended_ |= each > 0 && count > (all_.size() - at_) / each;
    if (wrong_ || ended_) return out;
    const size_t begin = at_;
    for (uint64_t i = 0; i < count; ++i) out.numbers.push_back(number_of(kind));
    if (each == 1) out.bytes = all_.substr(begin, count);
    return out;
  }

 private:
  double number_of(Kind k) {
    switch (k) {
      case Kind::u8:
      case Kind::boolean: return number<uint8_t>();
      case Kind::i8: return number<int8_t>();
      case Kind::u16: return number<uint16_t>();
      case Kind::i16: return number<int16_t>();
      case Kind::u32: return number<uint32_t>();
      case Kind::i32: return number<int32_t>();
      case Kind::f32: return number<float>();
      case Kind::u64: return static_cast<double>(number<uint64_t>());
      case Kind::i64: return static_cast<double>(number<int64_t>());
      default: return number<double>();
    }
  }

  std::string_view all_;
  size_t at_ = 0;
  bool ended_ = false, wrong_ = false;
};

constexpr size_t kCountAt = 8;  // of tensors
constexpr size_t kMostMetadata = size_t{1} << 30;

/// What is known of a vocabulary, by key.
class Metadata {
 public:
  /// `ended` becomes true if the bytes end before the metadata does; `size` is that of all before
  /// the tensors.
  static Result<Metadata> read(std::string_view bytes, bool* ended, size_t* size) {
    Metadata out;
    Reader r(bytes);
    const bool begins = r.take(4) == "GGUF";
    const auto version = r.number<uint32_t>();
    r.take(sizeof(uint64_t));
    const auto entries = r.number<uint64_t>();
    if (!begins && !r.ended()) return Error{ErrorCode::bad_file, "not a GGUF file"};
    if (!r.ended() && version != 2 && version != 3)
      return Error{ErrorCode::bad_file,
                   "is GGUF of version " + std::to_string(version) + "; 2 and 3 are read"};
    for (uint64_t i = 0; i < entries && !r.ended() && !r.wrong(); ++i) {
      const std::string_view key = r.text();
      Value value = r.value();
      if (key.starts_with(kPrefix))
        out.values_[std::string(key.substr(kPrefix.size()))] = std::move(value);
    }
    *ended = r.ended();
    *size = r.at();
    if (r.wrong()) return Error{ErrorCode::bad_file, "its metadata has a value of unknown type"};
    if (r.ended()) return Error{ErrorCode::bad_file, "ends in the middle of its metadata"};
    return out;
  }

  std::string text(const char* key) const {
    const Value* v = find(key);
    return v && v->texts.size() == 1 ? std::string(v->texts[0]) : "";
  }
  double number(const char* key, double otherwise) const {
    const Value* v = find(key);
    return v && v->numbers.size() == 1 ? v->numbers[0] : otherwise;
  }
  bool flag(const char* key, bool otherwise) const { return number(key, otherwise) != 0; }
  /// -1 where there is none.
  int32_t id(const char* key) const {
    const double n = number(key, -1);
    return n >= 0 && n < INT32_MAX ? static_cast<int32_t>(n) : -1;
  }
  Value list(const char* key) const {
    const Value* v = find(key);
    return v ? *v : Value{};
  }

 private:
  static constexpr std::string_view kPrefix = "tokenizer.ggml.";
  const Value* find(const char* key) const {
    const auto it = values_.find(key);
    return it == values_.end() ? nullptr : &it->second;
  }
  std::map<std::string, Value> values_;
};

// Tokens, their types (all normal where the file has none) and their scores.
Result<std::vector<SentencePiece>> pieces_of(const Metadata& m) {
  const Value texts = m.list("tokens"), types = m.list("token_type"), scores = m.list("scores");
  std::vector<SentencePiece> out(texts.texts.size());
  const auto fits = [&](const Value& v) {
    return v.numbers.empty() || v.numbers.size() == out.size();
  };
  if (out.empty()) return Error{ErrorCode::bad_file, "it has no vocabulary"};
  if (!fits(types) || !fits(scores))
    return Error{ErrorCode::bad_file, "its tokens are not as many as their types or scores"};
  for (size_t id = 0; id < out.size(); ++id) {
    out[id].text = texts.texts[id];
    if (valid_utf8(out[id].text) != out[id].text)
      return Error{ErrorCode::bad_file, "token " + std::to_string(id) + " is no UTF-8"};
    if (!scores.numbers.empty()) out[id].score = static_cast<float>(scores.numbers[id]);
    const double type = types.numbers.empty() ? 1 : types.numbers[id];
    if (type >= 1 && type <= 6) out[id].type = static_cast<PieceType>(type);
  }
  return out;
}

Result<Json> sentencepiece_of(const Metadata& m, bool unigram) {
  SentencePieceModel out;
  TFCC_TRY(out.pieces, pieces_of(m));
  if (m.list("scores").numbers.empty())
    return Error{ErrorCode::bad_file, "its tokens have no scores"};
  out.kind = unigram ? 1 : 2;
  const auto is = [](PieceType t) { return [t](const SentencePiece& p) { return p.type == t; }; };
  out.byte_fallback = std::any_of(out.pieces.begin(), out.pieces.end(), is(PieceType::byte));
  const auto unknown = static_cast<size_t>(m.id("unknown_token_id"));
  if (std::none_of(out.pieces.begin(), out.pieces.end(), is(PieceType::unknown)) &&
      unknown < out.pieces.size())
    out.pieces[unknown].type = PieceType::unknown;
  out.begin = m.id("bos_token_id");
  out.end = m.id("eos_token_id");
  out.adds_begin = m.flag("add_bos_token", !unigram);
  out.adds_end = m.flag("add_eos_token", unigram);
  out.leading_space = m.flag("add_space_prefix", true);
  out.clean_spaces = m.flag("remove_extra_whitespaces", unigram);
  out.charsmap = m.list("precompiled_charsmap").bytes;
  return tokenizer_of(out);
}

// How a text is split into words, by the names that converters to GGUF give (`tokenizer.ggml.pre`):
// what the tokenizer.json of these models has.
struct Words {
  std::vector<std::string_view> names;
  const char* pattern = nullptr;  // null: GPT-2's, which ByteLevel has
  bool digits = false;            // each by itself, before
  bool whole_words = false;       // that are tokens are not merged from parts
  bool adds_begin = false;        // unless the file says otherwise
  bool composed = false;          // NFC
};

const Words* words_of(const std::string& name) {
  static const std::vector<Words> kAll = {
      {.names = {"gpt-2", "phi-2", "mpt", "olmo", "jais", "roberta-bpe", "jina-es", "jina-de",
                 "jina-v1-en", "jina-v2-es", "jina-v2-de", "jina-v2-code", "gigachat"}},
      {.names = {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"},
       .digits = true},
      {.names = {"llama-bpe", "llama3", "llama-v3", "falcon3"},
       .pattern =
           R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
       .whole_words = true,
       .adds_begin = true},
      {.names = {"dbrx", "smaug-bpe", "chatglm-bpe"},
       .pattern =
           R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
      {.names = {"qwen2", "deepseek-r1-qwen", "megrez"},
       .pattern =
           R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
       .composed = true},
      {.names = {"stablelm2"},
       .pattern =
           R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
      {.names = {"tekken"},
       .pattern =
           R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
       .whole_words = true,
       .adds_begin = true},
      {.names = {"gpt-4o", "llama4"},
       .pattern =
           R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)"}};
  for (const Words& w : kAll)
    if (std::find(w.names.begin(), w.names.end(), name) != w.names.end()) return &w;
  return nullptr;
}

Json pre_tokenizer_of(const Words& words) {
  Json all = Json::array();
  if (words.digits) all.push_back({{"type", "Digits"}, {"individual_digits", true}});
  if (words.pattern)
    all.push_back(
        {{"type", "Split"}, {"pattern", {{"Regex", words.pattern}}}, {"behavior", "Isolated"}});
  all.push_back({{"type", "ByteLevel"},
                 {"add_prefix_space", false},
                 {"use_regex", words.pattern == nullptr}});
  return {{"type", "Sequence"}, {"pretokenizers", all}};
}

Result<Json> merges_of(const Metadata& m) {
  Json out = Json::array();
  for (const std::string_view merge : m.list("merges").texts) {
    const size_t space = merge.find(' ', 1);  // a token may begin with one
    if (space == merge.npos || space + 1 == merge.size())
      return Error{ErrorCode::bad_file, "the merge '" + std::string(merge) + "' is not two tokens"};
    out.push_back({std::string(merge.substr(0, space)), std::string(merge.substr(space + 1))});
  }
  if (out.empty()) return Error{ErrorCode::bad_file, "its vocabulary has no merges"};
  return out;
}

Result<Json> bytes_of(const Metadata& m) {
  const std::string name = m.text("pre");
  const Words* words = words_of(name);
  if (!words)
    return Error{
        ErrorCode::unsupported,
        name.empty()
            ? "it does not say how text is split into words; give the model's tokenizer.json"
            : "text split into words as '" + name +
                  "' does is not supported; give the model's tokenizer.json"};
  TFCC_TRY(const std::vector<SentencePiece> pieces, pieces_of(m));
  TFCC_TRY(Json merges, merges_of(m));
  Json vocabulary = Json::object(), added = Json::array();
  for (size_t id = 0; id < pieces.size(); ++id) {
    const SentencePiece& p = pieces[id];
    const bool special = p.type == PieceType::control || p.type == PieceType::unknown;
    if (!special) vocabulary[p.text] = id;  // what is made by merging may be the user's too
    if (special || p.type == PieceType::user_defined)
      added.push_back(
          {{"id", id}, {"content", p.text}, {"special", special}, {"normalized", false}});
  }
  Json single = Json::array({{{"Sequence", {{"id", "A"}}}}}), tokens = Json::object();
  const auto token = [&](int32_t id) {
    const std::string& text = pieces[static_cast<size_t>(id)].text;
    tokens[text] = {{"ids", Json::array({id})}};
    return Json{{"SpecialToken", {{"id", text}}}};
  };
  const auto there = [&](int32_t id) { return id >= 0 && static_cast<size_t>(id) < pieces.size(); };
  const int32_t begin = m.id("bos_token_id"), end = m.id("eos_token_id");
  if (there(begin) && m.flag("add_bos_token", words->adds_begin))
    single.insert(single.begin(), token(begin));
  if (there(end) && m.flag("add_eos_token", false)) single.push_back(token(end));
  Json out = {{"end_id", end},
              {"added_tokens", added},
              {"pre_tokenizer", pre_tokenizer_of(*words)},
              {"model",
               {{"type", "BPE"},
                {"vocab", std::move(vocabulary)},
                {"merges", std::move(merges)},
                {"ignore_merges", words->whole_words}}},
              {"post_processor",
               {{"type", "TemplateProcessing"}, {"single", single}, {"special_tokens", tokens}}},
              {"decoder", {{"type", "ByteLevel"}}}};
  if (words->composed) out["normalizer"] = {{"type", "NFC"}};
  return out;
}

}  // namespace

Result<std::string> gguf_metadata(std::istream& file) {
  std::string bytes;
  for (size_t step = size_t{1} << 20;; step *= 2) {
    const size_t before = bytes.size();
    bytes.resize(before + step);
    file.read(bytes.data() + before, static_cast<std::streamsize>(step));
    if (file.bad()) return Error{ErrorCode::io, "cannot be read"};
    bytes.resize(before + static_cast<size_t>(file.gcount()));
    bool ended = false;
    size_t size = 0;
    const auto read = Metadata::read(bytes, &ended, &size);
    if (read) {
      bytes.resize(size);
      std::fill_n(bytes.begin() + kCountAt, sizeof(uint64_t), '\0');
      return bytes;
    }
    if (!ended || file.eof()) return read.error();
    if (bytes.size() > kMostMetadata)
      return Error{ErrorCode::bad_file, "has more than a gigabyte of metadata"};
  }
}

Result<Json> read_gguf(std::string_view bytes) {
  bool ended = false;
  size_t size = 0;
  TFCC_TRY(const Metadata m, Metadata::read(bytes, &ended, &size));
  const std::string model = m.text("model");
  if (model == "gpt2") return bytes_of(m);
  if (model == "llama") return sentencepiece_of(m, false);
  if (model == "t5") return sentencepiece_of(m, true);
  return Error{
      ErrorCode::unsupported,
      "its vocabulary is of the kind '" + model +
          "'; gpt2, llama and t5 are supported, for others give the model's tokenizer.json or vocab.txt"};
}

}  // namespace tfcc::text
