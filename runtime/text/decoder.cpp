// SPDX-License-Identifier: Apache-2.0
#include <functional>

#include "runtime/text/parts.h"
#include "runtime/text/unicode.h"

namespace tfcc::text {
namespace {

using Tokens = std::vector<std::string>;
using Step = std::function<Result<void>(Tokens&)>;

struct StepDecoder : Decoder {
  Step step;
  explicit StepDecoder(Step s) : step(std::move(s)) {}
  Result<void> apply(Tokens& tokens) const override { return step(tokens); }
};

struct Sequence : Decoder {
  std::vector<std::unique_ptr<Decoder>> steps;
  Result<void> apply(Tokens& tokens) const override {
    for (const auto& step : steps) TFCC_TRY_VOID(step->apply(tokens));
    return {};
  }
};

/// A decoder that changes each token alone; it is told the token's place.
template <class F> Step each(F change) {
  return [change](Tokens& tokens) -> Result<void> {
    for (size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = change(std::move(tokens[i]), i, tokens.size());
    return {};
  };
}

Result<void> byte_level(Tokens& tokens) {
  std::string bytes;
  for (const std::string& token : tokens) {
    std::string own;
    for (size_t at = 0; at < token.size();) {
      const int byte = byte_of_character(next_character(token, at));
      if (byte < 0) {  // not of the alphabet: an added token, taken as it is
        own = token;
        break;
      }
      own += static_cast<char>(byte);
    }
    bytes += own;
  }
  tokens = {valid_utf8(bytes)};
  return {};
}

// Runs of <0x..> become their bytes; U+FFFD for each byte of a run that is no UTF-8.
Result<void> byte_fallback(Tokens& tokens) {
  Tokens out;
  std::string run;
  const auto flush = [&] {
    if (run.empty()) return;
    if (valid_utf8(run) == run) out.push_back(run);
    else out.insert(out.end(), run.size(), "\ufffd");
    run.clear();
  };
  for (std::string& token : tokens) {
    const int byte = byte_of_token(token);
    if (byte >= 0) {
      run += static_cast<char>(byte);
      continue;
    }
    flush();
    out.push_back(std::move(token));
  }
  flush();
  tokens = std::move(out);
  return {};
}

Result<void> fuse(Tokens& tokens) {
  std::string all;
  for (const std::string& token : tokens) all += token;
  tokens = {all};
  return {};
}

// English as BERT's tokenizer puts it together again.
std::string clean_up(std::string text) {
  constexpr std::pair<const char*, const char*> kRules[] = {
      {" .", "."},   {" ?", "?"},     {" !", "!"},    {" ,", ","},
      {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},  {" do not", " don't"},
      {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& [from, to] : kRules) text = replace_all(std::move(text), from, to);
  return text;
}

Step word_piece(const Json& section) {
  const std::string prefix = section.value("prefix", "##");
  const bool cleanup = section.value("cleanup", true);
  return each([prefix, cleanup](std::string token, size_t i, size_t) {
    if (i > 0)
      token =
          !prefix.empty() && token.starts_with(prefix) ? token.substr(prefix.size()) : " " + token;
    return cleanup ? clean_up(std::move(token)) : token;
  });
}

Step metaspace(const Json& section) {
  const std::string mark = section.value("replacement", "\u2581");
  std::string scheme = section.value("prepend_scheme", "always");
  if (!section.contains("prepend_scheme") && !section.value("add_prefix_space", true))
    scheme = "never";
  return each([mark, drop = scheme != "never"](std::string token, size_t i, size_t) {
    return replace_all(std::move(token), mark, i == 0 && drop ? "" : " ");
  });
}

Step strip(const Json& section) {
  const std::string content = section.at("content").get<std::string>();
  const size_t start = section.value("start", size_t{0}), stop = section.value("stop", size_t{0});
  return each([=](std::string token, size_t, size_t) {
    for (size_t k = 0; k < start && !content.empty() && token.starts_with(content); ++k)
      token.erase(0, content.size());
    for (size_t k = 0; k < stop && !content.empty() && token.ends_with(content); ++k)
      token.resize(token.size() - content.size());
    return token;
  });
}

Result<Step> replace_step(const Json& section) {
  TFCC_TRY(Pattern pattern, read_pattern(section.at("pattern")));
  const std::string content = section.at("content").get<std::string>();
  return Step([pattern, content](Tokens& tokens) -> Result<void> {
    for (std::string& token : tokens) {
      TFCC_TRY(const std::vector<Range> found, pattern.find_all(token));
      for (size_t i = found.size(); i-- > 0;)
        token.replace(found[i].begin, found[i].end - found[i].begin, content);
    }
    return {};
  });
}

Result<Step> step_of(const std::string& type, const Json& section) {
  if (type == "ByteLevel") return Step(byte_level);
  if (type == "ByteFallback") return Step(byte_fallback);
  if (type == "Fuse") return Step(fuse);
  if (type == "WordPiece") return word_piece(section);
  if (type == "Metaspace") return metaspace(section);
  if (type == "Strip") return strip(section);
  if (type == "Replace") return replace_step(section);
  if (type == "BPEDecoder") {
    const std::string suffix = section.value("suffix", "</w>");
    if (suffix.empty())
      return Error{ErrorCode::bad_file, "a decoder of type BPEDecoder has an empty suffix"};
    return each([suffix](std::string token, size_t i, size_t n) {
      return replace_all(std::move(token), suffix, i + 1 == n ? "" : " ");
    });
  }
  return unknown_type("decoder", type);
}

}  // namespace

Result<std::unique_ptr<Decoder>> make_decoder(const Json& section, int depth) {
  TFCC_TRY(const std::string type, type_of(section, "decoder"));
  if (type != "Sequence") {
    TFCC_TRY(Step step, step_of(type, section));
    return std::unique_ptr<Decoder>(std::make_unique<StepDecoder>(std::move(step)));
  }
  if (depth >= kMaxNesting) return Error{ErrorCode::bad_file, "decoders are nested too deeply"};
  auto out = std::make_unique<Sequence>();
  for (const Json& inner : section.at("decoders")) {
    TFCC_TRY(auto step, make_decoder(inner, depth + 1));
    out->steps.push_back(std::move(step));
  }
  return std::unique_ptr<Decoder>(std::move(out));
}

}  // namespace tfcc::text
