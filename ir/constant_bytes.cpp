// SPDX-License-Identifier: Apache-2.0
// The making of a constant's bytes from its recipe. What a recipe takes from memory or from a mapped
// file is copied by its first step, not before.
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <new>

#include "ir/computed.h"
#include "ir/raw_elements.h"

namespace tfcc::ir {
namespace {

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
            store_raw<T>(out, i * inner + j, load_raw<T>(in, i + j * stride));
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
      for (int64_t i = 0; i < inner; ++i)
        store_raw<T>(out, done + i, load_raw<T>(in, base + i * stride));
    }
    for (size_t d = rank - 1; d-- > 0;) {
      base += strides[d];
      if (++at[d] < dims[d]) break;
      base -= strides[d] * dims[d];
      at[d] = 0;
    }
  }
}

ConstantBytes transpose(std::span<const std::byte> in, DType dtype,
                        const std::vector<int64_t>& dims, const std::vector<int64_t>& permutation) {
  std::vector<int64_t> strides(dims.size(), 1);
  for (size_t d = dims.size() - 1; d-- > 0;) strides[d] = strides[d + 1] * dims[d + 1];
  ConstantBytes out = ConstantBytes::room(in.size());
  const auto to_dims = permuted(dims, permutation), to_strides = permuted(strides, permutation);
  switch (size_of(dtype)) {
    case 1: transpose_elements<uint8_t>(in.data(), out.data(), to_dims, to_strides); break;
    case 2: transpose_elements<uint16_t>(in.data(), out.data(), to_dims, to_strides); break;
    case 4: transpose_elements<uint32_t>(in.data(), out.data(), to_dims, to_strides); break;
    default: transpose_elements<uint64_t>(in.data(), out.data(), to_dims, to_strides); break;
  }
  return out;
}

// ---- casts: those of weights as loops without branches, which give what read_real and write_real do;
// a NaN is one, of whatever bits

constexpr uint32_t kMagnitude = 0x7fffffff, kInf = 0x7f800000;

/// To nearest even. The magnitude is rounded as a number of 23 + 8 bits; one below 2^-14 by an
/// addition that leaves units of 2^-24 in the last bits.
uint16_t f16_of(uint32_t f32) {
  const uint32_t sign = f32 >> 16 & 0x8000, magnitude = f32 & kMagnitude;
  const uint32_t rounded = (magnitude + 0xfff + (magnitude >> 13 & 1) - (112u << 23)) >> 13;
  const uint32_t small = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) -
                         std::bit_cast<uint32_t>(0.5f);
  uint32_t h = magnitude < 0x38800000 ? small : rounded;
  h = magnitude >= 0x477ff000 ? 0x7c00 : h;  // 65520 and more
  h = magnitude > kInf ? 0x7e00 : h;
  return static_cast<uint16_t>(sign | h);
}

uint16_t bf16_of(uint32_t f32) {
  const uint32_t magnitude = f32 & kMagnitude;
  const uint32_t rounded = (magnitude + 0x7fff + (magnitude >> 16 & 1)) >> 16;
  return static_cast<uint16_t>((f32 >> 16 & 0x8000) | (magnitude > kInf ? 0x7fc0 : rounded));
}

const std::array<float, 65536>& all_f16() {
  static const auto table = [] {
    std::array<float, 65536> t{};
    for (size_t i = 0; i < t.size(); ++i) {
      const auto h = static_cast<uint16_t>(i);
      t[i] = static_cast<float>(read_real(DType::f16, reinterpret_cast<const std::byte*>(&h), 0));
    }
    return t;
  }();
  return table;
}

template <class From, class To, class F>
void each(std::span<const std::byte> in, std::byte* out, const F& f) {
  for (size_t i = 0, n = in.size() / sizeof(From); i < n; ++i)
    store_raw<To>(out, i, f(load_raw<From>(in.data(), i)));
}

/// Whether it is one of these.
bool cast_weights(std::span<const std::byte> in, DType from, DType to, std::byte* out) {
  if (from == DType::f32 && to == DType::f16) {
    each<uint32_t, uint16_t>(in, out, f16_of);
  } else if (from == DType::f32 && to == DType::bf16) {
    each<uint32_t, uint16_t>(in, out, bf16_of);
  } else if (from == DType::f16 && to == DType::f32) {
    each<uint16_t, float>(in, out, [&table = all_f16()](uint16_t h) { return table[h]; });
  } else if (from == DType::bf16 && to == DType::f32) {
    each<uint16_t, uint32_t>(in, out, [](uint16_t h) { return uint32_t{h} << 16; });
  } else {
    return false;
  }
  return true;
}

ConstantBytes cast(std::span<const std::byte> in, DType from, DType to) {
  const size_t n = in.size() / size_of(from);
  ConstantBytes out = ConstantBytes::room(n * size_of(to));
  if (cast_weights(in, from, to, out.data())) return out;
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
ConstantBytes add(std::span<const std::byte> in, DType from, int64_t number, DType to) {
  const size_t n = in.size() / size_of(from);
  ConstantBytes out = ConstantBytes::room(n * size_of(to));
  for (size_t i = 0; i < n; ++i)
    write_int(to, out.data(), i,
              static_cast<int64_t>(static_cast<uint64_t>(read_int(from, in.data(), i)) +
                                   static_cast<uint64_t>(number)));
  return out;
}

Result<ConstantBytes> make_bytes(const Constant& c);

/// Parts are made one at a time and copied into their places.
Result<ConstantBytes> concat_bytes(const Constant& c) {
  const auto axis = static_cast<size_t>(c.axis);
  const size_t inner =
      static_cast<size_t>(product({c.dims.begin() + c.axis + 1, c.dims.end()})) * size_of(c.dtype);
  const auto outer = static_cast<size_t>(product({c.dims.begin(), c.dims.begin() + c.axis}));
  const size_t row = static_cast<size_t>(c.dims[axis]) * inner;
  ConstantBytes out = ConstantBytes::room(outer * row);
  size_t at = 0;
  for (const Constant& part : c.parts) {
    TFCC_TRY(const ConstantBytes bytes, make_bytes(part));
    const size_t piece = static_cast<size_t>(part.result_dims()[axis]) * inner;
    for (size_t o = 0; o < outer && piece > 0; ++o)
      std::memcpy(out.data() + o * row + at, bytes.span().data() + o * piece, piece);
    at += piece;
  }
  return out;
}

Result<ConstantBytes> source_bytes(const Constant& c) {
  if (c.source == Constant::Source::concat) return concat_bytes(c);
  if (c.source == Constant::Source::graph) {
    TFCC_TRY(const auto bytes, c.computed->bytes());
    return ConstantBytes::of(bytes);
  }
  const uint64_t size = static_cast<uint64_t>(c.element_count()) * size_of(c.dtype);
  if (c.source == Constant::Source::bytes) {
    TFCC_CHECK(c.bytes != nullptr && c.bytes->size() == size);
    return ConstantBytes::of(*c.bytes);
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
    return ConstantBytes::of({c.file->data + c.offset, size});
  }
  ConstantBytes out = ConstantBytes::room(size);
  for (int64_t i = 0, n = c.element_count(); i < n; ++i)
    write_real(c.dtype, out.data(), static_cast<size_t>(i),
               random_normal(c.seed, static_cast<uint64_t>(i)));
  return out;
}

Result<ConstantBytes> make_bytes(const Constant& c) {
  TFCC_TRY(ConstantBytes bytes, source_bytes(c));
  DType dtype = c.dtype;
  std::vector<int64_t> dims = c.dims;
  for (const ConstantStep& step : c.steps) {
    switch (step.kind) {
      case ConstantStep::Kind::transpose:
        if (!dims.empty() && !bytes.span().empty())
          bytes = transpose(bytes.span(), dtype, dims, step.numbers);
        dims = permuted(dims, step.numbers);
        break;
      case ConstantStep::Kind::cast:
        if (step.dtype != dtype) bytes = cast(bytes.span(), dtype, step.dtype);
        dtype = step.dtype;
        break;
      case ConstantStep::Kind::reshape: dims = step.numbers; break;
      case ConstantStep::Kind::add:
        bytes = add(bytes.span(), dtype, step.numbers[0], step.dtype);
        dtype = step.dtype;
        break;
    }
  }
  return bytes;
}

}  // namespace

ConstantBytes ConstantBytes::of(std::span<const std::byte> bytes) {
  ConstantBytes out;
  out.bytes_ = bytes;
  return out;
}

ConstantBytes ConstantBytes::room(size_t size) {
  ConstantBytes out;
  out.owned_.reset(new std::byte[size]);  // not set to 0: all of it will be written
  out.bytes_ = {out.owned_.get(), size};
  return out;
}

Result<ConstantBytes> read_constant(const Constant& c) {
  try {
    return make_bytes(c);
  } catch (const std::bad_alloc&) {
    return Error{ErrorCode::memory,
                 fmt::format("no memory for a constant of {} elements", c.element_count())};
  }
}

void let_go(const Constant& c) {
  for (const Constant& part : c.parts) let_go(part);
  if (c.source != Constant::Source::file || !c.file || !c.file->on_disk || c.offset > c.file->size)
    return;
  static const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  const uint64_t size = static_cast<uint64_t>(c.element_count()) * size_of(c.dtype);
  const uint64_t begin = (c.offset + page - 1) / page * page;  // pages that are its alone
  const uint64_t end = std::min(c.offset + size, c.file->size) / page * page;
  if (begin < end)
    ::madvise(const_cast<std::byte*>(c.file->data) + begin, end - begin, MADV_DONTNEED);
}

Result<std::vector<std::byte>> materialize(const Constant& c) {
  TFCC_TRY(const ConstantBytes bytes, read_constant(c));
  try {
    return std::vector<std::byte>(bytes.span().begin(), bytes.span().end());
  } catch (const std::bad_alloc&) {
    return Error{ErrorCode::memory,
                 fmt::format("no memory for a constant of {} elements", c.element_count())};
  }
}

}  // namespace tfcc::ir
