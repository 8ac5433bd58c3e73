// SPDX-License-Identifier: Apache-2.0
// How integers are written for kernels: of 32 bits where indices are and that is enough, modulo
// 2^64 where data may wrap.
#include "codegen/emit/expr.h"

#include <gtest/gtest.h>

#include "ir/ir.h"

namespace tfcc::codegen {
namespace {

class EmitExpr : public testing::Test {
 protected:
  EmitExpr() {
    pool_.set_range("S", {1, 512});
    names_.index = [](int64_t k) { return "i" + std::to_string(k); };
    names_.symbol = [](const std::string& s) { return s; };
    names_.pointer = [](int64_t slot) { return "a" + std::to_string(slot); };
    names_.dims = [this](int64_t) { return std::vector<ir::ExprRef>{b_, t_}; };
    names_.narrow_indices = true;
  }
  std::string text(ir::ExprRef e) const { return cpp_expr(e, names_); }
  ir::ExprRef integer(int64_t v) { return pool_.integer(v); }

  ir::ExprPool pool_;
  CppNames names_;
  ir::ExprRef b_ = pool_.symbol("B"), t_ = pool_.symbol("T");
  ir::ExprRef i_ = pool_.index(0, b_), j_ = pool_.index(1, t_),
              s_ = pool_.index(2, pool_.symbol("S"));
};

TEST_F(EmitExpr, DistancesAndBoundedProductsStayNarrow) {
  EXPECT_EQ(text(ir::sub(i_, j_)), "(i0 - i1)");
  EXPECT_EQ(text(ir::add(ir::sub(i_, j_), integer(127))), "(i0 - i1 + 127)");
  EXPECT_EQ(text(ir::mul(s_, s_)), "(i2 * i2)");
}

TEST_F(EmitExpr, NumbersThatMayLeave32BitsAreWidened) {
  EXPECT_EQ(text(ir::mul(i_, i_)), "((i64)i0 * i0)");
  EXPECT_EQ(text(ir::add(ir::mul(i_, integer(768)), j_)), "((i64)i0 * 768 + (i64)i1)");
  EXPECT_EQ(text(ir::convert(ir::add(ir::mul(i_, t_), j_), ir::Scalar::f32)),
            "(f32)(((i64)i0 * T + (i64)i1))");
}

TEST_F(EmitExpr, PositionsInATensorStayNarrow) {
  names_.counts = {ir::mul(b_, t_)};
  EXPECT_EQ(text(ir::add(ir::mul(i_, t_), j_)), "(i0 * T + i1)");
  EXPECT_EQ(text(pool_.load(0, DType::f32, {i_, j_})), "load(a0, (i0 * T + i1))");
}

TEST_F(EmitExpr, DataWrapsModulo64Bits) {
  const ir::ExprRef x = pool_.load(0, DType::i64, {i_, j_}),
                    n = pool_.load(1, DType::i32, {i_, j_});
  names_.narrow_indices = false;
  EXPECT_EQ(text(ir::mul(x, integer(31))), "(i64)((u64)load(a0, (i0 * T + i1)) * 31)");
  EXPECT_EQ(text(ir::mul(n, integer(31))), "(load(a1, (i0 * T + i1)) * 31)")
      << "an i32 times 31 fits";
  EXPECT_EQ(text(ir::wrap(ir::mul(n, integer(31)), 32, true)),
            "wrap_signed<32>((load(a1, (i0 * T + i1)) * 31))");
  const ir::ExprRef positive = ir::max(x, integer(0));
  EXPECT_EQ(text(ir::sub(ir::add(s_, positive), integer(512))),
            "(i64)((u64)i2 + (u64)imax(0, load(a0, (i0 * T + i1))) - 512)")
      << "the sum fits, but not without the 512";
  EXPECT_EQ(text(ir::lt(x, integer(1))), "(0 >= load(a0, (i0 * T + i1)))");
  EXPECT_EQ(text(ir::le(integer(-6), x)), "(load(a0, (i0 * T + i1)) >= ((-6)))");
  EXPECT_EQ(text(ir::le(ir::add(x, x), integer(5))),
            "((imax((i64)((u64)load(a0, (i0 * T + i1)) * 2), 5) - 5) == 0)")
      << "a sum that may wrap";
}

}  // namespace
}  // namespace tfcc::codegen
