// SPDX-License-Identifier: Apache-2.0
#include "runtime/core/timing_cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <type_traits>

namespace tfcc::runtime {
namespace {

constexpr std::string_view kHeader = "tfcc timing cache 1";
constexpr size_t kMostBytes = size_t{64} << 20;

Error failure(const std::string& path, const char* verb, int code) {
  return {ErrorCode::io,
          path + ": cannot " + verb + ": " + std::strerror(code) + "; check --timing-cache"};
}

// Reads a number and what separates it from the next.
template <class T> bool number(std::string_view& text, T& value, int base) {
  const char* end = text.data() + text.size();
  std::from_chars_result r;
  if constexpr (std::is_floating_point_v<T>) {
    r = std::from_chars(text.data(), end, value);
  } else {
    r = std::from_chars(text.data(), end, value, base);
  }
  if (r.ec != std::errc()) return false;
  if (r.ptr != end && *r.ptr != ' ') return false;
  text.remove_prefix(static_cast<size_t>(r.ptr - text.data()) + (r.ptr != end));
  return true;
}

// "KEY | 12.5 1f 0 3 ...": microseconds, then eight words.
bool parse(std::string_view line, std::string& key, TimingCache::Entry& entry) {
  const size_t bar = line.find(" | ");
  if (bar == 0 || bar == std::string_view::npos) return false;
  key = line.substr(0, bar);
  line.remove_prefix(bar + 3);
  if (!number(line, entry.us, 10) || !(entry.us > 0)) return false;
  for (uint64_t& word : entry.algorithm) {
    if (!number(line, word, 16)) return false;
  }
  return line.empty();
}

}  // namespace

std::string TimingCache::key(const std::string& card, uint64_t library, const MatmulShape& s) {
  std::string k = card + "; cublasLt " + std::to_string(library) + ";";
  for (DType t : {s.a, s.b, s.d}) k += std::string(" ") + to_string(t);
  k += "; " + std::to_string(s.m) + "x" + std::to_string(s.n) + "x" + std::to_string(s.k);
  if (s.batch != 1) {
    k += " batch " + std::to_string(s.batch) + " strides " + std::to_string(s.stride_a) + "," +
         std::to_string(s.stride_b);
  }
  if (s.side_by_side) k += " side by side";
  if (s.trans_a) k += " at";
  if (s.trans_b) k += " bt";
  if (s.has_bias) k += std::string(" bias ") + to_string(s.bias);
  if (s.in_order) k += " in order";
  if (s.tf32) k += " tf32";
  for (char& c : k) c = c == '|' || c == '\n' ? '_' : c;
  return k;
}

size_t TimingCache::read(std::string_view text) {
  std::lock_guard lock(mutex_);
  const size_t first = text.find('\n');
  if (text.substr(0, first) != kHeader) return 0;
  size_t taken = 0;
  for (size_t at = first; at != std::string_view::npos && at + 1 < text.size();) {
    const size_t end = text.find('\n', at + 1);
    std::string key;
    Entry entry;
    if (parse(text.substr(at + 1, end == std::string_view::npos ? end : end - at - 1), key,
              entry)) {
      entries_[key] = entry;
      ++taken;
    }
    at = end;
  }
  return taken;
}

Result<void> TimingCache::load(const std::string& path) {
  // A pipe would be waited for, and has no end to look at.
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0)
    return errno == ENOENT ? Result<void>() : failure(path, "read", errno);
  if (!S_ISREG(info.st_mode))
    return Error{ErrorCode::io, path + ": is not a regular file; name a file"};
  std::ifstream in(path, std::ios::binary | std::ios::ate);
  if (!in) return failure(path, "read", errno);
  const auto size = in.tellg();
  if (size < 0 || static_cast<uint64_t>(size) > kMostBytes) return failure(path, "read", EFBIG);
  std::string text(static_cast<size_t>(size), '\0');
  in.seekg(0);
  if (!in.read(text.data(), size)) return failure(path, "read", EIO);
  read(text);
  return {};
}

std::string TimingCache::text() const {
  std::lock_guard lock(mutex_);
  std::string out(kHeader);
  out += '\n';
  for (const auto& [key, entry] : entries_) {
    char buffer[64];
    std::snprintf(buffer, sizeof buffer, " | %.3f", entry.us);
    out += key + buffer;
    for (uint64_t word : entry.algorithm) {
      std::snprintf(buffer, sizeof buffer, " %llx", static_cast<unsigned long long>(word));
      out += buffer;
    }
    out += '\n';
  }
  return out;
}

Result<void> TimingCache::save(const std::string& path) const {
  const std::string all = text();
  std::string temporary = path + ".XXXXXX";
  const int fd = mkostemp(temporary.data(), O_CLOEXEC);
  if (fd < 0) return failure(path, "write", errno);
  size_t done = 0;
  int code = 0;
  while (done < all.size() && code == 0) {
    const ssize_t n = write(fd, all.data() + done, all.size() - done);
    if (n < 0 && errno != EINTR) code = errno;
    if (n > 0) done += static_cast<size_t>(n);
  }
  if (fchmod(fd, 0644) != 0 && code == 0) code = errno;
  if (close(fd) != 0 && code == 0) code = errno;
  if (code == 0 && rename(temporary.c_str(), path.c_str()) != 0) code = errno;
  if (code == 0) return {};
  unlink(temporary.c_str());
  return failure(path, "write", code);
}

std::optional<TimingCache::Entry> TimingCache::find(const std::string& key) const {
  std::lock_guard lock(mutex_);
  const auto found = entries_.find(key);
  return found != entries_.end() ? std::optional(found->second) : std::nullopt;
}

std::vector<std::pair<std::string, TimingCache::Entry>> TimingCache::starting_with(
    const std::string& start) const {
  std::lock_guard lock(mutex_);
  std::vector<std::pair<std::string, Entry>> found;
  for (auto it = entries_.lower_bound(start); it != entries_.end() && it->first.starts_with(start);
       ++it)
    found.emplace_back(it->first.substr(start.size()), it->second);
  return found;
}

void TimingCache::add(const std::string& key, const Entry& entry) {
  std::lock_guard lock(mutex_);
  entries_[key] = entry;
  ++added_;
}

size_t TimingCache::size() const {
  std::lock_guard lock(mutex_);
  return entries_.size();
}

size_t TimingCache::added() const {
  std::lock_guard lock(mutex_);
  return added_;
}

}  // namespace tfcc::runtime
