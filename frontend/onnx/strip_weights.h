// SPDX-License-Identifier: Apache-2.0
// Copies of ONNX messages without what is large or unused: the values of a tensor become a 16-byte
// span that tells where in the file they lie, and so does a body of control flow; documentation and
// metadata go. What remains is given to Protobuf, which would otherwise copy every weight and stop
// at 2 GiB.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tfcc::frontend {

/// A range of the model file.
struct Span {
  uint64_t offset = 0;
  uint64_t size = 0;
};

/// A TensorProto whose raw_data is a span. Packed float_data and double_data, which have the layout
/// of raw_data, are treated as such. `file` is the whole file, `message` a part of it. Empty if the
/// message is damaged.
std::optional<std::string> strip_tensor(std::string_view file, std::string_view message);

/// An AttributeProto with its tensor stripped and its graph, if it has one, left as a span in
/// doc_string.
std::optional<std::string> strip_attribute(std::string_view file, std::string_view message);

/// A NodeProto with its attributes stripped. Empty if the message is damaged or has attributes
/// beyond any reason.
std::optional<std::string> strip_node(std::string_view file, std::string_view message);

/// The span that is left in raw_data, or in the doc_string of a graph.
Span decode_span(std::string_view raw_data);

}  // namespace tfcc::frontend
