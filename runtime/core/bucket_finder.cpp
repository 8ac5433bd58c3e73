// SPDX-License-Identifier: Apache-2.0
#include "runtime/core/bucket_finder.h"

#include <algorithm>
#include <array>

#include "runtime/core/binding.h"

namespace tfcc::runtime {
namespace {

constexpr size_t kMostLookedAt = size_t{1}
                                 << 18;  // combinations of caps, of which a run may have few

}  // namespace

// The least value of a size whose cap is caps[cap].
int64_t BucketFinder::least_of(size_t symbol, size_t cap) const {
  const std::vector<int64_t>& caps = plan_.bucket_table->sizes[symbol].caps;
  return cap == 0 ? manifest_.symbols[symbol].min
                  : std::max(caps[cap - 1] + 1, manifest_.symbols[symbol].min);
}

bool BucketFinder::complete(std::span<int64_t> caps_and_least) const {
  const auto& sizes = plan_.bucket_table->sizes;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (!sizes[i].caps.empty()) continue;
    const auto cap = sizes[i].cap.evaluate(caps_and_least);
    if (!cap || *cap < 0 || *cap > kLargestCap) return false;
    caps_and_least[i] = *cap;
  }
  return true;
}

const Bucket* BucketFinder::launches_at(std::span<const int64_t> caps) const {
  const bool within = std::all_of(plan_.limits.begin(), plan_.limits.end(),
                                  [&](const Check& c) { return holds(c, caps); });
  return within ? first_bucket(plan_, caps) : nullptr;
}

bool BucketFinder::find(std::span<const int64_t> symbols, std::vector<int64_t>& caps) const {
  if (!possible()) return false;
  const auto& sizes = plan_.bucket_table->sizes;
  const size_t n = sizes.size();
  caps.assign(2 * n, 0);
  for (size_t i = 0; i < n; ++i) {
    const auto& steps = sizes[i].caps;
    if (steps.empty()) continue;
    const auto cap = std::lower_bound(steps.begin(), steps.end(), symbols[i]);
    if (cap == steps.end()) return false;
    caps[i] = *cap;
    caps[n + i] = least_of(i, static_cast<size_t>(cap - steps.begin()));
  }
  if (!complete(caps)) return false;
  caps.resize(n);
  for (size_t i = 0; i < n; ++i) {
    if (symbols[i] > caps[i]) return false;
  }
  // The launches for the caps must be made for these sizes too.
  const Bucket* launched = launches_at(caps);
  return launched != nullptr && std::all_of(launched->limits.begin(), launched->limits.end(),
                                            [&](const Check& c) { return holds(c, symbols); });
}

// The buckets found so far, and the caps chosen for the symbols before the one that is looked at.
struct BucketFinder::Walk {
  std::span<const int64_t> largest;
  size_t most;
  std::vector<int64_t> caps_and_least;
  size_t looked_at = 0;
  std::vector<std::vector<int64_t>> found;
};

// Sequences of no more tokens than the longest, each of one at least, have so many in all.
bool BucketFinder::reached_without_padding(std::span<const int64_t> least,
                                           std::span<const int64_t> largest) const {
  const Symbol* const sizes[] = {with_role(manifest_, SizeRole::batch),
                                 with_role(manifest_, SizeRole::length),
                                 with_role(manifest_, SizeRole::tokens)};
  if (!ragged_ || std::ranges::count(sizes, nullptr) > 0) return true;
  const auto of = [&](int k, std::span<const int64_t> values) {
    return values[static_cast<size_t>(sizes[k] - manifest_.symbols.data())];
  };
  const auto most = checked_product(std::array{of(0, largest), of(1, largest)});
  return (!most || of(2, least) <= *most) && of(2, largest) >= of(0, least) + of(1, least) - 1;
}

// True if some run has these caps: what is computed of sizes, and rounded up by caps of its own,
// must lie between its values at the ends of the others.
bool BucketFinder::reached(const Walk& w, std::span<const int64_t> caps_and_least) const {
  const size_t n = w.largest.size();
  std::vector<int64_t> least(n), largest(n);
  for (size_t i = 0; i < n; ++i) {
    const bool rounded = !plan_.bucket_table->sizes[i].caps.empty();
    least[i] = rounded ? caps_and_least[n + i] : manifest_.symbols[i].min;
    largest[i] = rounded ? std::min(caps_and_least[i], w.largest[i]) : w.largest[i];
    if (largest[i] < least[i] && !manifest_.symbols[i].derived()) return false;
  }
  if (!reached_without_padding(least, largest)) return false;
  for (size_t i = 0; i < n; ++i) {
    const Symbol& s = manifest_.symbols[i];
    if (!s.derived() || plan_.bucket_table->sizes[i].caps.empty()) continue;
    const auto from = s.value.evaluate(least), to = s.value.evaluate(largest);
    if (!from || *from > caps_and_least[i] || (to && *to < caps_and_least[n + i])) return false;
  }
  return true;
}

void BucketFinder::walk(Walk& w, size_t symbol) const {
  const auto& sizes = plan_.bucket_table->sizes;
  const size_t n = sizes.size();
  if (w.found.size() >= w.most || ++w.looked_at > kMostLookedAt) return;
  if (symbol == n) {
    std::vector<int64_t> caps = w.caps_and_least;
    if (!complete(caps) || !reached(w, caps)) return;
    caps.resize(n);
    w.looked_at += plan_.limits.size();
    if (launches_at(caps) != nullptr) w.found.push_back(std::move(caps));
    return;
  }
  if (sizes[symbol].caps.empty()) return walk(w, symbol + 1);
  for (size_t cap = 0; cap < sizes[symbol].caps.size(); ++cap) {
    const int64_t least = least_of(symbol, cap);
    if (least > w.largest[symbol]) return;
    w.caps_and_least[symbol] = sizes[symbol].caps[cap];
    w.caps_and_least[n + symbol] = least;
    walk(w, symbol + 1);
  }
}

std::vector<std::vector<int64_t>> BucketFinder::up_to(std::span<const int64_t> symbols,
                                                      size_t most) const {
  if (!possible()) return {};
  Walk w{symbols, most, std::vector<int64_t>(2 * symbols.size()), 0, {}};
  walk(w, 0);
  return std::move(w.found);
}

}  // namespace tfcc::runtime
