// SPDX-License-Identifier: Apache-2.0
// The ONNX reader on files that are as they should be, and on tensors whose dims, types and values
// disagree.
#include <functional>

#include "tests/frontend/onnx/onnx_fixture.h"

namespace tfcc::frontend {
namespace {

using Source = ir::Constant::Source;

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

// Protobuf allows a repeated field in several runs; the reference is then impossible and the values
// are copied.
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
  Result<Model> model =
      read_bytes(m.SerializeAsString() + "\x3a" + static_cast<char>(graph.size()) + graph);
  ASSERT_TRUE(model) << model.error().message;
  EXPECT_EQ(model->initializers[0].second.source, Source::bytes);
  EXPECT_EQ(floats_of(model->initializers[0].second), (std::vector<float>{7, 8}));
}

TEST_F(OnnxReader, reads_typed_integers) {
  const std::pair<int, DType> types[] = {{onnx::TensorProto::INT32, DType::i32},
                                         {onnx::TensorProto::INT16, DType::i16},
                                         {onnx::TensorProto::INT8, DType::i8},
                                         {onnx::TensorProto::UINT8, DType::u8},
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
    for (size_t i = 0; i < 3; ++i)
      EXPECT_EQ(ir::read_int(dtype, c.bytes->data(), i), t.int32_data(static_cast<int>(i)));
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
  t.set_data_type(14);
  EXPECT_EQ(read_with_tensor(t)->unsupported_initializers["w"],
            "has type COMPLEX64, which is not supported");
  t.set_data_type(99);
  EXPECT_EQ(read_with_tensor(t)->unsupported_initializers["w"],
            "has type number 99, which is not supported");
}

TEST_F(OnnxReader, refuses_dims_that_lie) {
  const auto message = [&](std::vector<int64_t> dims) {
    return error_of(read_with_tensor(raw_tensor("w", std::move(dims), {1, 2, 3})));
  };
  EXPECT_EQ(message({-3}), "model.onnx: initializer 'w': has a negative dim (-3)");
  EXPECT_EQ(message({INT64_MAX, 4}),
            "model.onnx: initializer 'w': has dims whose product overflows");
  EXPECT_EQ(message({INT64_MAX / 2}),
            "model.onnx: initializer 'w': has dims whose product overflows");
  EXPECT_EQ(message({INT64_MAX, 4, 0}),
            "model.onnx: initializer 'w': has dims whose product overflows");
  EXPECT_EQ(
      message({2, 2}),
      "model.onnx: initializer 'w': holds 12 bytes where f32[2,2] needs 16; the file is damaged, "
      "export the model again");
  EXPECT_EQ(message(std::vector<int64_t>(65, 1)),
            "model.onnx: initializer 'w': has 65 dims, more than 64");
  // A huge tensor without values must fail before anything is allocated.
  onnx::TensorProto t = raw_tensor("w", {int64_t{1} << 60}, {});
  t.clear_raw_data();
  t.set_data_type(onnx::TensorProto::BOOL);
  EXPECT_NE(error_of(read_with_tensor(t)).find("holds 0 values where bool[1152921504606846976]"),
            std::string::npos);
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
  c = value([](auto& n) {
    *add_attribute(n, "value", A::TENSOR)->mutable_t() = raw_tensor("", {2}, {1, 2});
  });
  ASSERT_TRUE(c);
  EXPECT_EQ(floats_of(*c), (std::vector<float>{1, 2}));
  c = value([](auto& n) { add_attribute(n, "value_string", A::STRING)->set_s("x"); });
  ASSERT_FALSE(c);
  EXPECT_EQ(c.error().message, "node 'add' (Constant): value_string is not supported");
  c = value([](auto& n) { add_attribute(n, "value", A::TENSOR)->mutable_t()->set_data_type(8); });
  ASSERT_FALSE(c);
  EXPECT_EQ(c.error().message,
            "node 'add' (Constant): its value has type STRING, which is not supported");
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

TEST_F(OnnxReader, sorts_nodes_with_a_warning) {
  onnx::ModelProto m = small_model();
  ASSERT_TRUE(read(m)->warnings.empty());
  auto& nodes = *m.mutable_graph()->mutable_node();
  onnx::NodeProto& later = *nodes.Add();
  later.set_op_type("Neg");
  later.add_input("x");
  later.add_output("made_later");
  nodes.Mutable(0)->set_input(0, "made_later");
  Result<Model> model = read(m);
  ASSERT_TRUE(model);
  EXPECT_EQ(model->nodes[0].op_type, "Neg");
  ASSERT_EQ(model->warnings.size(), 1u);
  EXPECT_NE(model->warnings[0].find("sorted"), std::string::npos);
}

TEST_F(OnnxReader, escapes_lines_and_leaves_their_middle_out) {
  EXPECT_EQ(escaped_lines("a \x1b[31m\nb"), "a \\x1b[31m\nb");
  const std::string cut = escaped_lines("start" + std::string(100000, 'z') + "end");
  EXPECT_LT(cut.size(), 2100u);
  EXPECT_TRUE(cut.starts_with("start") && cut.ends_with("end"));
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
  EXPECT_EQ(model->functions[0].domain, "pkg");
  EXPECT_EQ(model->functions[0].name, "Gelu");
  EXPECT_EQ(model->unsupported_initializers.at("sp"), "is sparse, which is not supported");
}

TEST_F(OnnxReader, refuses_two_initializers_of_one_name) {
  onnx::ModelProto m = small_model();
  *m.mutable_graph()->add_initializer() = raw_tensor("w", {1}, {1});
  EXPECT_EQ(error_of(read(m)), "model.onnx: initializer 'w' occurs twice; export the model again");
}

TEST(Escaped, shows_names_on_one_line) {
  EXPECT_EQ(escaped("/encoder/layer.0/MatMul"), "/encoder/layer.0/MatMul");
  EXPECT_EQ(escaped("a\nb\x1b[31m"), "a\\x0ab\\x1b[31m");
  EXPECT_EQ(escaped("gr\xc3\xb6\xc3\x9f"
                    "e \xe2\x82\xac"),
            "gr\xc3\xb6\xc3\x9f"
            "e \xe2\x82\xac");
  EXPECT_EQ(escaped("\xff\xc3"), "\\xff\\xc3");
  EXPECT_EQ(escaped("\xe2\x80\xae"), "\\xe2\\x80\\xae");  // right-to-left override
  EXPECT_EQ(escaped("\xc0\x80"), "\\xc0\\x80");           // overlong
  EXPECT_EQ(escaped(std::string(500, 'x')), std::string(120, 'x') + "...");
}

}  // namespace
}  // namespace tfcc::frontend
