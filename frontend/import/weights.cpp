// SPDX-License-Identifier: Apache-2.0
// A TensorProto as ir::Constant: checks dims, finds the bytes, compares their number with type and
// shape.
#include "frontend/import/weights.h"

#include <fmt/format.h>
#include <onnx/onnx.pb.h>

#include <bit>
#include <charconv>
#include <cstring>

#include "frontend/onnx/element_types.h"
#include "frontend/onnx/strip_weights.h"

namespace tfcc::frontend {
namespace {

static_assert(std::endian::native == std::endian::little,
              "raw_data is little-endian and used as it is");

constexpr int kMaxRank = 64;

Error bad(std::string message) { return {ErrorCode::bad_file, std::move(message)}; }

// A checked shape: the dims and the bytes that they need.
struct Extent {
  std::vector<int64_t> dims;
  uint64_t elements = 0;
  uint64_t bytes = 0;
};

Result<Extent> extent_of(const onnx::TensorProto& tensor, DType dtype) {
  if (tensor.dims_size() > kMaxRank)
    return bad(fmt::format("has {} dims, more than {}", tensor.dims_size(), kMaxRank));
  Extent extent;
  int64_t product =
      1;  // of the dims that are not 0: a 0 must not hide an overflow from those who multiply some
  bool empty = false;
  for (const int64_t dim : tensor.dims()) {
    if (dim < 0) return bad(fmt::format("has a negative dim ({})", dim));
    if (dim == 0) empty = true;
    if (dim != 0 && __builtin_mul_overflow(product, dim, &product))
      return bad("has dims whose product overflows");
    extent.dims.push_back(dim);
  }
  int64_t bytes = 0;
  if (__builtin_mul_overflow(product, static_cast<int64_t>(size_of(dtype)), &bytes)) {
    return bad("has dims whose product overflows");
  }
  extent.elements = empty ? 0 : static_cast<uint64_t>(product);
  extent.bytes = empty ? 0 : static_cast<uint64_t>(bytes);
  return extent;
}

Error wrong_length(uint64_t found, const Extent& extent, DType dtype, const char* unit) {
  return bad(
      fmt::format("holds {} {} where {}[{}] needs {}; the file is damaged, export the model again",
                  found, unit, to_string(dtype), fmt::join(extent.dims, ","),
                  unit[0] == 'b' ? extent.bytes : extent.elements));
}

ir::Constant in_file(DType dtype, Extent extent, FileRef file, uint64_t offset) {
  ir::Constant c;
  c.source = ir::Constant::Source::file;
  c.dtype = dtype;
  c.dims = std::move(extent.dims);
  c.file = std::move(file);
  c.offset = offset;
  return c;
}

// Copies a typed field, element by element, into values of type T.
template <class T, class Values>
Result<TensorValue> from_typed(const Values& values, DType dtype, Extent extent) {
  const auto count = static_cast<uint64_t>(values.size());
  if (count != extent.elements) return wrong_length(count, extent, dtype, "values");
  std::vector<std::byte> bytes(extent.bytes);
  std::byte* out = bytes.data();
  for (const auto value : values) {
    const T element = static_cast<T>(value);
    std::memcpy(out, &element, sizeof element);
    out += sizeof element;
  }
  return TensorValue{
      ir::constant_from_bytes(dtype, std::move(extent.dims), std::move(bytes)), {}, {}};
}

// int32_data holds everything narrower than 64 bits that is not f32; 16-bit floats lie in it as
// their bits.
Result<TensorValue> read_typed(const onnx::TensorProto& t, DType dtype, Extent extent) {
  if (t.data_type() == onnx::TensorProto::UINT32)
    return from_typed<uint32_t>(t.uint64_data(), dtype, std::move(extent));
  switch (dtype) {
    case DType::f32: return from_typed<float>(t.float_data(), dtype, std::move(extent));
    case DType::f64: return from_typed<double>(t.double_data(), dtype, std::move(extent));
    case DType::i64: return from_typed<int64_t>(t.int64_data(), dtype, std::move(extent));
    case DType::i32: return from_typed<int32_t>(t.int32_data(), dtype, std::move(extent));
    case DType::i16: return from_typed<int16_t>(t.int32_data(), dtype, std::move(extent));
    case DType::f16:
    case DType::bf16: return from_typed<uint16_t>(t.int32_data(), dtype, std::move(extent));
    case DType::i8: return from_typed<int8_t>(t.int32_data(), dtype, std::move(extent));
    case DType::u8: return from_typed<uint8_t>(t.int32_data(), dtype, std::move(extent));
    case DType::boolean: return from_typed<bool>(t.int32_data(), dtype, std::move(extent));
  }
  return Error{ErrorCode::internal, "has an element type without a typed field"};
}

bool has_typed_values(const onnx::TensorProto& t) {
  return t.float_data_size() + t.double_data_size() + t.int64_data_size() + t.int32_data_size() +
             t.uint64_data_size() >
         0;
}

// The number behind a key of external_data; absent is 0 for an offset, the needed size for a
// length.
Result<uint64_t> number_of(const std::string& key, const std::string& text) {
  int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, code] = std::from_chars(text.data(), end, value);
  if (code != std::errc() || stop != end || value < 0) {
    return bad(
        fmt::format("has the {} '{}', which is not a number from 0 to 2^63-1", key, escaped(text)));
  }
  return static_cast<uint64_t>(value);
}

Result<TensorValue> read_external(const onnx::TensorProto& t, DType dtype, Extent extent,
                                  ExternalFiles& files) {
  std::string location;
  uint64_t offset = 0;
  uint64_t length = extent.bytes;
  for (const onnx::StringStringEntryProto& entry : t.external_data()) {
    if (entry.key() == "location") location = entry.value();
    if (entry.key() == "offset") {
      TFCC_TRY(offset, number_of(entry.key(), entry.value()));
    }
    if (entry.key() == "length") {
      TFCC_TRY(length, number_of(entry.key(), entry.value()));
    }
  }
  Result<FileRef> file = files.open(location);
  if (!file) {
    return Error{file.error().code,
                 fmt::format("external data '{}' {}", escaped(location), file.error().message)};
  }
  if (length != extent.bytes) return wrong_length(length, extent, dtype, "bytes");
  const uint64_t size = (*file)->size;
  if (offset > size || length > size - offset) {
    return bad(fmt::format(
        "external data '{}' has {} bytes, too few for {} at offset {}; copy the file again",
        escaped(location), size, length, offset));
  }
  return TensorValue{in_file(dtype, std::move(extent), *std::move(file), offset), {}, {}};
}

Result<TensorValue> read_values(const onnx::TensorProto& tensor, DType dtype, Extent extent,
                                const FileRef& model, ExternalFiles& external) {
  if (tensor.data_location() == onnx::TensorProto::EXTERNAL) {
    return read_external(tensor, dtype, std::move(extent), external);
  }
  const Span span = decode_span(tensor.raw_data());
  const bool raw = tensor.has_raw_data() && (span.size > 0 || !has_typed_values(tensor));
  if (!raw) return read_typed(tensor, dtype, std::move(extent));
  if (span.size != extent.bytes) return wrong_length(span.size, extent, dtype, "bytes");
  return TensorValue{in_file(dtype, std::move(extent), model, span.offset), {}, {}};
}

// Elements of less than a byte share one; whole bytes are what the file holds. Rows that fill their
// bytes stay rows, so that an index into them needs no division.
Extent packed_extent(const Extent& elements, const ElementType& type) {
  const int64_t per = type.per_byte();
  Extent e = elements;
  if (per == 1) return e;
  if (!e.dims.empty() && e.dims.back() % per == 0) {
    e.dims.back() /= per;
    e.elements /= static_cast<uint64_t>(per);
  } else {
    e.elements = (e.elements + static_cast<uint64_t>(per) - 1) / static_cast<uint64_t>(per);
    e.dims = {static_cast<int64_t>(e.elements)};
  }
  e.bytes = e.elements * size_of(type.stored);
  return e;
}

}  // namespace

Result<TensorValue> read_tensor(const onnx::TensorProto& tensor, const FileRef& model,
                                ExternalFiles& external) {
  if (const std::optional<DType> dtype = dtype_of_onnx(tensor.data_type())) {
    TFCC_TRY(Extent extent, extent_of(tensor, *dtype));
    return read_values(tensor, *dtype, std::move(extent), model, external);
  }
  const std::optional<ElementType> type = element_type(tensor.data_type());
  if (!type) {
    return TensorValue{
        {},
        {},
        fmt::format("has type {}, which is not supported", onnx_type_name(tensor.data_type()))};
  }
  TFCC_TRY(Extent extent, extent_of(tensor, type->stored));
  TFCC_TRY(TensorValue value,
           read_values(tensor, type->stored, packed_extent(extent, *type), model, external));
  return TensorValue{
      {}, PackedTensor{type->onnx_type, *std::move(value.constant), std::move(extent.dims)}, {}};
}

}  // namespace tfcc::frontend
