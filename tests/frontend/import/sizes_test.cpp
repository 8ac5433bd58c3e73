// SPDX-License-Identifier: Apache-2.0
// Sizes of inputs that are no sizes of their own: a name that is a sum of others.
#include <gtest/gtest.h>

#include "frontend/import/import.h"
#include "ir/ir.h"
#include "tests/frontend/onnx/onnx_fixture.h"

namespace tfcc::frontend {
namespace {

// Three vectors of these sizes, the third doubled.
onnx::ModelProto vectors(const std::vector<std::string>& sizes) {
  onnx::ModelProto m = small_model();
  onnx::GraphProto& g = *m.mutable_graph();
  g.clear_input();
  g.clear_node();
  g.clear_initializer();
  const char* const names[] = {"a", "b", "c"};
  for (size_t i = 0; i < sizes.size(); ++i) {
    onnx::ValueInfoProto* in = g.add_input();
    in->set_name(names[i]);
    in->mutable_type()->mutable_tensor_type()->set_elem_type(onnx::TensorProto::FLOAT);
    in->mutable_type()->mutable_tensor_type()->mutable_shape()->add_dim()->set_dim_param(sizes[i]);
  }
  onnx::NodeProto& n = *g.add_node();
  n.set_op_type("Add");
  n.add_input("c");
  n.add_input("c");
  n.add_output("y");
  return m;
}

class Sizes : public OnnxReader {
 protected:
  std::string last_size(const std::vector<std::string>& sizes) {
    Result<Model> m = read(vectors(sizes));
    EXPECT_TRUE(m) << m.error().message;
    Result<ir::Graph> g = import_onnx(*m);
    EXPECT_TRUE(g) << g.error().message;
    return ir::print(g->value(g->inputs().back()).type.dims[0]);
  }
};

TEST_F(Sizes, a_name_that_is_a_sum_of_others_is_that_sum) {
  EXPECT_EQ(last_size({"past", "new", "past + new"}), "new + past");
  EXPECT_EQ(last_size({"past", "new", "new + 1"}), "new + 1");
}

TEST_F(Sizes, a_name_may_be_a_multiple_of_a_size) {
  EXPECT_EQ(last_size({"a", "b", "64*chunks"}), "64*chunks");
  EXPECT_EQ(last_size({"chunks", "b", "64*chunks"}), "64*chunks");
  EXPECT_EQ(last_size({"2*chunks", "b", "64*chunks"}), "64*chunks");
  EXPECT_EQ(last_size({"a", "b", "64*2"}), "\"64*2\"");
  EXPECT_EQ(last_size({"a", "b", "0*chunks"}), "\"0*chunks\"");
  EXPECT_EQ(last_size({"a", "b", "64*chunks + 1"}), "\"64*chunks + 1\"");
}

TEST_F(Sizes, any_other_name_is_a_size_of_its_own) {
  EXPECT_EQ(last_size({"past", "new", "past + old"}), "\"past + old\"");
  EXPECT_EQ(last_size({"past", "new", "past+new"}), "\"past+new\"");
  EXPECT_EQ(last_size({"past", "new", "past + new + "}), "\"past + new + \"");
  EXPECT_EQ(last_size({"past", "past + past", "past + past + 1"}), "2*past + 1");
}

}  // namespace
}  // namespace tfcc::frontend
