// SPDX-License-Identifier: Apache-2.0
// Accuracy of templates/cpu/math.h against the C library, over the whole range and at the special
// values.
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "tests/templates/cpu/cpu_kernel.h"

namespace {

using tfcc::test::CpuKernels;

const char* kSource = R"(
#include "cpu/math.h"
#define UNARY(F) \
  TFCC_KERNEL(F##32) { for (i64 i = begin; i < end; ++i) ((f32*)a[1])[i] = math::F(((const f32*)a[0])[i]); } \
  TFCC_KERNEL(F##64) { for (i64 i = begin; i < end; ++i) ((f64*)a[1])[i] = math::F(((const f64*)a[0])[i]); }
#define BINARY(F) \
  TFCC_KERNEL(F##32) { for (i64 i = begin; i < end; ++i) ((f32*)a[2])[i] = math::F(((const f32*)a[0])[i], ((const f32*)a[1])[i]); } \
  TFCC_KERNEL(F##64) { for (i64 i = begin; i < end; ++i) ((f64*)a[2])[i] = math::F(((const f64*)a[0])[i], ((const f64*)a[1])[i]); }
UNARY(exp) UNARY(log) UNARY(erf) UNARY(tanh) UNARY(sin) UNARY(cos) UNARY(atan)
UNARY(sqrt) UNARY(floor) UNARY(ceil) UNARY(rint)
BINARY(pow) BINARY(fmod)
)";

CpuKernels& kernels() {
  static CpuKernels k(kSource);
  return k;
}

template <class T> using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;

/// Every kind of number: random bit patterns, a dense part around [-20, 20], and the special
/// values.
template <class T> std::vector<T> samples(uint64_t seed, T dense = 20) {
  std::vector<T> v;
  auto next = [&] { return seed = seed * 6364136223846793005u + 1442695040888963407u; };
  for (int i = 0; i < 50000; ++i) {
    Bits<T> bits = static_cast<Bits<T>>((next() >> (64 - 8 * sizeof(T))) ^ (next() >> 40));
    T x;
    std::memcpy(&x, &bits, sizeof x);
    v.push_back(x);
  }
  for (int i = 0; i < 100000; ++i) {
    v.push_back(static_cast<T>((static_cast<double>(next() >> 11) * 0x1p-53 - 0.5) * 2 *
                               static_cast<double>(dense)));
  }
  using L = std::numeric_limits<T>;
  for (T x : {T(0),         T(1),      T(2),     T(0.5),          T(3),          T(1.5),
              T(1e-30),     T(88.7),   T(709.7), T(745),          T(104),        T(4),
              T(6),         L::min(),  L::max(), L::denorm_min(), L::infinity(), L::quiet_NaN(),
              L::epsilon(), T(0x1p20), T(1e6),   T(1e22)}) {
    v.push_back(x);
    v.push_back(-x);
  }
  return v;
}

/// The largest error in units of T's last place; NaN must meet NaN and infinity infinity.
template <class T>
double worst_ulp(const std::vector<T>& got, const std::vector<double>& want,
                 const std::function<std::string(size_t)>& at) {
  double worst = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    T rounded = static_cast<T>(want[i]);
    if (std::isnan(rounded) || std::isinf(rounded)) {
      bool same = std::isnan(rounded) ? std::isnan(got[i]) : got[i] == rounded;
      EXPECT_TRUE(same) << at(i) << " gives " << got[i] << ", not " << rounded;
      if (!same) return INFINITY;
      continue;
    }
    double ulp = std::max<double>(
        std::abs(std::nextafter(rounded, std::numeric_limits<T>::infinity()) - rounded),
        std::numeric_limits<T>::denorm_min());
    double error = std::abs(static_cast<double>(got[i]) - want[i]) / ulp;
    if (std::isinf(static_cast<double>(got[i])) &&
        std::abs(rounded) == std::numeric_limits<T>::max())
      error = 1;
    if (!(error <= worst)) {
      worst = error;
      if (!(error < 1e3)) {
        ADD_FAILURE() << at(i) << " gives " << got[i] << ", not " << rounded;
        return error;
      }
    }
  }
  return worst;
}

template <class T>
double unary_ulp(const std::string& name, double (*reference)(double), T dense = 20) {
  std::vector<T> x = samples<T>(7, dense), y(x.size());
  kernels().run(name + (sizeof(T) == 4 ? "32" : "64"), {}, {x.data(), y.data()},
                static_cast<int64_t>(x.size()));
  std::vector<double> want(x.size());
  for (size_t i = 0; i < x.size(); ++i) want[i] = reference(x[i]);
  double worst =
      worst_ulp<T>(y, want, [&](size_t i) { return name + "(" + std::to_string(x[i]) + ")"; });
  ::testing::Test::RecordProperty(name + (sizeof(T) == 4 ? "32" : "64"), std::to_string(worst));
  return worst;
}

template <class T> double binary_ulp(const std::string& name, double (*reference)(double, double)) {
  std::vector<T> x = samples<T>(7), y = samples<T>(11);
  std::swap_ranges(y.begin(), y.begin() + 20000, y.end() - 60000);  // mix wild and tame
  for (size_t i = 0; i < 64; ++i) {                                 // special with special
    for (size_t j = 0; j < 44; ++j) {
      x.push_back(x[150000 + j]);
      y.push_back(i < 44 ? x[150000 + i] : static_cast<T>(static_cast<int>(i) - 54));
    }
  }
  std::vector<T> out(x.size());
  kernels().run(name + (sizeof(T) == 4 ? "32" : "64"), {}, {x.data(), y.data(), out.data()},
                static_cast<int64_t>(x.size()));
  std::vector<double> want(x.size());
  for (size_t i = 0; i < x.size(); ++i) want[i] = reference(x[i], y[i]);
  return worst_ulp<T>(out, want, [&](size_t i) {
    return name + "(" + std::to_string(x[i]) + ", " + std::to_string(y[i]) + ")";
  });
}

class CpuMath : public tfcc::test::CpuTargetTest {};

TEST_F(CpuMath, FloatElementary) {
  EXPECT_LE(unary_ulp<float>("exp", std::exp, 90), 1.5);
  EXPECT_LE(unary_ulp<float>("log", std::log), 1.5);
  EXPECT_LE(unary_ulp<float>("tanh", std::tanh, 3), 3);
  EXPECT_LE(unary_ulp<float>("sin", std::sin), 1);
  EXPECT_LE(unary_ulp<float>("cos", std::cos), 1);
  EXPECT_LE(unary_ulp<float>("atan", std::atan), 3);
  EXPECT_LE(unary_ulp<float>("erf", std::erf, 5), 3);
}

TEST_F(CpuMath, DoubleElementary) {
  EXPECT_LE(unary_ulp<double>("exp", std::exp, 700), 2.5);
  EXPECT_LE(unary_ulp<double>("log", std::log), 2.5);
  EXPECT_LE(unary_ulp<double>("tanh", std::tanh, 3), 5);
  EXPECT_LE(unary_ulp<double>("sin", std::sin), 3);
  EXPECT_LE(unary_ulp<double>("cos", std::cos), 3);
  EXPECT_LE(unary_ulp<double>("atan", std::atan), 4);
  EXPECT_LE(unary_ulp<double>("erf", std::erf, 6), 4);
}

TEST_F(CpuMath, SineOfLargeArguments) {
  EXPECT_LE(unary_ulp<float>("sin", std::sin, 1e9f), 1);
  EXPECT_LE(unary_ulp<double>("sin", std::sin, 1e15), 3);
  EXPECT_LE(unary_ulp<double>("cos", std::cos, 2e6), 3);
}

TEST_F(CpuMath, RoundingIsExact) {
  for (const auto& [name, f] : std::vector<std::pair<std::string, double (*)(double)>>{
           {"floor", std::floor}, {"ceil", std::ceil}, {"rint", std::nearbyint}}) {
    EXPECT_EQ(unary_ulp<float>(name, f), 0) << name;
    EXPECT_EQ(unary_ulp<double>(name, f), 0) << name;
  }
  EXPECT_LE(unary_ulp<float>("sqrt", std::sqrt), 0.5);
  EXPECT_EQ(unary_ulp<double>("sqrt", std::sqrt), 0);
}

TEST_F(CpuMath, PowAndFmod) {
  EXPECT_LE(binary_ulp<float>("pow", std::pow), 1);
  EXPECT_LE(binary_ulp<double>("pow", std::pow), 200);  // 200 ulp: 4e-14
  EXPECT_EQ(binary_ulp<float>("fmod", std::fmod), 0);
  EXPECT_EQ(binary_ulp<double>("fmod", std::fmod), 0);
}

TEST_F(CpuMath, SixteenBitConversions) {
  CpuKernels v2(R"(
#include "cpu/prelude.h"
TFCC_KERNEL(to_f16) { for (i64 i = begin; i < end; ++i) store((f16*)a[1], i, load((const f32*)a[0], i)); }
TFCC_KERNEL(from_f16) { for (i64 i = begin; i < end; ++i) store((f32*)a[1], i, load((const f16*)a[0], i)); }
TFCC_KERNEL(to_bf16) { for (i64 i = begin; i < end; ++i) store((bf16*)a[1], i, load((const f32*)a[0], i)); }
)",
                "x86-64-v2");
  std::vector<float> x = samples<float>(3, 70000);
  for (float y : samples<float>(5, 1e-4f)) x.push_back(y);
  int64_t count = static_cast<int64_t>(x.size());
  std::vector<uint16_t> half(x.size()), brain(x.size());
  std::vector<float> back(x.size());
  v2.run("to_f16", {}, {x.data(), half.data()}, count);
  v2.run("from_f16", {}, {half.data(), back.data()}, count);
  v2.run("to_bf16", {}, {x.data(), brain.data()}, count);
  for (size_t i = 0; i < x.size(); ++i) {
    _Float16 h = static_cast<_Float16>(x[i]);
    if (std::isnan(x[i])) {
      EXPECT_TRUE(std::isnan(back[i]));
    } else {
      ASSERT_EQ(back[i], static_cast<float>(h)) << x[i];
      // bf16: within half a step, and to even on a tie.
      uint32_t u, r = static_cast<uint32_t>(brain[i]) << 16;
      std::memcpy(&u, &x[i], 4);
      uint32_t low = u & 0xffff, base = u & 0xffff0000u;
      bool up = low > 0x8000 || (low == 0x8000 && (base & 0x10000));
      ASSERT_EQ(r, base + (up ? 0x10000u : 0u)) << x[i];
    }
  }
}

}  // namespace
