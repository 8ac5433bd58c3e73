// SPDX-License-Identifier: Apache-2.0
// OutputFile: plain file descriptors, so that every failure of the disk is seen and named.
#include "tools/tfcc/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace tfcc::tools {

OutputFile::OutputFile(std::string path, std::string temporary, int fd)
    : path_(std::move(path)), temporary_(std::move(temporary)), fd_(fd) {}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::exchange(other.temporary_, {})),
      fd_(std::exchange(other.fd_, -1)),
      size_(other.size_) {}

OutputFile::~OutputFile() {
  if (fd_ >= 0) ::close(fd_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

Error OutputFile::failure(const char* what) const {
  const char* way_out = errno == ENOSPC ? "; free space or choose another place" : "";
  return {ErrorCode::io, path_ + ": " + what + ": " + std::strerror(errno) + way_out};
}

Result<OutputFile> OutputFile::create(const std::string& path) {
  struct stat info {};
  const bool exists = ::stat(path.c_str(), &info) == 0;
  if (exists && S_ISDIR(info.st_mode))
    return Error{ErrorCode::io, path + ": cannot write: is a directory; give a file name"};
  const bool in_place = exists && !S_ISREG(info.st_mode);
  std::string temporary = in_place ? "" : path + ".tmp." + std::to_string(::getpid());
  const int flags = O_WRONLY | O_CLOEXEC | (in_place ? 0 : O_CREAT | O_TRUNC);
  const int fd = ::open(in_place ? path.c_str() : temporary.c_str(), flags, 0666);
  if (fd < 0)
    return Error{ErrorCode::io, path + ": cannot write: " + std::strerror(errno) +
                                    "; check that the folder exists and is writable"};
  return OutputFile(path, std::move(temporary), fd);
}

Result<void> OutputFile::write(const void* data, size_t bytes) {
  const char* at = static_cast<const char*>(data);
  size_ += bytes;
  while (bytes > 0) {
    const ssize_t n = ::write(fd_, at, bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return failure("cannot write");
    at += n;
    bytes -= static_cast<size_t>(n);
  }
  return {};
}

Result<void> OutputFile::commit() {
  // A network file system reports a full disk only here.
  if (::close(std::exchange(fd_, -1)) != 0) return failure("cannot write");
  if (temporary_.empty()) return {};
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) return failure("cannot rename into place");
  temporary_.clear();
  return {};
}

}  // namespace tfcc::tools
