// SPDX-License-Identifier: Apache-2.0
// Which shapes share one captured graph. Kernels read the sizes of a run from the device and leave
// early where a grid is larger than needed, and rows of a product past the last token are never
// read: so launches that were captured at the largest sizes of a bucket serve all of it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "runtime/manifest.h"

namespace tfcc::runtime {

/// True if the program never decreases when a symbol grows, by its form: sums, products, minima,
/// maxima and quotients by a constant, without a negative number.
bool never_decreases(const SizeExpr& e);

/// Tokens are capped in steps of 64 up to 512, then of an eighth of the next power of two.
int64_t token_cap(int64_t tokens);

/// The buckets of a plan. A bucket is named by its caps: the largest value of every symbol, in
/// manifest order.
class Caps {
 public:
  /// Looks once at the plan: only rows of products may depend on symbols, and no size may shrink.
  /// The symbols must be batch, length and their product, or at most one.
  Caps(const Manifest& manifest, const Plan& plan);

  bool possible() const { return kind_ != Kind::none; }
  /// The bucket of these symbols. False if they have none: launches at the caps would pass a limit
  /// of the plan.
  bool find(std::span<const int64_t> symbols, std::vector<int64_t>& caps) const;
  /// Every bucket that takes a shape whose symbols are not larger than these.
  std::vector<std::vector<int64_t>> up_to(std::span<const int64_t> symbols) const;

 private:
  enum class Kind { none, fixed, single, tokens };
  Kind classify() const;
  bool monotone() const;
  bool within_limits(std::span<const int64_t> caps) const;
  int64_t length_cap(int64_t length) const;
  int64_t single_cap(int64_t size) const;
  /// The bucket of up to `tokens` tokens in rows longer than the next smaller length cap.
  std::vector<int64_t> bucket(int64_t length, int64_t tokens) const;
  int64_t least_length(int64_t cap) const;

  const Manifest& manifest_;
  const Plan& plan_;
  size_t batch_ = 0, length_ = 1, tokens_ = 2;     // indices of the symbols
  Kind kind_ = Kind::none;
};

}  // namespace tfcc::runtime
