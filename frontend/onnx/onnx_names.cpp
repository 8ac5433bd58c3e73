// SPDX-License-Identifier: Apache-2.0
// Element types of ONNX by number, and names made fit for messages.
#include <fmt/format.h>

#include <iterator>

#include "frontend/onnx/onnx_reader.h"

namespace tfcc::frontend {

std::optional<DType> dtype_of_onnx(int onnx_type) {
  switch (onnx_type) {
    case 1: return DType::f32;
    case 2: return DType::u8;
    case 3: return DType::i8;
    case 5: return DType::i16;
    case 6: return DType::i32;
    case 7: return DType::i64;
    case 9: return DType::boolean;
    case 10: return DType::f16;
    case 11: return DType::f64;
    case 16: return DType::bf16;
    default: return std::nullopt;
  }
}

std::string onnx_type_name(int onnx_type) {
  // TensorProto.DataType of onnx.proto, in order.
  static constexpr const char* kNames[] = {
      "UNDEFINED",      "FLOAT",    "UINT8",        "INT8",           "UINT16",
      "INT16",          "INT32",    "INT64",        "STRING",         "BOOL",
      "FLOAT16",        "DOUBLE",   "UINT32",       "UINT64",         "COMPLEX64",
      "COMPLEX128",     "BFLOAT16", "FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2",
      "FLOAT8E5M2FNUZ", "UINT4",    "INT4",         "FLOAT4E2M1",     "FLOAT8E8M0",
      "UINT2",          "INT2"};
  if (onnx_type >= 0 && onnx_type < std::ssize(kNames)) return kNames[onnx_type];
  return fmt::format("number {}", onnx_type);
}

namespace {

// Bytes of the UTF-8 character at the start of `text` that may be shown as it is, or 0. C1
// controls, overlong forms, surrogates and line separators are not shown: a message stays one line
// on every terminal.
size_t shown_character(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return first >= 0x20 && first != 0x7f ? 1 : 0;
  const size_t size = first >= 0xc2 && first < 0xe0   ? 2
                      : first >= 0xe0 && first < 0xf0 ? 3
                      : first < 0xf5                  ? 4
                                                      : 0;
  if (first < 0xc2 || size == 0 || text.size() < size) return 0;
  uint32_t code = first & (0x7fu >> size);
  for (size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
    code = code << 6 | (byte(i) & 0x3fu);
  }
  constexpr uint32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool legal =
      code >= kSmallest[size] && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff);
  const bool control =
      code < 0xa0 || (code >= 0x2028 && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
  return legal && !control ? size : 0;
}

}  // namespace

namespace {

std::string escaped(std::string_view name, size_t longest) {
  std::string out;
  while (!name.empty()) {
    if (out.size() >= longest) return out + "...";
    if (const size_t size = shown_character(name)) {
      out.append(name.substr(0, size));
      name.remove_prefix(size);
    } else {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(name[0]));
      name.remove_prefix(1);
    }
  }
  return out;
}

}  // namespace

std::string escaped(std::string_view name) { return escaped(name, 120); }

std::string escaped_lines(std::string_view message) {
  constexpr size_t kHalf = 1000;
  auto line = [](std::string_view text) {
    if (text.size() <= 2 * kHalf) return escaped(text, std::string::npos);
    return escaped(text.substr(0, kHalf), std::string::npos) + " ... " +
           escaped(text.substr(text.size() - kHalf), std::string::npos);
  };
  std::string out;
  for (size_t end; (end = message.find('\n')) != std::string_view::npos;
       message.remove_prefix(end + 1))
    out += line(message.substr(0, end)) + "\n";
  return out + line(message);
}

}  // namespace tfcc::frontend
