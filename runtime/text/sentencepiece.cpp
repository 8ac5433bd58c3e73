// SPDX-License-Identifier: Apache-2.0
// The messages of sentencepiece_model.proto that matter here, read by hand: a vocabulary with
// scores, how it was trained, and how a text is changed before it is cut into pieces.
#include "runtime/text/sentencepiece.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <optional>

#include "runtime/text/base64.h"
#include "runtime/text/unicode.h"

namespace tfcc::text {
namespace {

constexpr const char* kSpace = "\u2581";  // how SentencePiece writes a space

struct Field {
  uint64_t number = 0, value = 0;  // value: of a varint or of 4 or 8 bytes
  std::string_view bytes;          // of a length-delimited one
};

/// The fields of one message of protobuf's wire format.
class Fields {
 public:
  explicit Fields(std::string_view bytes) : rest_(bytes) {}
  bool damaged() const { return damaged_; }

  bool next(Field& f) {
    if (rest_.empty() || damaged_) return false;
    const uint64_t tag = varint();
    f = {tag >> 3, 0, {}};
    switch (tag & 7) {
      case 0: f.value = varint(); break;
      case 1: f.value = fixed(8); break;
      case 2: f.bytes = take(varint()); break;
      case 5: f.value = fixed(4); break;
      default: damaged_ = true;
    }
    return !damaged_;
  }

 private:
  uint64_t varint() {
    uint64_t v = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (rest_.empty()) break;
      const auto byte = static_cast<unsigned char>(rest_.front());
      rest_.remove_prefix(1);
      v |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return v;
    }
    damaged_ = true;
    return 0;
  }
  std::string_view take(uint64_t n) {
    damaged_ |= n > rest_.size();
    if (damaged_) return {};
    const std::string_view out = rest_.substr(0, n);
    rest_.remove_prefix(n);
    return out;
  }
  uint64_t fixed(size_t n) {
    uint64_t v = 0;
    const std::string_view bytes = take(n);
    for (size_t i = bytes.size(); i-- > 0;) v = v << 8 | static_cast<unsigned char>(bytes[i]);
    return v;
  }

  std::string_view rest_;
  bool damaged_ = false;
};

template <class F> bool each_field(std::string_view message, F f) {
  Fields fields(message);
  for (Field x; fields.next(x);) f(x);
  return !fields.damaged();
}

std::optional<SentencePieceModel> parse(std::string_view bytes) {
  SentencePieceModel m;
  bool whole = true;
  whole &= each_field(bytes, [&](const Field& f) {
    if (f.number == 1) {
      SentencePiece& p = m.pieces.emplace_back();
      whole &= each_field(f.bytes, [&](const Field& x) {
        if (x.number == 1) p.text = x.bytes;
        if (x.number == 2) p.score = std::bit_cast<float>(static_cast<uint32_t>(x.value));
        if (x.number == 3) p.type = static_cast<PieceType>(x.value);
      });
    }
    if (f.number == 2) {
      whole &= each_field(f.bytes, [&](const Field& x) {
        if (x.number == 3) m.kind = x.value;
        if (x.number == 24) m.space_behind = x.value != 0;
        if (x.number == 35) m.byte_fallback = x.value != 0;
        if (x.number == 41) m.begin = static_cast<int32_t>(x.value);
        if (x.number == 42) m.end = static_cast<int32_t>(x.value);
      });
    }
    if (f.number == 3) {
      whole &= each_field(f.bytes, [&](const Field& x) {
        if (x.number == 2) m.charsmap = x.bytes;
        if (x.number == 3) m.leading_space = x.value != 0;
        if (x.number == 4) m.clean_spaces = x.value != 0;
        if (x.number == 5) m.escapes_spaces = x.value != 0;
      });
    }
  });
  return whole && !m.pieces.empty() ? std::optional(std::move(m)) : std::nullopt;
}

Json replace(const char* by, const char* pattern, const char* content) {
  return {{"type", "Replace"}, {"pattern", {{by, pattern}}}, {"content", content}};
}

// The trainer keeps no merges: what has the best score is made first.
Json ranks_of(const SentencePieceModel& m) {
  std::vector<float> scores;
  for (const SentencePiece& p : m.pieces) scores.push_back(p.score);
  std::sort(scores.begin(), scores.end(), std::greater<>());
  Json ranks = Json::array();
  for (const SentencePiece& p : m.pieces)
    ranks.push_back(p.type == PieceType::normal ? std::lower_bound(scores.begin(), scores.end(),
                                                                   p.score, std::greater<>()) -
                                                      scores.begin()
                                                : -1);
  return ranks;
}

Json model_of(const SentencePieceModel& m, size_t unknown) {
  Json vocabulary = m.kind == 2 ? Json::object() : Json::array();
  for (size_t id = 0; id < m.pieces.size(); ++id) {
    const SentencePiece& p = m.pieces[id];
    if (m.kind == 2) vocabulary[p.text] = id;
    else vocabulary.push_back({p.text, p.score});
  }
  if (m.kind == 2)
    return {{"type", "BPE"},        {"vocab", vocabulary},
            {"ranks", ranks_of(m)}, {"unk_token", m.pieces[unknown].text},
            {"fuse_unk", true},     {"byte_fallback", m.byte_fallback}};
  return {{"type", "Unigram"},
          {"vocab", vocabulary},
          {"unk_id", unknown},
          {"byte_fallback", m.byte_fallback},
          {"single", true}};
}

// What of a model is not supported, or cannot be.
Result<void> check(const SentencePieceModel& m) {
  if (m.kind != 1 && m.kind != 2)
    return Error{ErrorCode::unsupported,
                 "its pieces are whole words or characters; BPE and Unigram are supported"};
  if (m.space_behind)
    return Error{ErrorCode::unsupported,
                 "it puts white space behind words, which is not supported"};
  for (const SentencePiece& p : m.pieces) {
    if (!std::isfinite(p.score))
      return Error{ErrorCode::bad_file, "the score of '" + valid_utf8(p.text) + "' is no number"};
    if (p.text.empty() || valid_utf8(p.text) != p.text)
      return Error{ErrorCode::bad_file, "a piece is empty or no UTF-8"};
  }
  return {};
}

Json normalizers_of(const SentencePieceModel& m) {
  Json normalizers = Json::array();
  if (!m.charsmap.empty())
    normalizers.push_back({{"type", "Precompiled"},
                           {"precompiled_charsmap", to_base64(m.charsmap)},
                           {"longest_prefix", true}});
  if (m.clean_spaces) {
    normalizers.push_back(replace("Regex", "\\A +| +\\z", ""));
    normalizers.push_back(replace("Regex", " {2,}", " "));
  }
  if (m.leading_space)
    normalizers.push_back({{"type", "Prepend"}, {"prepend", m.escapes_spaces ? kSpace : " "}});
  if (m.escapes_spaces) normalizers.push_back(replace("String", " ", kSpace));
  return normalizers;
}

}  // namespace

Result<Json> read_sentencepiece(std::string_view bytes) {
  auto m = parse(bytes);
  if (!m) return Error{ErrorCode::bad_file, "not a SentencePiece model, or a part of one"};
  const auto id = static_cast<size_t>(m->begin);  // -1 is past every end
  m->adds_begin = id < m->pieces.size() && m->pieces[id].type == PieceType::control;
  m->adds_end = !m->adds_begin;
  return tokenizer_of(*m);
}

Result<Json> tokenizer_of(const SentencePieceModel& model) {
  const SentencePieceModel* const m = &model;
  TFCC_TRY_VOID(check(*m));
  const auto is = [](PieceType t) { return [t](const SentencePiece& p) { return p.type == t; }; };
  const auto unknown = std::find_if(m->pieces.begin(), m->pieces.end(), is(PieceType::unknown));
  if (unknown == m->pieces.end())
    return Error{ErrorCode::bad_file,
                 "the SentencePiece model has no piece for what it does not know"};
  Json added = Json::array();  // pieces of the user's are looked for in the text as it is then
  for (size_t id = 0; id < m->pieces.size(); ++id) {
    const SentencePiece& p = m->pieces[id];
    const bool special = p.type == PieceType::control || p.type == PieceType::unknown;
    if (special || p.type == PieceType::user_defined)
      added.push_back({{"id", id},
                       {"content", p.text},
                       {"special", special},
                       {"normalized", !special},
                       {"content_is_normalized", true}});
  }
  const auto around = [&](int32_t id) -> const SentencePiece* {
    const bool there = id >= 0 && static_cast<size_t>(id) < m->pieces.size() &&
                       m->pieces[static_cast<size_t>(id)].type == PieceType::control;
    return there ? &m->pieces[static_cast<size_t>(id)] : nullptr;
  };
  const SentencePiece *first = m->adds_begin ? around(m->begin) : nullptr,
                      *last = m->adds_end ? around(m->end) : nullptr;
  Json single = Json::array({{{"Sequence", {{"id", "A"}}}}}), tokens = Json::object();
  const auto token = [&](const SentencePiece& p, int32_t id) {
    tokens[p.text] = {{"ids", Json::array({id})}};
    return Json{{"SpecialToken", {{"id", p.text}}}};
  };
  if (first) single.insert(single.begin(), token(*first, m->begin));
  if (last) single.push_back(token(*last, m->end));

  Json decoders =
      Json::array({replace("String", kSpace, " "), {{"type", "ByteFallback"}}, {{"type", "Fuse"}}});
  if (m->leading_space)
    decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  return Json{{"end_id", around(m->end) ? m->end : -1},
              {"added_tokens", added},
              {"normalizer", {{"type", "Sequence"}, {"normalizers", normalizers_of(*m)}}},
              {"model", model_of(*m, static_cast<size_t>(unknown - m->pieces.begin()))},
              {"post_processor",
               {{"type", "TemplateProcessing"}, {"single", single}, {"special_tokens", tokens}}},
              {"decoder", {{"type", "Sequence"}, {"decoders", decoders}}}};
}

}  // namespace tfcc::text
