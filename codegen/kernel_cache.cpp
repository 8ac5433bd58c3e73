// SPDX-License-Identifier: Apache-2.0
// KernelCache: entries are files DIR/kernels/<key>, written to a temporary name beside it and
// renamed, so that a reader sees a whole entry or none. Layout: 8 bytes of magic, u64 size of the
// content, u64 size of the kernel, u64 checksum of both, the content that was compiled, which a
// reader compares, and the kernel.
#include "codegen/kernel_cache.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "codegen/templates.h"
#include "runtime/core/checksum.h"

namespace tfcc::codegen {
namespace {

namespace fs = std::filesystem;

constexpr char kMagic[8] = {'t', 'f', 'c', 'c', 'k', 'c', '0', '2'};

struct Header {
  char magic[8];
  uint64_t content_size;
  uint64_t size;
  uint64_t checksum;
};

std::string default_dir() {
  // The XDG specification: a path that is not absolute is invalid and ignored.
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache && *cache == '/')
    return std::string(cache) + "/tfcc";
  if (const char* home = std::getenv("HOME"); home && *home)
    return std::string(home) + "/.cache/tfcc";
  return {};
}

/// Appends a part with its length, which tells parts apart.
void add_part(std::string& to, std::string_view part) {
  to += std::to_string(part.size()) + ":";
  to += part;
}

std::array<uint64_t, 2> hash_of(std::string_view text) {
  const XXH128_hash_t h = XXH3_128bits(text.data(), text.size());
  return {h.high64, h.low64};
}

bool write_all(int fd, const void* data, size_t size) {
  auto* p = static_cast<const char*>(data);
  while (size > 0) {
    ssize_t done = write(fd, p, size);
    if (done <= 0) return false;
    p += done, size -= static_cast<size_t>(done);
  }
  return true;
}

bool read_all(int fd, void* data, size_t size) {
  auto* p = static_cast<unsigned char*>(data);
  while (size > 0) {
    const ssize_t done = read(fd, p, size);
    if (done <= 0) return false;
    p += done, size -= static_cast<size_t>(done);
  }
  return true;
}

uint64_t checksum(std::string_view content, std::span<const std::byte> bytes) {
  runtime::Checksum sum;
  sum.update(content.data(), content.size());
  sum.update(bytes.data(), bytes.size());
  return sum.value();
}

/// No entry is larger, whatever its header says; nor is memory asked for it.
constexpr uint64_t kLargestEntry = uint64_t{1} << 30;

/// Every so many entries the size of the folder is looked at.
constexpr unsigned kPruneInterval = 64;

}  // namespace

std::string CacheKey::hex() const { return fmt::format("{:016x}{:016x}", bits[0], bits[1]); }

CacheKey kernel_key(Family family, std::string_view compiler, std::string_view arch,
                    std::string_view source) {
  std::string templates;
  for (const TemplateFile* file : included_templates(family, source)) {
    add_part(templates, file->path);
    add_part(templates, file->text);
  }
  CacheKey key{hash_of(templates), {}};
  for (std::string_view part :
       {std::string_view(TFCC_VERSION), to_string(family), compiler, arch, source})
    add_part(key.content, part);
  add_part(key.content, key.hex());
  key.bits = hash_of(key.content);
  return key;
}

KernelCache::KernelCache(KernelCacheOptions options) : max_bytes_(options.max_bytes) {
  if (!options.enabled) return;
  std::string root = options.dir.empty() ? default_dir() : options.dir;
  if (root.empty()) return;
  std::error_code ec;
  fs::create_directories(root + "/kernels", ec);
  if (!ec) dir_ = root + "/kernels";
}

std::string KernelCache::path(const CacheKey& key) const { return dir_ + "/" + key.hex(); }

std::optional<std::vector<std::byte>> KernelCache::get(const CacheKey& key) const {
  if (dir_.empty()) return std::nullopt;
  const int fd =
      ::open(path(key).c_str(),
             O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // opening a pipe must not wait for a writer
  if (fd < 0) return std::nullopt;
  struct stat info {};
  Header header{};
  bool good =
      fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && read_all(fd, &header, sizeof header);
  good = good && std::memcmp(header.magic, kMagic, sizeof kMagic) == 0 &&
         header.size <= std::max(max_bytes_, kLargestEntry) &&
         header.content_size <= static_cast<uint64_t>(info.st_size) - sizeof header &&
         header.size == static_cast<uint64_t>(info.st_size) - sizeof header - header.content_size;
  std::string content(good ? header.content_size : 0, ' ');
  std::vector<std::byte> bytes(good ? header.size : 0);
  good = good && read_all(fd, content.data(), content.size()) &&
         read_all(fd, bytes.data(), bytes.size()) && checksum(content, bytes) == header.checksum;
  close(fd);
  if (!good) {
    unlink(path(key).c_str());
    return std::nullopt;
  }
  if (content != key.content) return std::nullopt;     // of the same hash
  utimensat(AT_FDCWD, path(key).c_str(), nullptr, 0);  // used just now: the last to be removed
  return bytes;
}

void KernelCache::put(const CacheKey& key, std::span<const std::byte> bytes) const {
  if (dir_.empty()) return;
  std::string temporary = path(key) + ".XXXXXX";
  int fd = mkstemp(temporary.data());
  if (fd < 0) return;
  Header header{};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.content_size = key.content.size();
  header.size = bytes.size();
  header.checksum = checksum(key.content, bytes);
  bool ok = write_all(fd, &header, sizeof header) &&
            write_all(fd, key.content.data(), key.content.size()) &&
            write_all(fd, bytes.data(), bytes.size());
  ok = close(fd) == 0 && ok;
  if (!ok || rename(temporary.c_str(), path(key).c_str()) != 0) {
    unlink(temporary.c_str());
    return;
  }
  static std::atomic<unsigned> puts{0};
  if (puts.fetch_add(1) % kPruneInterval == 0 || bytes.size() > max_bytes_ / 2) prune();
}

void KernelCache::prune() const {
  struct Entry {
    fs::path path;
    fs::file_time_type time;
    uint64_t size;
  };
  std::vector<Entry> entries;
  uint64_t total = 0;
  std::error_code ec;
  for (fs::directory_iterator it(dir_, ec), end; !ec && it != end; it.increment(ec)) {
    std::error_code gone;  // another process may be pruning as well
    uint64_t size = it->file_size(gone);
    fs::file_time_type time = it->last_write_time(gone);
    if (gone) continue;
    entries.push_back({it->path(), time, size});
    total += size;
  }
  if (total <= max_bytes_) return;
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return a.time < b.time; });
  for (const Entry& entry : entries) {
    if (total <= max_bytes_ - max_bytes_ / 8)
      break;  // some room, so that not every put has to look
    std::error_code gone;
    fs::remove(entry.path, gone);
    total -= entry.size;
  }
}

}  // namespace tfcc::codegen
