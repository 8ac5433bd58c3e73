// SPDX-License-Identifier: Apache-2.0
// The parts of a tokenizer.json put together: added tokens, normalizer, pre-tokenizer, model, post-processor; and back.
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
#include "runtime/text/parts.h"
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
      else TFCC_TRY_VOID(encode_words(std::string_view(changed).substr(part.range.begin, part.range.end - part.range.begin), first && part.range.begin == 0, out));
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

Result<Tokenizer> Tokenizer::from_json(std::string_view json, const std::string& name) {
  const auto read = [&]() -> Result<Tokenizer> {
    const Json file = Json::parse(json);
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
    for (size_t id = 0; const std::string& token : impl->model->tokens()) TFCC_TRY_VOID(all.add(token, static_cast<int64_t>(id++)));
    if (const Json* added = section_of(file, "added_tokens"))
      for (const Json& item : *added) {
        AddedToken token = read_added(item);
        TFCC_TRY_VOID(all.add(token.content, token.id));
        if (token.special) impl->special.insert(token.content);
        if (token.normalized && impl->normalizer) {
          TFCC_TRY(token.content, impl->normalizer->apply(std::move(token.content)));
        }
        (token.normalized ? impl->normalized : impl->raw).add(std::move(token));
      }
    impl->tokens = all.tokens();
    for (size_t id = 0; id < impl->tokens.size(); ++id)
      if (!impl->tokens[id].empty()) impl->ids[impl->tokens[id]] = static_cast<int32_t>(id);
    return Tokenizer(std::move(impl));
  };
  try {
    Result<Tokenizer> out = read();
    if (!out) return Error{out.error().code, name + ": " + out.error().message};
    return out;
  } catch (const Json::exception& e) {
    return Error{ErrorCode::bad_file, name + ": not a tokenizer.json: " + e.what()};
  }
}

Result<Tokenizer> Tokenizer::load(const std::string& path) {
  std::error_code ignored;
  const std::string file = std::filesystem::is_directory(path, ignored) ? path + "/tokenizer.json" : path;
  std::ifstream stream(file, std::ios::binary);
  if (!stream) return Error{ErrorCode::io, file + ": cannot open the tokenizer: " + std::strerror(errno)};
  const std::string text((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
  if (stream.bad()) return Error{ErrorCode::io, file + ": cannot read the tokenizer"};
  return from_json(text, file);
}

Result<std::vector<int32_t>> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  const std::string valid = valid_utf8(text);
  std::vector<int32_t> out;
  if (options.special) out = impl_->post_processor.before;
  for (const AddedTokens::Part& part : impl_->raw.split(valid)) {
    if (part.id >= 0) out.push_back(part.id);
    else TFCC_TRY_VOID(impl_->encode_other(std::string_view(valid).substr(part.range.begin, part.range.end - part.range.begin), part.range.begin == 0, out));
  }
  if (options.special) out.insert(out.end(), impl_->post_processor.after.begin(), impl_->post_processor.after.end());
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
  return id >= 0 && static_cast<size_t>(id) < impl_->tokens.size() ? std::string_view(impl_->tokens[static_cast<size_t>(id)]) : std::string_view();
}

bool Tokenizer::is_special(int32_t id) const { return impl_->special.contains(std::string(token(id))); }

int32_t Tokenizer::size() const { return static_cast<int32_t>(impl_->tokens.size()); }

Result<std::string> TextStream::text_of(size_t begin) const {
  return tokenizer_.decode(std::span(ids_).subspan(begin), special_);
}

// The text of an id depends on those before it (a first token loses its space), so the new text is what the ids since the
// last output add to the text of those of the last output.
Result<std::string> TextStream::push(int32_t id) {
  ids_.push_back(id);
  TFCC_TRY(const std::string before, tokenizer_.decode(std::span(ids_).subspan(before_, given_ - before_), special_));
  TFCC_TRY(const std::string now, text_of(before_));
  if (now.size() <= before.size() || now.ends_with("\ufffd")) return std::string();
  before_ = given_;
  given_ = ids_.size();
  return now.substr(before.size());
}

Result<std::string> TextStream::finish() {
  TFCC_TRY(const std::string before, tokenizer_.decode(std::span(ids_).subspan(before_, given_ - before_), special_));
  TFCC_TRY(const std::string now, text_of(before_));
  before_ = given_ = ids_.size();
  return now.size() > before.size() ? now.substr(before.size()) : std::string();
}

}  // namespace tfcc::text
