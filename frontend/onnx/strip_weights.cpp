// SPDX-License-Identifier: Apache-2.0
// Walks NodeProto, AttributeProto and TensorProto by field number (onnx.proto). Nothing here
// recurses: graphs inside attributes become spans of the file, so a file cannot make the walk deep.
#include "frontend/onnx/strip_weights.h"

#include <algorithm>
#include <cstring>
#include <initializer_list>

#include "runtime/wire.h"

namespace tfcc::frontend {
namespace {

using runtime::Wire, runtime::WireField, runtime::WireReader;

// Field numbers of onnx.proto.
constexpr uint32_t kNodeAttribute = 5;
constexpr uint32_t kAttributeTensor = 5, kAttributeGraph = 6, kGraphDoc = 10;
constexpr uint32_t kTensorType = 2, kTensorFloats = 4, kTensorRaw = 9, kTensorDoubles = 10,
                   kTensorLocation = 14;
constexpr auto kNodeKept = {1u, 2u, 3u, 4u, 7u};
constexpr auto kAttributeKept = {1u, 2u, 3u, 4u, 7u, 8u, 9u, 20u, 21u};
constexpr auto kTensorKept = {1u, 2u, 4u, 5u, 7u, 8u, 10u, 11u, 13u, 14u};
constexpr uint64_t kOnnxFloat = 1, kOnnxDouble = 11, kOnnxExternal = 1;

// An empty attribute of two bytes takes a hundred once decoded, so their number is bounded.
constexpr int kMaxAttributes = 4096;

bool contains(std::initializer_list<uint32_t> numbers, uint32_t number) {
  return std::find(numbers.begin(), numbers.end(), number) != numbers.end();
}

void put_varint(std::string& message, uint64_t value) {
  for (; value >= 0x80; value >>= 7) message.push_back(static_cast<char>(value | 0x80));
  message.push_back(static_cast<char>(value));
}

void put_bytes(std::string& message, uint32_t number, std::string_view payload) {
  put_varint(message, uint64_t{number} << 3 | static_cast<uint64_t>(Wire::bytes));
  put_varint(message, payload.size());
  message.append(payload);
}

std::string encode_span(std::string_view file, std::string_view part) {
  const Span span{part.empty() ? 0 : static_cast<uint64_t>(part.data() - file.data()), part.size()};
  std::string bytes(sizeof span, '\0');
  std::memcpy(bytes.data(), &span, sizeof span);
  return bytes;
}

// The typed field that has the layout of raw_data, if the tensor's values are one packed run of it;
// else 0.
uint32_t packed_field(std::string_view message) {
  uint64_t type = 0;
  int floats = 0, doubles = 0;
  bool elsewhere = false;
  for (WireReader reader(message); reader.next();) {
    const WireField& f = reader.field();
    // An unpacked value counts twice: it rules the field out.
    if (f.number == kTensorFloats) floats += f.wire == Wire::bytes ? 1 : 2;
    if (f.number == kTensorDoubles) doubles += f.wire == Wire::bytes ? 1 : 2;
    if (f.is(kTensorType, Wire::varint)) type = f.value;
    if (f.is(kTensorRaw, Wire::bytes)) elsewhere = true;
    if (f.is(kTensorLocation, Wire::varint) && f.value == kOnnxExternal) elsewhere = true;
  }
  if (elsewhere) return 0;
  if (type == kOnnxFloat && floats == 1) return kTensorFloats;
  if (type == kOnnxDouble && doubles == 1) return kTensorDoubles;
  return 0;
}

}  // namespace

std::optional<std::string> strip_attribute(std::string_view file, std::string_view message) {
  std::string out;
  WireReader reader(message);
  while (reader.next()) {
    const WireField& f = reader.field();
    if (f.is(kAttributeTensor, Wire::bytes)) {
      const std::optional<std::string> tensor = strip_tensor(file, f.payload);
      if (!tensor) return std::nullopt;
      put_bytes(out, kAttributeTensor, *tensor);
    } else if (f.is(kAttributeGraph, Wire::bytes)) {
      std::string graph;
      put_bytes(graph, kGraphDoc, encode_span(file, f.payload));
      put_bytes(out, kAttributeGraph, graph);
    } else if (contains(kAttributeKept, f.number)) {
      out.append(f.whole);
    }
  }
  return reader.broken() ? std::nullopt : std::optional(std::move(out));
}

std::optional<std::string> strip_tensor(std::string_view file, std::string_view message) {
  const uint32_t packed = packed_field(message);
  std::string out;
  WireReader reader(message);
  while (reader.next()) {
    const WireField& f = reader.field();
    if (f.is(kTensorRaw, Wire::bytes) || f.is(packed, Wire::bytes)) {
      put_bytes(out, kTensorRaw, encode_span(file, f.payload));
    } else if (contains(kTensorKept, f.number)) {
      out.append(f.whole);
    }
  }
  return reader.broken() ? std::nullopt : std::optional(std::move(out));
}

std::optional<std::string> strip_node(std::string_view file, std::string_view message) {
  std::string out;
  int attributes = 0;
  WireReader reader(message);
  while (reader.next()) {
    const WireField& f = reader.field();
    if (f.is(kNodeAttribute, Wire::bytes)) {
      if (++attributes > kMaxAttributes) return std::nullopt;
      const std::optional<std::string> attribute = strip_attribute(file, f.payload);
      if (!attribute) return std::nullopt;
      put_bytes(out, kNodeAttribute, *attribute);
    } else if (contains(kNodeKept, f.number)) {
      out.append(f.whole);
    }
  }
  return reader.broken() ? std::nullopt : std::optional(std::move(out));
}

Span decode_span(std::string_view raw_data) {
  Span span;
  if (raw_data.size() == sizeof span) std::memcpy(&span, raw_data.data(), sizeof span);
  return span;
}

}  // namespace tfcc::frontend
