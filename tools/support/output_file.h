// SPDX-License-Identifier: Apache-2.0
// A file that appears whole or not at all: written beside its final name, renamed by commit(). Used
// by everything in tools/ that writes a result for the user. And the list of what is read and
// written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/result.h"

namespace tfcc::tools {

/// The files that one piece of work reads and writes: no output may take the place of an input or
/// of another output. Files are the same if they are one on the disk, by whatever name or link, or
/// if they have one place in one folder. Pipes and devices are nobody's.
/// Not for several threads at once.
class Files {
 public:
  Files();
  ~Files();
  Files(const Files&) = delete;
  Files& operator=(const Files&) = delete;

  /// A file that is read, said before it is. Errors: invalid_argument (an output was planned
  /// there).
  Result<void> note_input(const std::string& path);
  /// A file that will be written and that the user named with `option`, said before anything is
  /// opened for writing. An empty path is none. Errors: invalid_argument (it is an input, or
  /// another output).
  Result<void> plan_output(const std::string& option, const std::string& path);
  /// Errors: invalid_argument, if it is an input.
  Result<void> check_output(const std::string& path) const;
  void forget();

 private:
  struct Known;
  std::vector<Known> known_;
};

/// Those of the process: a command is one piece of work.
Files& process_files();
inline Result<void> note_input(const std::string& path) { return process_files().note_input(path); }
inline Result<void> plan_output(const std::string& option, const std::string& path) {
  return process_files().plan_output(option, path);
}

/// Writes to a temporary file in the folder of `path`. Without commit() nothing is left behind.
/// A device or pipe (/dev/null, a fifo) is written in place: renaming would replace it.
class OutputFile {
 public:
  /// Errors: io (folder missing, not writable), invalid_argument (an input of `files`).
  static Result<OutputFile> create(const std::string& path, const Files& files = process_files());
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

/// Writes a whole text file through a temporary one. Errors: as OutputFile.
Result<void> write_text(const std::string& path, const std::string& text,
                        const Files& files = process_files());

}  // namespace tfcc::tools
