// SPDX-License-Identifier: Apache-2.0
// Streaming writer of the .tfcc container. Layout and checksums: docs/artifact.md.
#include "codegen/artifact_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

namespace tfcc {
namespace {

using runtime::SectionKind;

size_t alignment_of(SectionKind kind) {
  return kind == SectionKind::weights ? runtime::kWeightsAlignment : runtime::kSectionAlignment;
}

// mkstemp makes files of mode 0600; the result should be as readable as any file the user makes.
void use_default_mode(int fd) {
  mode_t mask = umask(0);
  umask(mask);
  (void)!fchmod(fd, 0666 & ~mask);
}

// Calls write or pwrite until all bytes are out.
template <class Write> int write_all(const void* data, size_t size, Write write_some) {
  auto* p = static_cast<const char*>(data);
  while (size > 0) {
    ssize_t n = write_some(p, std::min<size_t>(size, 1u << 30));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    if (n == 0) return ENOSPC;
    p += n;
    size -= static_cast<size_t>(n);
  }
  return 0;
}

}  // namespace

Result<ArtifactFile> ArtifactFile::create(const std::string& path) {
  // The rename at the end would replace a device or a pipe by a file.
  struct stat info = {};
  if (stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
    const char* what = S_ISDIR(info.st_mode) ? "a folder" : "no regular file";
    return Error{ErrorCode::io,
                 path + ": cannot write here: it is " + what + "; give a file name with -o"};
  }
  std::string temporary = path + ".XXXXXX";
  int fd = mkostemp(temporary.data(), O_CLOEXEC);
  if (fd < 0) {
    return Error{ErrorCode::io, path + ": cannot write here: " + std::strerror(errno) +
                                    "; choose another place with -o"};
  }
  use_default_mode(fd);
  ArtifactFile file(path, temporary, fd);
  TFCC_TRY_VOID(file.append_zeros(runtime::kFirstSection));
  return file;
}

ArtifactFile::ArtifactFile(std::string path, std::string temporary, int fd)
    : path_(std::move(path)), temporary_(std::move(temporary)), fd_(fd) {}

ArtifactFile::ArtifactFile(ArtifactFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::move(other.temporary_)),
      fd_(other.fd_),
      position_(other.position_),
      start_(other.start_),
      open_(other.open_),
      sum_(other.sum_),
      sections_(std::move(other.sections_)) {
  other.fd_ = -1;
}

ArtifactFile::~ArtifactFile() {
  if (fd_ < 0) return;
  close(fd_);
  unlink(temporary_.c_str());
}

Error ArtifactFile::failure(const char* verb, int code) const {
  std::string way_out = code == ENOSPC || code == EDQUOT
                            ? "; make room or choose another place with -o"
                            : "; choose another place with -o";
  return {ErrorCode::io, path_ + ": cannot " + verb + ": " + std::strerror(code) + way_out};
}

Result<void> ArtifactFile::append(const void* data, size_t size) {
  int code = write_all(data, size, [&](const char* p, size_t n) { return ::write(fd_, p, n); });
  if (code != 0) return failure("write", code);
  position_ += size;
  return {};
}

Result<void> ArtifactFile::append_zeros(uint64_t size) {
  static constexpr char kZeros[4096] = {};
  while (size > 0) {
    size_t n = std::min<uint64_t>(size, sizeof kZeros);
    TFCC_TRY_VOID(append(kZeros, n));
    if (open_) sum_.update(kZeros, n);
    size -= n;
  }
  return {};
}

Result<void> ArtifactFile::begin_section(SectionKind kind, size_t align) {
  TFCC_CHECK(!open_);
  if (sections_.size() == runtime::kMaxSections) {
    return Error{ErrorCode::unsupported, path_ + ": more than " +
                                             std::to_string(runtime::kMaxSections) +
                                             " sections; compile for fewer targets"};
  }
  if (align == 0) align = alignment_of(kind);
  TFCC_CHECK(align % runtime::kSectionAlignment == 0);
  TFCC_TRY_VOID(append_zeros((align - position_ % align) % align));
  start_ = position_;
  open_ = true;
  sum_ = {};
  sections_.push_back({kind, 0, start_, 0, 0});
  return {};
}

Result<void> ArtifactFile::write(std::span<const std::byte> bytes) {
  TFCC_CHECK(open_);
  TFCC_TRY_VOID(append(bytes.data(), bytes.size()));
  sum_.update(bytes.data(), bytes.size());
  return {};
}

Result<uint64_t> ArtifactFile::align(size_t align) {
  TFCC_CHECK(open_);
  TFCC_TRY_VOID(append_zeros((align - section_bytes() % align) % align));
  return section_bytes();
}

uint32_t ArtifactFile::end_section() {
  TFCC_CHECK(open_);
  open_ = false;
  sections_.back().size = section_bytes();
  sections_.back().checksum = sum_.value();
  return static_cast<uint32_t>(sections_.size() - 1);
}

Result<void> ArtifactFile::finish(std::span<const std::byte> manifest, uint64_t features) {
  TFCC_CHECK(!open_ && fd_ >= 0);
  if (manifest.size() > runtime::kMaxManifestBytes) {
    return Error{ErrorCode::unsupported, path_ + ": the plan needs a manifest of " +
                                             std::to_string(manifest.size()) +
                                             " bytes; compile with fewer buckets or targets"};
  }
  constexpr size_t kAlign = runtime::kSectionAlignment;
  TFCC_TRY_VOID(append_zeros((kAlign - position_ % kAlign) % kAlign));
  runtime::Header h = {};
  h.features = features;
  std::memcpy(h.magic, runtime::kMagic, sizeof h.magic);
  h.major = runtime::kMajorVersion;
  h.minor = runtime::kMinorVersion;
  h.manifest_offset = position_;
  h.manifest_bytes = manifest.size();
  h.manifest_checksum = runtime::checksum(manifest);
  h.sections = static_cast<uint32_t>(sections_.size());
  TFCC_TRY_VOID(append(manifest.data(), manifest.size()));
  h.file_bytes = position_;
  h.checksum = runtime::header_checksum(h, sections_);

  std::vector<char> front(sizeof h + sections_.size() * sizeof(runtime::Section));
  std::memcpy(front.data(), &h, sizeof h);
  if (!sections_.empty()) {
    std::memcpy(front.data() + sizeof h, sections_.data(), front.size() - sizeof h);
  }
  off_t at = 0;
  int code = write_all(front.data(), front.size(), [&](const char* p, size_t n) {
    ssize_t written = pwrite(fd_, p, n, at);
    at += written > 0 ? written : 0;
    return written;
  });
  if (code != 0) return failure("write", code);
  if (fsync(fd_) != 0) return failure("write", errno);
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) return failure("rename to it", errno);
  close(fd_);
  fd_ = -1;
  return {};
}

}  // namespace tfcc
