// SPDX-License-Identifier: Apache-2.0
// What tfcc verify takes for a difference.
#include <cmath>

#include "tests/tools/tfcc/graphs.h"
#include "tools/tfcc/verify_counterparts.h"

namespace tfcc::tools {
namespace {

ir::HostTensor reals(DType type, std::vector<int64_t> dims, std::vector<double> values) {
  ir::HostTensor t;
  t.dtype = type;
  t.dims = std::move(dims);
  t.reals = std::move(values);
  return t;
}

Difference apart(std::vector<double> got, std::vector<double> want, DType type = DType::f32) {
  const auto n = static_cast<int64_t>(got.size());
  return compare(reals(type, {n}, std::move(got)), reals(type, {n}, std::move(want)), Defined());
}

TEST(Compare, IsTheRelativeL2NormAndTheLargestError) {
  const Difference d = apart({3, 4.5, 0}, {3, 4, 0});
  EXPECT_DOUBLE_EQ(d.relative, 0.1);
  EXPECT_DOUBLE_EQ(d.max_abs, 0.5);
  EXPECT_EQ(to_string(d), "max abs error 5.0e-01, relative L2 1.0e-01");
  EXPECT_EQ(apart({0.5}, {0}).relative, 0.5);  // nothing to relate it to
}

TEST(Compare, NaNEqualsNaNAndNothingElse) {
  EXPECT_EQ(apart({NAN, 1}, {NAN, 1}).relative, 0);
  const Difference d = apart({1, NAN}, {1, 2});
  EXPECT_EQ(d.problem, "nan at element 1, expected 2");
  EXPECT_TRUE(std::isinf(d.relative));
  EXPECT_EQ(to_string(d), d.problem);
}

TEST(Compare, ARealBeyondTheTypeMayBeInfinite) {
  EXPECT_EQ(apart({-INFINITY}, {-3.4e38}, DType::f16).relative, 0);
  EXPECT_EQ(apart({INFINITY}, {-3.4e38}, DType::f16).problem,
            "inf at element 0, expected -3.4e+38");
  EXPECT_EQ(apart({INFINITY}, {60000}, DType::f16).problem,
            "inf at element 0, expected 60000");  // f16 holds it
}

TEST(Compare, MasksDoNotHideTheRest) {
  EXPECT_NEAR(apart({-3.4e38, 1.1}, {-3.4e38, 1}).relative, 0.1, 1e-12);
  EXPECT_NEAR(apart({-3.4e38, 1}, {-1.7e38, 1}).relative, 1 / std::sqrt(2), 1e-12);
}

TEST(Compare, ShapesMustBeEqual) {
  const Difference d =
      compare(reals(DType::f32, {2}, {1, 2}), reals(DType::f32, {1, 2}, {1, 2}), Defined());
  EXPECT_EQ(d.problem, "shape [2], expected [1,2]");
}

TEST(Compare, OnlyWhatTheMaskKeepsIsDefined) {
  ir::HostTensor mask;
  mask.dtype = DType::i64;
  mask.dims = {1, 2};
  mask.ints = {1, 0};
  const HostTensors inputs{{"attention_mask", mask}};
  const Difference d = compare(reals(DType::f32, {1, 2, 1}, {1, 9}),
                               reals(DType::f32, {1, 2, 1}, {1, 2}), Defined(inputs));
  EXPECT_EQ(d.relative, 0);
}

TEST(Counterparts, AreFoundByNameByReaderByOutputAndByStem) {
  const ir::Graph before = parsed(kMlp);
  ir::Graph after = before;
  const auto replace = [&](const char* value, const char* name) {
    const ir::ValueId v = after.find_value(value);
    const ir::Op op = *after.def(v);
    const ir::ValueId made = after.add(op.kind, op.operands, op.attrs, after.value(v).type, name);
    after.replace_uses(v, made);
    return made;
  };
  const ir::ValueId y = replace("y", "other_y"), n = replace("n", "other_n");
  const ir::ValueId a = after.find_value("a"), o = after.find_value("o");
  after.op(after.value(o).def).as<ir::MatmulAttrs>().alpha =
      2;  // its operands prove nothing any more
  const ir::ValueId stem = after.add(ir::OpKind::softmax, {after.find_value("hb")},
                                     ir::SoftmaxAttrs{}, after.value(a).type, "a");
  const ir::ValueId fresh =
      after.add(ir::OpKind::softmax, {stem}, ir::SoftmaxAttrs{}, after.value(a).type, "fresh");
  after.set_operands(after.value(o).def, {fresh, after.find_value("w2")});
  after.clean();
  ASSERT_EQ(after.value(stem).name, "a.1");
  const Counterparts twin = counterparts(before, after);
  EXPECT_EQ(twin.at(y), before.find_value("y"));
  EXPECT_EQ(twin.at(n), before.find_value("n"));
  EXPECT_EQ(twin.at(stem), before.find_value("a"));
  EXPECT_EQ(twin.at(o), before.find_value("o"));
  EXPECT_FALSE(twin.count(fresh));
}

}  // namespace
}  // namespace tfcc::tools
