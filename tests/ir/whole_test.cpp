// SPDX-License-Identifier: Apache-2.0
// Sizes that go through reals and come back as integers: the same numbers as f32 arithmetic gives,
// without reals.
#include <gtest/gtest.h>

#include <cmath>

#include "ir/elements.h"
#include "ir/ir.h"

namespace tfcc::ir {
namespace {

class WholeTest : public testing::Test {
 protected:
  ExprRef real(double v) { return pool_.real(v, Scalar::f32); }
  static ExprRef whole(ExprRef e) { return convert(e, Scalar::i64); }
  static ExprRef floor(ExprRef e) { return unary(ExprKind::floor, e); }
  static ExprRef ceil(ExprRef e) { return unary(ExprKind::ceil, e); }

  // That e has no real, and its value is `want` at every size.
  void expect(ExprRef e, const std::function<float(float s, float t)>& want) {
    EXPECT_FALSE(has_reals(e)) << print(e);
    for (int64_t s = 1; s < 3000; s += s < 100 ? 1 : 37) {
      for (int64_t t : {1, 2, 3, 7, 64, 1000}) {
        ScalarEnv env;
        env.symbol = [&](std::string_view name) { return name == "S" ? s : t; };
        ASSERT_EQ(eval_expr(e, env).i,
                  static_cast<int64_t>(want(static_cast<float>(s), static_cast<float>(t))))
            << print(e) << " S " << s << " T " << t;
      }
    }
  }

  ExprPool pool_;
  ExprRef size_ = pool_.symbol("S"), other_ = pool_.symbol("T");
  ExprRef s_ = convert(size_, Scalar::f32), t_ = convert(other_, Scalar::f32);
};

TEST_F(WholeTest, FollowsWhatRealsComputeExactly) {
  pool_.set_range("S", {1, std::nullopt});
  pool_.set_range("T", {1, std::nullopt});
  expect(whole(s_), [](float s, float) { return s; });
  expect(whole(mul(s_, real(0.5))), [](float s, float) { return s * 0.5f; });
  expect(whole(floor(div(s_, real(3)))), [](float s, float) { return std::floor(s / 3.0f); });
  expect(whole(ceil(div(s_, real(7)))), [](float s, float) { return std::ceil(s / 7.0f); });
  expect(whole(div(s_, t_)), [](float s, float t) { return s / t; });
  expect(whole(ceil(div(s_, t_))), [](float s, float t) { return std::ceil(s / t); });
  expect(whole(add(mul(floor(mul(s_, real(0.25))), real(1.5)), t_)),
         [](float s, float t) { return std::floor(s * 0.25f) * 1.5f + t; });
  expect(whole(sub(mul(s_, real(0.5)), real(20.5))),
         [](float s, float) { return s * 0.5f - 20.5f; });  // towards zero on both sides of it
  expect(whole(floor(sub(mul(s_, real(0.5)), real(20.25)))),
         [](float s, float) { return std::floor(s * 0.5f - 20.25f); });
  expect(whole(unary(ExprKind::fneg, div(s_, real(5)))),
         [](float s, float) { return -(s / 5.0f); });
}

TEST_F(WholeTest, LeavesWhatRealsRound) {
  pool_.set_range("T", {0, std::nullopt});
  EXPECT_TRUE(has_reals(whole(mul(s_, real(0.1)))));
  EXPECT_TRUE(has_reals(whole(add(div(s_, real(3)), real(0.5)))));
  EXPECT_TRUE(has_reals(whole(mul(div(s_, real(3)), real(3)))));
  EXPECT_TRUE(has_reals(whole(div(s_, t_))));  // T may be 0
  EXPECT_TRUE(has_reals(whole(unary(ExprKind::sqrt, s_))));
  EXPECT_TRUE(has_reals(whole(unary(ExprKind::rint, div(s_, real(3))))));
  // An element may be larger than what a real holds.
  EXPECT_TRUE(
      has_reals(whole(mul(convert(pool_.load(0, Scalar::i64, {}), Scalar::f32), real(0.5)))));
}

}  // namespace
}  // namespace tfcc::ir
