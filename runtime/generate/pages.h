// SPDX-License-Identifier: Apache-2.0
// The pages of a cache: which are free, which sequences share, and which are kept for prompts that
// begin as an earlier one did.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <span>
#include <vector>

namespace tfcc::generate {

class Pages {
 public:
  explicit Pages(int64_t count);

  /// A page for one holder: a free one, or that of the past whose last use is longest ago. Nothing
  /// if all are held.
  std::optional<int32_t> take();
  /// One holder less. A page that was published is kept as long as nobody needs its memory.
  void release(int32_t page);
  /// What a full page behind `before` (-1: the first of a sequence) holds. From now on find() knows
  /// it, unless it knows another.
  void publish(int32_t page, int32_t before, std::span<const int32_t> tokens);
  /// The page behind `before` that holds these tokens, with one holder more.
  std::optional<int32_t> find(int32_t before, std::span<const int32_t> tokens);

  int64_t count() const { return static_cast<int64_t>(pages_.size()); }
  /// Held by some sequence.
  int64_t held() const { return held_; }

 private:
  // Exact, not by hash: a page is what it is because of its tokens and of the page before it, which
  // is told from its later uses.
  struct Content {
    int32_t before;
    uint64_t use;  // of the page before
    std::vector<int32_t> tokens;
    auto operator<=>(const Content&) const = default;
  };
  struct Page {
    int64_t holders = 0;
    uint64_t use = 0;                     // times that it was taken
    std::optional<Content> content;       // where known
    std::list<int32_t>::iterator unheld;  // its place there, if it has content and no holder
  };
  Content content_of(int32_t before, std::span<const int32_t> tokens) const;

  std::vector<Page> pages_;
  std::vector<int32_t> free_;
  std::list<int32_t> unheld_;  // longest ago first
  std::map<Content, int32_t> known_;
  int64_t held_ = 0;
};

}  // namespace tfcc::generate
