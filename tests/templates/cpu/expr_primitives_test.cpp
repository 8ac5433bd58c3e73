// SPDX-License-Identifier: Apache-2.0
// The primitives of templates/expr.h on the CPU at the values where they could be wrong.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "runtime/core/size_expr.h"
#include "tests/templates/cpu/cpu_kernel.h"

namespace {

using tfcc::test::CpuKernels;

CpuKernels& kernels() {
  static CpuKernels k(R"(
#include "expr.h"
TFCC_KERNEL(integers) {
  const i64* x = (const i64*)a[0]; const i64* y = (const i64*)a[1]; i64* o = (i64*)a[2];
  for (i64 i = begin; i < end; ++i) {
    o[i * 6] = floordiv(x[i], y[i]); o[i * 6 + 1] = floormod(x[i], y[i]); o[i * 6 + 2] = imin(x[i], y[i]);
    o[i * 6 + 3] = imax(x[i], y[i]); o[i * 6 + 4] = iabs(x[i]); o[i * 6 + 5] = bounded(x[i], y[i], flags + 1);
  }
}
TFCC_KERNEL(to_integer) { for (i64 i = begin; i < end; ++i) ((i64*)a[1])[i] = f2i(((const f64*)a[0])[i]); }
TFCC_KERNEL(to_small_integer) { for (i64 i = begin; i < end; ++i) ((i64*)a[1])[i] = f2i_small(((const f32*)a[0])[i]); }
TFCC_KERNEL(to_integer32) { for (i64 i = begin; i < end; ++i) ((i64*)a[1])[i] = f2i(((const f32*)a[0])[i]); }
TFCC_KERNEL(reals) {
  const f32* x = (const f32*)a[0]; const f32* y = (const f32*)a[1]; f32* o = (f32*)a[2];
  for (i64 i = begin; i < end; ++i) {
    o[i * 5] = fmin_(x[i], y[i]); o[i * 5 + 1] = fmax_(x[i], y[i]); o[i * 5 + 2] = fsign(x[i]);
    o[i * 5 + 3] = fisnan(x[i]); o[i * 5 + 4] = fabs_(x[i]);
  }
}
TFCC_KERNEL(round16) { for (i64 i = begin; i < end; ++i) ((f64*)a[1])[i] = round_f16(((const f64*)a[0])[i]); }
TFCC_KERNEL(program) { ((i64*)a[1])[0] = size_program(n, (const i64*)a[0], n[3]); }
TFCC_KERNEL(constants) { ((f32*)a[0])[0] = kInf; ((f32*)a[0])[1] = -kInf; ((f32*)a[0])[2] = kNan; }
)");
  return k;
}

class ExprPrimitives : public tfcc::test::CpuTargetTest {};

TEST_F(ExprPrimitives, Integers) {
  std::vector<int64_t> x, y;
  for (int64_t a = -20; a <= 20; ++a)
    for (int64_t b = 1; b <= 7; ++b) x.push_back(a), y.push_back(b);
  std::vector<int64_t> o(x.size() * 6);
  kernels().run("integers", {}, {x.data(), y.data(), o.data()}, static_cast<int64_t>(x.size()));
  for (size_t i = 0; i < x.size(); ++i) {
    int64_t q =
        static_cast<int64_t>(std::floor(static_cast<double>(x[i]) / static_cast<double>(y[i])));
    EXPECT_EQ(o[i * 6], q);
    EXPECT_EQ(o[i * 6 + 1], x[i] - q * y[i]);
    EXPECT_EQ(o[i * 6 + 2], std::min(x[i], y[i]));
    EXPECT_EQ(o[i * 6 + 3], std::max(x[i], y[i]));
    EXPECT_EQ(o[i * 6 + 4], std::abs(x[i]));
    EXPECT_EQ(o[i * 6 + 5], std::clamp<int64_t>(x[i], 0, y[i] - 1));
  }
  EXPECT_EQ(kernels().flags[1], 1u);
}

// Random programs over three sizes give what the runtime gives.
TEST_F(ExprPrimitives, SizePrograms) {
  using tfcc::runtime::SizeExpr;
  std::mt19937 random(7);
  int compared = 0;
  for (int k = 0; k < 2000; ++k) {
    SizeExpr e;
    for (int values = 0, step = 0; values != 1 || step < 20; ++step) {
      const int pops[] = {0, 0, 2, 2, 2, 2, 2, 1, 3, 1};
      const int code = step > 40 ? (values > 1 ? 2 : 0) : static_cast<int>(random() % 10);
      if (values < pops[code]) continue;
      e.code.push_back(code);
      if (code == 0) e.code.push_back(static_cast<int64_t>(random() % 21) - 10);
      if (code == 1) e.code.push_back(static_cast<int64_t>(random() % 3));
      values += 1 - pops[code];
    }
    if (!e.valid(3)) continue;
    const std::vector<int64_t> n = {1 + static_cast<int64_t>(random() % 9), 0, 7,
                                    static_cast<int64_t>(e.code.size())};
    const auto want = e.evaluate(std::span(n).first(3));
    if (!want) continue;  // something overflows, or is divided by 0
    int64_t got = 0;
    kernels().run("program", n, {e.code.data(), &got}, 1);
    ASSERT_EQ(got, *want);
    ++compared;
  }
  EXPECT_GT(compared, 300);
}

// Clang 19 makes x > 0 ? |x| : 0 of a maximum of |x| and 0 that asks |x| for NaN.
TEST_F(ExprPrimitives, MagnitudesBesideConstants) {
  CpuKernels k(R"(
#include "expr.h"
TFCC_KERNEL(magnitudes) {
  const f32* x = (const f32*)a[0]; f32* o = (f32*)a[1];
  for (i64 i = begin; i < end; ++i) {
    f32 m = fabs_(x[i]);
    o[i * 6] = fmax_(m, 0.0f); o[i * 6 + 1] = fmax_(0.0f, m); o[i * 6 + 2] = fmin_(-m, 0.0f);
    o[i * 6 + 3] = fmax_(m, 2.0f); o[i * 6 + 4] = fmin_(m, 2.0f); o[i * 6 + 5] = fmin_(fmax_(m, 0.0f), 6.0f);
  }
}
)");
  const std::vector<float> x = {-3, 2, 0, -7, -INFINITY, INFINITY, -0.5f, 1e-38f};
  std::vector<float> o(x.size() * 6);
  k.run("magnitudes", {}, {x.data(), o.data()}, static_cast<int64_t>(x.size()));
  for (size_t i = 0; i < x.size(); ++i) {
    const float m = std::fabs(x[i]);
    const float want[] = {m, m, -m, std::max(m, 2.0f), std::min(m, 2.0f), std::min(m, 6.0f)};
    for (size_t c = 0; c < 6; ++c)
      EXPECT_EQ(o[i * 6 + c], want[c]) << "column " << c << " of " << x[i];
  }
  const float nan = NAN;
  std::vector<float> of_nan(6);
  k.run("magnitudes", {}, {&nan, of_nan.data()}, 1);
  for (float v : of_nan) EXPECT_TRUE(std::isnan(v));
}

TEST_F(ExprPrimitives, FloatToInteger) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max(),
                    kMin = std::numeric_limits<int64_t>::min();
  std::vector<double> x = {0,        1.9,       -1.9, 1e18,   9.3e18,  -9.3e18,
                           INFINITY, -INFINITY, NAN,  0x1p63, -0x1p63, 0x1p62};
  std::vector<int64_t> want = {0, 1,    -1,   1000000000000000000, kMax, kMin, kMax, kMin,
                               0, kMax, kMin, int64_t{1} << 62};
  std::vector<int64_t> got(x.size());
  kernels().run("to_integer", {}, {x.data(), got.data()}, static_cast<int64_t>(x.size()));
  EXPECT_EQ(got, want);
  std::vector<float> x32(x.begin(), x.end());
  want[3] = static_cast<int64_t>(1e18f);
  kernels().run("to_integer32", {}, {x32.data(), got.data()}, static_cast<int64_t>(x.size()));
  EXPECT_EQ(got, want);
  const std::vector<float> small = {0, -0.75f, 255.5f, -128, 2147483520.0f, -2147483648.0f, NAN};
  std::vector<int64_t> of_small(small.size());
  kernels().run("to_small_integer", {}, {small.data(), of_small.data()},
                static_cast<int64_t>(small.size()));
  EXPECT_EQ(of_small, (std::vector<int64_t>{0, 0, 255, -128, 2147483520, -2147483648, 0}));
}

TEST_F(ExprPrimitives, RealsPropagateNan) {
  const float values[] = {0, 1, -1, 2.5f, INFINITY, -INFINITY, NAN};
  std::vector<float> x, y;
  for (float a : values)
    for (float b : values) x.push_back(a), y.push_back(b);
  std::vector<float> o(x.size() * 5);
  kernels().run("reals", {}, {x.data(), y.data(), o.data()}, static_cast<int64_t>(x.size()));
  for (size_t i = 0; i < x.size(); ++i) {
    if (std::isnan(x[i]) || std::isnan(y[i])) {
      EXPECT_TRUE(std::isnan(o[i * 5]) && std::isnan(o[i * 5 + 1])) << x[i] << " " << y[i];
    } else {
      EXPECT_EQ(o[i * 5], std::min(x[i], y[i]));
      EXPECT_EQ(o[i * 5 + 1], std::max(x[i], y[i]));
    }
    EXPECT_EQ(o[i * 5 + 3], std::isnan(x[i]) ? 1.0f : 0.0f);
    if (std::isnan(x[i])) EXPECT_TRUE(std::isnan(o[i * 5 + 2]));
    else EXPECT_EQ(o[i * 5 + 2], (x[i] > 0) - (x[i] < 0));
  }
}

TEST_F(ExprPrimitives, DoubleRoundsToHalfOnce) {
  // 1 + 2^-11 + tiny: through a plain float the tail is lost, and the tie goes to even, that is to
  // 1.
  std::vector<double> x = {1 + 0x1p-11 + 0x1p-40,
                           1 + 0x1p-11 - 0x1p-40,
                           1 + 0x1p-11,
                           -(1 + 0x1p-11 + 0x1p-40),
                           1e300,
                           -1e300,
                           65519.999999,
                           65520,
                           0x1p-25,
                           0x1p-25 + 0x1p-70,
                           0.1,
                           INFINITY,
                           NAN};
  std::vector<double> got(x.size());
  kernels().run("round16", {}, {x.data(), got.data()}, static_cast<int64_t>(x.size()));
  std::vector<double> want = {1 + 0x1p-10, 1,        1, -(1 + 0x1p-10), INFINITY,        -INFINITY,
                              65504,       INFINITY, 0, 0x1p-24,        0.0999755859375, INFINITY};
  for (size_t i = 0; i < want.size(); ++i) EXPECT_EQ(got[i], want[i]) << x[i];
  EXPECT_TRUE(std::isnan(got.back()));
}

TEST_F(ExprPrimitives, Constants) {
  float c[3];
  kernels().run("constants", {}, {c}, 1);
  EXPECT_EQ(c[0], INFINITY);
  EXPECT_EQ(c[1], -INFINITY);
  EXPECT_TRUE(std::isnan(c[2]));
}

}  // namespace
