// SPDX-License-Identifier: Apache-2.0
// KernelCache: entries are files DIR/kernels/<key>, written to a temporary name beside it and renamed, so that a reader
// sees a whole entry or none. Layout: 8 bytes of magic, u64 size, u64 checksum, the bytes.
#include "codegen/kernel_cache.h"

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
#include "runtime/checksum.h"

namespace tfcc::codegen {
namespace {

namespace fs = std::filesystem;

constexpr char kMagic[8] = {'t', 'f', 'c', 'c', 'k', 'c', '0', '1'};

struct Header {
  char magic[8];
  uint64_t size;
  uint64_t checksum;
};

std::string default_dir() {
  // The XDG specification: a path that is not absolute is invalid and ignored.
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache && *cache == '/') return std::string(cache) + "/tfcc";
  if (const char* home = std::getenv("HOME"); home && *home) return std::string(home) + "/.cache/tfcc";
  return {};
}

/// FNV-1a with 128 bits; parts are told apart by their lengths.
class Fnv128 {
 public:
  void add(std::string_view part) {
    uint64_t length = part.size();
    bytes(&length, sizeof length);
    bytes(part.data(), part.size());
  }
  CacheKey key() const { return {{static_cast<uint64_t>(state_ >> 64), static_cast<uint64_t>(state_)}}; }

 private:
  __extension__ using u128 = unsigned __int128;

  void bytes(const void* data, size_t size) {
    constexpr u128 kPrime = (u128{1} << 88) + 0x13b;
    auto* p = static_cast<const unsigned char*>(data);
    for (size_t i = 0; i < size; ++i) state_ = (state_ ^ p[i]) * kPrime;
  }
  u128 state_ = (u128{0x6c62272e07bb0142} << 64) | 0x62b821756295c58d;
};

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

/// No entry is larger, whatever its header says; nor is memory asked for it.
constexpr uint64_t kLargestEntry = uint64_t{1} << 30;

/// Every so many entries the size of the folder is looked at.
constexpr unsigned kPruneInterval = 64;

}  // namespace

std::string CacheKey::hex() const { return fmt::format("{:016x}{:016x}", bits[0], bits[1]); }

CacheKey kernel_key(std::string_view family, std::string_view compiler, std::string_view arch, std::string_view source) {
  Fnv128 hash;
  for (std::string_view part : {std::string_view(TFCC_VERSION), family, compiler, arch, source}) hash.add(part);
  for (const TemplateFile* file : included_templates(family, source)) {
    hash.add(file->path);
    hash.add(file->text);
  }
  return hash.key();
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
  const int fd = ::open(path(key).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // opening a pipe must not wait for a writer
  if (fd < 0) return std::nullopt;
  struct stat info {};
  Header header{};
  bool good = fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && read_all(fd, &header, sizeof header);
  good = good && std::memcmp(header.magic, kMagic, sizeof kMagic) == 0 && header.size <= std::max(max_bytes_, kLargestEntry) &&
         header.size == static_cast<uint64_t>(info.st_size) - sizeof header;
  std::vector<std::byte> bytes(good ? header.size : 0);
  good = good && read_all(fd, bytes.data(), bytes.size()) && runtime::checksum(bytes) == header.checksum;
  close(fd);
  if (!good) {
    unlink(path(key).c_str());
    return std::nullopt;
  }
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
  header.size = bytes.size();
  header.checksum = runtime::checksum(bytes);
  bool ok = write_all(fd, &header, sizeof header) && write_all(fd, bytes.data(), bytes.size());
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
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.time < b.time; });
  for (const Entry& entry : entries) {
    if (total <= max_bytes_ - max_bytes_ / 8) break;  // some room, so that not every put has to look
    std::error_code gone;
    fs::remove(entry.path, gone);
    total -= entry.size;
  }
}

}  // namespace tfcc::codegen
