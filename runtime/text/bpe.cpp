// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <optional>
#include <queue>

#include "runtime/text/models.h"

namespace tfcc::text {
namespace {

struct Merge {
  int32_t rank = 0, id = 0;
};

/// Pairs of ids to merges, by open addressing: a text asks some ten times a word.
class Merges {
 public:
  explicit Merges(size_t count = 0) {
    size_t places = 16;
    while (places < 2 * count) places *= 2;
    slots_.resize(places);
  }
  /// A pair that is there already takes the new merge. At most as many pairs as the constructor was
  /// told.
  void set(int32_t left, int32_t right, Merge merge) {
    Slot& slot = slots_[place(key_of(left, right))];
    slot = {key_of(left, right), merge};
  }
  const Merge* find(int32_t left, int32_t right) const {
    const Slot& slot = slots_[place(key_of(left, right))];
    return slot.key == kFree ? nullptr : &slot.merge;
  }

 private:
  static constexpr uint64_t kFree = ~uint64_t{0};  // ids are not negative
  struct Slot {
    uint64_t key = kFree;
    Merge merge;
  };
  static uint64_t key_of(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  size_t place(uint64_t key) const {
    const size_t mask = slots_.size() - 1;
    size_t at = (key ^ key >> 29) * 0x9e3779b97f4a7c15ull >> 20 & mask;
    while (slots_[at].key != kFree && slots_[at].key != key) at = (at + 1) & mask;
    return at;
  }
  std::vector<Slot> slots_;
};

/// A symbol of the word that is being merged: a list through indices. A symbol that went into its
/// left neighbour has size 0.
struct Symbol {
  int32_t id;
  int previous, next;
  uint32_t size;
};

constexpr int kShortWord = 32;

struct Candidate {
  int32_t rank, id;
  int at;
  bool operator<(const Candidate& o) const {
    return rank != o.rank ? rank > o.rank : at > o.at;
  }  // a queue's top is its largest
};

class Bpe : public TokenModel {
 public:
  Vocabulary vocabulary;
  Merges merges;
  std::string prefix, suffix;  // of symbols inside a word; of the last one
  int32_t unknown = -1;
  bool fuse_unknown = false, whole_words = false;
  std::array<int32_t, 128> ascii{};  // ids of single characters, which are asked for most
  std::optional<Merges>
      neighbours;  // pairs of symbols that a token has side by side, if that is known
  std::optional<std::vector<int32_t>> bytes;  // ids of <0x00> .. <0xFF>, -1 where there is none

  Result<void> append(std::string_view piece, std::vector<int32_t>& out) const override {
    if (whole_words) {
      const int32_t id = vocabulary.find(piece);
      if (id >= 0) {
        out.push_back(id);
        return {};
      }
    }
    std::vector<Symbol> word = symbols(piece);
    const int n = static_cast<int>(word.size());
    for (int begin = 0; begin < n;) {
      const int end = run_end(word, begin);
      merge(word, begin, end);
      begin = end;
    }
    for (const Symbol& s : word)
      if (s.size) out.push_back(s.id);
    return {};
  }
  const std::vector<std::string>& tokens() const override { return vocabulary.tokens(); }

 private:
  // Where no token has these two symbols side by side nothing is merged across: a text without
  // words falls into short runs, whose queues stay in the cache.
  int run_end(const std::vector<Symbol>& word, int begin) const {
    const int n = static_cast<int>(word.size());
    if (!neighbours || n <= kShortWord) return n;
    int end = begin + 1;
    while (end < n && neighbours->find(word[static_cast<size_t>(end - 1)].id,
                                       word[static_cast<size_t>(end)].id))
      ++end;
    return end;
  }

  static void add(std::vector<Symbol>& word, int32_t id) {
    const int n = static_cast<int>(word.size());
    word.push_back({id, n - 1, n + 1, 1});
  }

  bool add_bytes(std::string_view character, std::vector<Symbol>& word) const {
    if (!bytes) return false;
    const auto id = [&](char c) { return (*bytes)[static_cast<unsigned char>(c)]; };
    if (std::any_of(character.begin(), character.end(), [&](char c) { return id(c) < 0; }))
      return false;
    for (const char c : character) add(word, id(c));
    return true;
  }

  // A character that is no token becomes its bytes, or the unknown token, or nothing.
  std::vector<Symbol> symbols(std::string_view piece) const {
    std::vector<Symbol> word;
    bool pending = false;  // an unknown token that following ones may join
    std::string decorated;
    for (size_t at = 0; at < piece.size();) {
      const size_t begin = at;
      at += std::min(character_size(piece[at]), piece.size() - at);
      std::string_view character = piece.substr(begin, at - begin);
      if ((begin > 0 && !prefix.empty()) || (at == piece.size() && !suffix.empty())) {
        decorated.assign(begin > 0 ? prefix : "")
            .append(character)
            .append(at == piece.size() ? suffix : "");
        character = decorated;
      }
      const int32_t id = character.size() == 1 ? ascii[static_cast<unsigned char>(character[0])]
                                               : vocabulary.find(character);
      if (id >= 0) {
        if (pending) add(word, unknown);
        pending = false;
        add(word, id);
      } else if (!add_bytes(character, word) && unknown >= 0) {
        if (pending && !fuse_unknown) add(word, unknown);
        pending = true;
      }
    }
    if (pending) add(word, unknown);
    return word;
  }

  void merge(std::vector<Symbol>& word, int begin, int end) const {
    if (end - begin < 2) return;
    word[static_cast<size_t>(begin)].previous = word[static_cast<size_t>(end - 1)].next = -1;
    std::vector<Candidate> held;
    held.reserve(static_cast<size_t>(end - begin));
    std::priority_queue<Candidate> queue({}, std::move(held));
    const auto offer = [&](int at) {
      const int next = at < 0 ? -1 : word[static_cast<size_t>(at)].next;
      if (next < 0) return;
      const Merge* found =
          merges.find(word[static_cast<size_t>(at)].id, word[static_cast<size_t>(next)].id);
      if (found) queue.push({found->rank, found->id, at});
    };
    for (int i = begin; i + 1 < end; ++i) offer(i);
    while (!queue.empty()) {
      const Candidate top = queue.top();
      queue.pop();
      Symbol& left = word[static_cast<size_t>(top.at)];
      if (left.size == 0 || left.next < 0) continue;
      Symbol& right = word[static_cast<size_t>(left.next)];
      const Merge* found = merges.find(left.id, right.id);
      if (!found || found->id != top.id) continue;  // one of the two is no more what it was
      left.id = top.id;
      left.next = right.next;
      right.size = 0;
      if (left.next >= 0) word[static_cast<size_t>(left.next)].previous = top.at;
      offer(left.previous);
      offer(top.at);
    }
  }
};

struct Made {
  int32_t left, right, whole;
};

/// Pairs of symbols that a token has side by side: the last of a merge's left and the first of its
/// right part. Nothing if a token is made in ways that differ at their ends, or is a symbol that
/// text has by itself too.
std::optional<Merges> neighbours_of(const Bpe& model, std::vector<Made> merges) {
  if (!model.prefix.empty() || !model.suffix.empty()) return std::nullopt;
  const std::vector<std::string>& tokens = model.vocabulary.tokens();
  const auto text = [&](int32_t id) -> const std::string& {
    return tokens[static_cast<size_t>(id)];
  };
  // Parts are shorter than the whole, so they come before it.
  std::stable_sort(merges.begin(), merges.end(), [&](const Made& a, const Made& b) {
    return text(a.whole).size() < text(b.whole).size();
  });
  constexpr int32_t kNone = -1;
  std::vector<int32_t> first(tokens.size(), kNone), last(tokens.size(), kNone);
  const auto edge = [&](const std::vector<int32_t>& of, int32_t id) {
    const int32_t known = of[static_cast<size_t>(id)];
    return known == kNone ? id : known;
  };
  const auto note = [&](std::vector<int32_t>& of, int32_t id, int32_t symbol) {
    int32_t& known = of[static_cast<size_t>(id)];
    const bool agrees = known == kNone || known == symbol;
    known = symbol;
    return agrees;
  };
  Merges out(merges.size());
  for (const Made& m : merges) {
    const bool symbol = count_characters(text(m.whole)) == 1 || byte_of_token(text(m.whole)) >= 0 ||
                        m.whole == model.unknown;
    if (symbol || !note(first, m.whole, edge(first, m.left)) ||
        !note(last, m.whole, edge(last, m.right)))
      return std::nullopt;
    out.set(edge(last, m.left), edge(first, m.right), {});
  }
  return out;
}

// "a b", or ["a", "b"] in newer files, whose tokens may hold spaces.
Result<std::pair<std::string, std::string>> read_pair(const Json& merge) {
  if (merge.is_array() && merge.size() == 2)
    return std::pair{merge[0].get<std::string>(), merge[1].get<std::string>()};
  const std::string both = merge.get<std::string>();
  const size_t space = both.find(' ');
  if (space == both.npos || both.find(' ', space + 1) != both.npos)
    return Error{ErrorCode::bad_file, "the merge '" + both + "' is not two tokens"};
  return std::pair{both.substr(0, space), both.substr(space + 1)};
}

// Files that keep no merges but an order of tokens (SentencePiece by score, tiktoken by rank): each
// way in which a token is two others is one, and all ways of a token have its rank.
Result<void> derive_merges(const Json& ranks, Bpe& model) {
  const std::vector<std::string>& tokens = model.vocabulary.tokens();
  std::vector<Made> made;
  std::vector<int32_t> rank_of(tokens.size(), -1);
  for (size_t id = 0; id < std::min(ranks.size(), tokens.size()); ++id) {
    rank_of[id] = ranks[id].get<int32_t>();
    const std::string_view text = tokens[id];
    for (size_t cut = 1; rank_of[id] >= 0 && cut < text.size(); ++cut) {
      const int32_t left = model.vocabulary.find(text.substr(0, cut));
      const int32_t right = left < 0 ? -1 : model.vocabulary.find(text.substr(cut));
      if (right >= 0) made.push_back({left, right, static_cast<int32_t>(id)});
    }
  }
  model.merges = Merges(made.size());
  for (const Made& m : made)
    model.merges.set(m.left, m.right, {rank_of[static_cast<size_t>(m.whole)], m.whole});
  model.neighbours = neighbours_of(model, std::move(made));
  return {};
}

Result<void> read_merges(const Json& section, Bpe& model) {
  if (section.contains("ranks")) return derive_merges(section["ranks"], model);
  const Json& list = section.at("merges");
  model.merges = Merges(list.size());
  std::vector<Made> made;
  for (int32_t rank = 0; const Json& item : list) {
    TFCC_TRY(const auto pair, read_pair(item));
    const std::string merged =
        pair.first + pair.second.substr(std::min(model.prefix.size(), pair.second.size()));
    const int32_t left = model.vocabulary.find(pair.first),
                  right = model.vocabulary.find(pair.second), id = model.vocabulary.find(merged);
    if (left < 0 || right < 0 || id < 0)
      return Error{ErrorCode::bad_file, "the merge of '" + pair.first + "' and '" + pair.second +
                                            "' is not of tokens of the vocabulary"};
    model.merges.set(left, right, {rank++, id});
    made.push_back({left, right, id});
  }
  model.neighbours = neighbours_of(model, std::move(made));
  return {};
}

/// A member that may be absent or null.
std::string text_or_empty(const Json& section, const char* key) {
  const auto found = section.find(key);
  return found == section.end() || found->is_null() ? std::string() : found->get<std::string>();
}

}  // namespace

Result<std::unique_ptr<TokenModel>> make_bpe(const Json& section) {
  auto model = std::make_unique<Bpe>();
  TFCC_TRY(model->vocabulary, read_vocabulary(section));
  for (size_t c = 0; c < model->ascii.size(); ++c)
    model->ascii[c] = model->vocabulary.find(std::string(1, static_cast<char>(c)));
  model->prefix = text_or_empty(section, "continuing_subword_prefix");
  model->suffix = text_or_empty(section, "end_of_word_suffix");
  model->fuse_unknown = section.value("fuse_unk", false);
  model->whole_words = section.value("ignore_merges", false);
  const std::string unknown = text_or_empty(section, "unk_token");
  if (!unknown.empty()) model->unknown = model->vocabulary.find(unknown);
  if (section.value("byte_fallback", false)) {
    model->bytes.emplace(256, -1);
    constexpr char kHex[] = "0123456789ABCDEF";
    for (size_t b = 0; b < 256; ++b)
      (*model->bytes)[b] =
          model->vocabulary.find(std::string("<0x") + kHex[b >> 4] + kHex[b & 15] + ">");
  }
  TFCC_TRY_VOID(read_merges(section, *model));
  return std::unique_ptr<TokenModel>(std::move(model));
}

}  // namespace tfcc::text
