// SPDX-License-Identifier: Apache-2.0
// Reader of the .tfcc container. Every offset is checked against the size of the span before it is
// used.
#include "runtime/core/artifact.h"

#include <cstring>

namespace tfcc::runtime {
namespace {

Error bad(const std::string& name, const std::string& what) {
  return {ErrorCode::bad_file, name + ": " + what + "; compile or copy the file again"};
}

bool inside(uint64_t offset, uint64_t size, uint64_t total) {
  return offset <= total && size <= total - offset;
}

Result<Header> read_header(std::span<const std::byte> file, const std::string& name) {
  Header h;
  if (file.size() < sizeof h) {
    return bad(name, "not a .tfcc file: it has only " + std::to_string(file.size()) + " bytes");
  }
  std::memcpy(&h, file.data(), sizeof h);
  if (std::memcmp(h.magic, kMagic, sizeof kMagic) != 0) {
    return bad(name, "not a .tfcc file: it does not start with TFCC");
  }
  if (h.major != kMajorVersion) {
    return Error{ErrorCode::unsupported,
                 name + ": file version " + std::to_string(h.major) + "." +
                     std::to_string(h.minor) + ", this runtime reads " +
                     std::to_string(kMajorVersion) +
                     ".x; compile the model again with the tfcc that belongs to this runtime"};
  }
  if (h.sections > kMaxSections) return bad(name, "damaged header: too many sections");
  return h;
}

// A truncated copy keeps a whole header, so that the most frequent damage gets its own message.
Result<void> check_extent(const Header& h, uint64_t size, const std::string& name) {
  if (h.file_bytes > size) {
    return bad(name, "truncated: " + std::to_string(size) + " of " + std::to_string(h.file_bytes) +
                         " bytes");
  }
  if (h.file_bytes < size) {
    return bad(name, std::to_string(size - h.file_bytes) + " bytes after its end");
  }
  if (h.manifest_bytes > kMaxManifestBytes || h.manifest_offset < kFirstSection ||
      !inside(h.manifest_offset, h.manifest_bytes, size)) {
    return bad(name, "damaged header: the manifest lies outside the file");
  }
  return {};
}

}  // namespace

uint64_t header_checksum(const Header& header, std::span<const Section> sections) {
  Checksum sum;
  sum.update(&header, offsetof(Header, checksum));
  sum.update(sections.data(), sections.size_bytes());
  return sum.value();
}

const Section* Artifact::find(SectionKind kind) const {
  for (const Section& s : sections) {
    if (s.kind == kind) return &s;
  }
  return nullptr;
}

Result<Artifact> read_artifact(std::span<const std::byte> file, const std::string& name) {
  TFCC_TRY(Header h, read_header(file, name));
  if (file.size() < kFirstSection) {
    return bad(name, "truncated: the header is not complete");
  }
  Artifact a{file, {}, std::vector<Section>(h.sections), h.minor};
  if (h.sections > 0) {
    std::memcpy(a.sections.data(), file.data() + kHeaderBytes, h.sections * sizeof(Section));
  }
  if (header_checksum(h, a.sections) != h.checksum)
    return bad(name, "altered: header checksum differs");
  if ((h.features & ~kKnownFeatures) != 0) {
    return Error{ErrorCode::unsupported, name + ": needs features " + std::to_string(h.features) +
                                             " that this runtime lacks; use a newer runtime"};
  }
  TFCC_TRY_VOID(check_extent(h, file.size(), name));
  for (const Section& s : a.sections) {
    if (s.offset < kFirstSection || s.offset % kSectionAlignment != 0 ||
        !inside(s.offset, s.size, file.size())) {
      return bad(name, "damaged section table: a section lies outside the file");
    }
  }
  a.manifest = file.subspan(h.manifest_offset, h.manifest_bytes);
  if (checksum(a.manifest) != h.manifest_checksum)
    return bad(name, "altered: manifest checksum differs");
  return a;
}

Result<void> verify_section(const Artifact& artifact, const Section& section,
                            const std::string& name) {
  if (checksum(artifact.bytes(section)) == section.checksum) return {};
  const char* what = section.kind == SectionKind::weights ? "weights"
                     : section.kind == SectionKind::code  ? "code"
                                                          : "text";
  return bad(name, std::string("altered: ") + what + " checksum differs");
}

}  // namespace tfcc::runtime
