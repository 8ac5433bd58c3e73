// SPDX-License-Identifier: Apache-2.0
// Element types that tensors have not: bit patterns, roundings, and weights of them from the file
// to their values.
#include <cmath>
#include <limits>

#include "frontend/onnx/element_types.h"
#include "frontend/import/import.h"
#include "ir/ir.h"
#include "tests/frontend/onnx/onnx_fixture.h"

namespace tfcc::frontend {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

double rounded(double v, int onnx_type, bool saturate) {
  ir::ExprPool pool;
  const auto r = ir::as_real(
      round_to_small_float(pool.real(v), *element_type(onnx_type)->small_float, saturate));
  return r ? *r : -12345;
}

TEST(ElementTypes, SmallFloatsMeanWhatTheirBitsSay) {
  const auto value = [](int type, unsigned bits) {
    const ElementType t = *element_type(type);
    return small_float_value(*t.small_float, t.bits, bits);
  };
  EXPECT_EQ(value(17, 0x7e), 448);
  EXPECT_EQ(value(17, 0x01), std::ldexp(1, -9));
  EXPECT_EQ(value(17, 0xb8), -1);
  EXPECT_TRUE(std::isnan(value(17, 0x7f)) && std::isnan(value(17, 0xff)));
  EXPECT_EQ(value(18, 0x7f), 240);
  EXPECT_EQ(value(18, 0x01), std::ldexp(1, -10));
  EXPECT_TRUE(std::isnan(value(18, 0x80)));
  EXPECT_EQ(value(19, 0x7b), 57344);
  EXPECT_EQ(value(19, 0xfc), -kInf);
  EXPECT_TRUE(std::isnan(value(19, 0x7d)));
  EXPECT_EQ(value(20, 0x7f), 57344);
  EXPECT_TRUE(std::isnan(value(20, 0x80)));
  EXPECT_EQ(value(23, 0x7), 6);
  EXPECT_EQ(value(23, 0x9), -0.5);
}

TEST(ElementTypes, EverySmallFloatRoundsToItself) {
  for (int type : {17, 18, 19, 20, 23}) {
    const ElementType t = *element_type(type);
    for (unsigned bits = 0; bits < 1u << t.bits; ++bits) {
      const double v = small_float_value(*t.small_float, t.bits, bits);
      if (!std::isfinite(v)) continue;
      EXPECT_EQ(rounded(v, type, true), v) << type << ": " << bits;
    }
  }
}

TEST(ElementTypes, SmallFloatsRoundToNearestEvenAndSaturate) {
  EXPECT_EQ(rounded(1.0625, 17, true), 1);     // between 1 and 1.125
  EXPECT_EQ(rounded(1.1875, 17, true), 1.25);  // between 1.125 and 1.25
  EXPECT_EQ(rounded(std::ldexp(1, -10), 17, true), 0);
  EXPECT_EQ(rounded(std::ldexp(3, -10), 17, true), std::ldexp(4, -10));
  EXPECT_EQ(rounded(464, 17, false), 448);
  EXPECT_TRUE(std::isnan(rounded(465, 17, false)));
  EXPECT_EQ(rounded(-1e30, 17, true), -448);
  EXPECT_EQ(rounded(1e6, 19, false), kInf);
  EXPECT_EQ(rounded(-1e6, 19, true), -57344);
  EXPECT_EQ(rounded(kInf, 18, true), 240);
  EXPECT_TRUE(std::isnan(rounded(std::nan(""), 19, true)));
  EXPECT_EQ(rounded(2.5, 23, true), 2);
  EXPECT_EQ(rounded(100, 23, true), 6);
}

TEST(ElementTypes, CastsWrap) {
  ir::ExprPool pool;
  const auto wrapped = [&](int64_t v, int type) {
    return *ir::as_int(wrap_to_integer(pool.integer(v), *element_type(type)));
  };
  EXPECT_EQ(wrapped(17, 21), 1);
  EXPECT_EQ(wrapped(-1, 21), 15);
  EXPECT_EQ(wrapped(9, 22), -7);
  EXPECT_EQ(wrapped(-9, 22), 7);
  EXPECT_EQ(wrapped(65536 + 5, 4), 5);
  EXPECT_EQ(wrapped(3, 26), -1);
}

/// The values of an initializer as the graph computes them: y = Cast<float>(w).
class Packed : public OnnxReader {
 protected:
  std::vector<double> values(int type, std::vector<int64_t> dims, const std::string& raw,
                             const std::vector<int>& typed = {}) {
    onnx::ModelProto model = small_model();
    onnx::GraphProto& graph = *model.mutable_graph();
    model.mutable_opset_import(0)->set_version(25);
    graph.clear_initializer();
    onnx::TensorProto& t = *graph.add_initializer();
    t.set_name("w");
    t.set_data_type(type);
    for (int64_t d : dims) t.add_dims(d);
    if (typed.empty()) t.set_raw_data(raw);
    for (int v : typed) t.add_int32_data(v);
    onnx::NodeProto& node = *graph.mutable_node(0);
    node.set_op_type("Cast");
    node.clear_input();
    node.add_input("w");
    onnx::AttributeProto& to = *node.add_attribute();
    to.set_name("to");
    to.set_type(onnx::AttributeProto::INT);
    to.set_i(1);
    Result<Model> m = read(model);
    if (!m) return failed(m.error());
    Result<ir::Graph> g = import_onnx(*m);
    if (!g) return failed(g.error());
    for (ir::OpId o : g->order()) {
      if (const ir::Constant* c = g->constant(g->result(o)))
        bytes_ += static_cast<size_t>(c->element_count()) * size_of(c->dtype);
    }
    std::map<std::string, ir::HostTensor> in;
    for (ir::ValueId v : g->inputs()) in[g->value(v).name] = {DType::f32, {1, 3, 1}, {0, 0, 0}, {}};
    auto out = ir::eval(*g, in);
    if (!out) return failed(out.error());
    return out->begin()->second.reals;
  }
  size_t bytes_ = 0;  // of all constants

 private:
  static std::vector<double> failed(const Error& e) {
    ADD_FAILURE() << e.message;
    return {};
  }
};

TEST_F(Packed, LowBitsComeFirst) {
  EXPECT_EQ(values(22, {2, 2}, "\x7f\x81"), (std::vector<double>{-1, 7, 1, -8}));
  EXPECT_EQ(values(21, {2, 2}, "\x7f\x81"), (std::vector<double>{15, 7, 1, 8}));
  EXPECT_EQ(values(25, {4}, "\x1b"), (std::vector<double>{3, 2, 1, 0}));
  EXPECT_EQ(values(26, {4}, "\x1b"), (std::vector<double>{-1, -2, 1, 0}));
}

TEST_F(Packed, WeightsStayPacked) {
  EXPECT_EQ(values(22, {3, 2}, "\x7f\x81\x10"), (std::vector<double>{-1, 7, 1, -8, 0, 1}));
  EXPECT_EQ(bytes_, 3u);
}

TEST_F(Packed, RowsMayShareAByte) {
  EXPECT_EQ(values(21, {2, 3}, "\x21\x43\x65"), (std::vector<double>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(values(21, {3, 1}, "\x21\x03"), (std::vector<double>{1, 2, 3}));
  EXPECT_EQ(values(25, {3, 3}, "\xe4\xe4\x02"), (std::vector<double>{0, 1, 2, 3, 0, 1, 2, 3, 2}));
  EXPECT_EQ(values(22, {}, "\x08"), std::vector<double>{-8});
}

TEST_F(Packed, TypedFieldsHoldBytesOrElements) {
  EXPECT_EQ(values(22, {3}, "", {0x7f, 0x08}), (std::vector<double>{-1, 7, -8}));
  EXPECT_EQ(values(4, {2}, "", {40000, 65535}), (std::vector<double>{40000, 65535}));
  EXPECT_EQ(values(17, {2}, "", {0x7e, 0xb8}), (std::vector<double>{448, -1}));
}

TEST_F(Packed, SixteenBitsAndFloats) {
  EXPECT_EQ(values(4, {2}, std::string("\x00\x80\xff\xff", 4)),
            (std::vector<double>{32768, 65535}));
  EXPECT_EQ(values(19, {2, 1}, "\x7b\xbc"), (std::vector<double>{57344, -1}));
  EXPECT_EQ(values(23, {2}, "\x97"), (std::vector<double>{6, -0.5}));
  EXPECT_EQ(values(17, {}, "\x38"), std::vector<double>{1});
}

TEST_F(Packed, AWrongLengthIsRefused) {
  onnx::TensorProto t = raw_tensor("w", {5}, {});
  t.set_data_type(22);
  t.set_raw_data("ab");
  Result<Model> m = read_with_tensor(t);
  ASSERT_FALSE(m);
  EXPECT_NE(m.error().message.find("holds 2 bytes where u8[3] needs 3"), std::string::npos)
      << m.error().message;
}

}  // namespace
}  // namespace tfcc::frontend
