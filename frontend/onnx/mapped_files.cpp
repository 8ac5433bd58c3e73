// SPDX-License-Identifier: Apache-2.0
// Maps the model and its data files. The locations of external data come from the model, which may
// come from anyone: each part is opened without following links, so no name and no race leads out
// of the model's folder.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "frontend/onnx/onnx_reader.h"
#include "frontend/import/weights.h"

namespace tfcc::frontend {
namespace {

// Closes a descriptor at the end of its scope.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() { reset(-1); }
  void reset(int fd) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = fd;
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

Error io_error(std::string message) { return {ErrorCode::io, std::move(message)}; }

std::string base_name(std::string_view path) {
  const size_t slash = path.rfind('/');
  return std::string(slash == std::string_view::npos ? path : path.substr(slash + 1));
}

Result<FileRef> map_descriptor(int fd, std::string name) {
  struct stat info {};
  if (::fstat(fd, &info) != 0)
    return io_error(fmt::format("cannot be read ({})", std::strerror(errno)));
  if (S_ISDIR(info.st_mode)) return io_error("is a directory; give the file");
  if (!S_ISREG(info.st_mode)) return io_error("is not a regular file; copy it to one");
  auto file = std::make_shared<ir::SourceFile>();
  file->name = std::move(name);
  file->size = static_cast<uint64_t>(info.st_size);
  if (file->size == 0) return FileRef(std::move(file));
  const size_t size = file->size;
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  if (data == MAP_FAILED)
    return io_error(fmt::format("cannot be mapped ({})", std::strerror(errno)));
  file->mapping = std::shared_ptr<const void>(
      data, [size](const void* p) { ::munmap(const_cast<void*>(p), size); });
  file->data = static_cast<const std::byte*>(data);
  file->on_disk = true;
  return FileRef(std::move(file));
}

// The parts of a location, or why it is refused.
Result<std::vector<std::string>> parts_of(const std::string& location) {
  const auto refused = [](const char* why) { return Error{ErrorCode::bad_file, why}; };
  if (location.empty()) return refused("has no location; export the model again");
  if (location.find('\0') != std::string::npos) return refused("has a NUL in its location");
  if (location[0] == '/')
    return refused("is an absolute path; only files in the model's folder are read");
  std::vector<std::string> parts;
  for (size_t at = 0; at <= location.size();) {
    const size_t end = std::min(location.find('/', at), location.size());
    std::string part = location.substr(at, end - at);
    if (part == "..") return refused("contains '..'; only files in the model's folder are read");
    if (!part.empty() && part != ".") parts.push_back(std::move(part));
    at = end + 1;
  }
  if (parts.empty()) return refused("names a directory; export the model again");
  return parts;
}

Error open_error() {
  if (errno == ENOENT) return io_error("is missing; put it into the model's folder");
  if (errno == ELOOP)
    return io_error("is a symbolic link; put the file itself into the model's folder");
  return io_error(fmt::format("cannot be opened ({})", std::strerror(errno)));
}

// Opening a directory without following links reports a link as "not a directory".
bool is_link(int folder, const std::string& name) {
  struct stat info {};
  return ::fstatat(folder, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(info.st_mode);
}

}  // namespace

Result<FileRef> map_file(const std::string& path) {
  // O_NONBLOCK: opening a pipe must not wait for a writer.
  const Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd.get() < 0) return io_error(fmt::format("cannot be opened ({})", std::strerror(errno)));
  return map_descriptor(fd.get(), base_name(path));
}

ExternalFiles::ExternalFiles(const std::string& model_path) {
  const size_t slash = model_path.rfind('/');
  folder_ = slash == std::string::npos ? "." : model_path.substr(0, slash + 1);
}

std::vector<std::string> ExternalFiles::names() const {
  std::vector<std::string> out;
  for (const auto& [name, file] : files_) out.push_back(name);
  return out;
}

Result<FileRef> ExternalFiles::open(const std::string& location) {
  TFCC_TRY(const std::vector<std::string> parts, parts_of(location));
  std::string name = fmt::format("{}", fmt::join(parts, "/"));
  if (const auto known = files_.find(name); known != files_.end()) return known->second;
  if (folder_.empty())
    return io_error(
        "lies in a file beside the model, which was given as bytes; give the path of the model");

  Descriptor fd(::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.get() < 0) return open_error();
  for (size_t i = 0; i < parts.size(); ++i) {
    const int kind = i + 1 < parts.size() ? O_DIRECTORY : O_NONBLOCK;
    const int next = ::openat(fd.get(), parts[i].c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | kind);
    if (next < 0) {
      const int reason = errno;
      errno = is_link(fd.get(), parts[i]) ? ELOOP : reason;
      return open_error();
    }
    fd.reset(next);
  }
  TFCC_TRY(FileRef file, map_descriptor(fd.get(), name));
  files_.emplace(std::move(name), file);
  return file;
}

}  // namespace tfcc::frontend
