// SPDX-License-Identifier: Apache-2.0
// An ONNX file as plain structs: what the importer walks. Large values stay in the mapped file
// (ir::Constant with Source::file), everything else is decoded. Nothing here knows what an operator
// means, and nothing a file contains can do worse than an error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ir/constant.h"
#include "runtime/dtype.h"
#include "runtime/result.h"

namespace tfcc::frontend {

/// A tensor of an element type that tfcc's tensors have not (element_types.h): its bytes as they
/// are, u8 (16-bit types: i16), elements in row-major order, the first in the lowest bits.
struct PackedTensor {
  int onnx_type = 0;
  ir::Constant bytes;
  std::vector<int64_t> dims;
};

struct Body;

/// One attribute of a node; `kind` tells which member holds the value.
struct Attribute {
  enum class Kind {
    integer,
    real,
    string,
    tensor,
    integers,
    reals,
    strings,
    graph,  // a body of If, Loop or Scan; decoded to a depth of 32
    other,  // any other kind; not decoded
  };
  std::string name;
  Kind kind = Kind::other;
  int64_t i = 0;
  float f = 0;
  std::string s;
  std::vector<int64_t> ints;
  std::vector<float> floats;
  std::vector<std::string> strings;
  std::shared_ptr<const ir::Constant> tensor;  // null if packed, or if `unsupported` says why
  std::shared_ptr<const PackedTensor> packed;
  std::string unsupported;  // as in Model::unsupported_initializers
  std::shared_ptr<const Body> graph;
  std::string reference;  // inside a function: the attribute of the call that this one is
};

/// One node. An empty input or output name is an optional one left out.
struct Node {
  std::string name, op_type;
  std::string domain;  // "" for the operators of ONNX itself
  std::vector<std::string> inputs, outputs;
  std::vector<Attribute> attributes;
  int64_t opset = 0;  // of its domain, where it came out of a function; 0: the model's

  /// The attribute of this name, or null.
  const Attribute* find(std::string_view attribute) const;
};

/// The graph of an attribute. It sees the values around it by name.
struct Body {
  std::vector<std::string> outputs;
  std::vector<std::pair<std::string, ir::Constant>> initializers;
  std::map<std::string, std::string> unsupported_initializers;
  std::vector<Node> nodes;
};

/// A function of the model's own (FunctionProto).
struct Function {
  std::string domain, name;
  std::vector<std::string> inputs, outputs;
  std::vector<Attribute> defaults;  // of its attributes
  std::vector<Node> nodes;
  std::map<std::string, int64_t> opsets;
};

/// One size of a declared shape: a number, a name, or (neither) unknown.
struct Dim {
  std::optional<int64_t> value;
  std::string symbol;
};

/// A graph input or output as declared.
struct ValueInfo {
  std::string name;
  bool is_tensor = false;  // false: a sequence, map or optional, or no type at all
  int onnx_type = 0;       // the number of the element type in ONNX; name it with onnx_type_name
  std::optional<DType> dtype;  // empty if tfcc has no such element type
  bool has_shape = false;
  std::vector<Dim> dims;
};

/// A whole model.
struct Model {
  std::string path;  // as given; how messages name the model
  int64_t ir_version = 0;
  std::string producer;  // name and version
  /// By domain; "" is ONNX itself, also where the file says "ai.onnx".
  std::map<std::string, int64_t> opsets;
  std::string graph_name;
  std::vector<ValueInfo> inputs;  // without those that are initializers
  std::vector<ValueInfo> outputs;
  std::vector<std::pair<std::string, ir::Constant>> initializers;  // names are unique
  std::vector<std::pair<std::string, PackedTensor>> packed_initializers;
  /// Initializers that are neither: name -> "has type STRING, which is not supported".
  std::map<std::string, std::string> unsupported_initializers;
  std::vector<Node> nodes;
  std::vector<Function> functions;
  std::vector<std::string> warnings;    // complete lines, one each
  std::vector<std::string> data_files;  // that external data lie in, from the model's folder
};

/// Reads a model. The result keeps the files it points into mapped; they must not shrink while it
/// lives. Errors: io, bad_file, unsupported, memory; the message starts with the path.
Result<Model> read_onnx(const std::string& path);
/// The same of a model in memory, which must stay there while the result lives; messages call it
/// `name`. It has no external data.
Result<Model> read_onnx(const std::string& name, std::span<const std::byte> bytes);

/// The value of a node of type Constant. Errors: unsupported, bad_file, without the path of the
/// model.
Result<ir::Constant> constant_of(const Node& node);

/// The element type with this number in ONNX, if tfcc has it.
std::optional<DType> dtype_of_onnx(int onnx_type);

/// "FLOAT16" and so on; "number 99" for a type younger than this source.
std::string onnx_type_name(int onnx_type);

/// A name fit for a message: control characters and bytes that are not UTF-8 as \xNN, cut after
/// about 120 characters.
std::string escaped(std::string_view name);
/// The same for a message of several lines, the middle of long ones left out: what another layer
/// says may hold a name as it stands in the file.
std::string escaped_lines(std::string_view message);

}  // namespace tfcc::frontend
