// SPDX-License-Identifier: Apache-2.0
// The bucket of a run: the caps that its sizes are rounded up to. Kernels read the sizes of a run
// from the device and leave early where a grid is larger than needed, and rows of a product past
// the last token are never read: so launches that were captured at the caps serve every run of the
// bucket. What may be rounded, and to what, is in the plan; nothing is decided here.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/core/manifest.h"
#include "runtime/core/sequences.h"

namespace tfcc::runtime {

class BucketFinder {
 public:
  /// Both must outlive it.
  BucketFinder(const Manifest& manifest, const Plan& plan)
      : manifest_(manifest), plan_(plan), ragged_(no_ragged_program(manifest).empty()) {}

  bool possible() const { return plan_.bucket_table.has_value(); }
  /// The caps of the bucket of these symbols, in manifest order. False if they have none: a size is
  /// beyond the last cap, launches at the caps would pass a limit of the plan, or the plan has no
  /// table.
  bool find(std::span<const int64_t> symbols, std::vector<int64_t>& caps) const;
  /// Every bucket that takes a run whose symbols are not larger than these, at most `most` of them.
  std::vector<std::vector<int64_t>> up_to(std::span<const int64_t> symbols, size_t most) const;

 private:
  struct Walk;
  void walk(Walk& w, size_t symbol) const;
  /// Fills the caps that are programs; false if one overflows.
  bool complete(std::span<int64_t> caps_and_least) const;
  /// The launches at these caps, or null if they pass a limit of the plan.
  const Bucket* launches_at(std::span<const int64_t> caps) const;
  int64_t least_of(size_t symbol, size_t cap) const;
  bool reached(const Walk& w, std::span<const int64_t> caps_and_least) const;
  bool reached_without_padding(std::span<const int64_t> least,
                               std::span<const int64_t> largest) const;

  const Manifest& manifest_;
  const Plan& plan_;
  const bool ragged_;
};

}  // namespace tfcc::runtime
