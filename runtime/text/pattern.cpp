// SPDX-License-Identifier: Apache-2.0
#include "runtime/text/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "runtime/text/unicode.h"

namespace tfcc::text {
namespace {

constexpr uint32_t kMatchLimit = 10'000'000, kHeapLimitKiB = 64 << 10;

// PCRE2 10.42 takes \w without marks and connectors. Oniguruma, for which these patterns are
// written, has them.
std::string with_unicode_words(const std::string& source) {
  constexpr std::string_view kWord = "\\p{L}\\p{M}\\p{N}\\p{Pc}";
  std::string out;
  bool in_class = false;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\\' && i + 1 < source.size()) {
      if (source[i + 1] == 'w')
        out += in_class ? std::string(kWord) : "[" + std::string(kWord) + "]";
      else if (source[i + 1] == 'W' && !in_class) out += "[^" + std::string(kWord) + "]";
      else out += source.substr(i, 2);
      ++i;
      continue;
    }
    if (source[i] == '[') in_class = true;
    if (source[i] == ']') in_class = false;
    out += source[i];
  }
  return out;
}

}  // namespace

struct Pattern::Code {
  pcre2_code* code = nullptr;
  pcre2_match_context* limits = nullptr;
  Code() = default;
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
  ~Code() {
    pcre2_match_context_free(limits);
    pcre2_code_free(code);
  }
};

Pattern Pattern::literal(std::string text) {
  Pattern out;
  out.literal_ = std::move(text);
  return out;
}

Result<Pattern> Pattern::regex(const std::string& source) {
  if (source.find("&&") != std::string::npos)
    return Error{
        ErrorCode::bad_file,
        "the pattern '" + source + "' intersects character classes (&&), which is not supported"};
  const std::string pattern = with_unicode_words(source);
  int code = 0;
  PCRE2_SIZE at = 0;
  auto made = std::make_shared<Code>();
  made->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                             PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NO_UTF_CHECK, &code,
                             &at, nullptr);
  if (!made->code) {
    PCRE2_UCHAR text[256] = "";
    pcre2_get_error_message(code, text, sizeof text);
    return Error{ErrorCode::bad_file, "the pattern '" + source + "' is not a regular expression: " +
                                          reinterpret_cast<const char*>(text)};
  }
  pcre2_jit_compile(made->code,
                    PCRE2_JIT_COMPLETE);  // where there is no JIT, the interpreter matches
  made->limits = pcre2_match_context_create(nullptr);
  if (!made->limits) return Error{ErrorCode::memory, "no memory for a pattern of the tokenizer"};
  pcre2_set_match_limit(made->limits, kMatchLimit);
  pcre2_set_heap_limit(made->limits, kHeapLimitKiB);
  Pattern out;
  out.code_ = std::move(made);
  return out;
}

Result<std::vector<Range>> Pattern::find_all(std::string_view text) const {
  std::vector<Range> out;
  if (!code_) {
    for (size_t at = 0; !literal_.empty() && (at = text.find(literal_, at)) != text.npos;
         at += literal_.size())
      out.push_back({at, at + literal_.size()});
    return out;
  }
  const std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)> data(
      pcre2_match_data_create_from_pattern(code_->code, nullptr), pcre2_match_data_free);
  if (!data) return Error{ErrorCode::memory, "no memory to match a pattern of the tokenizer"};
  for (size_t at = 0; at < text.size();) {
    const int found = pcre2_match(code_->code, reinterpret_cast<PCRE2_SPTR>(text.data()),
                                  text.size(), at, PCRE2_NO_UTF_CHECK, data.get(), code_->limits);
    if (found == PCRE2_ERROR_NOMATCH) break;
    if (found < 0) {
      PCRE2_UCHAR why[256] = "";
      pcre2_get_error_message(found, why, sizeof why);
      return Error{ErrorCode::invalid_argument,
                   "a pattern of the tokenizer gives up on this text: " +
                       std::string(reinterpret_cast<const char*>(why)) +
                       "; give it in smaller parts"};
    }
    const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(data.get());
    if (ends[1] > ends[0]) out.push_back({ends[0], ends[1]});
    at = ends[1] > at ? ends[1] : at + character_size(text[at]);
  }
  return out;
}

std::vector<Range> split(size_t size, const std::vector<Range>& matches, Behaviour behaviour,
                         bool invert) {
  struct Part {
    Range range;
    bool match;
  };
  std::vector<Part> parts;
  size_t at = 0;
  for (const Range& m : matches) {
    if (m.begin > at) parts.push_back({{at, m.begin}, invert});
    parts.push_back({m, !invert});
    at = m.end;
  }
  if (at < size) parts.push_back({{at, size}, invert});

  std::vector<Range> out;
  bool before = false;
  switch (behaviour) {
    case Behaviour::isolated:
      for (const Part& p : parts) out.push_back(p.range);
      break;
    case Behaviour::removed:
      for (const Part& p : parts)
        if (!p.match) out.push_back(p.range);
      break;
    case Behaviour::contiguous:
      for (const Part& p : parts) {
        if (!out.empty() && p.match == before) out.back().end = p.range.end;
        else out.push_back(p.range);
        before = p.match;
      }
      break;
    case Behaviour::merged_with_previous:
      for (const Part& p : parts) {
        if (p.match && !before && !out.empty()) out.back().end = p.range.end;
        else out.push_back(p.range);
        before = p.match;
      }
      break;
    case Behaviour::merged_with_next:
      for (size_t i = parts.size(); i-- > 0;) {
        const Part& p = parts[i];
        if (p.match && !before && !out.empty()) out.back().begin = p.range.begin;
        else out.push_back(p.range);
        before = p.match;
      }
      std::vector<Range>(out.rbegin(), out.rend()).swap(out);
      break;
  }
  return out;
}

std::vector<Range> find_characters(std::string_view text,
                                   const std::function<bool(char32_t)>& wanted) {
  std::vector<Range> out;
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    if (wanted(next_character(text, at))) out.push_back({begin, at});
  }
  return out;
}

}  // namespace tfcc::text
