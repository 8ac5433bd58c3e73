// SPDX-License-Identifier: Apache-2.0
#include "runtime/core/checksum.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <new>

namespace tfcc::runtime {
namespace {

XXH3_state_t* state_of(std::byte* memory) {
  return std::launder(reinterpret_cast<XXH3_state_t*>(memory));
}

}  // namespace

Checksum::Checksum() {
  static_assert(sizeof state_ == sizeof(XXH3_state_t) && alignof(XXH3_state_t) <= 64);
  XXH3_64bits_reset(new (state_) XXH3_state_t);
}

void Checksum::update(const void* data, size_t size) {
  XXH3_64bits_update(state_of(state_), data, size);
}

uint64_t Checksum::value() const {
  return XXH3_64bits_digest(state_of(const_cast<std::byte*>(state_)));
}

uint64_t checksum(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

}  // namespace tfcc::runtime
