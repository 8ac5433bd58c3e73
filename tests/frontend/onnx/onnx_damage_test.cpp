// SPDX-License-Identifier: Apache-2.0
// Files that are no model, cut, changed, built to exhaust the reader, or very large.
#include <cstdint>
#include <random>

#include "tests/frontend/onnx/onnx_fixture.h"

namespace tfcc::frontend {
namespace {

TEST_F(OnnxReader, tells_what_a_file_is_that_is_no_model) {
  EXPECT_EQ(error_of(read_bytes("")), "model.onnx: is empty; export the model again");
  EXPECT_EQ(error_of(read_bytes("PK\x03\x04 and so on")),
            "model.onnx: is a zip archive, not an ONNX model; unpack it or export to ONNX");
  EXPECT_EQ(
      error_of(read_bytes("GGUF\x03 and so on")),
      "model.onnx: is a GGUF file, which holds weights and no graph; export the model to ONNX");
  EXPECT_EQ(
      error_of(read_bytes("TFCC\x01 and so on")),
      "model.onnx: is a .tfcc file, which is compiled already; give the ONNX model, or run this one with `tfcc run`");
  EXPECT_EQ(error_of(read_bytes("version https://git-lfs.github.com/spec/v1\noid sha256:00\n")),
            "model.onnx: is a Git LFS pointer; fetch the model with 'git lfs pull'");
  EXPECT_EQ(error_of(read_bytes("{\"model\": 1}\n")),
            "model.onnx: is text, not an ONNX model; export to binary ONNX");
  EXPECT_NE(
      error_of(read_bytes(std::string(100, '\0'))).find("damaged, cut short or no ONNX model"),
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
  const onnx::NodeProto inner = n;
  *add_attribute(n, "body", onnx::AttributeProto::GRAPH)->mutable_g()->add_node() = inner;
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
    for (int i = 0; i <= round % 3; ++i)
      changed[random() % changed.size()] = static_cast<char>(random());
    const Result<Model> m = read_bytes(changed);
    if (!m) {
      error_of(m);
      continue;
    }
    for (const auto& [name, c] : m->initializers) {
      if (c.source == ir::Constant::Source::file) {
        EXPECT_LE(c.offset + c.element_count() * size_of(c.dtype), c.file->size);
      }
    }
  }
}

// The tag and length of a field of bytes, and the field.
std::string put_head(uint32_t number, uint64_t size) {
  std::string out(1, static_cast<char>(number << 3 | 2));
  for (; size >= 0x80; size >>= 7) out.push_back(static_cast<char>(size | 0x80));
  return out + static_cast<char>(size);
}
std::string put(uint32_t number, const std::string& payload) {
  return put_head(number, payload.size()) + payload;
}

// Graphs in graphs, deeper than any stack: they are skipped by their length.
TEST_F(OnnxReader, survives_deep_nesting) {
  std::string message = "\x0a\x01x";
  for (int depth = 0; depth < 3000; ++depth)
    message = put(1, put(4, "If") + put(5, put(1, "then") + put(6, message)));
  onnx::ModelProto m = small_model();
  m.clear_graph();
  Result<Model> model = read_bytes(m.SerializeAsString() + put(7, message));
  ASSERT_TRUE(model) << model.error().message;
  EXPECT_EQ(model->nodes[0].find("then")->kind, Attribute::Kind::graph);

  std::string type = put(1, "");
  for (int depth = 0; depth < 3000; ++depth)
    type = put(4, put(1, type));  // sequence of sequence of ...
  EXPECT_NE(error_of(read_bytes(m.SerializeAsString() + put(7, put(11, put(2, type)))))
                .find("cannot be read"),
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

// Weights beyond what Protobuf can hold and offsets beyond 32 bits. The file is sparse.
TEST_F(OnnxReader, reads_a_file_beyond_4_gib) {
  const uint64_t size = (uint64_t{1} << 32) + 4;
  onnx::TensorProto empty = raw_tensor("big", {static_cast<int64_t>(size / 4)}, {});
  empty.clear_raw_data();
  const std::string before = empty.SerializeAsString() + put_head(9, size);  // TensorProto.raw_data
  onnx::ModelProto m = small_model();
  const std::string after = m.graph().SerializeAsString();
  m.clear_graph();
  const std::string initializer = put_head(5, before.size() + size) + before;
  const std::string head =
      m.SerializeAsString() + put_head(7, initializer.size() + size + after.size()) + initializer;
  const std::string path = write("model.onnx", head);
  fs::resize_file(path, head.size() + size);
  std::ofstream(path, std::ios::binary | std::ios::app) << after;

  Result<Model> model = read_onnx(path);
  ASSERT_TRUE(model) << model.error().message;
  ASSERT_EQ(model->initializers.size(), 2u);
  EXPECT_EQ(model->initializers[0].second.element_count(), int64_t{1} << 30 | 1);
  EXPECT_EQ(model->initializers[0].second.offset, head.size());
  EXPECT_EQ(floats_of(model->initializers[1].second), (std::vector<float>{1, 2, 3}));
}

}  // namespace
}  // namespace tfcc::frontend
