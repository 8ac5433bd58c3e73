// SPDX-License-Identifier: Apache-2.0
// The form in which the fuzz target `artifact` takes a .tfcc file: what a reader looks at, without
// weights, code and checksums.
//
//     1 byte      number of sections, at most 8
//     1 byte each their kinds
//     4 bytes     size of the texts, little-endian
//     texts, then the manifest to the end
//
// Of the file that it stands for, all sections but the texts are the same zeros; header, table and
// checksums are right.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

namespace tfcc::fuzz {

struct ArtifactInput {
  std::span<const uint8_t> kinds, texts, manifest;

  static std::optional<ArtifactInput> parse(std::span<const uint8_t> bytes) {
    constexpr size_t kMostSections = 8;
    if (bytes.empty() || bytes[0] > kMostSections || bytes.size() < size_t{1} + bytes[0] + 4)
      return std::nullopt;
    const size_t count = bytes[0];
    uint32_t size = 0;
    std::memcpy(&size, bytes.data() + 1 + count, sizeof size);
    const auto rest = bytes.subspan(1 + count + sizeof size);
    if (size > rest.size()) return std::nullopt;
    return ArtifactInput{bytes.subspan(1, count), rest.first(size), rest.subspan(size)};
  }
};

}  // namespace tfcc::fuzz
