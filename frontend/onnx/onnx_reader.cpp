// SPDX-License-Identifier: Apache-2.0
// Walks ModelProto and GraphProto field by field over the mapped file and gives Protobuf one node,
// one initializer or one declaration at a time, without the weights in it. So the file may be of
// any size, and memory grows with what is left of it.
#include "frontend/onnx/onnx_reader.h"

#include <fmt/format.h>
#include <onnx/onnx.pb.h>

#include <algorithm>
#include <climits>
#include <exception>
#include <new>
#include <set>

#include "frontend/onnx/node_order.h"
#include "frontend/onnx/strip_weights.h"
#include "frontend/import/weights.h"
#include "runtime/wire.h"

namespace tfcc::frontend {
namespace {

using runtime::Wire, runtime::WireField, runtime::WireReader;

// Newer files are read with a warning: what they use may still be what we know.
constexpr int64_t kNewestOpset = 28;
constexpr int64_t kNewestIrVersion = 14;

// Bounds far above any real model; they keep a small file from taking much memory.
constexpr size_t kMaxNodes = 1 << 20;
constexpr size_t kMaxInitializers = 1 << 20;
constexpr int kMaxDepth = 32;                 // of bodies in bodies
constexpr size_t kMaxDeclarations = 1 << 16;  // inputs, outputs, opsets, functions

std::string_view bytes_of(const ir::SourceFile& file) {
  return {reinterpret_cast<const char*>(file.data), file.size};
}

// What a file that is no model looks like, for the message; empty if like nothing known.
std::string guess_kind(std::string_view bytes) {
  if (bytes.starts_with("PK\x03\x04"))
    return "a zip archive, not an ONNX model; unpack it or export to ONNX";
  if (bytes.starts_with("TFCC"))
    return "a .tfcc file, which is compiled already; give the ONNX model, or run this one with `tfcc run`";
  if (bytes.starts_with("GGUF"))
    return "a GGUF file, which holds weights and no graph; export the model to ONNX";
  if (bytes.starts_with("version https://git-lfs"))
    return "a Git LFS pointer; fetch the model with 'git lfs pull'";
  const std::string_view head = bytes.substr(0, 256);
  const bool text = std::all_of(head.begin(), head.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte >= 0x20 || byte == '\n' || byte == '\r' || byte == '\t';
  });
  return text ? "text, not an ONNX model; export to binary ONNX" : "";
}

// "ai.onnx" is the long name of the domain of ONNX itself.
std::string domain_of(const std::string& domain) { return domain == "ai.onnx" ? "" : domain; }

// The kind by the fields that are set, for files from before the `type` field.
Attribute::Kind infer_kind(const onnx::AttributeProto& a) {
  using Kind = Attribute::Kind;
  if (a.has_t()) return Kind::tensor;
  if (a.has_g()) return Kind::graph;
  if (a.has_s()) return Kind::string;
  if (a.has_f()) return Kind::real;
  if (a.has_i()) return Kind::integer;
  if (a.ints_size() > 0) return Kind::integers;
  if (a.floats_size() > 0) return Kind::reals;
  if (a.strings_size() > 0) return Kind::strings;
  return Kind::other;
}

Attribute::Kind kind_of(const onnx::AttributeProto& a) {
  using Kind = Attribute::Kind;
  switch (a.type()) {
    case onnx::AttributeProto::FLOAT: return Kind::real;
    case onnx::AttributeProto::INT: return Kind::integer;
    case onnx::AttributeProto::STRING: return Kind::string;
    case onnx::AttributeProto::TENSOR: return Kind::tensor;
    case onnx::AttributeProto::GRAPH: return Kind::graph;
    case onnx::AttributeProto::FLOATS: return Kind::reals;
    case onnx::AttributeProto::INTS: return Kind::integers;
    case onnx::AttributeProto::STRINGS: return Kind::strings;
    case onnx::AttributeProto::UNDEFINED: return infer_kind(a);
    default: return Kind::other;
  }
}

Dim dim_of(const onnx::TensorShapeProto::Dimension& d) {
  // Some exporters write -1 for "unknown".
  if (d.has_dim_value() && d.dim_value() != -1) return {d.dim_value(), {}};
  return {std::nullopt, d.dim_param()};
}

ValueInfo value_info_of(const onnx::ValueInfoProto& proto) {
  ValueInfo info;
  info.name = proto.name();
  info.is_tensor = proto.type().has_tensor_type();
  const onnx::TypeProto::Tensor& type = proto.type().tensor_type();
  info.onnx_type = type.elem_type();
  info.dtype = dtype_of_onnx(type.elem_type());
  info.has_shape = type.has_shape();
  for (const auto& d : type.shape().dim()) info.dims.push_back(dim_of(d));
  return info;
}

// Fills one Model; its methods return the reason alone, read() adds the path.
class Reader {
 public:
  Reader(const std::string& name, FileRef file, ExternalFiles external)
      : file_(std::move(file)), external_(std::move(external)) {
    model_.path = name;
    bytes_ = bytes_of(*file_);
  }

  Result<Model> read() {
    TFCC_TRY_VOID(read_model());
    if (!has_graph_) return damaged("has no graph");
    if (model_.opsets.empty()) return damaged("names no opset");
    drop_initialized_inputs();
    put_in_order(model_.nodes);
    warn();
    model_.data_files = external_.names();
    return std::move(model_);
  }

 private:
  Error damaged(std::string_view what) const {
    const std::string kind = guess_kind(bytes_);
    if (!kind.empty()) return {ErrorCode::bad_file, "is " + kind};
    return {
        ErrorCode::bad_file,
        fmt::format("{} (damaged, cut short or no ONNX model); export or download it again", what)};
  }

  Error damaged_at(std::string_view part) const {
    return damaged(
        fmt::format("cannot be read at byte {} of {}", part.data() - bytes_.data(), bytes_.size()));
  }

  static Error too_many(const char* what, size_t limit) {
    return {ErrorCode::unsupported,
            fmt::format("has more than {} {}; simplify the model before export", limit, what)};
  }

  // Protobuf takes sizes as int.
  template <class Message>
  Result<Message> parse(std::string_view bytes, std::string_view origin) const {
    Message message;
    if (bytes.size() > INT_MAX) {
      return Error{ErrorCode::unsupported,
                   fmt::format("has a part of {} bytes that is no weight; 2 GiB is the limit",
                               bytes.size())};
    }
    if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())))
      return damaged_at(origin);
    return message;
  }

  Result<void> read_model() {
    WireReader reader(bytes_);
    std::string version;
    while (reader.next()) {
      const WireField& f = reader.field();
      if (f.is(1, Wire::varint)) model_.ir_version = static_cast<int64_t>(f.value);
      if (f.is(2, Wire::bytes)) model_.producer = f.payload;
      if (f.is(3, Wire::bytes)) version = f.payload;
      if (f.is(7, Wire::bytes)) {
        TFCC_TRY_VOID(read_graph(f.payload));
      }
      if (f.is(8, Wire::bytes)) {
        TFCC_TRY_VOID(read_opset(f.payload, model_.opsets));
      }
      if (f.is(25, Wire::bytes)) {
        TFCC_TRY_VOID(read_function(f.payload));
      }
    }
    if (reader.broken()) return damaged_at(bytes_.substr(reader.position()));
    if (!version.empty()) model_.producer += (model_.producer.empty() ? "" : " ") + version;
    return {};
  }

  Result<void> read_opset(std::string_view bytes, std::map<std::string, int64_t>& opsets) {
    TFCC_TRY(const auto proto, parse<onnx::OperatorSetIdProto>(bytes, bytes));
    if (opsets.size() >= kMaxDeclarations) return too_many("opsets", kMaxDeclarations);
    opsets[domain_of(proto.domain())] = proto.version();
    return {};
  }

  Result<void> read_function(std::string_view bytes) {
    if (model_.functions.size() >= kMaxDeclarations) return too_many("functions", kMaxDeclarations);
    Function function;
    WireReader reader(bytes);
    while (reader.next()) {
      const WireField& f = reader.field();
      if (f.is(1, Wire::bytes)) function.name = f.payload;
      if (f.is(4, Wire::bytes)) function.inputs.emplace_back(f.payload);
      if (f.is(5, Wire::bytes)) function.outputs.emplace_back(f.payload);
      if (f.is(7, Wire::bytes)) {
        TFCC_TRY_VOID(read_node(f.payload, function.nodes, 0));
      }
      if (f.is(9, Wire::bytes)) {
        TFCC_TRY_VOID(read_opset(f.payload, function.opsets));
      }
      if (f.is(10, Wire::bytes)) function.domain = domain_of(std::string(f.payload));
      if (f.is(11, Wire::bytes)) {
        TFCC_TRY_VOID(read_default(f.payload, function.defaults));
      }
    }
    if (reader.broken()) return damaged_at(bytes);
    if (function.inputs.size() + function.outputs.size() > kMaxDeclarations)
      return too_many("inputs or outputs of a function", kMaxDeclarations);
    put_in_order(function.nodes);
    model_.functions.push_back(std::move(function));
    return {};
  }

  // The default of a function's attribute.
  Result<void> read_default(std::string_view bytes, std::vector<Attribute>& defaults) {
    const std::optional<std::string> stripped = strip_attribute(bytes_, bytes);
    if (!stripped) return damaged_at(bytes);
    TFCC_TRY(const auto proto, parse<onnx::AttributeProto>(*stripped, bytes));
    TFCC_TRY(Attribute a, read_attribute(proto, 0));
    if (defaults.size() >= kMaxDeclarations)
      return too_many("defaults of a function", kMaxDeclarations);
    defaults.push_back(std::move(a));
    return {};
  }

  // The body of If, Loop or Scan.
  Result<Body> read_body(std::string_view bytes, int depth) {
    Body body;
    WireReader reader(bytes);
    while (reader.next()) {
      const WireField& f = reader.field();
      if (f.is(1, Wire::bytes)) {
        TFCC_TRY_VOID(read_node(f.payload, body.nodes, depth));
      }
      if (f.is(5, Wire::bytes)) {
        TFCC_TRY_VOID(read_initializer_of(f.payload, body));
      }
      if (f.is(12, Wire::bytes)) {
        std::vector<ValueInfo> outputs;
        TFCC_TRY_VOID(read_value(f.payload, outputs));
        if (body.outputs.size() >= kMaxDeclarations)
          return too_many("outputs of a body", kMaxDeclarations);
        body.outputs.push_back(outputs[0].name);
      }
    }
    if (reader.broken()) return damaged_at(bytes);
    put_in_order(body.nodes);
    return body;
  }

  Result<void> read_initializer_of(std::string_view bytes, Body& body) {
    const std::optional<std::string> stripped = strip_tensor(bytes_, bytes);
    if (!stripped) return damaged_at(bytes);
    TFCC_TRY(const auto proto, parse<onnx::TensorProto>(*stripped, bytes));
    if (++body_initializers_ > kMaxInitializers) return too_many("initializers", kMaxInitializers);
    Result<TensorValue> value = read_tensor(proto, file_, external_);
    if (!value) {
      return Error{value.error().code, fmt::format("initializer '{}': {}", escaped(proto.name()),
                                                   value.error().message)};
    }
    if (value->constant) body.initializers.emplace_back(proto.name(), *std::move(value->constant));
    else
      body.unsupported_initializers.emplace(
          proto.name(),
          value->packed ? "is packed, which is not supported in a body" : value->unsupported);
    return {};
  }

  Result<void> read_graph(std::string_view bytes) {
    has_graph_ = true;
    WireReader reader(bytes);
    while (reader.next()) {
      const WireField& f = reader.field();
      if (f.is(1, Wire::bytes)) {
        TFCC_TRY_VOID(read_node(f.payload, model_.nodes, 0));
      }
      if (f.is(2, Wire::bytes)) model_.graph_name = f.payload;
      if (f.is(5, Wire::bytes)) {
        TFCC_TRY_VOID(read_initializer(f.payload));
      }
      if (f.is(11, Wire::bytes)) {
        TFCC_TRY_VOID(read_value(f.payload, model_.inputs));
      }
      if (f.is(12, Wire::bytes)) {
        TFCC_TRY_VOID(read_value(f.payload, model_.outputs));
      }
      if (f.is(15, Wire::bytes)) {
        TFCC_TRY_VOID(read_sparse(f.payload));
      }
    }
    if (reader.broken()) return damaged_at(bytes.substr(reader.position()));
    return {};
  }

  Result<void> read_value(std::string_view bytes, std::vector<ValueInfo>& values) {
    TFCC_TRY(const auto proto, parse<onnx::ValueInfoProto>(bytes, bytes));
    if (values.size() >= kMaxDeclarations) return too_many("inputs or outputs", kMaxDeclarations);
    values.push_back(value_info_of(proto));
    return {};
  }

  Result<void> read_initializer(std::string_view bytes) {
    const std::optional<std::string> stripped = strip_tensor(bytes_, bytes);
    if (!stripped) return damaged_at(bytes);
    TFCC_TRY(const auto proto, parse<onnx::TensorProto>(*stripped, bytes));
    TFCC_TRY_VOID(add_initializer_name(proto.name()));
    Result<TensorValue> value = read_tensor(proto, file_, external_);
    if (!value) {
      return Error{value.error().code, fmt::format("initializer '{}': {}", escaped(proto.name()),
                                                   value.error().message)};
    }
    if (value->constant) {
      model_.initializers.emplace_back(proto.name(), *std::move(value->constant));
    } else if (value->packed) {
      model_.packed_initializers.emplace_back(proto.name(), *std::move(value->packed));
    } else {
      model_.unsupported_initializers.emplace(proto.name(), value->unsupported);
    }
    return {};
  }

  // The values of a sparse tensor carry its name.
  Result<void> read_sparse(std::string_view bytes) {
    WireReader reader(bytes);
    while (reader.next()) {
      if (!reader.field().is(1, Wire::bytes)) continue;
      const std::optional<std::string> stripped = strip_tensor(bytes_, reader.field().payload);
      if (!stripped) return damaged_at(bytes);
      TFCC_TRY(const auto values, parse<onnx::TensorProto>(*stripped, bytes));
      TFCC_TRY_VOID(add_initializer_name(values.name()));
      model_.unsupported_initializers.emplace(values.name(), "is sparse, which is not supported");
    }
    return reader.broken() ? Result<void>(damaged_at(bytes)) : Result<void>();
  }

  Result<void> add_initializer_name(const std::string& name) {
    if (names_.size() >= kMaxInitializers) return too_many("initializers", kMaxInitializers);
    if (names_.insert(name).second) return {};
    return Error{
        ErrorCode::bad_file,
        fmt::format("initializer '{}' occurs twice; export the model again", escaped(name))};
  }

  Result<void> read_node(std::string_view bytes, std::vector<Node>& nodes, int depth) {
    const std::optional<std::string> stripped = strip_node(bytes_, bytes);
    if (!stripped) return damaged_at(bytes);
    TFCC_TRY(const auto proto, parse<onnx::NodeProto>(*stripped, bytes));
    if (proto.op_type().empty())
      return damaged(fmt::format("has a node without operator ({})", node_count_));
    if (++node_count_ > kMaxNodes) return too_many("nodes", kMaxNodes);
    Node node{proto.name(),
              proto.op_type(),
              domain_of(proto.domain()),
              {proto.input().begin(), proto.input().end()},
              {proto.output().begin(), proto.output().end()},
              {}};
    for (const onnx::AttributeProto& a : proto.attribute()) {
      Result<Attribute> attribute = read_attribute(a, depth);
      if (!attribute) {
        return Error{
            attribute.error().code,
            fmt::format("node '{}' ({}): attribute '{}': {}", escaped(node.name),
                        escaped(node.op_type), escaped(a.name()), attribute.error().message)};
      }
      node.attributes.push_back(*std::move(attribute));
    }
    nodes.push_back(std::move(node));
    return {};
  }

  Result<Attribute> read_attribute(const onnx::AttributeProto& proto, int depth) {
    Attribute a;
    a.name = proto.name();
    a.kind = kind_of(proto);
    a.i = proto.i();
    a.f = proto.f();
    a.s = proto.s();
    a.ints.assign(proto.ints().begin(), proto.ints().end());
    a.floats.assign(proto.floats().begin(), proto.floats().end());
    a.strings.assign(proto.strings().begin(), proto.strings().end());
    a.reference = proto.ref_attr_name();
    if (a.kind == Attribute::Kind::graph && depth < kMaxDepth) {  // deeper ones are left out
      const Span span = decode_span(proto.g().doc_string());
      if (span.offset > bytes_.size() || span.size > bytes_.size() - span.offset)
        return damaged("has a body outside itself");
      TFCC_TRY(Body body, read_body(bytes_.substr(span.offset, span.size), depth + 1));
      a.graph = std::make_shared<const Body>(std::move(body));
    }
    if (a.kind != Attribute::Kind::tensor || !a.reference.empty()) return a;
    TFCC_TRY(TensorValue value, read_tensor(proto.t(), file_, external_));
    a.unsupported = std::move(value.unsupported);
    if (value.constant) a.tensor = std::make_shared<const ir::Constant>(*std::move(value.constant));
    if (value.packed) {
      a.unsupported = fmt::format("has type {}, which is not supported",
                                  onnx_type_name(value.packed->onnx_type));
      a.packed = std::make_shared<const PackedTensor>(*std::move(value.packed));
    }
    return a;
  }

  // Before IR version 4 every initializer was an input too; since then it is a default that a
  // caller may override, which we do not offer.
  void drop_initialized_inputs() {
    std::erase_if(model_.inputs, [&](const ValueInfo& v) { return names_.contains(v.name); });
  }

  void put_in_order(std::vector<Node>& nodes) { sorted_ |= order_nodes(nodes); }

  void warn() {
    if (sorted_) {
      model_.warnings.push_back(
          fmt::format("{}: nodes read values that later nodes make; sorted", escaped(model_.path)));
    }
    const auto newest = model_.opsets.find("");
    if (newest != model_.opsets.end() && newest->second > kNewestOpset) {
      model_.warnings.push_back(
          fmt::format("{}: opset {} is newer than {}, the newest known; reading it as that one",
                      escaped(model_.path), newest->second, kNewestOpset));
    }
    if (model_.ir_version > kNewestIrVersion) {
      model_.warnings.push_back(fmt::format(
          "{}: IR version {} is newer than {}, the newest known; unknown parts are ignored",
          escaped(model_.path), model_.ir_version, kNewestIrVersion));
    }
  }

  Model model_;
  FileRef file_;
  ExternalFiles external_;
  std::string_view bytes_;
  std::set<std::string, std::less<>> names_;  // of all initializers
  bool has_graph_ = false;
  bool sorted_ = false;
  size_t node_count_ = 0, body_initializers_ = 0;  // of all graphs together
};

template <class T>
ir::Constant constant_of_values(DType dtype, std::vector<int64_t> dims, const T* values,
                                size_t count) {
  const auto* first = reinterpret_cast<const std::byte*>(values);
  return ir::constant_from_bytes(dtype, std::move(dims), {first, first + count * sizeof(T)});
}

}  // namespace

const Attribute* Node::find(std::string_view attribute) const {
  const auto at = std::find_if(attributes.begin(), attributes.end(),
                               [&](const auto& a) { return a.name == attribute; });
  return at == attributes.end() ? nullptr : &*at;
}

Result<ir::Constant> constant_of(const Node& node) {
  using Kind = Attribute::Kind;
  const auto error = [&](ErrorCode code, std::string_view why) {
    return Error{code, fmt::format("node '{}' (Constant): {}", escaped(node.name), why)};
  };
  for (const Attribute& a : node.attributes) {
    if (a.name == "value" && a.kind == Kind::tensor) {
      if (a.tensor) return *a.tensor;
      return error(ErrorCode::unsupported, "its value " + a.unsupported);
    }
    if (a.name == "value_float" && a.kind == Kind::real)
      return constant_of_values(DType::f32, {}, &a.f, 1);
    if (a.name == "value_int" && a.kind == Kind::integer)
      return constant_of_values(DType::i64, {}, &a.i, 1);
    if (a.name == "value_floats" && (a.kind == Kind::reals || a.kind == Kind::other)) {
      return constant_of_values(DType::f32, {std::ssize(a.floats)}, a.floats.data(),
                                a.floats.size());
    }
    if (a.name == "value_ints" && (a.kind == Kind::integers || a.kind == Kind::other)) {
      return constant_of_values(DType::i64, {std::ssize(a.ints)}, a.ints.data(), a.ints.size());
    }
    if (a.name == "value_string" || a.name == "value_strings" || a.name == "sparse_value") {
      return error(ErrorCode::unsupported, fmt::format("{} is not supported", a.name));
    }
  }
  return error(ErrorCode::bad_file, "it has no value; export the model again");
}

namespace {

Result<Model> read_mapped(const std::string& name, Result<FileRef> file, ExternalFiles external) {
  const auto named = [&](ErrorCode code, std::string_view reason) {
    return Error{code, fmt::format("{}: {}", escaped(name), reason)};
  };
  try {
    if (!file) return named(file.error().code, file.error().message);
    if ((*file)->size == 0) return named(ErrorCode::bad_file, "is empty; export the model again");
    Result<Model> model = Reader(name, *std::move(file), std::move(external)).read();
    if (!model) return named(model.error().code, model.error().message);
    return model;
  } catch (const std::bad_alloc&) {
    return named(ErrorCode::memory,
                 "not enough memory to read it; free some or use a larger machine");
  } catch (const std::exception& e) {
    return named(ErrorCode::internal, e.what());
  }
}

}  // namespace

Result<Model> read_onnx(const std::string& path) {
  return read_mapped(path, map_file(path), ExternalFiles(path));
}

Result<Model> read_onnx(const std::string& name, std::span<const std::byte> bytes) {
  auto file = std::make_shared<ir::SourceFile>();
  file->name = name;
  file->data = bytes.data();
  file->size = bytes.size();
  return read_mapped(name, FileRef(std::move(file)), {});
}

}  // namespace tfcc::frontend
