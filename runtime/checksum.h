// SPDX-License-Identifier: Apache-2.0
// The 64-bit checksum of .tfcc files, as docs/artifact.md defines it. Used by the reader (runtime)
// and the writer (codegen/artifact_file). It finds damage; it does not resist an attacker.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace tfcc::runtime {

/// A checksum over bytes that arrive in pieces of any size.
class Checksum {
 public:
  /// Adds bytes.
  void update(const void* data, size_t size) {
    auto* p = static_cast<const unsigned char*>(data);
    total_ += size;
    if (pending_ > 0) {
      size_t take = size < kStripe - pending_ ? size : kStripe - pending_;
      if (take > 0) std::memcpy(tail_ + pending_, p, take);
      pending_ += take, p += take, size -= take;
      if (pending_ < kStripe) return;
      stripe(tail_);
      pending_ = 0;
    }
    for (; size >= kStripe; p += kStripe, size -= kStripe) stripe(p);
    if (size > 0) std::memcpy(tail_, p, size);
    pending_ = size;
  }

  /// The checksum of all bytes added.
  uint64_t value() const {
    Checksum last = *this;
    if (pending_ > 0) {
      std::memset(last.tail_ + pending_, 0, kStripe - pending_);
      last.stripe(last.tail_);
    }
    uint64_t h = total_ * kFactor;
    for (uint64_t lane : last.lanes_) h = rotl((h ^ lane) * kFactor);
    h = (h ^ (h >> 32)) * kFactor;
    return h ^ (h >> 29);
  }

 private:
  static constexpr size_t kStripe = 32;
  static constexpr uint64_t kFactor = 0x9E3779B185EBCA87u;

  static uint64_t rotl(uint64_t x) { return (x << 29) | (x >> 35); }

  void stripe(const unsigned char* p) {
    uint64_t words[4];
    std::memcpy(words, p, kStripe);
    for (int i = 0; i < 4; ++i) lanes_[i] = rotl((lanes_[i] ^ words[i]) * kFactor);
  }

  uint64_t lanes_[4] = {kFactor, kFactor * 2, kFactor * 3, kFactor * 4};
  uint64_t total_ = 0;
  size_t pending_ = 0;
  unsigned char tail_[kStripe] = {};
};

/// The checksum of one span.
inline uint64_t checksum(std::span<const std::byte> bytes) {
  Checksum sum;
  sum.update(bytes.data(), bytes.size());
  return sum.value();
}

}  // namespace tfcc::runtime
