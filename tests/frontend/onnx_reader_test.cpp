// SPDX-License-Identifier: Apache-2.0
// The ONNX reader: models built with the schema, written to a folder of their own, read back; and files that are
// damaged, lie about their sizes or point where they should not.
#include "frontend/onnx_reader.h"

#include <gtest/gtest.h>
#include <onnx/onnx.pb.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

namespace tfcc::frontend {
namespace {

namespace fs = std::filesystem;
using Source = ir::Constant::Source;

std::string bytes_of(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

onnx::TensorProto raw_tensor(const std::string& name, std::vector<int64_t> dims, const std::vector<float>& values) {
  onnx::TensorProto t;
  t.set_name(name);
  t.set_data_type(onnx::TensorProto::FLOAT);
  for (int64_t d : dims) t.add_dims(d);
  t.set_raw_data(bytes_of(values));
  return t;
}

onnx::AttributeProto* add_attribute(onnx::NodeProto& node, const char* name, onnx::AttributeProto::AttributeType type) {
  onnx::AttributeProto* a = node.add_attribute();
  a->set_name(name);
  a->set_type(type);
  return a;
}

void add_value(onnx::ValueInfoProto* value, const char* name) {
  value->set_name(name);
  auto* type = value->mutable_type()->mutable_tensor_type();
  type->set_elem_type(onnx::TensorProto::FLOAT);
  type->mutable_shape()->add_dim()->set_dim_param("B");
  type->mutable_shape()->add_dim()->set_dim_value(3);
  type->mutable_shape()->add_dim();
}

// x + w, with w in raw_data.
onnx::ModelProto small_model() {
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
    std::ofstream(path, std::ios::binary).write(content.data(), static_cast<std::streamsize>(content.size()));
    return path;
  }
  Result<Model> read(const onnx::ModelProto& m) { return read_onnx(write("model.onnx", m.SerializeAsString())); }
  Result<Model> read_bytes(std::string_view content) { return read_onnx(write("model.onnx", content)); }

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

std::vector<float> floats_of(const ir::Constant& c) {
  Result<std::vector<std::byte>> bytes = ir::materialize(c);
  EXPECT_TRUE(bytes);
  std::vector<float> out(bytes->size() / sizeof(float));
  std::memcpy(out.data(), bytes->data(), bytes->size());
  return out;
}

TEST_F(OnnxReader, reads_a_model) {
  Result<Model> m = read(small_model());
  ASSERT_TRUE(m) << m.error().message;
  EXPECT_EQ(m->ir_version, 8);
  EXPECT_EQ(m->producer, "maker 1.2");
  EXPECT_EQ(m->opsets, (std::map<std::string, int64_t>{{"", 17}}));
  EXPECT_EQ(m->graph_name, "small");
  EXPECT_TRUE(m->warnings.empty());
  ASSERT_EQ(m->nodes.size(), 1u);
  EXPECT_EQ(m->nodes[0].op_type, "Add");
  EXPECT_EQ(m->nodes[0].inputs, (std::vector<std::string>{"x", "w"}));
  EXPECT_EQ(m->nodes[0].outputs, std::vector<std::string>{"y"});
  ASSERT_EQ(m->inputs.size(), 1u);
  ASSERT_EQ(m->outputs.size(), 1u);
  const ValueInfo& x = m->inputs[0];
  EXPECT_TRUE(x.is_tensor);
  EXPECT_EQ(x.dtype, DType::f32);
  ASSERT_EQ(x.dims.size(), 3u);
  EXPECT_EQ(x.dims[0].symbol, "B");
  EXPECT_EQ(x.dims[1].value, 3);
  EXPECT_FALSE(x.dims[2].value || !x.dims[2].symbol.empty());
}

TEST_F(OnnxReader, refers_to_raw_data_in_the_file) {
  const onnx::ModelProto proto = small_model();
  const std::string bytes = proto.SerializeAsString();
  Result<Model> m = read(proto);
  ASSERT_TRUE(m);
  ASSERT_EQ(m->initializers.size(), 1u);
  const auto& [name, c] = m->initializers[0];
  EXPECT_EQ(name, "w");
  EXPECT_EQ(c.source, Source::file);
  EXPECT_EQ(c.file->name, "model.onnx");
  EXPECT_EQ(c.file->size, bytes.size());
  EXPECT_EQ(c.offset, bytes.find(bytes_of({1, 2, 3})));
  EXPECT_EQ(floats_of(c), (std::vector<float>{1, 2, 3}));
}

TEST_F(OnnxReader, refers_to_packed_floats_in_the_file) {
  onnx::TensorProto t = raw_tensor("w", {3}, {});
  t.clear_raw_data();
  for (float v : {4.f, 5.f, 6.f}) t.add_float_data(v);
  Result<Model> m = read_with_tensor(t);
  ASSERT_TRUE(m) << m.error().message;
  EXPECT_EQ(m->initializers[0].second.source, Source::file);
  EXPECT_EQ(floats_of(m->initializers[0].second), (std::vector<float>{4, 5, 6}));
}

// Protobuf allows a repeated field in several runs; the reference is then impossible and the values are copied.
TEST_F(OnnxReader, reads_floats_in_two_runs) {
  std::string tensor;
  for (float v : {7.f, 8.f}) {
    onnx::TensorProto part;
    part.add_float_data(v);
    tensor += part.SerializeAsString();
  }
  onnx::TensorProto head = raw_tensor("w", {2}, {});
  head.clear_raw_data();
  tensor += head.SerializeAsString();
  // ModelProto.graph (7) > GraphProto.initializer (5); both lengths fit one byte.
  const std::string graph = std::string("\x2a") + static_cast<char>(tensor.size()) + tensor;
  onnx::ModelProto m = small_model();
  m.clear_graph();
  Result<Model> model = read_bytes(m.SerializeAsString() + "\x3a" + static_cast<char>(graph.size()) + graph);
  ASSERT_TRUE(model) << model.error().message;
  EXPECT_EQ(model->initializers[0].second.source, Source::bytes);
  EXPECT_EQ(floats_of(model->initializers[0].second), (std::vector<float>{7, 8}));
}

TEST_F(OnnxReader, reads_typed_integers) {
  const std::pair<int, DType> types[] = {
      {onnx::TensorProto::INT32, DType::i32},   {onnx::TensorProto::INT16, DType::i16},
      {onnx::TensorProto::INT8, DType::i8},     {onnx::TensorProto::UINT8, DType::u8},
      {onnx::TensorProto::BOOL, DType::boolean}};
  for (const auto& [onnx_type, dtype] : types) {
    onnx::TensorProto t;
    t.set_name("w");
    t.set_data_type(onnx_type);
    t.add_dims(3);
    for (int v : {0, 1, onnx_type == onnx::TensorProto::BOOL ? 1 : 100}) t.add_int32_data(v);
    Result<Model> m = read_with_tensor(t);
    ASSERT_TRUE(m) << m.error().message;
    const ir::Constant& c = m->initializers[0].second;
    EXPECT_EQ(c.dtype, dtype);
    ASSERT_EQ(c.bytes->size(), 3 * size_of(dtype));
    for (size_t i = 0; i < 3; ++i) EXPECT_EQ(ir::read_int(dtype, c.bytes->data(), i), t.int32_data(static_cast<int>(i)));
  }
}

TEST_F(OnnxReader, reads_typed_wide_and_half_values) {
  onnx::TensorProto t;
  t.set_name("w");
  t.set_data_type(onnx::TensorProto::INT64);
  t.add_dims(2);
  t.add_int64_data(-1);
  t.add_int64_data(INT64_MIN);
  Result<Model> m = read_with_tensor(t);
  ASSERT_TRUE(m) << m.error().message;
  EXPECT_EQ(ir::read_int(DType::i64, m->initializers[0].second.bytes->data(), 1), INT64_MIN);

  t.clear_int64_data();
  t.set_data_type(onnx::TensorProto::FLOAT16);
  t.add_int32_data(0x3c00);  // 1
  t.add_int32_data(0xc000);  // -2
  m = read_with_tensor(t);
  ASSERT_TRUE(m) << m.error().message;
  EXPECT_EQ(m->initializers[0].second.dtype, DType::f16);
  EXPECT_EQ(ir::read_real(DType::f16, m->initializers[0].second.bytes->data(), 1), -2.0);

  t.clear_int32_data();
  t.set_data_type(onnx::TensorProto::DOUBLE);
  t.add_double_data(0.5);
  t.add_double_data(0.25);
  m = read_with_tensor(t);
  ASSERT_TRUE(m) << m.error().message;
  const ir::Constant& c = m->initializers[0].second;
  ASSERT_EQ(c.source, Source::file);
  EXPECT_EQ(ir::read_real(DType::f64, c.file->data + c.offset, 1), 0.25);
}

TEST_F(OnnxReader, reads_empty_and_scalar_tensors) {
  Result<Model> m = read_with_tensor(raw_tensor("w", {0, 4}, {}));
  ASSERT_TRUE(m) << m.error().message;
  EXPECT_EQ(m->initializers[0].second.dims, (std::vector<int64_t>{0, 4}));
  m = read_with_tensor(raw_tensor("w", {}, {9}));
  ASSERT_TRUE(m) << m.error().message;
  EXPECT_EQ(floats_of(m->initializers[0].second), std::vector<float>{9});
}

TEST_F(OnnxReader, marks_types_that_are_not_supported) {
  onnx::TensorProto t;
  t.set_name("w");
  t.set_data_type(onnx::TensorProto::STRING);
  t.add_dims(1);
  t.add_string_data("text");
  Result<Model> m = read_with_tensor(t);
  ASSERT_TRUE(m) << m.error().message;
  EXPECT_TRUE(m->initializers.empty());
  EXPECT_EQ(m->unsupported_initializers["w"], "has type STRING, which is not supported");
  t.set_data_type(17);
  EXPECT_EQ(read_with_tensor(t)->unsupported_initializers["w"], "has type FLOAT8E4M3FN, which is not supported");
  t.set_data_type(99);
  EXPECT_EQ(read_with_tensor(t)->unsupported_initializers["w"], "has type number 99, which is not supported");
}

TEST_F(OnnxReader, refuses_dims_that_lie) {
  const auto message = [&](std::vector<int64_t> dims) {
    return error_of(read_with_tensor(raw_tensor("w", std::move(dims), {1, 2, 3})));
  };
  EXPECT_EQ(message({-3}), "model.onnx: initializer 'w': has a negative dim (-3)");
  EXPECT_EQ(message({INT64_MAX, 4}), "model.onnx: initializer 'w': has dims whose product overflows");
  EXPECT_EQ(message({INT64_MAX / 2}), "model.onnx: initializer 'w': has dims whose product overflows");
  EXPECT_EQ(message({INT64_MAX, 4, 0}), "model.onnx: initializer 'w': has dims whose product overflows");
  EXPECT_EQ(message({2, 2}),
            "model.onnx: initializer 'w': holds 12 bytes where f32[2,2] needs 16; the file is damaged, "
            "export the model again");
  EXPECT_EQ(message(std::vector<int64_t>(65, 1)), "model.onnx: initializer 'w': has 65 dims, more than 64");
  // A huge tensor without values must fail before anything is allocated.
  onnx::TensorProto t = raw_tensor("w", {int64_t{1} << 60}, {});
  t.clear_raw_data();
  t.set_data_type(onnx::TensorProto::BOOL);
  EXPECT_NE(error_of(read_with_tensor(t)).find("holds 0 values where bool[1152921504606846976]"), std::string::npos);
}

TEST_F(OnnxReader, decodes_attributes) {
  onnx::ModelProto proto = small_model();
  onnx::NodeProto& n = *proto.mutable_graph()->mutable_node(0);
  using A = onnx::AttributeProto;
  add_attribute(n, "i", A::INT)->set_i(-7);
  add_attribute(n, "f", A::FLOAT)->set_f(1.5f);
  add_attribute(n, "s", A::STRING)->set_s("tanh");
  add_attribute(n, "is", A::INTS)->add_ints(4);
  add_attribute(n, "fs", A::FLOATS)->add_floats(2.f);
  add_attribute(n, "ss", A::STRINGS)->add_strings("a");
  add_attribute(n, "empty", A::INTS);
  *add_attribute(n, "t", A::TENSOR)->mutable_t() = raw_tensor("", {1}, {5});
  add_attribute(n, "g", A::GRAPH)->mutable_g()->set_name("body");
  n.add_attribute()->set_name("old");
  n.mutable_attribute(9)->set_i(3);  // without a type, as before IR version 2
  n.set_domain("ai.onnx");
  Result<Model> m = read(proto);
  ASSERT_TRUE(m) << m.error().message;
  const Node& node = m->nodes[0];
  using Kind = Attribute::Kind;
  EXPECT_EQ(node.domain, "");
  EXPECT_EQ(node.find("i")->i, -7);
  EXPECT_EQ(node.find("f")->f, 1.5f);
  EXPECT_EQ(node.find("s")->s, "tanh");
  EXPECT_EQ(node.find("is")->ints, std::vector<int64_t>{4});
  EXPECT_EQ(node.find("fs")->floats, std::vector<float>{2});
  EXPECT_EQ(node.find("ss")->strings, std::vector<std::string>{"a"});
  EXPECT_EQ(node.find("empty")->kind, Kind::integers);
  EXPECT_EQ(node.find("t")->tensor->source, Source::file);
  EXPECT_EQ(floats_of(*node.find("t")->tensor), std::vector<float>{5});
  EXPECT_EQ(node.find("g")->kind, Kind::graph);
  EXPECT_EQ(node.find("old")->kind, Kind::integer);
  EXPECT_EQ(node.find("none"), nullptr);
}

TEST_F(OnnxReader, gives_the_value_of_constant_nodes) {
  using A = onnx::AttributeProto;
  const auto value = [&](const std::function<void(onnx::NodeProto&)>& fill) {
    onnx::ModelProto proto = small_model();
    onnx::NodeProto& n = *proto.mutable_graph()->mutable_node(0);
    n.set_op_type("Constant");
    n.clear_input();
    fill(n);
    Result<Model> m = read(proto);
    EXPECT_TRUE(m);
    return constant_of(m->nodes[0]);
  };
  auto c = value([](auto& n) { add_attribute(n, "value_int", A::INT)->set_i(6); });
  ASSERT_TRUE(c);
  EXPECT_TRUE(c->dtype == DType::i64 && c->dims.empty());
  EXPECT_EQ(ir::read_int(DType::i64, c->bytes->data(), 0), 6);
  c = value([](auto& n) { add_attribute(n, "value_floats", A::FLOATS)->add_floats(2); });
  ASSERT_TRUE(c);
  EXPECT_EQ(c->dims, std::vector<int64_t>{1});
  EXPECT_EQ(floats_of(*c), std::vector<float>{2});
  c = value([](auto& n) { add_attribute(n, "value_ints", A::INTS); });
  ASSERT_TRUE(c);
  EXPECT_EQ(c->dims, std::vector<int64_t>{0});
  c = value([](auto& n) { *add_attribute(n, "value", A::TENSOR)->mutable_t() = raw_tensor("", {2}, {1, 2}); });
  ASSERT_TRUE(c);
  EXPECT_EQ(floats_of(*c), (std::vector<float>{1, 2}));
  c = value([](auto& n) { add_attribute(n, "value_string", A::STRING)->set_s("x"); });
  ASSERT_FALSE(c);
  EXPECT_EQ(c.error().message, "node 'add' (Constant): value_string is not supported");
  c = value([](auto& n) { add_attribute(n, "value", A::TENSOR)->mutable_t()->set_data_type(8); });
  ASSERT_FALSE(c);
  EXPECT_EQ(c.error().message, "node 'add' (Constant): its value has type STRING, which is not supported");
  c = value([](auto&) {});
  ASSERT_FALSE(c);
  EXPECT_EQ(c.error().code, ErrorCode::bad_file);
}

TEST_F(OnnxReader, leaves_initializers_out_of_the_inputs) {
  onnx::ModelProto m = small_model();
  add_value(m.mutable_graph()->add_input(), "w");
  Result<Model> model = read(m);
  ASSERT_TRUE(model);
  ASSERT_EQ(model->inputs.size(), 1u);
  EXPECT_EQ(model->inputs[0].name, "x");
}

TEST_F(OnnxReader, warns_about_versions_of_the_future) {
  onnx::ModelProto m = small_model();
  m.set_ir_version(99);
  m.mutable_opset_import(0)->set_version(90);
  m.mutable_opset_import(0)->set_domain("ai.onnx");
  Result<Model> model = read(m);
  ASSERT_TRUE(model);
  EXPECT_EQ(model->opsets.at(""), 90);
  ASSERT_EQ(model->warnings.size(), 2u);
  EXPECT_NE(model->warnings[0].find("opset 90"), std::string::npos);
  EXPECT_NE(model->warnings[1].find("IR version 99"), std::string::npos);
}

TEST_F(OnnxReader, names_functions_and_sparse_initializers) {
  onnx::ModelProto m = small_model();
  onnx::FunctionProto& f = *m.add_functions();
  f.set_name("Gelu");
  f.set_domain("pkg");
  *m.mutable_graph()->add_sparse_initializer()->mutable_values() = raw_tensor("sp", {1}, {1});
  Result<Model> model = read(m);
  ASSERT_TRUE(model);
  ASSERT_EQ(model->functions.size(), 1u);
  EXPECT_EQ(model->functions[0], (std::pair<std::string, std::string>("pkg", "Gelu")));
  EXPECT_EQ(model->unsupported_initializers.at("sp"), "is sparse, which is not supported");
}

TEST_F(OnnxReader, refuses_two_initializers_of_one_name) {
  onnx::ModelProto m = small_model();
  *m.mutable_graph()->add_initializer() = raw_tensor("w", {1}, {1});
  EXPECT_EQ(error_of(read(m)), "model.onnx: initializer 'w' occurs twice; export the model again");
}

TEST_F(OnnxReader, reads_external_data) {
  write("w.bin", "1234" + bytes_of({1, 2, 3}) + "rest");
  for (const char* location : {"w.bin", "./w.bin"}) {
    Result<Model> m = read_external(location, "4", "12");
    ASSERT_TRUE(m) << m.error().message;
    const ir::Constant& c = m->initializers[0].second;
    EXPECT_EQ(c.file->name, "w.bin");
    EXPECT_EQ(c.offset, 4u);
    EXPECT_EQ(floats_of(c), (std::vector<float>{1, 2, 3}));
  }
  fs::create_directory(folder_ / "m/sub");
  write("sub/w.bin", bytes_of({4, 5, 6}));
  Result<Model> m = read_external("sub/w.bin");
  ASSERT_TRUE(m) << m.error().message;
  EXPECT_EQ(floats_of(m->initializers[0].second), (std::vector<float>{4, 5, 6}));
}

TEST_F(OnnxReader, maps_an_external_file_once) {
  write("w.bin", bytes_of({1, 2, 3}));
  onnx::ModelProto m = small_model();
  onnx::TensorProto t = raw_tensor("a", {1}, {});
  t.clear_raw_data();
  t.set_data_location(onnx::TensorProto::EXTERNAL);
  t.add_external_data()->set_key("location");
  t.mutable_external_data(0)->set_value("w.bin");
  *m.mutable_graph()->add_initializer() = t;
  t.set_name("b");
  t.mutable_external_data(0)->set_value(".//w.bin");
  *m.mutable_graph()->add_initializer() = t;
  Result<Model> model = read(m);
  ASSERT_TRUE(model) << model.error().message;
  EXPECT_EQ(model->initializers[1].second.file, model->initializers[2].second.file);
}

TEST_F(OnnxReader, refuses_locations_outside_of_the_folder) {
  std::ofstream(folder_ / "secret.bin") << "0123456789abcdef";
  write("w.bin", bytes_of({1, 2, 3}));
  fs::create_directory(folder_ / "m/sub");
  fs::create_symlink(folder_ / "secret.bin", folder_ / "m/link.bin");
  fs::create_symlink("w.bin", folder_ / "m/inner.bin");
  fs::create_symlink(folder_, folder_ / "m/up");
  ASSERT_EQ(mkfifo((folder_ / "m/pipe").c_str(), 0600), 0);
  const auto check = [&](const std::string& location, const std::string& reason) {
    const Result<Model> m = read_external(location);
    EXPECT_EQ(error_of(m), "model.onnx: initializer 'w': external data '" + escaped(location) + "' " + reason);
  };
  const std::string outside = "contains '..'; only files in the model's folder are read";
  const std::string link = "is a symbolic link; put the file itself into the model's folder";
  check("../secret.bin", outside);
  check("..", outside);
  check("sub/../../secret.bin", outside);
  check((folder_ / "secret.bin").string(), "is an absolute path; only files in the model's folder are read");
  check("link.bin", link);
  check("inner.bin", link);
  check("up/secret.bin", link);
  check("sub", "is a directory; give the file");
  check(".", "names a directory; export the model again");
  check("", "has no location; export the model again");
  check(std::string("w.bin\0x", 7), "has a NUL in its location");
  check("pipe", "is not a regular file; copy it to one");
  check("missing.bin", "cannot be opened (No such file or directory)");
  check("w.bin/x", "cannot be opened (Not a directory)");
}

TEST_F(OnnxReader, refuses_external_ranges_that_lie) {
  write("w.bin", bytes_of({1, 2, 3}));
  const auto message = [&](const char* offset, const char* length) {
    return error_of(read_external("w.bin", offset, length));
  };
  const std::string start = "model.onnx: initializer 'w': ";
  EXPECT_EQ(message("1", ""), start + "external data 'w.bin' has 12 bytes, too few for 12 at offset 1; "
                                      "copy the file again");
  EXPECT_EQ(message("-1", ""), start + "has the offset '-1', which is not a number from 0 to 2^63-1");
  EXPECT_EQ(message("9223372036854775807", "").find(start + "external data"), 0u);
  EXPECT_EQ(message("99999999999999999999", "").find(start + "has the offset"), 0u);
  EXPECT_EQ(message("0x0", "").find(start + "has the offset"), 0u);
  EXPECT_EQ(message("0", "-12").find(start + "has the length"), 0u);
  EXPECT_EQ(message("0", "8").find(start + "holds 8 bytes where f32[3] needs 12"), 0u);
  EXPECT_EQ(message("0", "9223372036854775807").find(start + "holds"), 0u);
}

TEST_F(OnnxReader, tells_what_a_file_is_that_is_no_model) {
  EXPECT_EQ(error_of(read_bytes("")), "model.onnx: is empty; export the model again");
  EXPECT_EQ(error_of(read_bytes("PK\x03\x04 and so on")),
            "model.onnx: is a zip archive, not an ONNX model; unpack it or export to ONNX");
  EXPECT_EQ(error_of(read_bytes("version https://git-lfs.github.com/spec/v1\noid sha256:00\n")),
            "model.onnx: is a Git LFS pointer; fetch the model with 'git lfs pull'");
  EXPECT_EQ(error_of(read_bytes("{\"model\": 1}\n")),
            "model.onnx: is text, not an ONNX model; export to binary ONNX");
  EXPECT_NE(error_of(read_bytes(std::string(100, '\0'))).find("it is not an ONNX model or is damaged"),
            std::string::npos);
  Result<Model> m = read_onnx((folder_ / "m/none.onnx").string());
  EXPECT_EQ(error_of(m), "none.onnx: cannot be opened (No such file or directory)");
  EXPECT_EQ(m.error().code, ErrorCode::io);
  m = read_onnx((folder_ / "m").string() + "/.");
  EXPECT_EQ(error_of(m), ".: is a directory; give the file");
  onnx::ModelProto without = small_model();
  without.clear_graph();
  EXPECT_NE(error_of(read(without)).find("has no graph"), std::string::npos);
  without = small_model();
  without.clear_opset_import();
  EXPECT_NE(error_of(read(without)).find("names no opset"), std::string::npos);
}

// A model of every construct that the reader looks into.
onnx::ModelProto rich_model() {
  onnx::ModelProto m = small_model();
  onnx::GraphProto& g = *m.mutable_graph();
  onnx::TensorProto typed = raw_tensor("typed", {2}, {});
  typed.clear_raw_data();
  typed.add_float_data(1);
  typed.add_float_data(2);
  *g.add_initializer() = typed;
  typed.set_name("ints");
  typed.clear_float_data();
  typed.set_data_type(onnx::TensorProto::INT64);
  typed.add_int64_data(300);
  typed.add_int64_data(-1);
  *g.add_initializer() = typed;
  onnx::NodeProto& n = *g.mutable_node(0);
  add_attribute(n, "axes", onnx::AttributeProto::INTS)->add_ints(1);
  *add_attribute(n, "value", onnx::AttributeProto::TENSOR)->mutable_t() = raw_tensor("v", {1}, {1});
  *add_attribute(n, "body", onnx::AttributeProto::GRAPH)->mutable_g()->add_node() = n;
  m.add_functions()->set_name("f");
  return m;
}

TEST_F(OnnxReader, survives_truncation_at_every_byte) {
  const std::string bytes = rich_model().SerializeAsString();
  ASSERT_TRUE(read_bytes(bytes));
  size_t errors = 0;
  for (size_t size = 0; size < bytes.size(); ++size) {
    const Result<Model> m = read_bytes(bytes.substr(0, size));
    if (!m) ++errors;
    if (!m) error_of(m);
  }
  // Only a cut between the fields after the graph leaves a model.
  EXPECT_GE(errors + 4, bytes.size());
}

TEST_F(OnnxReader, survives_changed_bytes) {
  const std::string bytes = rich_model().SerializeAsString();
  std::mt19937 random(7);
  for (int round = 0; round < 4000; ++round) {
    std::string changed = bytes;
    for (int i = 0; i <= round % 3; ++i) changed[random() % changed.size()] = static_cast<char>(random());
    const Result<Model> m = read_bytes(changed);
    if (!m) {
      error_of(m);
      continue;
    }
    for (const auto& [name, c] : m->initializers) {
      if (c.source == Source::file) {
        EXPECT_LE(c.offset + c.element_count() * size_of(c.dtype), c.file->size);
      }
    }
  }
}

// Graphs in graphs, deeper than any stack: they are skipped by their length.
TEST_F(OnnxReader, survives_deep_nesting) {
  std::string message = "\x0a\x01x";
  const auto put = [](uint32_t number, const std::string& payload) {
    std::string out(1, static_cast<char>(number << 3 | 2));
    size_t size = payload.size();
    for (; size >= 0x80; size >>= 7) out.push_back(static_cast<char>(size | 0x80));
    return out + static_cast<char>(size) + payload;
  };
  for (int depth = 0; depth < 3000; ++depth) message = put(1, put(4, "If") + put(5, put(1, "then") + put(6, message)));
  onnx::ModelProto m = small_model();
  m.clear_graph();
  Result<Model> model = read_bytes(m.SerializeAsString() + put(7, message));
  ASSERT_TRUE(model) << model.error().message;
  EXPECT_EQ(model->nodes[0].find("then")->kind, Attribute::Kind::graph);

  std::string type = put(1, "");
  for (int depth = 0; depth < 3000; ++depth) type = put(4, put(1, type));  // sequence of sequence of ...
  EXPECT_NE(error_of(read_bytes(m.SerializeAsString() + put(7, put(11, put(2, type))))).find("cannot be read"),
            std::string::npos);
}

// Two bytes of file for a hundred of memory, a million times.
TEST_F(OnnxReader, bounds_the_number_of_attributes) {
  std::string attributes;
  for (int i = 0; i < 1000000; ++i) attributes += std::string("\x2a\0", 2);
  onnx::ModelProto m = small_model();
  m.mutable_graph()->mutable_node(0)->mutable_unknown_fields()->append(attributes);
  EXPECT_NE(error_of(read(m)).find("cannot be read"), std::string::npos);
}

TEST(Escaped, shows_names_on_one_line) {
  EXPECT_EQ(escaped("/encoder/layer.0/MatMul"), "/encoder/layer.0/MatMul");
  EXPECT_EQ(escaped("a\nb\x1b[31m"), "a\\x0ab\\x1b[31m");
  EXPECT_EQ(escaped("gr\xc3\xb6\xc3\x9f""e \xe2\x82\xac"), "gr\xc3\xb6\xc3\x9f""e \xe2\x82\xac");
  EXPECT_EQ(escaped("\xff\xc3"), "\\xff\\xc3");
  EXPECT_EQ(escaped("\xe2\x80\xae"), "\\xe2\\x80\\xae");  // right-to-left override
  EXPECT_EQ(escaped("\xc0\x80"), "\\xc0\\x80");           // overlong
  EXPECT_EQ(escaped(std::string(500, 'x')), std::string(120, 'x') + "...");
}

}  // namespace
}  // namespace tfcc::frontend
