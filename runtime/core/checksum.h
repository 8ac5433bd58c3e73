// SPDX-License-Identifier: Apache-2.0
// The 64-bit checksum of .tfcc files: XXH3 by xxHash. Used by the reader (runtime) and the writer
// (codegen/artifact_file). It finds damage; it does not resist an attacker.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace tfcc::runtime {

/// A checksum over bytes that arrive in pieces of any size.
class Checksum {
 public:
  Checksum();
  void update(const void* data, size_t size);
  /// The checksum of all bytes added.
  uint64_t value() const;

 private:
  alignas(64) std::byte state_[576];  // xxHash's, whose header is large
};

/// The checksum of one span.
uint64_t checksum(std::span<const std::byte> bytes);

}  // namespace tfcc::runtime
