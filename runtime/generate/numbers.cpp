// SPDX-License-Identifier: Apache-2.0
#include "runtime/generate/numbers.h"

#include <bit>
#include <cstring>

namespace tfcc::generate {
namespace {

// Without a branch, so that compilers make vectors of it: the exponent is moved by a product, which
// is exact for subnormals too.
float f16_value(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16,
                 rest = static_cast<uint32_t>(bits & 0x7fff) << 13;
  const float moved = std::bit_cast<float>(rest) * 0x1p112f;
  const uint32_t special = (bits & 0x7c00) == 0x7c00 ? 0x7f800000 : 0;
  return std::bit_cast<float>(sign | special | std::bit_cast<uint32_t>(moved));
}

template <class T, class Value>
void each(const void* data, size_t first, std::span<float> out, const Value& value) {
  const auto* from = static_cast<const std::byte*>(data) + first * sizeof(T);
  for (size_t i = 0; i < out.size(); ++i) {
    T x;
    std::memcpy(&x, from + i * sizeof(T), sizeof(T));
    out[i] = value(x);
  }
}

}  // namespace

void numbers_from(const void* data, DType type, size_t first, std::span<float> out) {
  switch (type) {
    case DType::f32: return each<float>(data, first, out, [](float x) { return x; });
    case DType::f64:
      return each<double>(data, first, out, [](double x) { return static_cast<float>(x); });
    case DType::f16: return each<uint16_t>(data, first, out, f16_value);
    default:
      return each<uint16_t>(data, first, out, [](uint16_t x) {
        return std::bit_cast<float>(static_cast<uint32_t>(x) << 16);
      });
  }
}

int32_t whole_number_from(const void* data, DType type, size_t i) {
  if (type == DType::i32) return static_cast<const int32_t*>(data)[i];
  return static_cast<int32_t>(static_cast<const int64_t*>(data)[i]);
}

void append_number(int64_t value, DType type, Bytes& out) {
  const size_t at = out.size();
  out.resize(at + size_of(type));
  const auto put = [&](auto x) { std::memcpy(out.data() + at, &x, sizeof x); };
  switch (type) {
    case DType::i64: return put(value);
    case DType::i32: return put(static_cast<int32_t>(value));
    case DType::f64: return put(static_cast<double>(value));
    case DType::f32: return put(static_cast<float>(value));
    case DType::i16: return put(static_cast<int16_t>(value));
    case DType::f16: return put(static_cast<uint16_t>(value ? 0x3c00 : 0));  // masks alone: 0 or 1
    case DType::bf16: return put(static_cast<uint16_t>(value ? 0x3f80 : 0));
    default: return put(static_cast<uint8_t>(value));
  }
}

}  // namespace tfcc::generate
