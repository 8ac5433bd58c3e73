// SPDX-License-Identifier: Apache-2.0
#include <functional>

#include "runtime/text/charsmap.h"
#include "runtime/text/parts.h"
#include "runtime/text/unicode.h"

namespace tfcc::text {
namespace {

using Step = std::function<Result<std::string>(std::string)>;

struct StepNormalizer : Normalizer {
  Step step;
  explicit StepNormalizer(Step s) : step(std::move(s)) {}
  Result<std::string> apply(std::string text) const override { return step(std::move(text)); }
};

struct Sequence : Normalizer {
  std::vector<std::unique_ptr<Normalizer>> steps;
  Result<std::string> apply(std::string text) const override {
    for (const auto& step : steps) {
      TFCC_TRY(text, step->apply(std::move(text)));
    }
    return text;
  }
};

std::string without(std::string_view text, bool (*dropped)(char32_t)) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    if (!dropped(next_character(text, at))) out += text.substr(begin, at - begin);
  }
  return out;
}

std::string strip(std::string_view text, bool left, bool right) {
  size_t begin = 0, end = 0;
  bool seen = false;
  for (size_t at = 0; at < text.size();) {
    const size_t here = at;
    if (is_space(next_character(text, at))) continue;
    if (!seen) begin = here;
    seen = true;
    end = at;
  }
  if (!seen) return left || right ? std::string() : std::string(text);
  return std::string(
      text.substr(left ? begin : 0, (right ? end : text.size()) - (left ? begin : 0)));
}

struct BertOptions {
  bool clean = true, ideographs = true, strip_accents = true, lower = true;
};

std::string bert(std::string_view text, const BertOptions& o) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const char32_t c = next_character(text, at);
    if (o.clean && (c == 0 || c == 0xfffd || is_control(c))) continue;
    const bool spaced = o.clean && is_space(c);
    const bool apart = o.ideographs && is_ideograph(c);
    if (apart) out += ' ';
    if (spaced) out += ' ';
    else out += text.substr(begin, at - begin);
    if (apart) out += ' ';
  }
  if (o.strip_accents) out = without(normal_form(out, Form::nfd), is_nonspacing);
  return o.lower ? lower_case(out) : out;
}

// What SentencePiece's NMT rule drops, and what it turns into a space.
std::string nmt(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const char32_t c = next_character(text, at);
    if ((c >= 1 && c <= 8) || c == 0xb || (c >= 0xe && c <= 0x1f) || c == 0x7f || c == 0x8f ||
        c == 0x9f)
      continue;
    const bool space = c == 9 || c == 0xa || c == 0xc || c == 0xd || c == 0x1680 ||
                       (c >= 0x200b && c <= 0x200f) || c == 0x2028 || c == 0x2029 || c == 0x2581 ||
                       c == 0xfeff || c == 0xfffd;
    if (space) out += ' ';
    else out += text.substr(begin, at - begin);
  }
  return out;
}

Result<Step> replace_step(const Json& section) {
  TFCC_TRY(Pattern pattern, read_pattern(section.at("pattern")));
  const std::string content = section.at("content").get<std::string>();
  return Step([pattern, content](std::string text) -> Result<std::string> {
    TFCC_TRY(const std::vector<Range> found, pattern.find_all(text));
    std::string out;
    size_t at = 0;
    for (const Range& r : found) {
      out.append(text, at, r.begin - at).append(content);
      at = r.end;
    }
    return out.append(text, at);
  });
}

Result<Step> step_of(const std::string& type, const Json& section) {
  constexpr struct {
    const char* type;
    Form form;
  } kForms[] = {{"NFC", Form::nfc}, {"NFD", Form::nfd}, {"NFKC", Form::nfkc}, {"NFKD", Form::nfkd}};
  for (const auto& f : kForms)
    if (type == f.type)
      return Step([form = f.form](std::string text) { return normal_form(text, form); });
  if (type == "Lowercase") return Step([](std::string text) { return lower_case(text); });
  if (type == "StripAccents") return Step([](std::string text) { return without(text, is_mark); });
  if (type == "Nmt") return Step([](std::string text) { return nmt(text); });
  if (type == "ByteLevel") return Step([](std::string text) { return in_byte_alphabet(text); });
  if (type == "Replace") return replace_step(section);
  if (type == "Strip") {
    const bool left = section.value("strip_left", true), right = section.value("strip_right", true);
    return Step([left, right](std::string text) { return strip(text, left, right); });
  }
  if (type == "Prepend") {
    const std::string prefix = section.at("prepend").get<std::string>();
    return Step([prefix](std::string text) { return text.empty() ? text : prefix + text; });
  }
  if (type == "BertNormalizer") {
    BertOptions o{section.value("clean_text", true), section.value("handle_chinese_chars", true),
                  true, section.value("lowercase", true)};
    const auto accents = section.find("strip_accents");
    o.strip_accents =
        accents != section.end() && !accents->is_null() ? accents->get<bool>() : o.lower;
    return Step([o](std::string text) { return bert(text, o); });
  }
  if (type == "Precompiled") {
    TFCC_TRY(const Charsmap map,
             Charsmap::from_base64(section.at("precompiled_charsmap").get<std::string>()));
    const bool longest = section.value("longest_prefix", false);  // of a SentencePiece model
    return Step([map, longest](std::string text) {
      return longest ? map.apply_longest(text) : map.apply(text);
    });
  }
  return unknown_type("normalizer", type);
}

}  // namespace

Result<std::unique_ptr<Normalizer>> make_normalizer(const Json& section, int depth) {
  TFCC_TRY(const std::string type, type_of(section, "normalizer"));
  if (type != "Sequence") {
    TFCC_TRY(Step step, step_of(type, section));
    return std::unique_ptr<Normalizer>(std::make_unique<StepNormalizer>(std::move(step)));
  }
  if (depth >= kMaxNesting) return Error{ErrorCode::bad_file, "normalizers are nested too deeply"};
  auto out = std::make_unique<Sequence>();
  for (const Json& inner : section.at("normalizers")) {
    TFCC_TRY(auto step, make_normalizer(inner, depth + 1));
    out->steps.push_back(std::move(step));
  }
  return std::unique_ptr<Normalizer>(std::move(out));
}

}  // namespace tfcc::text
