// SPDX-License-Identifier: Apache-2.0
// The messages of sentencepiece_model.proto that matter here, read by hand: a vocabulary with
// scores, how it was trained, and how a text is changed before it is cut into pieces.
#include "runtime/text/sentencepiece.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <vector>

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

enum class PieceType : uint64_t {
  normal = 1,
  unknown = 2,
  control = 3,
  user_defined = 4,
  unused = 5,
  byte = 6
};

struct SentencePiece {
  std::string text;
  float score = 0;
  PieceType type = PieceType::normal;
};

struct SentencePieceModel {
  std::vector<SentencePiece> pieces;
  uint64_t kind = 1;  // ModelType: 1 unigram, 2 BPE, 3 words, 4 characters
  bool byte_fallback = false, space_behind = false;
  int32_t begin = 1, end = 2;  // ids
  std::string_view charsmap;
  bool leading_space = true, clean_spaces = true, escapes_spaces = true;
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

std::string base64(std::string_view bytes) {
  constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t at = 0; at < bytes.size(); at += 3) {
    uint32_t three = 0;
    const size_t n = std::min<size_t>(3, bytes.size() - at);
    for (size_t i = 0; i < 3; ++i)
      three = three << 8 | (i < n ? static_cast<unsigned char>(bytes[at + i]) : 0);
    for (size_t i = 0; i < 4; ++i) out += i <= n ? kDigits[three >> (18 - 6 * i) & 63] : '=';
  }
  return out;
}

Json replace(const char* by, const char* pattern, const char* content) {
  return {{"type", "Replace"}, {"pattern", {{by, pattern}}}, {"content", content}};
}

// The trainer keeps no merges: each is a piece as two others, in the order of the scores of what
// they make.
Json merges_of(const SentencePieceModel& m) {
  struct Merge {
    size_t whole, left, right;
  };
  std::unordered_map<std::string_view, size_t> ids;
  for (size_t id = 0; id < m.pieces.size(); ++id) ids.emplace(m.pieces[id].text, id);
  std::vector<Merge> merges;
  for (size_t id = 0; id < m.pieces.size(); ++id) {
    if (m.pieces[id].type != PieceType::normal) continue;
    const std::string_view text = m.pieces[id].text;
    for (size_t cut = 1; cut < text.size(); ++cut) {
      const auto left = ids.find(text.substr(0, cut)), right = ids.find(text.substr(cut));
      if (left != ids.end() && right != ids.end())
        merges.push_back({id, left->second, right->second});
    }
  }
  std::sort(merges.begin(), merges.end(), [&](const Merge& a, const Merge& b) {
    const float x = m.pieces[a.whole].score, y = m.pieces[b.whole].score;
    return x != y ? x > y : std::tie(a.whole, a.left, a.right) < std::tie(b.whole, b.left, b.right);
  });
  Json out = Json::array();
  for (const Merge& x : merges) out.push_back({m.pieces[x.left].text, m.pieces[x.right].text});
  return out;
}

Json model_of(const SentencePieceModel& m, size_t unknown) {
  Json vocabulary = m.kind == 2 ? Json::object() : Json::array();
  for (size_t id = 0; id < m.pieces.size(); ++id) {
    const SentencePiece& p = m.pieces[id];
    if (m.kind == 2) vocabulary[p.text] = id;
    else vocabulary.push_back({p.text, p.score});
  }
  if (m.kind == 2)
    return {{"type", "BPE"},          {"vocab", vocabulary},
            {"merges", merges_of(m)}, {"unk_token", m.pieces[unknown].text},
            {"fuse_unk", true},       {"byte_fallback", m.byte_fallback}};
  return {{"type", "Unigram"},
          {"vocab", vocabulary},
          {"unk_id", unknown},
          {"byte_fallback", m.byte_fallback}};
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
                           {"precompiled_charsmap", base64(m.charsmap)},
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
  const auto m = parse(bytes);
  if (!m) return Error{ErrorCode::bad_file, "not a SentencePiece model, or a part of one"};
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
  const SentencePiece *first = around(m->begin), *last = first ? nullptr : around(m->end);
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
  return Json{{"added_tokens", added},
              {"normalizer", {{"type", "Sequence"}, {"normalizers", normalizers_of(*m)}}},
              {"model", model_of(*m, static_cast<size_t>(unknown - m->pieces.begin()))},
              {"post_processor",
               {{"type", "TemplateProcessing"}, {"single", single}, {"special_tokens", tokens}}},
              {"decoder", {{"type", "Sequence"}, {"decoders", decoders}}}};
}

}  // namespace tfcc::text
