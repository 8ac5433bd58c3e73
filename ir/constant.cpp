// SPDX-License-Identifier: Apache-2.0
// Constants: element access for every dtype, recipes, and the mapping of source files.
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

#include "ir/computed.h"
#include "ir/raw_elements.h"

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

/// Truncates; saturates at the ends of i64, NaN is 0: the semantics of f2i.
int64_t truncate(double v) {
  if (std::isnan(v)) return 0;
  if (v >= 0x1p63) return INT64_MAX;
  if (v < -0x1p63) return INT64_MIN;
  return static_cast<int64_t>(v);
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

Constant constant_of(std::shared_ptr<const ComputedConstant> computed) {
  Constant c;
  c.source = Constant::Source::graph;
  c.dtype = computed->type().dtype;
  for (ExprRef d : computed->type().dims) c.dims.push_back(*as_int(d));
  c.computed = std::move(computed);
  return c;
}

std::string recipe_key(const Constant& c, size_t most_compared) {
  std::string key =
      fmt::format("{}:{}:{}:{}:{}:{}:{}", static_cast<int>(c.source), static_cast<int>(c.dtype),
                  static_cast<const void*>(c.file ? c.file->data : nullptr), c.offset, c.seed,
                  c.axis, c.computed ? c.computed->key() : std::string());
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
  file->on_disk = data != nullptr;
  if (data)
    file->mapping = std::shared_ptr<const void>(
        data, [size](const void* p) { ::munmap(const_cast<void*>(p), size); });
  return std::shared_ptr<const SourceFile>(std::move(file));
}

double read_real(DType dtype, const std::byte* data, size_t i) {
  switch (dtype) {
    case DType::f32: return load_raw<float>(data, i);
    case DType::f16: return from_small_float<10>(load_raw<uint16_t>(data, i));
    case DType::bf16: return from_small_float<7>(load_raw<uint16_t>(data, i));
    case DType::f64: return load_raw<double>(data, i);
    default: return static_cast<double>(read_int(dtype, data, i));
  }
}

int64_t read_int(DType dtype, const std::byte* data, size_t i) {
  switch (dtype) {
    case DType::i64: return load_raw<int64_t>(data, i);
    case DType::i32: return load_raw<int32_t>(data, i);
    case DType::i16: return load_raw<int16_t>(data, i);
    case DType::i8: return load_raw<int8_t>(data, i);
    case DType::u8: return load_raw<uint8_t>(data, i);
    case DType::boolean: return load_raw<uint8_t>(data, i) != 0;
    default: return truncate(read_real(dtype, data, i));
  }
}

void write_real(DType dtype, std::byte* data, size_t i, double v) {
  switch (dtype) {
    case DType::f32: store_raw(data, i, static_cast<float>(v)); break;
    case DType::f16: store_raw(data, i, to_small_float<10>(v)); break;
    case DType::bf16: store_raw(data, i, to_small_float<7>(v)); break;
    case DType::f64: store_raw(data, i, v); break;
    case DType::boolean: store_raw<uint8_t>(data, i, v != 0); break;
    default: write_int(dtype, data, i, truncate(v)); break;
  }
}

void write_int(DType dtype, std::byte* data, size_t i, int64_t v) {
  switch (dtype) {
    case DType::i64: store_raw(data, i, v); break;
    case DType::i32: store_raw(data, i, static_cast<int32_t>(v)); break;
    case DType::i16: store_raw(data, i, static_cast<int16_t>(v)); break;
    case DType::i8: store_raw(data, i, static_cast<int8_t>(v)); break;
    case DType::u8: store_raw(data, i, static_cast<uint8_t>(v)); break;
    case DType::boolean: store_raw<uint8_t>(data, i, v != 0); break;
    default: write_real(dtype, data, i, static_cast<double>(v)); break;
  }
}

}  // namespace tfcc::ir
