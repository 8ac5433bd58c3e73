// SPDX-License-Identifier: Apache-2.0
// .npy reading and writing. The header is a Python dict literal; only the three keys that NumPy
// writes are accepted.
#include "tools/support/npy.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string_view>

#include "tools/support/output_file.h"

namespace tfcc::tools {
namespace {

constexpr char kMagic[] = "\x93NUMPY";
constexpr size_t kMagicSize = 6;
constexpr int64_t kMaxBytes = int64_t{1}
                              << 46;  // beyond any machine; keeps size products far from overflow

// In the order of DType. '|' marks types for which byte order means nothing.
constexpr const char* kDescr[kDTypeCount] = {"<f4", "<f2", "<V2", "<f8", "<i8",
                                             "<i4", "<i2", "|i1", "|u1", "|b1"};

std::optional<DType> dtype_of(std::string_view descr) {
  if (descr.size() != 3) return std::nullopt;
  for (int i = 0; i < kDTypeCount; ++i)
    if (descr.substr(1) == std::string_view(kDescr[i]).substr(1)) return static_cast<DType>(i);
  return std::nullopt;
}

// What stands in the header.
struct Header {
  std::string descr;
  bool fortran = false;
  std::vector<int64_t> shape;
  bool has_descr = false, has_order = false, has_shape = false;
};

// A reader of the dict literal. Every step returns false at the first byte that does not fit.
class HeaderParser {
 public:
  explicit HeaderParser(std::string_view text) : text_(text) {}

  bool parse(Header& out) {
    if (!eat('{')) return false;
    while (!eat('}')) {
      std::string key;
      if (!string(key) || !eat(':') || !value(key, out)) return false;
      if (!eat(',') && !peek('}')) return false;
    }
    skip_space();
    return at_ == text_.size() && out.has_descr && out.has_order && out.has_shape;
  }

 private:
  bool value(const std::string& key, Header& out) {
    if (key == "descr") return out.has_descr = string(out.descr);
    if (key == "fortran_order") return out.has_order = boolean(out.fortran);
    if (key == "shape") return out.has_shape = tuple(out.shape);
    return false;
  }

  void skip_space() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
  }
  bool peek(char c) {
    skip_space();
    return at_ < text_.size() && text_[at_] == c;
  }
  bool eat(char c) {
    if (!peek(c)) return false;
    ++at_;
    return true;
  }
  bool word(std::string_view w) {
    skip_space();
    if (text_.substr(at_, w.size()) != w) return false;
    at_ += w.size();
    return true;
  }
  bool boolean(bool& out) {
    if (word("True")) return out = true;
    out = false;
    return word("False");
  }
  bool string(std::string& out) {
    const char quote = peek('"') ? '"' : '\'';
    if (!eat(quote)) return false;
    const size_t end = text_.find(quote, at_);
    if (end == std::string_view::npos) return false;
    out = text_.substr(at_, end - at_);
    at_ = end + 1;
    return true;
  }
  bool number(int64_t& out) {
    skip_space();
    const size_t start = at_;
    for (out = 0; at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_]));
         ++at_) {
      out = out * 10 + (text_[at_] - '0');
      if (out > kMaxBytes) return false;
    }
    return at_ > start;
  }
  bool tuple(std::vector<int64_t>& out) {
    if (!eat('(')) return false;
    while (!eat(')')) {
      int64_t n = 0;
      if (!number(n)) return false;
      out.push_back(n);
      if (!eat(',') && !peek(')')) return false;
    }
    return true;
  }

  std::string_view text_;
  size_t at_ = 0;
};

Error bad(const std::string& name, const std::string& why) {
  return {ErrorCode::bad_file, name + ": " + why};
}

Result<DType> checked_dtype(const Header& header, const std::string& name) {
  if (header.descr.size() > 1 && header.descr[0] == '>')
    return Error{ErrorCode::unsupported, name + ": big-endian data ('" + header.descr +
                                             "'); save a.astype(a.dtype.newbyteorder('<'))"};
  if (header.fortran)
    return Error{ErrorCode::unsupported,
                 name + ": Fortran order is not supported; save numpy.ascontiguousarray(a)"};
  const std::optional<DType> dtype = dtype_of(header.descr);
  if (!dtype)
    return Error{ErrorCode::unsupported,
                 name + ": dtype '" + header.descr +
                     "' is not supported; convert it with a.astype(...) to one of float16, "
                     "float32, float64, int8, int16, int32, int64, uint8, bool"};
  return *dtype;
}

}  // namespace

std::optional<int64_t> byte_count(DType dtype, std::span<const int64_t> shape) {
  int64_t n = static_cast<int64_t>(size_of(dtype));
  bool empty = false;
  for (int64_t d : shape) {
    if (d < 0) return std::nullopt;
    empty |= d == 0;
  }
  if (empty) return 0;
  for (int64_t d : shape) {
    if (n > kMaxBytes / d) return std::nullopt;
    n *= d;
  }
  return n;
}

Result<void> take_memory(const std::string& name, DType dtype, std::span<const int64_t> shape,
                         int64_t& total) {
  const int64_t most = int64_t{::sysconf(_SC_PHYS_PAGES)} * ::sysconf(_SC_PAGESIZE);
  const std::optional<int64_t> bytes = byte_count(dtype, shape);
  if (bytes && *bytes <= most - total) {
    total += *bytes;
    return {};
  }
  std::string dims;
  for (int64_t d : shape) dims += (dims.empty() ? "" : ",") + std::to_string(d);
  return Error{ErrorCode::shape,
               "input '" + name + "': " + to_string(dtype) + "[" + dims +
                   "] takes more memory than this machine has; use smaller shapes"};
}

int64_t Array::count() const { return static_cast<int64_t>(bytes.size() / size_of(dtype)); }

size_t ArrayView::bytes() const {
  const std::optional<int64_t> n = byte_count(dtype, shape);
  TFCC_CHECK(n.has_value());
  return static_cast<size_t>(*n);
}

Array make_array(DType dtype, std::vector<int64_t> shape) {
  Array out{dtype, std::move(shape), {}};
  out.bytes.resize(ArrayView(out).bytes());
  return out;
}

Result<Array> parse_npy(std::span<const std::byte> file, const std::string& name) {
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  if (text.size() < kMagicSize + 4 ||
      text.substr(0, kMagicSize) != std::string_view(kMagic, kMagicSize))
    return bad(name, "not a .npy file (no NUMPY magic); write it with numpy.save");
  const int version = static_cast<unsigned char>(text[kMagicSize]);
  if (version < 1 || version > 3)
    return bad(name,
               ".npy format version " + std::to_string(version) + " is not known; 1 to 3 are");
  const size_t length_bytes = version == 1 ? 2 : 4;
  const size_t start = kMagicSize + 2 + length_bytes;
  size_t length = 0;
  for (size_t i = 0; i < length_bytes && start <= text.size(); ++i)
    length |= static_cast<size_t>(static_cast<unsigned char>(text[kMagicSize + 2 + i])) << (8 * i);
  if (start > text.size() || length > text.size() - start)
    return bad(name, "truncated inside the .npy header");

  Header header;
  if (!HeaderParser(text.substr(start, length)).parse(header))
    return bad(name, "the .npy header is not understood; write it with numpy.save");
  TFCC_TRY(const DType dtype, checked_dtype(header, name));
  const std::optional<int64_t> bytes = byte_count(dtype, header.shape);
  const size_t have = text.size() - start - length;
  if (!bytes) return bad(name, "the shape in the .npy header is too large");
  if (static_cast<size_t>(*bytes) != have)
    return bad(name,
               std::string(static_cast<size_t>(*bytes) > have ? "truncated: " : "too long: ") +
                   "the header says " + std::to_string(*bytes) + " bytes of data, the file holds " +
                   std::to_string(have));
  const std::byte* data = file.data() + start + length;
  return Array{dtype, std::move(header.shape), std::vector<std::byte>(data, data + have)};
}

Result<std::vector<std::byte>> read_file(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat info {};
  if (fd < 0 || ::fstat(fd, &info) != 0) {
    Error error{ErrorCode::io, path + ": cannot open: " + std::strerror(errno)};
    if (fd >= 0) ::close(fd);
    return error;
  }
  std::vector<std::byte> out(S_ISREG(info.st_mode) ? static_cast<size_t>(info.st_size) : 0);
  size_t at = 0;
  // One byte more than fits is asked for at the end, so that pipes and growing files are read
  // whole.
  for (;;) {
    if (at == out.size())
      out.resize(at + (at == static_cast<size_t>(info.st_size) ? 1 : at + 4096));
    const ssize_t n = ::read(fd, out.data() + at, out.size() - at);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      Error error{ErrorCode::io, path + ": cannot read: " + std::strerror(errno)};
      ::close(fd);
      return error;
    }
    if (n == 0) break;
    at += static_cast<size_t>(n);
  }
  ::close(fd);
  out.resize(at);
  return out;
}

Result<Array> read_npy(const std::string& path) {
  TFCC_TRY(const std::vector<std::byte> file, read_file(path));
  return parse_npy(file, path);
}

std::string npy_header(DType dtype, std::span<const int64_t> shape) {
  std::string dict = std::string("{'descr': '") + kDescr[static_cast<int>(dtype)] +
                     "', 'fortran_order': False, 'shape': (";
  for (size_t i = 0; i < shape.size(); ++i) dict += (i ? ", " : "") + std::to_string(shape[i]);
  dict += shape.size() == 1 ? ",), }" : "), }";
  constexpr size_t kAlign = 64;
  const size_t fixed = kMagicSize + 4;
  dict.append((kAlign - (fixed + dict.size() + 1) % kAlign) % kAlign, ' ');
  dict += '\n';
  TFCC_CHECK(dict.size() <= 0xffff);  // some thousand dims
  std::string out(kMagic, kMagicSize);
  out += '\x01';
  out += '\0';
  out += static_cast<char>(dict.size() & 0xff);
  out += static_cast<char>(dict.size() >> 8);
  return out + dict;
}

Result<void> write_npy(const std::string& path, const ArrayView& array) {
  TFCC_TRY(OutputFile file, OutputFile::create(path));
  const std::string header = npy_header(array.dtype, array.shape);
  TFCC_TRY_VOID(file.write(header.data(), header.size()));
  TFCC_TRY_VOID(file.write(array.data, array.bytes()));
  return file.commit();
}

}  // namespace tfcc::tools
