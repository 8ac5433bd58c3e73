// SPDX-License-Identifier: Apache-2.0
// The CPU templates but attention, through hand-written stubs, against double references, at and
// off the lane edges.
#include <cmath>
#include <limits>
#include <map>
#include <memory>

#include "tests/templates/cpu/cpu_kernel.h"

namespace {

using tfcc::test::CpuKernels;
using tfcc::test::random_floats;
using F = std::vector<float>;
using I = std::vector<int64_t>;

const char* kSource = R"(
#include "cpu/pointwise.h"
#include "cpu/reduce.h"
#include "cpu/cumsum.h"
#include "cpu/softmax.h"
#include "cpu/norm.h"

namespace transpose_add {  // out[i, j, k] = x[j, i, k] + y[k]
struct Body {
  const i64* n; const f32* x; const f32* y;
  TFCC_FN auto operator()(idx i, idx j) const {
    return [=, *this](idx k) -> f32 { return load(x, (j * n[1] + i) * n[2] + k) + load(y, k); };
  }
};
struct Spec { using Out = f32; static constexpr int rank = 3; };
TFCC_KERNEL(transpose_add) {
  pointwise<Spec>((f32*)a[2], {n[1], n[0], n[2]}, Body{n, (const f32*)a[0], (const f32*)a[1]}, begin, end);
}
}
namespace gather {  // out[i] = x[bounded(ids[i])]
struct Body {
  const i64* n; u32* flags; const i64* ids; const f32* x;
  TFCC_FN auto operator()() const {
    return [=, *this](idx i) -> f32 { return load(x, bounded(load(ids, i), n[1], flags + 2)); };
  }
};
struct Spec { using Out = f32; static constexpr int rank = 1; };
TFCC_KERNEL(gather) { pointwise<Spec>((f32*)a[2], {n[0]}, Body{n, flags, (const i64*)a[0], (const f32*)a[1]}, begin, end); }
}
namespace scalar {
struct Body { const i64* n; TFCC_FN auto operator()() const { return [=, *this](idx) -> i64 { return n[0] * 7; }; } };
struct Spec { using Out = i32; static constexpr int rank = 1; };
TFCC_KERNEL(scalar) { pointwise<Spec>((i32*)a[0], {1}, Body{n}, begin, end); }
}
#define REDUCE(NAME, OP, OUT, ACROSS, RANK, INNER, DIMS, EXTENTS, PARAMS, AT)                                \
  namespace NAME {                                                                                           \
  struct Value { const i64* n; const OUT* x; TFCC_FN Compute<OUT> operator() PARAMS const { return load(x, AT); } }; \
  struct Spec { using Out = OUT; using Op = ::OP; static constexpr int rank = RANK, reduce_rank = INNER; static constexpr bool across = ACROSS; }; \
  TFCC_KERNEL(NAME) { reduce<Spec>((OUT*)a[1], DIMS, EXTENTS, Value{n, (const OUT*)a[0]}, begin, end); }     \
  }
#define LIST(...) {__VA_ARGS__}
REDUCE(sum_last, Sum, f32, false, 1, 1, LIST(n[0]), LIST(n[1]), (idx i, idx r), i * n[1] + r)
REDUCE(mean_two, Mean, f32, false, 1, 2, LIST(n[0]), LIST(n[1], n[2]), (idx i, idx r, idx s), (i * n[1] + r) * n[2] + s)
REDUCE(max_all, Max, f32, false, 0, 1, {}, LIST(n[0]), (idx r), r)
REDUCE(min_int, Min, i64, false, 1, 1, LIST(n[0]), LIST(n[1]), (idx i, idx r), i * n[1] + r)
REDUCE(prod_last, Prod, f64, false, 1, 1, LIST(n[0]), LIST(n[1]), (idx i, idx r), i * n[1] + r)
REDUCE(mean_across, Mean, f32, true, 2, 1, LIST(n[0], n[2]), LIST(n[1]), (idx i, idx k, idx r), (i * n[1] + r) * n[2] + k)

#define CUMSUM(NAME, EXCLUSIVE, REVERSE)                                                                     \
  namespace NAME {                                                                                           \
  struct Spec { using In = i64; using Out = i64; static constexpr bool exclusive = EXCLUSIVE, reverse = REVERSE; }; \
  TFCC_KERNEL(NAME) { cumsum<Spec>((i64*)a[1], (const i64*)a[0], n[1], n[2], begin, end); }                  \
  }
CUMSUM(cumsum_plain, false, false)
CUMSUM(cumsum_exclusive, true, false)
CUMSUM(cumsum_reverse, false, true)

namespace softmax_rows {
struct Value { const f32* x; idx cols; TFCC_FN f32 operator()(idx row, idx col) const { return load(x, row * cols + col); } };
struct Spec { using Out = f32; static constexpr bool log = false; };
TFCC_KERNEL(softmax_rows) { softmax<Spec>((f32*)a[1], n[1], Value{(const f32*)a[0], n[1]}, begin, end); }
struct LogSpec { using Out = f32; static constexpr bool log = true; };
TFCC_KERNEL(log_softmax) { softmax<LogSpec>((f32*)a[1], n[1], Value{(const f32*)a[0], n[1]}, begin, end); }
}
#define NORMS(H)                                                                                             \
  namespace norms_##H {                                                                                      \
  struct Sum {                                                                                               \
    const f32* x; const f32* bias; const f32* residual;                                                      \
    TFCC_FN auto operator()(idx row) const {                                                                 \
      return [=, *this](idx j) -> f32 {                                                                      \
        const f32 v = load(x, row * H + j) + (bias ? load(bias, j) : 0.0f);                                  \
        return v + (residual ? load(residual, row * H + j) : 0.0f);                                          \
      };                                                                                                     \
    }                                                                                                        \
  };                                                                                                         \
  struct Spec {                                                                                              \
    using Real = f32;                                                                                        \
    static constexpr int rank = 2, hidden = H; static constexpr bool rms = false; static constexpr f32 eps = 1e-5f; \
  };                                                                                                         \
  struct RmsSpec : Spec { static constexpr bool rms = true; };                                               \
  TFCC_KERNEL(layer_norm_##H) { norm<Spec>((f32*)a[3], nullptr, {end}, Sum{(const f32*)a[0], nullptr, nullptr}, (const f32*)a[1], (const f32*)a[2], begin, end); } \
  TFCC_KERNEL(rms_norm_##H) { norm<RmsSpec>((f32*)a[3], nullptr, {end}, Sum{(const f32*)a[0], nullptr, nullptr}, (const f32*)a[1], nullptr, begin, end); } \
  TFCC_KERNEL(residual_layer_##H) {                                                                          \
    norm<Spec>((f32*)a[6], (f32*)a[5], {end}, Sum{(const f32*)a[0], (const f32*)a[4], (const f32*)a[3]}, (const f32*)a[1], (const f32*)a[2], begin, end); \
  }                                                                                                          \
  TFCC_KERNEL(residual_rms_##H) {                                                                            \
    norm<RmsSpec>((f32*)a[4], nullptr, {end}, Sum{(const f32*)a[0], nullptr, (const f32*)a[3]}, (const f32*)a[1], nullptr, begin, end); \
  }                                                                                                          \
  }
NORMS(1) NORMS(31) NORMS(32) NORMS(33) NORMS(768)
)";

class CpuTemplates : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (tfcc::codegen::cpu_compiler_version().empty())
      GTEST_SKIP() << "this build has no CPU target";
    if (GetParam() > tfcc::codegen::native_cpu_level())
      GTEST_SKIP() << "this machine is below " << GetParam();
    std::unique_ptr<CpuKernels>& kernels = compiled_[GetParam()];
    if (!kernels) kernels = std::make_unique<CpuKernels>(kSource, GetParam());
    kernels_ = kernels.get();
    for (uint32_t& flag : kernels_->flags) flag = 0;
  }
  CpuKernels* kernels_ = nullptr;
  static inline std::map<std::string, std::unique_ptr<CpuKernels>> compiled_;
};
INSTANTIATE_TEST_SUITE_P(Levels, CpuTemplates,
                         ::testing::Values("x86-64-v2", "x86-64-v3", "x86-64-v4"));

void expect_near(const F& got, const std::vector<double>& want, double tolerance,
                 const std::string& what) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(want[i])) ASSERT_TRUE(std::isnan(got[i])) << what << " at " << i;
    else
      ASSERT_NEAR(got[i], want[i], tolerance * std::max(1.0, std::abs(want[i])))
          << what << " at " << i;
  }
}

TEST_P(CpuTemplates, Pointwise) {
  for (int64_t cols : {1, 15, 16, 17, 130}) {
    const int64_t d0 = 3, d1 = 5;
    F x = random_floats(static_cast<size_t>(d0 * d1 * cols)),
      y = random_floats(static_cast<size_t>(cols), -1, 1, 9), out(x.size());
    kernels_->run("transpose_add", {d0, d1, cols}, {x.data(), y.data(), out.data()}, d0 * d1);
    for (int64_t i = 0; i < d1; ++i)
      for (int64_t j = 0; j < d0; ++j)
        for (int64_t k = 0; k < cols; ++k)
          ASSERT_EQ(out[static_cast<size_t>((i * d0 + j) * cols + k)],
                    x[static_cast<size_t>((j * d1 + i) * cols + k)] + y[static_cast<size_t>(k)]);
  }
  int32_t seven = 0;
  kernels_->run("scalar", {6}, {&seven}, 1);
  EXPECT_EQ(seven, 42);
}

TEST_P(CpuTemplates, GatherRaisesItsFlagAndClamps) {
  I ids = {0, 3, -5, 2, 9};
  F x = {10, 11, 12, 13}, out(5);
  kernels_->run("gather", {2, 4}, {ids.data(), x.data(), out.data()}, 1);
  EXPECT_EQ(kernels_->flags[2], 0u);
  kernels_->run("gather", {5, 4}, {ids.data(), x.data(), out.data()}, 1);
  EXPECT_EQ(out, (F{10, 13, 10, 12, 13}));
  EXPECT_EQ(kernels_->flags[2], 1u);
  EXPECT_EQ(kernels_->flags[1], 0u);
}

TEST_P(CpuTemplates, Reduce) {
  for (int64_t cols : {0, 1, 31, 32, 33, 1000}) {
    const int64_t rows = 7;
    F x = random_floats(static_cast<size_t>(rows * cols)), out(7);
    std::vector<double> sum(7, 0.0);
    for (int64_t t = 0; t < rows * cols; ++t)
      sum[static_cast<size_t>(t / cols)] += x[static_cast<size_t>(t)];
    kernels_->run("sum_last", {rows, cols}, {x.data(), out.data()}, rows);
    expect_near(out, sum, 1e-6 * std::sqrt(cols + 1.0), "sum");
    I ints(x.size()), least(7);
    for (size_t t = 0; t < x.size(); ++t) ints[t] = static_cast<int64_t>(x[t] * 1e6f) * 1000000007;
    kernels_->run("min_int", {rows, cols}, {ints.data(), least.data()}, rows);
    for (int64_t r = 0; r < rows; ++r) {
      int64_t m = std::numeric_limits<int64_t>::max();
      for (int64_t j = 0; j < cols; ++j) m = std::min(m, ints[static_cast<size_t>(r * cols + j)]);
      ASSERT_EQ(least[static_cast<size_t>(r)], m);
    }
    F top(1);
    kernels_->run("max_all", {cols}, {x.data(), top.data()}, 1);
    float m = -INFINITY;
    for (int64_t j = 0; j < cols; ++j) m = std::max(m, x[static_cast<size_t>(j)]);
    EXPECT_EQ(top[0], m);
  }
}

TEST_P(CpuTemplates, ReduceSpecialValuesAndDouble) {
  F x = random_floats(100), top(1);
  x[40] = NAN;
  kernels_->run("max_all", {100}, {x.data(), top.data()}, 1);
  EXPECT_TRUE(std::isnan(top[0]));
  std::vector<double> y(50, 1.0 + 1e-12), product(1);
  kernels_->run("prod_last", {1, 50}, {y.data(), product.data()}, 1);
  EXPECT_NEAR(product[0], 1 + 50e-12, 1e-14);
}

TEST_P(CpuTemplates, MeanOverTwoAxesAndAcross) {
  for (int64_t inner : {1, 63, 64, 65, 200}) {
    const int64_t outer = 3, middle = 11;
    F x = random_floats(static_cast<size_t>(outer * middle * inner)), both(3),
      across(static_cast<size_t>(outer * inner));
    std::vector<double> want_both(3, 0.0), want_across(across.size(), 0.0);
    for (int64_t i = 0; i < outer; ++i)
      for (int64_t r = 0; r < middle; ++r)
        for (int64_t k = 0; k < inner; ++k) {
          double v = x[static_cast<size_t>((i * middle + r) * inner + k)];
          want_both[static_cast<size_t>(i)] += v / static_cast<double>(middle * inner);
          want_across[static_cast<size_t>(i * inner + k)] += v / static_cast<double>(middle);
        }
    kernels_->run("mean_two", {outer, middle, inner}, {x.data(), both.data()}, outer);
    kernels_->run("mean_across", {outer, middle, inner}, {x.data(), across.data()}, outer);
    expect_near(both, want_both, 1e-6, "mean of two axes");
    expect_near(across, want_across, 1e-6, "mean across");
  }
}

TEST_P(CpuTemplates, Cumsum) {
  const int64_t outer = 2, len = 5, inner = 70;
  I x(static_cast<size_t>(outer * len * inner)), out(x.size());
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<int64_t>(i * i % 17) - 8;
  for (const char* name : {"cumsum_plain", "cumsum_exclusive", "cumsum_reverse"}) {
    kernels_->run(name, {outer, len, inner}, {x.data(), out.data()}, outer);
    for (int64_t o = 0; o < outer; ++o)
      for (int64_t t = 0; t < len; ++t)
        for (int64_t k = 0; k < inner; ++k) {
          int64_t want = 0;
          for (int64_t s = 0; s < len; ++s) {
            bool in = name[7] == 'p' ? s <= t : name[7] == 'e' ? s < t : s >= t;
            if (in) want += x[static_cast<size_t>((o * len + s) * inner + k)];
          }
          ASSERT_EQ(out[static_cast<size_t>((o * len + t) * inner + k)], want) << name;
        }
  }
}

TEST_P(CpuTemplates, Softmax) {
  for (int64_t cols : {1, 31, 32, 33, 500}) {
    F x = random_floats(static_cast<size_t>(3 * cols), -30, 30), out(x.size()), logs(x.size());
    x[0] = -INFINITY;
    if (cols == 33) x[33] = NAN;
    kernels_->run("softmax_rows", {3, cols}, {x.data(), out.data()}, 3);
    kernels_->run("log_softmax", {3, cols}, {x.data(), logs.data()}, 3);
    std::vector<double> want(x.size()), want_log(x.size());
    for (int64_t r = 0; r < 3; ++r) {
      double top = -INFINITY, sum = 0;
      for (int64_t j = 0; j < cols; ++j)
        top = std::max<double>(top, x[static_cast<size_t>(r * cols + j)]);
      for (int64_t j = 0; j < cols; ++j)
        sum += std::exp(x[static_cast<size_t>(r * cols + j)] - top);
      for (int64_t j = 0; j < cols; ++j) {
        size_t at = static_cast<size_t>(r * cols + j);
        want[at] = std::exp(x[at] - top) / sum;
        want_log[at] = x[at] - top - std::log(sum);
      }
    }
    expect_near(out, want, 1e-6, "softmax");
    if (cols > 1) {
      ASSERT_EQ(logs[0], -INFINITY);
      logs[0] = 0, want_log[0] = 0;
      expect_near(logs, want_log, 1e-5, "log_softmax");
    }
  }
}

TEST_P(CpuTemplates, Norms) {
  for (int64_t h : {1, 31, 32, 33, 768}) {
    const int64_t rows = 5;
    const std::string suffix = std::to_string(h);
    F x = random_floats(static_cast<size_t>(rows * h), 99, 101),
      residual = random_floats(x.size(), -5, 5, 3);
    F gamma = random_floats(static_cast<size_t>(h), 0.5, 2, 4),
      beta = random_floats(gamma.size(), -1, 1, 5), bias = random_floats(gamma.size(), -1, 1, 6),
      out(x.size()), sum(x.size());
    auto norm = [&](bool rms, bool with_residual, bool with_beta, bool with_bias) {
      std::vector<double> want(x.size());
      for (int64_t r = 0; r < rows; ++r) {
        auto v = [&](int64_t j) {
          size_t at = static_cast<size_t>(r * h + j);
          return x[at] + (with_residual ? double(residual[at]) : 0) +
                 (with_bias ? double(bias[static_cast<size_t>(j)]) : 0);
        };
        double mean = 0, squares = 0;
        for (int64_t j = 0; j < h && !rms; ++j) mean += v(j) / static_cast<double>(h);
        for (int64_t j = 0; j < h; ++j)
          squares += (v(j) - mean) * (v(j) - mean) / static_cast<double>(h);
        for (int64_t j = 0; j < h; ++j) {
          size_t c = static_cast<size_t>(j);
          want[static_cast<size_t>(r * h + j)] =
              (v(j) - mean) / std::sqrt(squares + 1e-5) * gamma[c] + (with_beta ? beta[c] : 0);
        }
      }
      return want;
    };
    // Values near 100: one step of a float there is 8e-6 of the spread.
    kernels_->run("layer_norm_" + suffix, {}, {x.data(), gamma.data(), beta.data(), out.data()},
                  rows);
    expect_near(out, norm(false, false, true, false), 5e-5, "layer_norm " + suffix);
    kernels_->run("rms_norm_" + suffix, {}, {x.data(), gamma.data(), beta.data(), out.data()},
                  rows);
    expect_near(out, norm(true, false, false, false), 1e-6, "rms_norm " + suffix);
    kernels_->run("residual_rms_" + suffix, {},
                  {x.data(), gamma.data(), nullptr, residual.data(), out.data()}, rows);
    expect_near(out, norm(true, true, false, false), 1e-6, "residual rms_norm " + suffix);
    std::vector<double> want = norm(false, true, true, true);
    F in_place = x;
    kernels_->run("residual_layer_" + suffix, {},
                  {in_place.data(), gamma.data(), beta.data(), residual.data(), bias.data(),
                   sum.data(), in_place.data()},
                  rows);
    expect_near(in_place, want, 5e-5, "residual layer_norm in place " + suffix);
    for (size_t i = 0; i < x.size(); ++i)
      ASSERT_NEAR(sum[i], x[i] + bias[i % gamma.size()] + residual[i], 2e-5);
  }
}

}  // namespace
