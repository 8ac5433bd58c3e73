// SPDX-License-Identifier: Apache-2.0
// templates/expr.h on the device, against the host's functions.
#include <fmt/format.h>

#include <cmath>
#include <functional>
#include <limits>

#include "tests/templates/cuda/device.h"

namespace tfcc::test {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// out[e] = expression of x, y (type `in`) for every pair; NaN and infinities must agree.
std::vector<double> apply(const std::string& in, const std::string& out,
                          const std::string& expression, const std::vector<double>& x,
                          const std::vector<double>& y, unsigned* flags = nullptr) {
  Launch launch{.source = fmt::format(R"(#include "cuda/pointwise.cuh"
struct Spec {{ using Out = {1}; static constexpr int rank = 1, vec = 1; }};
struct Body {{
  const i64* n; u32* flags; const {0}* a; const {0}* b;
  TFCC_FN auto operator()() const {{
    return [=, *this](idx i, Compute<{1}> (&v)[1]) {{ auto x = load(a, i); auto y = load(b, i); v[0] = {2}; }};
  }}
}};
TFCC_KERNEL(256, kernel, const {0}* a, const {0}* b, {1}* out) {{ pointwise<Spec>(out, {{n[0]}}, Body{{n, flags, a, b}}); }}
)",
                                      in, out, expression),
                .grid = {unsigned(x.size() + 255) / 256, 1, 1},
                .sizes = {int64_t(x.size())},
                .inputs = {tensor(in, x), tensor(in, y)},
                .outputs = {{out, std::vector<double>(x.size())}}};
  run(launch);
  if (flags) *flags = launch.flags;
  return launch.outputs[0].values;
}

TEST(Primitives, Reals) {
  TFCC_NEEDS_DEVICE();
  std::vector<double> x = {0,  0.5, -0.5, 1,   -1,   2.5,   -2.5, 10,  -10,
                           88, -88, 1e-5, 3e4, kInf, -kInf, kNan, 0.1, -7.25};
  std::vector<double> y = {3, -2, 0.5, kNan, 2, 1.5, 3, -1, 7, 1, 1, 2, 0.25, 1, -1, 0, 0, 2};
  using F = std::function<double(double, double)>;
  const std::vector<std::pair<std::string, F>> functions = {
      {"fexp(x)", [](double a, double) { return std::exp(a); }},
      {"flog(x)", [](double a, double) { return std::log(a); }},
      {"fsqrt(x)", [](double a, double) { return std::sqrt(a); }},
      {"ferf(x)", [](double a, double) { return std::erf(a); }},
      {"ftanh(x)", [](double a, double) { return std::tanh(a); }},
      {"fsin(x)", [](double a, double) { return std::sin(a); }},
      {"fcos(x)", [](double a, double) { return std::cos(a); }},
      {"fatan(x)", [](double a, double) { return std::atan(a); }},
      {"fabs_(x)", [](double a, double) { return std::fabs(a); }},
      {"ffloor(x)", [](double a, double) { return std::floor(a); }},
      {"fceil(x)", [](double a, double) { return std::ceil(a); }},
      {"frint(x)", [](double a, double) { return std::nearbyint(a); }},
      {"fsign(x)", [](double a, double) { return std::isnan(a) ? a : (a > 0) - (a < 0); }},
      {"fpow(x, y)", [](double a, double b) { return std::pow(a, b); }},
      {"fmod_(x, y)", [](double a, double b) { return std::fmod(a, b); }},
      {"fmin_(x, y)",
       [](double a, double b) {
         return std::isnan(a + b) && !std::isinf(a) ? kNan : std::min(a, b);
       }},
      {"fmax_(x, kInf)", [](double a, double) { return std::isnan(a) ? kNan : kInf; }},
      {"fisnan(x) ? -kInf : kNan", [](double a, double) { return std::isnan(a) ? -kInf : kNan; }},
  };
  for (const auto& [text, f] : functions) {
    for (const char* type : {"f32", "f64"}) {
      std::vector<double> a = tensor(type, x).values, b = tensor(type, y).values,
                          r = apply(type, type, text, x, y);
      double eps = type == std::string("f32") ? 5e-7 : 2e-15;
      for (size_t k = 0; k < x.size(); ++k) {
        double e = tensor(type, {f(a[k], b[k])}).values[0];
        if (std::isnan(e))
          EXPECT_TRUE(std::isnan(r[k])) << text << " of " << a[k] << ", " << b[k] << ": " << r[k];
        else if (std::isinf(e)) EXPECT_EQ(r[k], e) << text << " of " << a[k];
        else
          EXPECT_LE(std::fabs(r[k] - e), eps * std::fabs(e) + eps * 1e-2)
              << type << " " << text << " of " << a[k] << ", " << b[k];
      }
    }
  }
}

// Results of 16 bits have what is left of erf after their rounding, and what GELU has of it far out.
TEST(Primitives, OnePlusErfOf16Bits) {
  TFCC_NEEDS_DEVICE();
  std::vector<double> x = {0, -0.0, kInf, -kInf, kNan, 1e20, -1e20, 60, -60};
  const size_t special = x.size();
  for (int i = -9000; i <= 9000; ++i) x.push_back(i / 2000.0);
  const std::vector<double> a = tensor("f32", x).values,
                            r = apply("f32", "f32", "one_plus_erf_short(x)", x, x),
                            all = {1, 1, 2, 0, kNan, 2, 0, 2, 0};
  for (size_t k = 0; k < special; ++k) {
    if (std::isnan(all[k])) EXPECT_TRUE(std::isnan(r[k]));
    else EXPECT_NEAR(r[k], all[k], 3e-7) << x[k];
  }
  for (size_t k = special; k < x.size(); ++k) {
    const double want = std::erfc(-a[k]);  // 1 + erf, without cancellation
    EXPECT_LE(std::abs(r[k] - want), 5e-6) << a[k];
    if (want > 2e-4) EXPECT_LE(std::abs(r[k] / want - 1), 8e-5) << a[k];
    if (a[k] < 0) {  // GELU of x sqrt(2), in units of the last place of an f16
      const double gelu = std::abs(a[k]) * std::sqrt(0.5) * want;
      const double unit = std::max(std::exp2(std::floor(std::log2(gelu)) - 10), std::exp2(-24));
      EXPECT_LE(std::abs(r[k] / want - 1) * gelu, 0.6 * unit) << a[k];
    }
  }
}

// What ptxas 13.0 gets wrong of plain C++, see expr.h: magnitudes and squares of NaN, a negation in
// a maximum of three.
TEST(Primitives, SurviveTheAssembler) {
  TFCC_NEEDS_DEVICE();
  const std::vector<double> x = {kNan, -2, 0, 3, kInf, -kInf}, y(x.size());
  for (const char* magnitude : {"fabs_(x)", "x * x", "fabs_(x) + x * x"}) {
    for (const char* use : {"fle(0.0f, {0}) ? 1.0f : 2.0f", "flt(-1.0f, {0}) ? 1.0f : 2.0f",
                            "flt(-({0}), 1.0f) ? 1.0f : 2.0f"}) {
      const std::string text = fmt::format(fmt::runtime(use), magnitude);
      EXPECT_EQ(apply("f32", "f32", text, x, y), (std::vector<double>{2, 1, 1, 1, 1, 1})) << text;
    }
    for (const char* use : {"fmin_({0}, 0.0f)", "fmin_({0}, -1.0f)", "fmin_(-1.5f, {0})",
                            "fmax_(-({0}), 1.0f)", "fmax_(1.0f, -({0}))"}) {
      const std::string text = fmt::format(fmt::runtime(use), magnitude);
      const std::vector<double> r = apply("f32", "f32", text, x, y);
      EXPECT_TRUE(std::isnan(r[0])) << text;
      EXPECT_FALSE(std::isnan(r[1]) || std::isnan(r[2])) << text;
    }
  }
  const std::vector<double> a = {-7, -1, 0, 2, 5}, b = {-6, 3, -2, 4, 0};
  std::vector<double> most, least;
  for (size_t k = 0; k < a.size(); ++k) {
    most.push_back(std::max({a[k], -b[k], -4.0}));
    least.push_back(std::min({a[k], -b[k], 1.0}));
  }
  EXPECT_EQ(apply("i32", "i32", "imax(imax((idx)x, ineg((idx)y)), n[0] > 0 ? -4 : (idx)x)", a, b),
            most);
  EXPECT_EQ(apply("i32", "i32", "imin(imin((idx)x, ineg((idx)y)), n[0] > 0 ? 1 : (idx)x)", a, b),
            least);
}

TEST(Primitives, Integers) {
  TFCC_NEEDS_DEVICE();
  std::vector<double> x, y, div, mod, least, most;
  for (int a = -9; a <= 9; ++a) {
    for (int b = 1; b <= 4; ++b) {
      x.push_back(a), y.push_back(b);
      div.push_back(std::floor(double(a) / b)), mod.push_back(a - b * std::floor(double(a) / b));
      least.push_back(std::min(a, b)), most.push_back(std::max(std::abs(a), b));
    }
  }
  for (const char* type : {"i64", "i32"}) {
    EXPECT_EQ(apply(type, "i64", "floordiv((idx)x, y)", x, y), div);
    EXPECT_EQ(apply(type, "i64", "floormod(x, (idx)y)", x, y), mod);
    EXPECT_EQ(apply(type, "i64", "imin(x, y)", x, y), least);
    EXPECT_EQ(apply(type, "i64", "imax(iabs(x), (idx)y)", x, y), most);
  }
}

TEST(Primitives, BoundedRaisesTheFlag) {
  TFCC_NEEDS_DEVICE();
  unsigned flag = 7;
  EXPECT_EQ(apply("i64", "i64", "bounded(x, y, flags)", {0, 4}, {5, 5}, &flag),
            (std::vector<double>{0, 4}));
  EXPECT_EQ(flag, 0u);
  EXPECT_EQ(apply("i64", "i64", "bounded(x, y, flags)", {-1, 5, 1e15, 0}, {5, 5, 5, 0}, &flag),
            (std::vector<double>{0, 4, 4, 0}));
  EXPECT_EQ(flag, 1u);
}

TEST(Primitives, FloatToInteger) {
  TFCC_NEEDS_DEVICE();
  const double end = 0x1p63;
  std::vector<double> x = {1.9, -1.9, kNan, kInf, -kInf, 1e30, -1e30, 0};
  std::vector<double> e = {1, -1, 0, end, -end, end, -end, 0};
  for (const char* type : {"f32", "f64"}) EXPECT_EQ(apply(type, "i64", "f2i(x)", x, x), e);
}

TEST(Primitives, RoundingTo16Bits) {
  TFCC_NEEDS_DEVICE();
  std::vector<double> x = {0,        1,      -1.0009765625, 1.00048828125, 1.0004882812500002,
                           65519.99, 65520,  -1e9,          1e-7,          3e-8,
                           2.9e-8,   6.1e-5, 0.1,           3.39e38,       3.4e38,
                           kInf,     -kInf,  kNan,          1.00390625,    1.003906250000001,
                           1e-40};
  for (const char* type : {"f32", "f64"}) {
    std::vector<double> in = tensor(type, x).values;
    for (const char* to : {"f16", "bf16"}) {
      // A double goes to bf16 through a float in the host's helper: leave its one double rounding
      // to the kernel's side.
      std::vector<double> e = tensor(to, in).values;
      if (to == std::string("bf16") && type == std::string("f64")) e[19] = 1.0078125;
      std::vector<double> r = apply(type, type, fmt::format("round_{}(x)", to), x, x);
      Launch launch{
          .source = fmt::format(
              "#include \"cuda/prelude.cuh\"\nTFCC_KERNEL(32, kernel, const {0}* x, {1}* out) "
              "{{ if (threadIdx.x < n[0]) store(out, threadIdx.x, load(x, threadIdx.x)); }}\n",
              type, to),
          .threads = 32,
          .sizes = {int64_t(x.size())},
          .inputs = {{type, in}},
          .outputs = {{to, std::vector<double>(x.size())}}};
      run(launch);
      const std::vector<double>& s = launch.outputs[0].values;
      for (size_t k = 0; k < x.size(); ++k) {
        if (std::isnan(e[k])) EXPECT_TRUE(std::isnan(r[k]) && std::isnan(s[k]));
        else
          EXPECT_TRUE(r[k] == e[k] && s[k] == e[k])
              << type << " to " << to << ": " << in[k] << " gave " << r[k] << ", stored " << s[k]
              << ", expected " << e[k];
      }
    }
  }
}

}  // namespace
}  // namespace tfcc::test
