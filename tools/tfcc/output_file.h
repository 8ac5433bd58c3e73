// SPDX-License-Identifier: Apache-2.0
// A file that appears whole or not at all: written beside its final name, renamed by commit().
// Used by everything in tools/ that writes a result for the user.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "runtime/result.h"

namespace tfcc::tools {

/// Says that this process reads a file, before it is read: no output of it may take the file's place. Files are the same if they
/// are one on the disk, by whatever name or link, or if they have one place in one folder. Pipes and devices are nobody's.
/// Errors: invalid_argument (an output was planned there).
Result<void> note_input(const std::string& path);

/// Says that this process will write a file that its user named with `option`, before anything is opened for writing. An empty
/// path is none. Errors: invalid_argument (it is an input, or another output).
Result<void> plan_output(const std::string& option, const std::string& path);

/// Forgets all inputs and outputs: a process that does the work of several.
void forget_files();

/// Writes to a temporary file in the folder of `path`. Without commit() nothing is left behind.
/// A device or pipe (/dev/null, a fifo) is written in place: renaming would replace it.
class OutputFile {
 public:
  /// Errors: io (folder missing, not writable), invalid_argument (an input, see note_input()).
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
