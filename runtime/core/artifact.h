// SPDX-License-Identifier: Apache-2.0
// The container around a manifest: header and section table of a .tfcc file (docs/artifact.md).
// Read by Model::load and `tfcc inspect`; written by codegen/artifact_file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/core/checksum.h"
#include "runtime/result.h"

namespace tfcc::runtime {

inline constexpr char kMagic[4] = {'T', 'F', 'C', 'C'};
inline constexpr uint16_t kMajorVersion = 2;
inline constexpr uint16_t kMinorVersion = 0;
inline constexpr uint64_t kTensorMaps =
    1;  // launches with KernelLaunch.maps, which a reader must not skip
inline constexpr uint64_t kMadeSizes =
    2;  // launches that make sizes (Launch.makes), by which later ones are sized
inline constexpr uint64_t kStates = 4;    // inputs that a run changes in place (BufferClass::state)
inline constexpr uint64_t kCounters = 8;  // memory by which blocks meet (Plan.counters)
inline constexpr uint64_t kMultiples = 16;  // sizes that are a part of an axis (Symbol.multiple)
inline constexpr uint64_t kByteMaps = 32;   // tensor maps of bytes
inline constexpr uint64_t kSharedWeights = 64;  // weights that lie in another
inline constexpr uint64_t kClusters = 128;      // blocks that are a cluster (Kernel.cluster)
inline constexpr uint64_t kF32Maps = 256;       // tensor maps of f32
inline constexpr uint64_t kTileChoices = 512;   // launches with KernelLaunch.tiles
inline constexpr uint64_t kSideBySide = 1024;   // products with MatmulLaunch.side_by_side
inline constexpr uint64_t kKnownFeatures =
    kTensorMaps | kMadeSizes | kStates | kCounters | kMultiples | kByteMaps | kSharedWeights |
    kClusters | kF32Maps | kTileChoices |
    kSideBySide;  // bits of `required features` that this reader has
inline constexpr size_t kHeaderBytes = 64;
inline constexpr size_t kSectionEntryBytes = 32;
inline constexpr size_t kFirstSection = 4096;  // header, table and zeros
inline constexpr uint32_t kMaxSections = 123;
inline constexpr size_t kSectionAlignment = 64;
inline constexpr size_t kWeightsAlignment = 4096;
inline constexpr size_t kWeightAlignment = 64;  // of each weight and image inside its section
inline constexpr uint64_t kMaxManifestBytes = 64u << 20;

/// What a section holds. Numbers are those of the file.
enum class SectionKind : uint32_t { weights = 1, code = 2, text = 3 };

/// The header, field by field; byte offsets are those of docs/artifact.md.
struct Header {
  char magic[4];
  uint16_t major;
  uint16_t minor;
  uint64_t features;
  uint64_t file_bytes;
  uint64_t manifest_offset;
  uint64_t manifest_bytes;
  uint64_t manifest_checksum;
  uint32_t sections;
  uint32_t zero;
  uint64_t checksum;
};
static_assert(sizeof(Header) == kHeaderBytes);

/// One entry of the section table.
struct Section {
  SectionKind kind;
  uint32_t zero;
  uint64_t offset;
  uint64_t size;
  uint64_t checksum;
};
static_assert(sizeof(Section) == kSectionEntryBytes);
static_assert(kHeaderBytes + kMaxSections * kSectionEntryBytes <= kFirstSection);

/// Checksum of the header (without its own field) and the section table.
uint64_t header_checksum(const Header& header, std::span<const Section> sections);

/// A file whose header, table and manifest bytes were verified. Points into the caller's memory.
struct Artifact {
  std::span<const std::byte> file;
  std::span<const std::byte> manifest;
  std::vector<Section> sections;
  uint16_t minor = 0;

  std::span<const std::byte> bytes(const Section& s) const {
    return file.subspan(s.offset, s.size);
  }
  /// The first section of a kind, or null.
  const Section* find(SectionKind kind) const;
};

/// Reads and verifies header, section table and manifest checksum. `name` starts every message.
/// Errors: bad_file (not a .tfcc file, truncated, altered), unsupported (version, feature).
Result<Artifact> read_artifact(std::span<const std::byte> file, const std::string& name);

/// Verifies a section's bytes. Errors: bad_file.
Result<void> verify_section(const Artifact& artifact, const Section& section,
                            const std::string& name);

}  // namespace tfcc::runtime
