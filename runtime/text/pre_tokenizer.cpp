// SPDX-License-Identifier: Apache-2.0
#include <functional>

#include "runtime/text/parts.h"
#include "runtime/text/unicode.h"

namespace tfcc::text {
namespace {

using Ranges = Result<std::vector<Range>>;
/// Where to split a piece that `edit` (if there is one) has changed, and what becomes of each part.
struct Splitter : PreTokenizer {
  std::function<void(Piece&)> edit;
  std::function<Ranges(const std::string&)> cut;
  std::function<std::string(std::string_view)> finish;

  Result<void> apply(std::vector<Piece>& pieces) const override {
    std::vector<Piece> out;
    for (Piece& piece : pieces) {
      if (edit) edit(piece);
      std::vector<Range> ranges{{0, piece.text.size()}};
      if (cut) {
        TFCC_TRY(ranges, cut(piece.text));
      }
      for (const Range& r : ranges) {
        if (r.begin == r.end) continue;
        const std::string_view part = std::string_view(piece.text).substr(r.begin, r.end - r.begin);
        out.push_back({finish ? finish(part) : std::string(part), piece.first && r.begin == 0});
      }
    }
    pieces = std::move(out);
    return {};
  }
};

struct Sequence : PreTokenizer {
  std::vector<std::unique_ptr<PreTokenizer>> steps;
  Result<void> apply(std::vector<Piece>& pieces) const override {
    for (const auto& step : steps) TFCC_TRY_VOID(step->apply(pieces));
    return {};
  }
};

std::unique_ptr<Splitter> by_pattern(Pattern pattern, Behaviour behaviour, bool invert) {
  auto out = std::make_unique<Splitter>();
  out->cut = [pattern = std::move(pattern), behaviour, invert](const std::string& text) -> Ranges {
    TFCC_TRY(const std::vector<Range> found, pattern.find_all(text));
    return split(text.size(), found, behaviour, invert);
  };
  return out;
}

std::unique_ptr<Splitter> by_character(std::function<bool(char32_t)> wanted, Behaviour behaviour) {
  auto out = std::make_unique<Splitter>();
  out->cut = [wanted = std::move(wanted), behaviour](const std::string& text) -> Ranges {
    return split(text.size(), find_characters(text, wanted), behaviour);
  };
  return out;
}

Result<Behaviour> behaviour_of(const std::string& name) {
  constexpr struct {
    const char* name;
    Behaviour behaviour;
  } kBehaviours[] = {{"Removed", Behaviour::removed},
                     {"Isolated", Behaviour::isolated},
                     {"MergedWithPrevious", Behaviour::merged_with_previous},
                     {"MergedWithNext", Behaviour::merged_with_next},
                     {"Contiguous", Behaviour::contiguous}};
  for (const auto& b : kBehaviours)
    if (name == b.name) return b.behaviour;
  return Error{ErrorCode::unsupported,
               "a pre-tokenizer splits with the behaviour '" + name + "', which is not supported"};
}

using Made = Result<std::unique_ptr<PreTokenizer>>;

Made byte_level(const Json& section) {
  std::unique_ptr<Splitter> out = std::make_unique<Splitter>();
  if (section.value("use_regex", true)) {
    // GPT-2's words
    TFCC_TRY(Pattern words,
             Pattern::regex(
                 R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"));
    out = by_pattern(std::move(words), Behaviour::isolated, false);
  }
  if (section.value("add_prefix_space", true))
    out->edit = [](Piece& piece) {
      if (!piece.text.starts_with(' ')) piece.text.insert(0, 1, ' ');
    };
  out->finish = in_byte_alphabet;
  return std::unique_ptr<PreTokenizer>(std::move(out));
}

Made metaspace(const Json& section) {
  const std::string mark = section.value("replacement", "\u2581");
  std::string scheme = section.value("prepend_scheme", "always");
  if (!section.contains("prepend_scheme") && !section.value("add_prefix_space", true))
    scheme = "never";
  auto out = std::make_unique<Splitter>();
  out->edit = [mark, scheme](Piece& piece) {
    piece.text = replace_all(std::move(piece.text), " ", mark);
    if ((scheme == "always" || (scheme == "first" && piece.first)) && !piece.text.starts_with(mark))
      piece.text.insert(0, mark);
  };
  if (section.value("split", true))
    out->cut = [pattern = Pattern::literal(mark)](const std::string& text) -> Ranges {
      TFCC_TRY(const std::vector<Range> found, pattern.find_all(text));
      return split(text.size(), found, Behaviour::merged_with_next);
    };
  return std::unique_ptr<PreTokenizer>(std::move(out));
}

Made pattern_split(const Json& section) {
  TFCC_TRY(Pattern pattern, read_pattern(section.at("pattern")));
  TFCC_TRY(const Behaviour behaviour, behaviour_of(section.at("behavior").get<std::string>()));
  return std::unique_ptr<PreTokenizer>(
      by_pattern(std::move(pattern), behaviour, section.value("invert", false)));
}

// Words, and runs of what is neither word nor space.
Made whitespace() {
  auto out = std::make_unique<Splitter>();
  out->cut = [](const std::string& text) -> Ranges {
    const auto kind = [](char32_t c) { return is_space(c) ? 0 : is_word(c) ? 1 : 2; };
    std::vector<Range> words;
    int before = 0;
    for (size_t at = 0; at < text.size();) {
      const size_t begin = at;
      const int here = kind(next_character(text, at));
      if (here != 0 && here == before) words.back().end = at;
      else if (here != 0) words.push_back({begin, at});
      before = here;
    }
    return words;
  };
  return std::unique_ptr<PreTokenizer>(std::move(out));
}

Made bert() {
  auto out = std::make_unique<Sequence>();
  out->steps.push_back(by_character(is_space, Behaviour::removed));
  out->steps.push_back(by_character(is_punctuation, Behaviour::isolated));
  return std::unique_ptr<PreTokenizer>(std::move(out));
}

Made fixed_length(const Json& section) {
  const int64_t length = section.value("length", int64_t{5});
  if (length < 1)
    return Error{ErrorCode::bad_file, "a pre-tokenizer of type FixedLength has a length below 1"};
  auto out = std::make_unique<Splitter>();
  out->cut = [length](const std::string& text) -> Ranges {
    std::vector<Range> parts;
    int64_t held = 0;
    for (size_t at = 0; at < text.size(); ++held) {
      const size_t begin = at;
      next_character(text, at);
      if (held % length) parts.back().end = at;
      else parts.push_back({begin, at});
    }
    return parts;
  };
  return std::unique_ptr<PreTokenizer>(std::move(out));
}

Made single(const std::string& type, const Json& section) {
  if (type == "ByteLevel") return byte_level(section);
  if (type == "Metaspace") return metaspace(section);
  if (type == "Split") return pattern_split(section);
  if (type == "Whitespace") return whitespace();
  if (type == "BertPreTokenizer") return bert();
  if (type == "FixedLength") return fixed_length(section);
  if (type == "WhitespaceSplit")
    return std::unique_ptr<PreTokenizer>(by_character(is_space, Behaviour::removed));
  if (type == "Digits")
    return std::unique_ptr<PreTokenizer>(
        by_character(is_number, section.value("individual_digits", false) ? Behaviour::isolated
                                                                          : Behaviour::contiguous));
  if (type == "Punctuation") {
    TFCC_TRY(const Behaviour behaviour, behaviour_of(section.value("behavior", "Isolated")));
    return std::unique_ptr<PreTokenizer>(by_character(is_punctuation, behaviour));
  }
  if (type == "CharDelimiterSplit")
    return std::unique_ptr<PreTokenizer>(by_pattern(
        Pattern::literal(section.at("delimiter").get<std::string>()), Behaviour::removed, false));
  return unknown_type("pre-tokenizer", type);
}

}  // namespace

Made make_pre_tokenizer(const Json& section, int depth) {
  TFCC_TRY(const std::string type, type_of(section, "pre-tokenizer"));
  if (type != "Sequence") return single(type, section);
  if (depth >= kMaxNesting)
    return Error{ErrorCode::bad_file, "pre-tokenizers are nested too deeply"};
  auto out = std::make_unique<Sequence>();
  for (const Json& inner : section.at("pretokenizers")) {
    TFCC_TRY(auto step, make_pre_tokenizer(inner, depth + 1));
    out->steps.push_back(std::move(step));
  }
  return std::unique_ptr<PreTokenizer>(std::move(out));
}

}  // namespace tfcc::text
