// SPDX-License-Identifier: Apache-2.0
// Caps of sizes, and the proof that a plan may be launched at them.
#include "runtime/caps.h"

#include <algorithm>
#include <bit>

#include "runtime/binding.h"

namespace tfcc::runtime {
namespace {

constexpr int64_t kMostTokens = int64_t{1} << 31;    // CUDA kernels index with 32 bits
constexpr int64_t kLeastLength = 4;

int64_t round_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }
int64_t power_of_two(int64_t n) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(n, 1))));
}

// The largest that a run may have: the caps of sizes up to it ascend.
int64_t no_more_than_possible(int64_t size, const Symbol& symbol) {
  return std::min({size, kMostTokens, symbol.max != 0 ? symbol.max : kMostTokens});
}

}  // namespace

bool never_decreases(const SizeExpr& e) {
  std::vector<bool> constant;                      // of each value of the stack
  for (size_t i = 0; i < e.code.size(); ++i) {
    const auto code = static_cast<SizeCode>(e.code[i]);
    switch (code) {
      case SizeCode::push:
        if (e.code[++i] < 0) return false;
        constant.push_back(true);
        continue;
      case SizeCode::symbol:
        ++i;
        constant.push_back(false);
        continue;
      case SizeCode::floordiv:
        if (!constant.back()) return false;
        break;
      case SizeCode::add:
      case SizeCode::mul:
      case SizeCode::min:
      case SizeCode::max: break;
      default: return false;
    }
    const bool last = constant.back();
    constant.pop_back();
    constant.back() = constant.back() && last;
  }
  return true;
}

int64_t token_cap(int64_t tokens) {
  if (tokens <= 512) return std::max<int64_t>(round_up(tokens, 64), 64);
  return round_up(tokens, power_of_two(tokens) / 8);
}

Caps::Caps(const Manifest& manifest, const Plan& plan) : manifest_(manifest), plan_(plan) {
  if (!monotone()) return;
  kind_ = classify();
  const auto& symbols = manifest_.symbols;
  if (kind_ == Kind::tokens && symbols[0].axis != 0) std::swap(batch_, length_);
}

// A derived symbol of two that are read must be their product.
Caps::Kind Caps::classify() const {
  const auto& symbols = manifest_.symbols;
  if (symbols.empty()) return Kind::fixed;
  if (symbols.size() == 1 && !symbols[0].derived()) return Kind::single;
  if (symbols.size() != 3 || symbols[0].derived() || symbols[1].derived()) return Kind::none;
  if ((symbols[0].axis == 0) == (symbols[1].axis == 0)) return Kind::none;
  auto names = [&](int64_t a, int64_t b) {
    return symbols[2].value.code == std::vector<int64_t>{1, a, 1, b, 3};
  };
  return names(0, 1) || names(1, 0) ? Kind::tokens : Kind::none;
}

bool Caps::monotone() const {
  auto all = [](const std::vector<SizeExpr>& sizes) {
    return std::all_of(sizes.begin(), sizes.end(), never_decreases);
  };
  if (!all(plan_.slots)) return false;
  for (const Buffer& b : plan_.buffers) {
    if (b.place == BufferClass::arena && (!all(b.dims) || !never_decreases(b.offset))) return false;
  }
  for (const Bucket& b : plan_.buckets) {
    for (const Launch& l : b.launches) {
      if (l.kernel && !all(l.kernel->grid)) return false;
      if (!l.gemm) continue;
      const GemmLaunch& g = *l.gemm;
      for (const SizeExpr* e : {&g.n, &g.k, &g.batch, &g.stride_a, &g.stride_b}) {
        if (!e->constant()) return false;
      }
      // More rows must only append: a transposed A has them as its columns, a batch between.
      if (g.m.constant()) continue;
      if (!never_decreases(g.m) || g.trans_a || *g.batch.constant() != 1) return false;
    }
  }
  return true;
}

int64_t Caps::length_cap(int64_t length) const {
  const auto& caps = plan_.lengths;
  const auto named = std::lower_bound(caps.begin(), caps.end(), length);
  if (named != caps.end()) return *named;
  const int64_t cap = std::max(power_of_two(length), kLeastLength);
  return no_more_than_possible(cap, manifest_.symbols[length_]);
}

int64_t Caps::least_length(int64_t cap) const {
  const auto& caps = plan_.lengths;
  const auto named = std::lower_bound(caps.begin(), caps.end(), cap);
  int64_t above = cap <= kLeastLength ? 1 : power_of_two(cap) / 2 + 1;
  if (named != caps.end()) above = named == caps.begin() ? 1 : named[-1] + 1;
  return std::max(above, manifest_.symbols[length_].min);
}

int64_t Caps::single_cap(int64_t size) const {
  const int64_t cap = size <= 16 ? size : round_up(size, power_of_two(size) / 8);
  return no_more_than_possible(cap, manifest_.symbols[0]);
}

std::vector<int64_t> Caps::bucket(int64_t length, int64_t tokens) const {
  std::vector<int64_t> caps(3);
  if (const int64_t most = manifest_.symbols[tokens_].max; most != 0) {
    tokens = std::min(tokens, most);
  }
  const int64_t most = manifest_.symbols[batch_].max;
  const int64_t batch = std::max<int64_t>(tokens / least_length(length), 1);
  caps[batch_] = most != 0 ? std::min(batch, most) : batch;
  caps[length_] = length;
  caps[tokens_] = tokens;
  return caps;
}

bool Caps::within_limits(std::span<const int64_t> caps) const {
  return std::all_of(plan_.limits.begin(), plan_.limits.end(),
                     [&](const Check& c) { return holds(c, caps); });
}

bool Caps::find(std::span<const int64_t> symbols, std::vector<int64_t>& caps) const {
  for (int64_t n : symbols) {
    if (n > kMostTokens) return false;
  }
  switch (kind_) {
    case Kind::none: return false;
    case Kind::fixed: caps.clear(); break;
    case Kind::single: caps = {single_cap(symbols[0])}; break;
    case Kind::tokens:
      caps = bucket(length_cap(symbols[length_]), token_cap(symbols[tokens_]));
  }
  for (size_t i = 0; i < symbols.size(); ++i) {
    if (symbols[i] > caps[i]) return false;
  }
  if (!within_limits(caps)) return false;
  // The launches for the caps must be made for these sizes too.
  const Bucket* launched = first_bucket(plan_, caps);
  return launched != nullptr &&
         std::all_of(launched->limits.begin(), launched->limits.end(),
                     [&](const Check& c) { return holds(c, symbols); });
}

std::vector<std::vector<int64_t>> Caps::up_to(std::span<const int64_t> symbols) const {
  std::vector<std::vector<int64_t>> all;
  std::vector<int64_t> caps;
  auto add = [&](std::vector<int64_t> sizes) {
    if (find(sizes, caps) && std::find(all.begin(), all.end(), caps) == all.end()) {
      all.push_back(caps);
    }
  };
  if (kind_ == Kind::fixed) add({});
  if (kind_ == Kind::single) {
    const int64_t least = std::max<int64_t>(manifest_.symbols[0].min, 1);
    const int64_t largest = no_more_than_possible(symbols[0], manifest_.symbols[0]);
    for (int64_t n = least; n <= largest; n = single_cap(n) + 1) add({n});
  }
  if (kind_ != Kind::tokens || symbols[tokens_] > kMostTokens) return all;
  const int64_t largest = no_more_than_possible(symbols[length_], manifest_.symbols[length_]);
  for (int64_t s = 1; s <= largest; s = length_cap(s) + 1) {
    const int64_t least = least_length(length_cap(s));
    const int64_t longest = std::min(length_cap(s), largest);
    int64_t most = symbols[batch_] * longest;
    if (const int64_t limit = manifest_.symbols[tokens_].max; limit != 0) most = std::min(most, limit);
    for (int64_t t = least; t <= most; t = token_cap(t) + 1) {
      const std::vector<int64_t> bucket_caps = bucket(length_cap(s), token_cap(t));
      if (within_limits(bucket_caps) && first_bucket(plan_, bucket_caps) != nullptr) {
        all.push_back(bucket_caps);
      }
    }
  }
  return all;
}

}  // namespace tfcc::runtime
