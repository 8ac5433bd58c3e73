// SPDX-License-Identifier: Apache-2.0
// The files that the process reads and writes, and OutputFile: plain file descriptors, so that
// every failure of the disk is seen and named.
#include "tools/support/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

namespace tfcc::tools {

namespace {

// Where a file is: itself, if it is there, and its place in its folder, which stays when the file
// is replaced.
struct Identity {
  dev_t device = 0, folder_device = 0;
  ino_t inode = 0, folder_inode = 0;  // 0: there is none
  std::string name;

  bool is(const Identity& other) const {
    const bool same_file = inode != 0 && inode == other.inode && device == other.device;
    return same_file || (folder_inode != 0 && folder_inode == other.folder_inode &&
                         folder_device == other.folder_device && name == other.name);
  }
};

Identity identity_of(const std::string& path) {
  Identity id;
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0) {
    if (!S_ISREG(info.st_mode)) return id;
    id.device = info.st_dev;
    id.inode = info.st_ino;
  }
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  if (::stat(folder.c_str(), &info) == 0) {
    id.folder_device = info.st_dev;
    id.folder_inode = info.st_ino;
    id.name = path.substr(slash + 1);
  }
  return id;
}

}  // namespace

struct Files::Known {
  Identity identity;
  std::string path, option;  // option: empty for an input
};

namespace {

// What keeps a file from being written by `option`: another that is the same.
Error taken(const std::string& option, const std::string& path, const std::string& other,
            const std::string& other_option) {
  const std::string role =
      other_option.empty() ? ", which is read" : ", which " + other_option + " writes";
  const std::string same = other == path ? " is the file" : " is the file " + other;
  return {ErrorCode::invalid_argument,
          (option.empty() ? "" : option + ": ") + path + same + role + "; give another file name"};
}

}  // namespace

Files::Files() = default;
Files::~Files() = default;

Result<void> Files::note_input(const std::string& path) {
  const Identity id = identity_of(path);
  for (const Known& f : known_) {
    if (f.option.empty() || !f.identity.is(id)) continue;
    const std::string same = f.path == path ? " is the file" : " is the file " + path;
    return Error{ErrorCode::invalid_argument,
                 f.option + ": " + f.path + same + ", which is read; give another file name"};
  }
  known_.push_back({id, path, {}});
  return {};
}

Result<void> Files::plan_output(const std::string& option, const std::string& path) {
  if (path.empty()) return {};
  const Identity id = identity_of(path);
  for (const Known& f : known_) {
    if (f.identity.is(id)) return taken(option, path, f.path, f.option);
  }
  std::error_code none;
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (!folder.empty() && !std::filesystem::is_directory(folder, none)) {
    return Error{ErrorCode::io,
                 path + ": cannot write here: No such file or directory; make the folder " +
                     folder.string()};
  }
  known_.push_back({id, path, option});
  return {};
}

Result<void> Files::check_output(const std::string& path) const {
  const Identity id = identity_of(path);
  for (const Known& f : known_) {
    if (f.option.empty() && f.identity.is(id)) return taken("", path, f.path, "");
  }
  return {};
}

void Files::forget() { known_.clear(); }

Files& process_files() {
  static Files files;
  return files;
}

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

Result<OutputFile> OutputFile::create(const std::string& path, const Files& files) {
  struct stat info {};
  const bool exists = ::stat(path.c_str(), &info) == 0;
  if (exists && S_ISDIR(info.st_mode))
    return Error{ErrorCode::io, path + ": cannot write: is a directory; give a file name"};
  TFCC_TRY_VOID(files.check_output(path));
  const bool in_place = exists && !S_ISREG(info.st_mode);
  std::string temporary;
  int fd = in_place ? ::open(path.c_str(), O_WRONLY | O_CLOEXEC) : -1;
  for (int k = 0; !in_place; ++k) {  // a file that has the name already stays
    temporary =
        path + ".tmp." + std::to_string(::getpid()) + (k > 0 ? "." + std::to_string(k) : "");
    fd = ::open(temporary.c_str(), O_WRONLY | O_CLOEXEC | O_CREAT | O_EXCL, 0666);
    if (fd >= 0 || errno != EEXIST) break;
  }
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

Result<void> write_text(const std::string& path, const std::string& text, const Files& files) {
  TFCC_TRY(OutputFile file, OutputFile::create(path, files));
  TFCC_TRY_VOID(file.write(text.data(), text.size()));
  return file.commit();
}

}  // namespace tfcc::tools
