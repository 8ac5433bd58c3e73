// SPDX-License-Identifier: Apache-2.0
// Constants: element access for every dtype, mapping of source files, and the making of bytes from
// a recipe.
#include "ir/constant.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>

namespace tfcc::ir {
namespace {

/// Rounds to a 16-bit float of `Mantissa` stored bits, straight from double so that nothing is
/// rounded twice.
template <int Mantissa> uint16_t to_small_float(double v) {
  constexpr int kExponentBits = 15 - Mantissa;
  constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  constexpr uint16_t kInf = static_cast<uint16_t>(((1 << kExponentBits) - 1) << Mantissa);
  constexpr int kShift = 52 - Mantissa;
  const uint64_t bits = std::bit_cast<uint64_t>(v);
  const auto sign = static_cast<uint16_t>(bits >> 63 << 15);
  const uint64_t magnitude = bits & ~(1ULL << 63);
  const int exponent = static_cast<int>(magnitude >> 52) - 1023;
  if (exponent == 1024)
    return (magnitude << 12) != 0 ? sign | kInf | 1 << (Mantissa - 1) : sign | kInf;
  if (exponent > kBias) return sign | kInf;
  if (exponent < 1 - kBias) {
    // Subnormal: count units of the last place; adding 2^52 rounds to nearest even.
    const double units = std::ldexp(std::fabs(v), kBias - 1 + Mantissa) + 0x1p52;
    return static_cast<uint16_t>(sign | static_cast<uint16_t>(units - 0x1p52));
  }
  const uint64_t rounded = magnitude + ((1ULL << (kShift - 1)) - 1) + (magnitude >> kShift & 1);
  return static_cast<uint16_t>(
      sign | ((rounded >> kShift) - (static_cast<uint64_t>(1023 - kBias) << Mantissa)));
}

template <int Mantissa> double from_small_float(uint16_t h) {
  constexpr int kExponentBits = 15 - Mantissa;
  constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  const int exponent = h >> Mantissa & ((1 << kExponentBits) - 1);
  const int mantissa = h & ((1 << Mantissa) - 1);
  double v;
  if (exponent == (1 << kExponentBits) - 1) {
    v = mantissa ? std::numeric_limits<double>::quiet_NaN()
                 : std::numeric_limits<double>::infinity();
  } else if (exponent == 0) {
    v = std::ldexp(mantissa, 1 - kBias - Mantissa);
  } else {
    v = std::ldexp(mantissa + (1 << Mantissa), exponent - kBias - Mantissa);
  }
  return h >> 15 ? -v : v;
}

template <class T> T load(const std::byte* data, size_t i) {
  T v;
  std::memcpy(&v, data + i * sizeof(T), sizeof(T));
  return v;
}

template <class T> void store(std::byte* data, size_t i, T v) {
  std::memcpy(data + i * sizeof(T), &v, sizeof(T));
}

/// Truncates; saturates at the ends of i64, NaN is 0: the semantics of f2i.
int64_t truncate(double v) {
  if (std::isnan(v)) return 0;
  if (v >= 0x1p63) return INT64_MAX;
  if (v < -0x1p63) return INT64_MIN;
  return static_cast<int64_t>(v);
}

uint64_t mix(uint64_t z) {
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ z >> 27) * 0x94d049bb133111ebULL;
  return z ^ z >> 31;
}

/// Number `i` of the stream `seed`: a sum of twelve 16-bit uniforms, so that no libm decides its
/// bits.
double random_normal(uint64_t seed, uint64_t i) {
  uint64_t sum = 0;
  for (uint64_t k = 0; k < 3; ++k) {
    const uint64_t r = mix(mix(seed + 0x9e3779b97f4a7c15ULL) + (3 * i + k) * 0x9e3779b97f4a7c15ULL);
    sum += (r & 0xffff) + (r >> 16 & 0xffff) + (r >> 32 & 0xffff) + (r >> 48);
  }
  return 0.02 * ((static_cast<double>(sum) + 6.0) / 65536.0 - 6.0);
}

int64_t product(const std::vector<int64_t>& dims) {
  int64_t n = 1;
  for (int64_t d : dims) n *= d;
  return n;
}

template <class T>
void transpose_elements(const std::byte* in, std::byte* out, const std::vector<int64_t>& dims,
                        const std::vector<int64_t>& strides) {
  const size_t rank = dims.size();
  const int64_t inner = dims[rank - 1], stride = strides[rank - 1];
  if (rank == 2 && strides[0] == 1) {  // a matrix, in blocks whose lines a cache holds
    constexpr int64_t kBlock = 64;
    for (int64_t i0 = 0; i0 < dims[0]; i0 += kBlock) {
      for (int64_t j0 = 0; j0 < inner; j0 += kBlock) {
        for (int64_t i = i0; i < std::min(dims[0], i0 + kBlock); ++i) {
          for (int64_t j = j0; j < std::min(inner, j0 + kBlock); ++j)
            store<T>(out, i * inner + j, load<T>(in, i + j * stride));
        }
      }
    }
    return;
  }
  std::vector<int64_t> at(rank, 0);
  for (int64_t done = 0, total = product(dims), base = 0; done < total; done += inner) {
    if (stride == 1) {
      std::memcpy(out + done * sizeof(T), in + base * sizeof(T),
                  static_cast<size_t>(inner) * sizeof(T));
    } else {
      for (int64_t i = 0; i < inner; ++i) store<T>(out, done + i, load<T>(in, base + i * stride));
    }
    for (size_t d = rank - 1; d-- > 0;) {
      base += strides[d];
      if (++at[d] < dims[d]) break;
      base -= strides[d] * dims[d];
      at[d] = 0;
    }
  }
}

std::vector<int64_t> permuted(const std::vector<int64_t>& v,
                              const std::vector<int64_t>& permutation) {
  std::vector<int64_t> out;
  for (int64_t p : permutation) out.push_back(v[p]);
  return out;
}

std::vector<std::byte> transpose(const std::vector<std::byte>& in, DType dtype,
                                 const std::vector<int64_t>& dims,
                                 const std::vector<int64_t>& permutation) {
  if (dims.empty() || in.empty()) return in;
  std::vector<int64_t> strides(dims.size(), 1);
  for (size_t d = dims.size() - 1; d-- > 0;) strides[d] = strides[d + 1] * dims[d + 1];
  std::vector<std::byte> out(in.size());
  const auto to_dims = permuted(dims, permutation), to_strides = permuted(strides, permutation);
  switch (size_of(dtype)) {
    case 1: transpose_elements<uint8_t>(in.data(), out.data(), to_dims, to_strides); break;
    case 2: transpose_elements<uint16_t>(in.data(), out.data(), to_dims, to_strides); break;
    case 4: transpose_elements<uint32_t>(in.data(), out.data(), to_dims, to_strides); break;
    default: transpose_elements<uint64_t>(in.data(), out.data(), to_dims, to_strides); break;
  }
  return out;
}

std::vector<std::byte> cast(const std::vector<std::byte>& in, DType from, DType to) {
  if (from == to) return in;
  const size_t n = in.size() / size_of(from);
  std::vector<std::byte> out(n * size_of(to));
  const bool by_int = !is_float(from) && !is_float(to);
  for (size_t i = 0; i < n; ++i) {
    if (by_int) {
      write_int(to, out.data(), i, read_int(from, in.data(), i));
    } else {
      write_real(to, out.data(), i, read_real(from, in.data(), i));
    }
  }
  return out;
}

/// Integers plus a number, modulo what the new type holds.
std::vector<std::byte> add(const std::vector<std::byte>& in, DType from, int64_t number, DType to) {
  const size_t n = in.size() / size_of(from);
  std::vector<std::byte> out(n * size_of(to));
  for (size_t i = 0; i < n; ++i)
    write_int(to, out.data(), i,
              static_cast<int64_t>(static_cast<uint64_t>(read_int(from, in.data(), i)) +
                                   static_cast<uint64_t>(number)));
  return out;
}

Result<std::vector<std::byte>> make_bytes(const Constant& c);

/// Parts are made one at a time and copied into their places.
Result<std::vector<std::byte>> concat_bytes(const Constant& c) {
  const auto axis = static_cast<size_t>(c.axis);
  const size_t inner =
      static_cast<size_t>(product({c.dims.begin() + c.axis + 1, c.dims.end()})) * size_of(c.dtype);
  const auto outer = static_cast<size_t>(product({c.dims.begin(), c.dims.begin() + c.axis}));
  const size_t row = static_cast<size_t>(c.dims[axis]) * inner;
  std::vector<std::byte> out(outer * row);
  size_t at = 0;
  for (const Constant& part : c.parts) {
    TFCC_TRY(const std::vector<std::byte> bytes, make_bytes(part));
    const size_t piece = static_cast<size_t>(part.result_dims()[axis]) * inner;
    for (size_t o = 0; o < outer && piece > 0; ++o)
      std::memcpy(out.data() + o * row + at, bytes.data() + o * piece, piece);
    at += piece;
  }
  return out;
}

Result<std::vector<std::byte>> source_bytes(const Constant& c) {
  if (c.source == Constant::Source::concat) return concat_bytes(c);
  const uint64_t size = static_cast<uint64_t>(c.element_count()) * size_of(c.dtype);
  if (c.source == Constant::Source::bytes) {
    TFCC_CHECK(c.bytes != nullptr && c.bytes->size() == size);
    return *c.bytes;
  }
  if (c.source == Constant::Source::file) {
    if (!c.file || !c.file->data) {
      return Error{ErrorCode::io,
                   fmt::format("{}: the weights it holds cannot be read; run where this file is",
                               c.file ? c.file->name : "<no file>")};
    }
    if (c.offset > c.file->size || size > c.file->size - c.offset) {
      return Error{ErrorCode::bad_file,
                   fmt::format("{}: {} bytes at offset {} pass its end ({} bytes)", c.file->name,
                               size, c.offset, c.file->size)};
    }
    return std::vector<std::byte>(c.file->data + c.offset, c.file->data + c.offset + size);
  }
  std::vector<std::byte> out(size);
  for (int64_t i = 0, n = c.element_count(); i < n; ++i)
    write_real(c.dtype, out.data(), i, random_normal(c.seed, i));
  return out;
}

Result<std::vector<std::byte>> make_bytes(const Constant& c) {
  TFCC_TRY(std::vector<std::byte> bytes, source_bytes(c));
  DType dtype = c.dtype;
  std::vector<int64_t> dims = c.dims;
  for (const ConstantStep& step : c.steps) {
    switch (step.kind) {
      case ConstantStep::Kind::transpose:
        bytes = transpose(bytes, dtype, dims, step.numbers);
        dims = permuted(dims, step.numbers);
        break;
      case ConstantStep::Kind::cast:
        bytes = cast(bytes, dtype, step.dtype);
        dtype = step.dtype;
        break;
      case ConstantStep::Kind::reshape: dims = step.numbers; break;
      case ConstantStep::Kind::add:
        bytes = add(bytes, dtype, step.numbers[0], step.dtype);
        dtype = step.dtype;
        break;
    }
  }
  return bytes;
}

}  // namespace

DType Constant::result_dtype() const {
  DType t = dtype;
  for (const ConstantStep& step : steps) {
    if (step.kind == ConstantStep::Kind::cast || step.kind == ConstantStep::Kind::add)
      t = step.dtype;
  }
  return t;
}

std::vector<int64_t> Constant::result_dims() const {
  std::vector<int64_t> out = dims;
  for (const ConstantStep& step : steps) {
    if (step.kind == ConstantStep::Kind::transpose) out = permuted(out, step.numbers);
    if (step.kind == ConstantStep::Kind::reshape) out = step.numbers;
  }
  return out;
}

int64_t Constant::element_count() const { return product(dims); }

Constant constant_from_bytes(DType dtype, std::vector<int64_t> dims, std::vector<std::byte> bytes) {
  Constant c;
  c.dtype = dtype;
  c.dims = std::move(dims);
  TFCC_CHECK(static_cast<uint64_t>(c.element_count()) * size_of(dtype) == bytes.size());
  c.bytes = std::make_shared<const std::vector<std::byte>>(std::move(bytes));
  return c;
}

Constant concat_constants(std::vector<Constant> parts, int64_t axis) {
  TFCC_CHECK(!parts.empty());
  Constant c;
  c.source = Constant::Source::concat;
  c.axis = axis;
  c.dtype = parts[0].result_dtype();
  c.dims = parts[0].result_dims();
  c.dims[axis] = 0;
  for (const Constant& part : parts) c.dims[axis] += part.result_dims()[axis];
  c.parts = std::move(parts);
  return c;
}

std::string recipe_key(const Constant& c, size_t most_compared) {
  std::string key = fmt::format(
      "{}:{}:{}:{}:{}:{}", static_cast<int>(c.source), static_cast<int>(c.dtype),
      static_cast<const void*>(c.file ? c.file->data : nullptr), c.offset, c.seed, c.axis);
  for (int64_t d : c.dims) key += fmt::format(",{}", d);
  for (const Constant& part : c.parts) key += fmt::format("({})", recipe_key(part, most_compared));
  for (const ConstantStep& s : c.steps) {
    key += fmt::format("|{}:{}", static_cast<int>(s.kind), static_cast<int>(s.dtype));
    for (int64_t n : s.numbers) key += fmt::format(",{}", n);
  }
  if (!c.bytes) return key;
  if (c.bytes->size() > most_compared)
    return key + fmt::format("@{}", static_cast<const void*>(c.bytes.get()));
  key += fmt::format("#{}:", c.bytes->size());
  return key.append(reinterpret_cast<const char*>(c.bytes->data()), c.bytes->size());
}

Result<std::vector<std::byte>> materialize(const Constant& c) {
  try {
    return make_bytes(c);
  } catch (const std::bad_alloc&) {
    return Error{ErrorCode::memory,
                 fmt::format("no memory for a constant of {} elements", c.element_count())};
  }
}

Result<std::shared_ptr<const SourceFile>> map_source_file(const std::string& path) {
  const int fd =
      ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a fifo is refused, not waited for
  if (fd < 0)
    return Error{ErrorCode::io,
                 fmt::format("{}: cannot be opened: {}", path, std::strerror(errno))};
  struct stat info {};
  const bool is_file = ::fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
  const auto size = static_cast<uint64_t>(info.st_size);
  void* data = is_file && size > 0 ? ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0) : nullptr;
  ::close(fd);
  if (!is_file) return Error{ErrorCode::io, fmt::format("{}: is not a regular file", path)};
  if (data == MAP_FAILED)
    return Error{ErrorCode::io, fmt::format("{}: cannot be mapped into memory", path)};
  auto file = std::make_shared<SourceFile>();
  file->name = path;
  file->data = static_cast<const std::byte*>(data);
  file->size = size;
  if (data)
    file->mapping = std::shared_ptr<const void>(
        data, [size](const void* p) { ::munmap(const_cast<void*>(p), size); });
  return std::shared_ptr<const SourceFile>(std::move(file));
}

double read_real(DType dtype, const std::byte* data, size_t i) {
  switch (dtype) {
    case DType::f32: return load<float>(data, i);
    case DType::f16: return from_small_float<10>(load<uint16_t>(data, i));
    case DType::bf16: return from_small_float<7>(load<uint16_t>(data, i));
    case DType::f64: return load<double>(data, i);
    default: return static_cast<double>(read_int(dtype, data, i));
  }
}

int64_t read_int(DType dtype, const std::byte* data, size_t i) {
  switch (dtype) {
    case DType::i64: return load<int64_t>(data, i);
    case DType::i32: return load<int32_t>(data, i);
    case DType::i16: return load<int16_t>(data, i);
    case DType::i8: return load<int8_t>(data, i);
    case DType::u8: return load<uint8_t>(data, i);
    case DType::boolean: return load<uint8_t>(data, i) != 0;
    default: return truncate(read_real(dtype, data, i));
  }
}

void write_real(DType dtype, std::byte* data, size_t i, double v) {
  switch (dtype) {
    case DType::f32: store(data, i, static_cast<float>(v)); break;
    case DType::f16: store(data, i, to_small_float<10>(v)); break;
    case DType::bf16: store(data, i, to_small_float<7>(v)); break;
    case DType::f64: store(data, i, v); break;
    case DType::boolean: store<uint8_t>(data, i, v != 0); break;
    default: write_int(dtype, data, i, truncate(v)); break;
  }
}

void write_int(DType dtype, std::byte* data, size_t i, int64_t v) {
  switch (dtype) {
    case DType::i64: store(data, i, v); break;
    case DType::i32: store(data, i, static_cast<int32_t>(v)); break;
    case DType::i16: store(data, i, static_cast<int16_t>(v)); break;
    case DType::i8: store(data, i, static_cast<int8_t>(v)); break;
    case DType::u8: store(data, i, static_cast<uint8_t>(v)); break;
    case DType::boolean: store<uint8_t>(data, i, v != 0); break;
    default: write_real(dtype, data, i, static_cast<double>(v)); break;
  }
}

}  // namespace tfcc::ir
