// SPDX-License-Identifier: Apache-2.0
// The kernel cache: compiled kernels on disk, found by the content that they were compiled from.
// Used by codegen around compile_cpu_object and compile_cuda. Safe for concurrent threads and
// processes; never a reason to fail.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/core/family.h"

namespace tfcc::codegen {

struct KernelCacheOptions {
  std::string dir;  ///< empty: $XDG_CACHE_HOME/tfcc if that is an absolute path, else ~/.cache/tfcc
  bool enabled = true;                     ///< false: get finds nothing and put does nothing
  uint64_t max_bytes = uint64_t{1} << 30;  ///< beyond it the oldest entries are removed
};

/// What a kernel is compiled from, but for the texts of templates, of which there is a hash; and
/// 128 bits of a hash of all that, by which its entry is found.
struct CacheKey {
  std::array<uint64_t, 2> bits{};
  std::string content;
  std::string hex() const;
  bool operator==(const CacheKey&) const = default;
};

/// The key of a kernel: version of tfcc, compiler with flags (cpu_compiler_version,
/// cuda_compiler_version), arch, source of the unit, and the templates of the family ("cpu" or
/// "cuda") that it includes.
CacheKey kernel_key(Family family, std::string_view compiler, std::string_view arch,
                    std::string_view source);

/// A folder of entries, one file each.
class KernelCache {
 public:
  explicit KernelCache(KernelCacheOptions options = {});

  /// The bytes stored under a key. A damaged entry, and what is no file, is removed and not found;
  /// an entry of another content is not found.
  std::optional<std::vector<std::byte>> get(const CacheKey& key) const;

  /// Stores bytes under a key; what cannot be written is not stored.
  void put(const CacheKey& key, std::span<const std::byte> bytes) const;

  /// The folder in use; empty if the cache is off.
  const std::string& dir() const { return dir_; }

 private:
  std::string path(const CacheKey& key) const;
  void prune() const;

  std::string dir_;
  uint64_t max_bytes_;
};

}  // namespace tfcc::codegen
