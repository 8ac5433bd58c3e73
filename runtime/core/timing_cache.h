// SPDX-License-Identifier: Apache-2.0
// What was measured to be the fastest, kept from run to run: algorithms of cuBLASLt's products, and
// tiles of kernels of ours (tile_table.h). An entry holds for one card, one version of the library
// or one list of tiles, and one product; whatever does not fit is ignored. A text, one entry a
// line: docs/timing-cache.md.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/core/backend.h"
#include "runtime/result.h"

namespace tfcc::runtime {

/// The text of a .tfcc file that holds a cache.
inline constexpr const char* kTimingText = "timing-cache";

class TimingCache {
 public:
  /// An algorithm in the library's own form, which it allows to be kept and given back.
  using Algorithm = std::array<uint64_t, 8>;
  struct Entry {
    Algorithm algorithm = {};
    double us = 0;
  };

  /// "NVIDIA H200; cublasLt 130200; f16 f16 f16; 128x768x768; ..."
  static std::string key(const std::string& card, uint64_t library, const MatmulShape& shape);

  /// Adds the entries of a text; lines in any other form are skipped. Returns how many were taken.
  size_t read(std::string_view text);
  /// Adds those of a file. Errors: io (not if there is no such file).
  Result<void> load(const std::string& path);
  /// Writes all entries, through a temporary file. Errors: io.
  Result<void> save(const std::string& path) const;
  std::string text() const;

  std::optional<Entry> find(const std::string& key) const;
  /// All whose keys start so, with what follows of them.
  std::vector<std::pair<std::string, Entry>> starting_with(const std::string& start) const;
  void add(const std::string& key, const Entry& entry);
  size_t size() const;
  /// Entries added since they were loaded.
  size_t added() const;

 private:
  mutable std::mutex mutex_;  // executors of several threads share it
  std::map<std::string, Entry> entries_;
  size_t added_ = 0;
};

}  // namespace tfcc::runtime
