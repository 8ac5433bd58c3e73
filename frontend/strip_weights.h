// SPDX-License-Identifier: Apache-2.0
// Copies of ONNX messages without what is large or unused: the values of a tensor become a 16-byte
// span that tells where in the file they lie, bodies of control flow, documentation and metadata
// go. What remains is given to Protobuf, which would otherwise copy every weight and stop at 2 GiB.
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

/// A NodeProto with its tensors stripped. Empty if the message is damaged or has attributes beyond
/// any reason.
std::optional<std::string> strip_node(std::string_view file, std::string_view message);

/// The span that strip_tensor left in raw_data.
Span decode_span(std::string_view raw_data);

}  // namespace tfcc::frontend
