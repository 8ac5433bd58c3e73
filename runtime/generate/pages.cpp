// SPDX-License-Identifier: Apache-2.0
#include "runtime/generate/pages.h"

namespace tfcc::generate {

Pages::Pages(int64_t count) : pages_(static_cast<size_t>(count)) {
  for (int64_t i = count; i-- > 0;) free_.push_back(static_cast<int32_t>(i));
}

std::optional<int32_t> Pages::take() {
  int32_t page = 0;
  if (!free_.empty()) {
    page = free_.back();
    free_.pop_back();
  } else if (!unheld_.empty()) {
    page = unheld_.front();
    unheld_.pop_front();
    Page& p = pages_[static_cast<size_t>(page)];
    known_.erase(*p.content);
    p.content.reset();
  } else {
    return std::nullopt;
  }
  Page& p = pages_[static_cast<size_t>(page)];
  p.holders = 1;
  ++p.use;
  ++held_;
  return page;
}

void Pages::release(int32_t page) {
  Page& p = pages_[static_cast<size_t>(page)];
  if (--p.holders > 0) return;
  --held_;
  if (p.content) p.unheld = unheld_.insert(unheld_.end(), page);
  else free_.push_back(page);
}

Pages::Content Pages::content_of(int32_t before, std::span<const int32_t> tokens) const {
  return {before,
          before < 0 ? 0 : pages_[static_cast<size_t>(before)].use,
          {tokens.begin(), tokens.end()}};
}

void Pages::publish(int32_t page, int32_t before, std::span<const int32_t> tokens) {
  Page& p = pages_[static_cast<size_t>(page)];
  if (p.content) return;
  Content content = content_of(before, tokens);
  if (known_.emplace(content, page).second) p.content = std::move(content);
}

std::optional<int32_t> Pages::find(int32_t before, std::span<const int32_t> tokens) {
  const auto it = known_.find(content_of(before, tokens));
  if (it == known_.end()) return std::nullopt;
  Page& p = pages_[static_cast<size_t>(it->second)];
  if (p.holders++ == 0) {
    unheld_.erase(p.unheld);
    ++held_;
  }
  return it->second;
}

}  // namespace tfcc::generate
