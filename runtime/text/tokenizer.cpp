// SPDX-License-Identifier: Apache-2.0
// The parts of a tokenizer.json put together: added tokens, normalizer, pre-tokenizer, model,
// post-processor; and back.
#include "runtime/text/tokenizer.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <unordered_map>
#include <unordered_set>

#include "runtime/text/added_tokens.h"
#include "runtime/text/gguf.h"
#include "runtime/text/parts.h"
#include "runtime/text/sentencepiece.h"
#include "runtime/text/tekken.h"
#include "runtime/text/unicode.h"
#include "runtime/text/vocabulary.h"

namespace tfcc::text {

struct Tokenizer::Impl {
  AddedTokens raw, normalized;  // looked for in the text as given, and after the normalizer
  std::unique_ptr<Normalizer> normalizer;
  std::unique_ptr<PreTokenizer> pre_tokenizer;
  std::unique_ptr<TokenModel> model;
  PostProcessor post_processor;
  std::unique_ptr<Decoder> decoder;
  std::vector<std::string> tokens;  // of the model and the added ones, by id
  std::unordered_map<std::string, int32_t> ids;
  std::unordered_set<std::string> special;
  int32_t end = -1;

  /// What is absent or of another type throws, as in parts.h.
  static Result<std::shared_ptr<const Impl>> read(const Json& file);
  static Result<Tokenizer> made(const Result<Json>& file, const std::string& name);

  Result<void> encode_words(std::string_view text, bool first, std::vector<int32_t>& out) const {
    std::vector<Piece> pieces{{std::string(text), first}};
    if (pre_tokenizer) TFCC_TRY_VOID(pre_tokenizer->apply(pieces));
    for (const Piece& piece : pieces)
      if (!piece.text.empty()) TFCC_TRY_VOID(model->append(piece.text, out));
    return {};
  }

  Result<void> encode_other(std::string_view text, bool first, std::vector<int32_t>& out) const {
    std::string changed(text);
    if (normalizer) {
      TFCC_TRY(changed, normalizer->apply(std::move(changed)));
    }
    for (const AddedTokens::Part& part : normalized.split(changed)) {
      if (part.id >= 0) out.push_back(part.id);
      else
        TFCC_TRY_VOID(encode_words(
            std::string_view(changed).substr(part.range.begin, part.range.end - part.range.begin),
            first && part.range.begin == 0, out));
    }
    return {};
  }
};

namespace {

/// A section that may be absent or null.
const Json* section_of(const Json& file, const char* name) {
  const auto found = file.find(name);
  return found == file.end() || found->is_null() ? nullptr : &*found;
}

AddedToken read_added(const Json& item) {
  AddedToken out;
  out.id = item.at("id").get<int32_t>();
  out.content = item.at("content").get<std::string>();
  out.single_word = item.value("single_word", false);
  out.strip_left = item.value("lstrip", false);
  out.strip_right = item.value("rstrip", false);
  out.special = item.value("special", false);
  out.normalized = item.value("normalized", !out.special);
  return out;
}

}  // namespace

Tokenizer::Tokenizer(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

Result<std::shared_ptr<const Tokenizer::Impl>> Tokenizer::Impl::read(const Json& file) {
  auto impl = std::make_shared<Impl>();
  TFCC_TRY(impl->model, make_model(file.at("model")));
  if (const Json* s = section_of(file, "normalizer")) {
    TFCC_TRY(impl->normalizer, make_normalizer(*s));
  }
  if (const Json* s = section_of(file, "pre_tokenizer")) {
    TFCC_TRY(impl->pre_tokenizer, make_pre_tokenizer(*s));
  }
  if (const Json* s = section_of(file, "post_processor")) {
    TFCC_TRY(impl->post_processor, make_post_processor(*s));
  }
  if (const Json* s = section_of(file, "decoder")) {
    TFCC_TRY(impl->decoder, make_decoder(*s));
  }
  Vocabulary all;
  for (size_t id = 0; const std::string& token : impl->model->tokens())
    TFCC_TRY_VOID(all.add(token, static_cast<int64_t>(id++)));
  if (const Json* added = section_of(file, "added_tokens")) {
    for (const Json& item : *added) {
      AddedToken token = read_added(item);
      TFCC_TRY_VOID(all.add(token.content, token.id));
      if (token.special) impl->special.insert(token.content);
      if (token.normalized && impl->normalizer && !item.value("content_is_normalized", false)) {
        TFCC_TRY(token.content, impl->normalizer->apply(std::move(token.content)));
      }
      (token.normalized ? impl->normalized : impl->raw).add(std::move(token));
    }
  }
  impl->end = file.value("end_id", -1);
  impl->tokens = all.tokens();
  for (size_t id = 0; id < impl->tokens.size(); ++id)
    if (!impl->tokens[id].empty()) impl->ids[impl->tokens[id]] = static_cast<int32_t>(id);
  return std::shared_ptr<const Impl>(std::move(impl));
}

Result<Tokenizer> Tokenizer::Impl::made(const Result<Json>& file, const std::string& name) {
  auto impl = file ? Impl::read(*file) : Result<std::shared_ptr<const Impl>>(file.error());
  if (!impl) return Error{impl.error().code, name + ": " + impl.error().message};
  return Tokenizer(*std::move(impl));
}

Result<Tokenizer> Tokenizer::from_json(std::string_view json, const std::string& name) {
  try {
    const Json file = Json::parse(json);
    return is_tekken(file) ? Impl::made(read_tekken(file), name) : Impl::made(file, name);
  } catch (const Json::exception& e) {
    return Error{ErrorCode::bad_file, name + ": not a tokenizer.json: " + e.what()};
  }
}

Result<Tokenizer> Tokenizer::from_sentencepiece(std::string_view model, const std::string& name) {
  return Impl::made(read_sentencepiece(model), name);
}

Result<Tokenizer> Tokenizer::from_gguf(std::string_view file, const std::string& name) {
  return Impl::made(read_gguf(file), name);
}

Result<Tokenizer> Tokenizer::from_bytes(std::string_view bytes, const std::string& name) {
  if (bytes.starts_with("GGUF")) return from_gguf(bytes, name);
  const size_t first = bytes.find_first_not_of(" \t\r\n\xef\xbb\xbf");
  return first != bytes.npos && bytes[first] == '{' ? from_json(bytes, name)
                                                    : from_sentencepiece(bytes, name);
}

Result<Tokenizer> Tokenizer::bert(const std::vector<std::string>& tokens, bool lower_case,
                                  const std::string& name) {
  Json vocabulary = Json::object();
  for (size_t id = 0; id < tokens.size(); ++id) vocabulary[tokens[id]] = id;
  for (const char* needed : {"[CLS]", "[SEP]", "[UNK]"})
    if (!vocabulary.contains(needed))
      return Error{ErrorCode::bad_file,
                   name + ": no " + needed + " in it; a BERT vocab.txt (WordPiece) is needed"};
  const auto with_id = [&](const char* token) { return Json::array({token, vocabulary[token]}); };
  const Json file = {
      {"normalizer", {{"type", "BertNormalizer"}, {"lowercase", lower_case}}},
      {"pre_tokenizer", {{"type", "BertPreTokenizer"}}},
      {"model", {{"type", "WordPiece"}, {"vocab", vocabulary}}},
      {"post_processor",
       {{"type", "BertProcessing"}, {"cls", with_id("[CLS]")}, {"sep", with_id("[SEP]")}}},
      {"decoder", {{"type", "WordPiece"}}}};
  TFCC_TRY(auto impl, Impl::read(file));
  return Tokenizer(std::move(impl));
}

Result<Tokenizer> Tokenizer::load_bert(const std::string& path, bool lower_case) {
  std::ifstream file(path, std::ios::binary);
  if (!file)
    return Error{ErrorCode::io,
                 path + ": cannot open; give the vocab.txt that lies beside the model"};
  std::vector<std::string> tokens;
  for (std::string line; std::getline(file, line);) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    tokens.push_back(std::move(line));
  }
  return bert(tokens, lower_case, path);
}

Result<Tokenizer> Tokenizer::load(const std::string& path) {
  if (path.ends_with(".txt")) return load_bert(path, true);
  std::error_code ignored;
  std::string file = path;
  if (std::filesystem::is_directory(path, ignored)) {
    file = path + "/" + kTokenizerFiles[0];
    for (const char* name : kTokenizerFiles)
      if (!std::filesystem::exists(file, ignored)) file = path + "/" + name;
    if (!std::filesystem::exists(file, ignored)) file = path + "/" + kTokenizerFiles[0];
  }
  std::ifstream stream(file, std::ios::binary);
  if (!stream)
    return Error{ErrorCode::io, file + ": cannot open the tokenizer: " + std::strerror(errno)};
  if (file.ends_with(".gguf")) {  // which may be tens of gigabytes
    const auto metadata = gguf_metadata(stream);
    return metadata ? from_gguf(*metadata, file)
                    : Error{metadata.error().code, file + ": " + metadata.error().message};
  }
  const std::string text((std::istreambuf_iterator<char>(stream)),
                         std::istreambuf_iterator<char>());
  if (stream.bad()) return Error{ErrorCode::io, file + ": cannot read the tokenizer"};
  return file.ends_with(".json") ? from_json(text, file) : from_bytes(text, file);
}

Result<std::vector<int32_t>> Tokenizer::encode(std::string_view text,
                                               const EncodeOptions& options) const {
  const std::string valid = valid_utf8(text);
  std::vector<int32_t> out;
  if (options.special) out = impl_->post_processor.before;
  for (const AddedTokens::Part& part : impl_->raw.split(valid)) {
    if (part.id >= 0) out.push_back(part.id);
    else
      TFCC_TRY_VOID(impl_->encode_other(
          std::string_view(valid).substr(part.range.begin, part.range.end - part.range.begin),
          part.range.begin == 0, out));
  }
  const std::vector<int32_t>& after = impl_->post_processor.after;
  const size_t behind = options.special ? after.size() : 0;
  if (options.max_tokens > 0 && out.size() + behind > options.max_tokens) {
    const size_t before = options.special ? impl_->post_processor.before.size() : 0;
    out.resize(std::min(
        out.size(), std::max(before, options.max_tokens - std::min(options.max_tokens, behind))));
  }
  if (options.special) out.insert(out.end(), after.begin(), after.end());
  return out;
}

Result<std::string> Tokenizer::decode(std::span<const int32_t> ids, bool special) const {
  std::vector<std::string> tokens;
  for (const int32_t id : ids)
    if (!token(id).empty() && (special || !is_special(id))) tokens.emplace_back(token(id));
  std::string out;
  if (impl_->decoder) {
    TFCC_TRY_VOID(impl_->decoder->apply(tokens));
    for (const std::string& token : tokens) out += token;
  } else {
    for (size_t i = 0; i < tokens.size(); ++i) out += (i ? " " : "") + tokens[i];
  }
  return out;
}

int32_t Tokenizer::id(std::string_view token) const {
  const auto found = impl_->ids.find(std::string(token));
  return found == impl_->ids.end() ? -1 : found->second;
}

std::string_view Tokenizer::token(int32_t id) const {
  return id >= 0 && static_cast<size_t>(id) < impl_->tokens.size()
             ? std::string_view(impl_->tokens[static_cast<size_t>(id)])
             : std::string_view();
}

bool Tokenizer::is_special(int32_t id) const {
  return impl_->special.contains(std::string(token(id)));
}

int32_t Tokenizer::end_id() const { return impl_->end; }

int32_t Tokenizer::size() const { return static_cast<int32_t>(impl_->tokens.size()); }

Result<std::string> TextStream::text_of(size_t begin) const {
  return tokenizer_.decode(std::span(ids_).subspan(begin), special_);
}

// The text of an id depends on those before it (a first token loses its space), so the new text is
// what the ids since the last output add to the text of those of the last output.
Result<std::string> TextStream::push(int32_t id) {
  ids_.push_back(id);
  TFCC_TRY(const std::string before,
           tokenizer_.decode(std::span(ids_).subspan(before_, given_ - before_), special_));
  TFCC_TRY(const std::string now, text_of(before_));
  if (now.size() <= before.size() || now.ends_with("\ufffd")) return std::string();
  before_ = given_;
  given_ = ids_.size();
  return now.substr(before.size());
}

Result<std::string> TextStream::finish() {
  TFCC_TRY(const std::string before,
           tokenizer_.decode(std::span(ids_).subspan(before_, given_ - before_), special_));
  TFCC_TRY(const std::string now, text_of(before_));
  before_ = given_ = ids_.size();
  return now.size() > before.size() ? now.substr(before.size()) : std::string();
}

}  // namespace tfcc::text
