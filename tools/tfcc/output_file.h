// SPDX-License-Identifier: Apache-2.0
// A file that appears whole or not at all: written beside its final name, renamed by commit().
// Used by everything in tools/ that writes a result for the user.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "runtime/result.h"

namespace tfcc::tools {

/// Writes to a temporary file in the folder of `path`. Without commit() nothing is left behind.
/// A device or pipe (/dev/null, a fifo) is written in place: renaming would replace it.
class OutputFile {
 public:
  /// Errors: io (folder missing, not writable).
  static Result<OutputFile> create(const std::string& path);
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&&) = delete;
  ~OutputFile();

  /// Appends bytes. Errors: io (disk full).
  Result<void> write(const void* data, size_t bytes);
  /// Flushes and gives the file its name. Errors: io.
  Result<void> commit();
  /// Bytes written so far.
  uint64_t size() const { return size_; }

 private:
  OutputFile(std::string path, std::string temporary, int fd);
  Error failure(const char* what) const;

  std::string path_;
  std::string temporary_;  // empty: written in place
  int fd_ = -1;
  uint64_t size_ = 0;
};

}  // namespace tfcc::tools
