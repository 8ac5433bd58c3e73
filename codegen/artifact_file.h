// SPDX-License-Identifier: Apache-2.0
// Writes the container of a .tfcc file: sections streamed one after the other into a temporary file
// beside the target, then manifest and header, then a rename. Nothing half-written is ever seen
// under the final name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/core/artifact.h"
#include "runtime/result.h"

namespace tfcc {

/// A .tfcc file being written. Without finish() the destructor removes the temporary file.
class ArtifactFile {
 public:
  /// Opens a temporary file in the folder of `path`. Errors: io.
  static Result<ArtifactFile> create(const std::string& path);
  ArtifactFile(ArtifactFile&& other) noexcept;
  ArtifactFile& operator=(ArtifactFile&&) = delete;
  ~ArtifactFile();

  /// Starts a section at the next multiple of `align` (0: the alignment of its kind). Errors: io.
  Result<void> begin_section(runtime::SectionKind kind, size_t align = 0);
  /// Appends bytes to the open section. Errors: io.
  Result<void> write(std::span<const std::byte> bytes);
  /// Appends zeros up to a multiple of `align` inside the section; returns that offset. Errors: io.
  Result<uint64_t> align(size_t align);
  /// Closes the section and returns its index in the table, which Target.section names.
  uint32_t end_section();
  /// Writes manifest and header, flushes to disk and gives the file its name. Errors: io.
  Result<void> finish(std::span<const std::byte> manifest, uint64_t features = 0);

  /// Bytes written so far to the open section.
  uint64_t section_bytes() const { return position_ - start_; }

 private:
  ArtifactFile(std::string path, std::string temporary, int fd);
  Result<void> append(const void* data, size_t size);
  Result<void> append_zeros(uint64_t size);
  Error failure(const char* verb, int code) const;

  std::string path_;
  std::string temporary_;
  int fd_ = -1;
  uint64_t position_ = 0;
  uint64_t start_ = 0;
  bool open_ = false;
  runtime::Checksum sum_;
  std::vector<runtime::Section> sections_;
};

}  // namespace tfcc
