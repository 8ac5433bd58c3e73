// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "runtime/text/models.h"
#include "runtime/text/trie.h"

namespace tfcc::text {
namespace {

constexpr double kUnknownPenalty = 10;  // below the lowest score of a token
constexpr double kMostSum = 1e5;

class Unigram : public TokenModel {
 public:
  /// `single`: scores are added in f32, as SentencePiece does and Hugging Face's library does not;
  /// of ways that cost the same the rounding then decides. So does where a sum begins anew: as of
  /// 0.2.3, what lies beyond kMostSum is taken from all sums that are open.
  Unigram(Vocabulary vocabulary, std::vector<double> scores, int32_t unknown, bool byte_fallback,
          bool single)
      : vocabulary_(std::move(vocabulary)),
        scores_(std::move(scores)),
        unknown_(unknown),
        byte_fallback_(byte_fallback),
        single_(single),
        trie_(vocabulary_.tokens()) {
    const double lowest = scores_.empty() ? 0 : *std::min_element(scores_.begin(), scores_.end());
    unknown_score_ = lowest - kUnknownPenalty;
    if (single_) unknown_score_ = static_cast<float>(unknown_score_);
  }

  Result<void> append(std::string_view piece, std::vector<int32_t>& out) const override {
    struct Best {
      double score = 0;
      int64_t start = -1;
      int32_t id = 0;
    };
    std::vector<Best> best(piece.size() + 1);
    size_t furthest = 0;
    for (size_t at = 0; at < piece.size();) {
      if (single_ && std::abs(best[at].score) > kMostSum) {
        const auto less = static_cast<float>(best[at].score);
        for (size_t end = at; end <= furthest; ++end)
          best[end].score = static_cast<float>(best[end].score) - less;
      }
      const size_t size = std::min(character_size(piece[at]), piece.size() - at);
      const double here = best[at].score;
      bool alone = false;  // whether the character is a token
      const auto offer = [&](size_t end, double own, int32_t id) {
        Best& b = best[end];
        const double whole = own + here, score = single_ ? static_cast<float>(whole) : whole;
        furthest = std::max(furthest, end);
        if (b.start < 0 || score > b.score) b = {score, static_cast<int64_t>(at), id};
      };
      trie_.prefixes(piece.substr(at), [&](size_t n, int32_t id) {
        offer(at + n, scores_[static_cast<size_t>(id)], id);
        alone |= n == size;
      });
      if (!alone) {
        if (unknown_ < 0) return no_token_for(piece.substr(at, size));
        offer(at + size, unknown_score_, unknown_);
      }
      at += size;
    }
    std::vector<Range> parts;  // from the last to the first; neighbours that are unknown are one
    std::vector<int32_t> ids;
    for (size_t end = piece.size(); end > 0;) {
      const Best& b = best[end];
      const size_t start = static_cast<size_t>(b.start);
      if (b.id == unknown_ && !ids.empty() && ids.back() == unknown_ && parts.back().begin == end)
        parts.back().begin = start;
      else {
        parts.push_back({start, end});
        ids.push_back(b.id);
      }
      end = start;
    }
    for (size_t i = parts.size(); i-- > 0;)
      add(ids[i], piece.substr(parts[i].begin, parts[i].end - parts[i].begin), out);
    return {};
  }
  const std::vector<std::string>& tokens() const override { return vocabulary_.tokens(); }

 private:
  void add(int32_t id, std::string_view text, std::vector<int32_t>& out) const {
    if (id != unknown_) return out.push_back(id);
    const int32_t known = vocabulary_.find(text);
    if (known >= 0) return out.push_back(known);
    const size_t before = out.size();
    constexpr char kHex[] = "0123456789ABCDEF";
    for (const char c : byte_fallback_ ? text : std::string_view()) {
      const auto b = static_cast<unsigned char>(c);
      const int32_t byte = vocabulary_.find(std::string("<0x") + kHex[b >> 4] + kHex[b & 15] + ">");
      if (byte < 0) {
        out.resize(before);
        break;
      }
      out.push_back(byte);
    }
    if (out.size() == before) out.push_back(unknown_);
  }

  Vocabulary vocabulary_;
  std::vector<double> scores_;
  int32_t unknown_;
  bool byte_fallback_, single_;
  Trie trie_;
  double unknown_score_;
};

}  // namespace

Result<std::unique_ptr<TokenModel>> make_unigram(const Json& section) {
  Vocabulary vocabulary;
  std::vector<double> scores;
  for (const Json& item : section.at("vocab")) {
    const std::string token = item.at(0).get<std::string>();
    TFCC_TRY_VOID(vocabulary.add(token, static_cast<int64_t>(scores.size())));
    scores.push_back(item.at(1).get<double>());
  }
  const auto unknown = section.find("unk_id");
  int64_t id = -1;
  if (unknown != section.end() && !unknown->is_null()) {
    id = unknown->get<int64_t>();
    if (id < 0 || static_cast<size_t>(id) >= scores.size())
      return Error{ErrorCode::bad_file, "unk_id is " + std::to_string(id) + ", which is no token"};
  }
  return std::unique_ptr<TokenModel>(std::make_unique<Unigram>(
      std::move(vocabulary), std::move(scores), static_cast<int32_t>(id),
      section.value("byte_fallback", false), section.value("single", false)));
}

}  // namespace tfcc::text
