// SPDX-License-Identifier: Apache-2.0
// NumPy's .npy files: the form in which the command line takes inputs and gives outputs.
// Little-endian, C order, format versions 1 to 3. bf16 is the two-byte void that ml_dtypes writes
// ("<V2").
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/dtype.h"
#include "runtime/result.h"

namespace tfcc::tools {

/// A dense row-major array that owns its bytes.
struct Array {
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
  std::vector<std::byte> bytes;

  /// Number of elements.
  int64_t count() const;
  template <class T> const T* data() const { return reinterpret_cast<const T*>(bytes.data()); }
  template <class T> T* data() { return reinterpret_cast<T*>(bytes.data()); }
};

/// Bytes of an array of this shape, or nothing for a negative size and beyond what any machine has.
std::optional<int64_t> byte_count(DType dtype, std::span<const int64_t> shape);

/// Adds the bytes of an array that is to be made to `total`; `name` is the input that it is for.
/// Errors: shape (the machine has not that much memory).
Result<void> take_memory(const std::string& name, DType dtype, std::span<const int64_t> shape,
                         int64_t& total);

/// An array of zeros. The shape must be one that fits in memory: byte_count().
Array make_array(DType dtype, std::vector<int64_t> shape);

/// Bytes of somebody else's array, to be written.
struct ArrayView {
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
  const void* data = nullptr;

  ArrayView() = default;
  ArrayView(DType t, std::vector<int64_t> s, const void* d)
      : dtype(t), shape(std::move(s)), data(d) {}
  ArrayView(const Array& a) : dtype(a.dtype), shape(a.shape), data(a.bytes.data()) {}  // NOLINT
  size_t bytes() const;
};

/// Reads one .npy file. Errors: io, bad_file (not .npy, truncated), unsupported (Fortran order,
/// big-endian, other dtypes); every message starts with the file's name.
Result<Array> read_npy(const std::string& path);

/// The same from memory; `name` is what messages call it.
Result<Array> parse_npy(std::span<const std::byte> file, const std::string& name);

/// Writes one .npy file, whole or not at all. Errors: io.
Result<void> write_npy(const std::string& path, const ArrayView& array);

/// Magic, version and header, padded so that the data that follow are 64-byte aligned.
std::string npy_header(DType dtype, std::span<const int64_t> shape);

/// All bytes of a file. Errors: io.
Result<std::vector<std::byte>> read_file(const std::string& path);

}  // namespace tfcc::tools
