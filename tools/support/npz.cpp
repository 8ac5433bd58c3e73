// SPDX-License-Identifier: Apache-2.0
// .npz: local headers and data, then the central directory and its end records (PKWARE APPNOTE
// 4.3). Sizes are known before a member is written, so no data descriptors are needed.
#include "tools/support/npz.h"

#include <array>
#include <cstring>
#include <optional>
#include <set>
#include <string_view>

#include "tools/support/output_file.h"

namespace tfcc::tools {
namespace {

constexpr uint32_t kLocalMagic = 0x04034b50;
constexpr uint32_t kCentralMagic = 0x02014b50;
constexpr uint32_t kEndMagic = 0x06054b50;
constexpr uint32_t kEnd64Magic = 0x06064b50;
constexpr uint32_t kLocator64Magic = 0x07064b50;
constexpr uint64_t kMax32 = 0xffffffff;
constexpr uint16_t kUtf8Names = 0x0800;
constexpr uint16_t kDosDate = 0x0021;  // 1980-01-01, the earliest that zip can say
constexpr size_t kEndSize = 22, kEnd64Size = 56, kLocatorSize = 20;

// Appends little-endian numbers.
struct Bytes {
  std::string out;
  void u16(uint64_t v) { put(v, 2); }
  void u32(uint64_t v) { put(v, 4); }
  void u64(uint64_t v) { put(v, 8); }
  void put(uint64_t v, int n) {
    for (int i = 0; i < n; ++i) out += static_cast<char>(v >> (8 * i));
  }
};

struct Member {
  std::string name;
  uint32_t crc = 0;
  uint64_t size = 0;
  uint64_t offset = 0;
  bool big() const { return size >= kMax32; }
};

// The part that a local header and a central entry share: version to name length.
void put_common(Bytes& b, const Member& m, bool zip64, size_t extra) {
  b.u16(zip64 ? 45 : 20);
  b.u16(kUtf8Names);
  b.u16(0);  // stored
  b.u16(0);  // time
  b.u16(kDosDate);
  b.u32(m.crc);
  b.u32(m.big() ? kMax32 : m.size);
  b.u32(m.big() ? kMax32 : m.size);
  b.u16(m.name.size());
  b.u16(extra);
}

std::string local_header(const Member& m) {
  Bytes b;
  b.u32(kLocalMagic);
  put_common(b, m, m.big(), m.big() ? 20 : 0);
  b.out += m.name;
  if (m.big()) {
    b.u16(1);
    b.u16(16);
    b.u64(m.size);
    b.u64(m.size);
  }
  return b.out;
}

std::string central_entry(const Member& m) {
  const bool far = m.offset >= kMax32;
  const size_t extra = (m.big() ? 16u : 0u) + (far ? 8u : 0u);
  Bytes b;
  b.u32(kCentralMagic);
  b.u16(extra ? 45 : 20);
  put_common(b, m, extra > 0, extra ? extra + 4 : 0);
  b.u16(0);  // comment
  b.u16(0);  // disk
  b.u16(0);  // internal attributes
  b.u32(0);  // external attributes
  b.u32(far ? kMax32 : m.offset);
  b.out += m.name;
  if (extra) {
    b.u16(1);
    b.u16(extra);
    if (m.big()) {
      b.u64(m.size);
      b.u64(m.size);
    }
    if (far) b.u64(m.offset);
  }
  return b.out;
}

std::string end_records(uint64_t count, uint64_t offset, uint64_t size) {
  const bool zip64 = count >= 0xffff || offset >= kMax32 || size >= kMax32;
  Bytes b;
  if (zip64) {
    b.u32(kEnd64Magic);
    b.u64(kEnd64Size - 12);
    b.u16(45);
    b.u16(45);
    b.u32(0);
    b.u32(0);
    b.u64(count);
    b.u64(count);
    b.u64(size);
    b.u64(offset);
    b.u32(kLocator64Magic);
    b.u32(0);
    b.u64(offset + size);
    b.u32(1);
  }
  b.u32(kEndMagic);
  b.u16(0);
  b.u16(0);
  b.u16(zip64 ? 0xffff : count);
  b.u16(zip64 ? 0xffff : count);
  b.u32(zip64 ? kMax32 : size);
  b.u32(zip64 ? kMax32 : offset);
  b.u16(0);
  return b.out;
}

Error bad(const std::string& path, const std::string& why) {
  return {ErrorCode::bad_file, path + ": " + why};
}

// Bounds-checked little-endian reads: a read past the end is remembered and gives 0.
class Reader {
 public:
  Reader(std::span<const std::byte> file, uint64_t at) : file_(file), at_(at) {}
  uint64_t u16() { return get(2); }
  uint64_t u32() { return get(4); }
  uint64_t u64() { return get(8); }
  void skip(uint64_t n) { take(n); }
  std::span<const std::byte> take(uint64_t n) {
    if (!ok_ || at_ > file_.size() || n > file_.size() - at_) {
      ok_ = false;
      return {};
    }
    at_ += n;
    return file_.subspan(at_ - n, n);
  }
  bool ok() const { return ok_; }
  uint64_t at() const { return at_; }

 private:
  uint64_t get(uint64_t n) {
    uint64_t v = 0;
    const auto bytes = take(n);
    for (size_t i = 0; i < bytes.size(); ++i) v |= static_cast<uint64_t>(bytes[i]) << (8 * i);
    return v;
  }
  std::span<const std::byte> file_;
  uint64_t at_;
  bool ok_ = true;
};

struct Directory {
  uint64_t count = 0;
  uint64_t offset = 0;
};

// Finds the central directory from the end record, which a comment of up to 64 KiB may follow.
std::optional<Directory> find_directory(std::span<const std::byte> file) {
  if (file.size() < kEndSize) return std::nullopt;
  const uint64_t last = file.size() - kEndSize;
  for (uint64_t at = last;; --at) {
    Reader r(file, at);
    if (r.u32() == kEndMagic) {
      r.skip(6);
      Directory d{r.u16(), 0};
      r.skip(4);
      d.offset = r.u32();
      if (d.count != 0xffff && d.offset != kMax32) return d;
      Reader locator(file, at >= kLocatorSize ? at - kLocatorSize : file.size());
      if (locator.u32() != kLocator64Magic) return d;
      locator.skip(4);
      Reader end64(file, locator.u64());
      if (end64.u32() != kEnd64Magic) return std::nullopt;
      end64.skip(28);
      d.count = end64.u64();
      end64.skip(8);
      d.offset = end64.u64();
      return end64.ok() ? std::optional(d) : std::nullopt;
    }
    if (at == 0 || last - at > 0xffff) return std::nullopt;
  }
}

struct Entry {
  Member member;
  uint64_t method = 0, flags = 0, compressed = 0;
};

// Sizes and offset that did not fit in 32 bits stand in the extra field with id 1, in this order.
void read_zip64_extra(std::span<const std::byte> extra, Entry& e) {
  Reader r(extra, 0);
  while (r.ok() && r.at() < extra.size()) {
    const uint64_t id = r.u16();
    const auto body = r.take(r.u16());
    if (id != 1) continue;
    Reader v(body, 0);
    if (e.member.size == kMax32) e.member.size = v.u64();
    if (e.compressed == kMax32) e.compressed = v.u64();
    if (e.member.offset == kMax32) e.member.offset = v.u64();
  }
}

Entry read_entry(Reader& r) {
  Entry e;
  r.skip(4);
  e.flags = r.u16();
  e.method = r.u16();
  r.skip(4);
  e.member.crc = static_cast<uint32_t>(r.u32());
  e.compressed = r.u32();
  e.member.size = r.u32();
  const uint64_t name = r.u16(), extra = r.u16(), comment = r.u16();
  r.skip(8);
  e.member.offset = r.u32();
  const auto text = r.take(name);
  e.member.name.assign(reinterpret_cast<const char*>(text.data()), text.size());
  read_zip64_extra(r.take(extra), e);
  r.skip(comment);
  return e;
}

Result<Array> read_member(std::span<const std::byte> file, const Entry& e,
                          const std::string& path) {
  const Member& m = e.member;
  if (e.flags & 1)
    return Error{ErrorCode::unsupported, path + ": member '" + m.name + "' is encrypted"};
  if (e.method != 0)
    return Error{ErrorCode::unsupported,
                 path + ": member '" + m.name +
                     "' is compressed; save with numpy.savez, not savez_compressed"};
  Reader r(file, m.offset);
  if (r.u32() != kLocalMagic)
    return bad(path, "member '" + m.name + "' is not where the directory says");
  r.skip(22);
  const uint64_t name = r.u16(), extra = r.u16();
  r.skip(name + extra);
  const auto data = r.take(m.size);
  if (!r.ok()) return bad(path, "truncated inside member '" + m.name + "'");
  if (crc32(data.data(), data.size()) != m.crc)
    return bad(path, "member '" + m.name + "' is damaged (CRC differs)");
  return parse_npy(data, path + "[" + m.name + "]");
}

}  // namespace

uint32_t crc32(const void* data, size_t bytes, uint32_t crc) {
  static const std::array<uint32_t, 256> table = [] {
    std::array<uint32_t, 256> t{};
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t v = i;
      for (int k = 0; k < 8; ++k) v = (v >> 1) ^ (v & 1 ? 0xedb88320u : 0);
      t[i] = v;
    }
    return t;
  }();
  const auto* p = static_cast<const unsigned char*>(data);
  crc = ~crc;
  for (size_t i = 0; i < bytes; ++i) crc = (crc >> 8) ^ table[(crc ^ p[i]) & 0xff];
  return ~crc;
}

Result<void> write_npz(const std::string& path,
                       const std::vector<std::pair<std::string, ArrayView>>& arrays) {
  std::set<std::string> names;
  for (const auto& [name, array] : arrays)
    if (!names.insert(name).second)
      return Error{ErrorCode::invalid_argument, path + ": two arrays are called '" + name + "'"};
  TFCC_TRY(OutputFile file, OutputFile::create(path));
  std::string directory;
  for (const auto& [name, array] : arrays) {
    const std::string header = npy_header(array.dtype, array.shape);
    Member m{name + ".npy", crc32(header.data(), header.size()), header.size() + array.bytes(),
             file.size()};
    m.crc = crc32(array.data, array.bytes(), m.crc);
    const std::string local = local_header(m);
    TFCC_TRY_VOID(file.write(local.data(), local.size()));
    TFCC_TRY_VOID(file.write(header.data(), header.size()));
    TFCC_TRY_VOID(file.write(array.data, array.bytes()));
    directory += central_entry(m);
  }
  directory += end_records(arrays.size(), file.size(), directory.size());
  TFCC_TRY_VOID(file.write(directory.data(), directory.size()));
  return file.commit();
}

Result<std::vector<std::pair<std::string, Array>>> read_npz(const std::string& path) {
  TFCC_TRY(const std::vector<std::byte> file, read_file(path));
  const std::optional<Directory> directory = find_directory(file);
  if (!directory)
    return bad(path, "not a .npz file (no zip directory), or truncated; write it with numpy.savez");
  std::vector<std::pair<std::string, Array>> out;
  uint64_t rest =
      file.size();  // members do not share bytes, so that a small file cannot become many arrays
  Reader r(file, directory->offset);
  for (uint64_t i = 0; i < directory->count; ++i) {
    if (r.u32() != kCentralMagic) return bad(path, "the zip directory is damaged");
    const Entry e = read_entry(r);
    if (!r.ok()) return bad(path, "the zip directory is truncated");
    if (e.member.size > rest) return bad(path, "its members are larger than the file");
    rest -= e.member.size;
    TFCC_TRY(Array array, read_member(file, e, path));
    std::string name = e.member.name;
    if (name.ends_with(".npy")) name.resize(name.size() - 4);
    out.emplace_back(std::move(name), std::move(array));
  }
  return out;
}

}  // namespace tfcc::tools
