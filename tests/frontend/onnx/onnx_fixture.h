// SPDX-License-Identifier: Apache-2.0
// Models built with the schema and a folder to write them to, for the tests of the ONNX reader.
#pragma once

#include <gtest/gtest.h>
#include <onnx/onnx.pb.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "frontend/onnx/onnx_reader.h"

namespace tfcc::frontend {

namespace fs = std::filesystem;

inline std::string bytes_of(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

inline onnx::TensorProto raw_tensor(const std::string& name, std::vector<int64_t> dims,
                                    const std::vector<float>& values) {
  onnx::TensorProto t;
  t.set_name(name);
  t.set_data_type(onnx::TensorProto::FLOAT);
  for (int64_t d : dims) t.add_dims(d);
  t.set_raw_data(bytes_of(values));
  return t;
}

inline onnx::AttributeProto* add_attribute(onnx::NodeProto& node, const char* name,
                                           onnx::AttributeProto::AttributeType type) {
  onnx::AttributeProto* a = node.add_attribute();
  a->set_name(name);
  a->set_type(type);
  return a;
}

inline void add_value(onnx::ValueInfoProto* value, const char* name) {
  value->set_name(name);
  auto* type = value->mutable_type()->mutable_tensor_type();
  type->set_elem_type(onnx::TensorProto::FLOAT);
  type->mutable_shape()->add_dim()->set_dim_param("B");
  type->mutable_shape()->add_dim()->set_dim_value(3);
  type->mutable_shape()->add_dim();
}

// x + w, with w in raw_data.
inline onnx::ModelProto small_model() {
  onnx::ModelProto m;
  m.set_ir_version(8);
  m.set_producer_name("maker");
  m.set_producer_version("1.2");
  m.add_opset_import()->set_version(17);
  onnx::GraphProto& g = *m.mutable_graph();
  g.set_name("small");
  add_value(g.add_input(), "x");
  add_value(g.add_output(), "y");
  *g.add_initializer() = raw_tensor("w", {3}, {1, 2, 3});
  onnx::NodeProto& n = *g.add_node();
  n.set_name("add");
  n.set_op_type("Add");
  n.add_input("x");
  n.add_input("w");
  n.add_output("y");
  return m;
}

class OnnxReader : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "tfcc_onnx_XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    fs::create_directory(folder_ / "m");
  }
  void TearDown() override { fs::remove_all(folder_); }

  // Files go to m/, so that something lies outside of the model's folder.
  std::string write(const std::string& name, std::string_view content) {
    const std::string path = (folder_ / "m" / name).string();
    std::ofstream(path, std::ios::binary)
        .write(content.data(), static_cast<std::streamsize>(content.size()));
    return path;
  }
  Result<Model> read(const onnx::ModelProto& m) {
    return read_onnx(write("model.onnx", m.SerializeAsString()));
  }
  Result<Model> read_bytes(std::string_view content) {
    return read_onnx(write("model.onnx", content));
  }

  // The message of the failure, without the folder.
  std::string error_of(const Result<Model>& r) {
    if (r) return "(no error)";
    const std::string prefix = (folder_ / "m").string() + "/";
    EXPECT_TRUE(r.error().message.starts_with(prefix)) << r.error().message;
    EXPECT_EQ(r.error().message.find('\n'), std::string::npos);
    return r.error().message.substr(std::min(prefix.size(), r.error().message.size()));
  }

  Result<Model> read_with_tensor(const onnx::TensorProto& t) {
    onnx::ModelProto m = small_model();
    *m.mutable_graph()->mutable_initializer(0) = t;
    return read(m);
  }

  // The model with w at `location`, without offset and length unless given.
  Result<Model> read_external(const std::string& location, const std::string& offset = "",
                              const std::string& length = "") {
    onnx::TensorProto t = raw_tensor("w", {3}, {});
    t.clear_raw_data();
    t.set_data_location(onnx::TensorProto::EXTERNAL);
    const auto add = [&](const char* key, const std::string& value) {
      auto* entry = t.add_external_data();
      entry->set_key(key);
      entry->set_value(value);
    };
    add("location", location);
    if (!offset.empty()) add("offset", offset);
    if (!length.empty()) add("length", length);
    add("checksum", "ignored");
    return read_with_tensor(t);
  }

  fs::path folder_;
};

inline std::vector<float> floats_of(const ir::Constant& c) {
  Result<std::vector<std::byte>> bytes = ir::materialize(c);
  EXPECT_TRUE(bytes);
  std::vector<float> out(bytes->size() / sizeof(float));
  std::memcpy(out.data(), bytes->data(), bytes->size());
  return out;
}

}  // namespace tfcc::frontend
