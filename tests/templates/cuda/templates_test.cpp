// SPDX-License-Identifier: Apache-2.0
// The templates other than attention against double references, at and one off their tile edges.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "tests/templates/cuda/device.h"
#include "tests/templates/cuda/stubs.h"

namespace tfcc::test {
namespace {

unsigned ceil_div(size_t a, size_t b) { return unsigned((a + b - 1) / b); }

const char* const kReals[] = {"f32", "f16", "bf16"};

TEST(Pointwise, AddsWithPacksAndBroadcast) {
  TFCC_NEEDS_DEVICE();
  for (const char* type : kReals) {
    for (int rows : {1, 3, 100}) {
      for (auto [width, vec] : {std::pair{5, 1}, {6, 2}, {768, 4}}) {
        for (unsigned offset : {0u, 4u}) {
          HostTensor a = random(type, size_t(2) * rows * width, 1), b = random(type, width, 2);
          std::vector<double> expected;
          for (size_t e = 0; e < a.values.size(); ++e)
            expected.push_back(a.values[e] + b.values[e % width]);
          Launch launch{.source = fmt::format(R"(#include "cuda/pointwise.cuh"
struct Spec {{ using Out = {0}; static constexpr int rank = 3, vec = {2}; }};
struct Body {{
  const i64* n; const {0}* a; const {0}* b;
  TFCC_FN auto operator()(idx i, idx j) const {{
    return [=, *this](idx k, auto& v) {{
      const auto p = read_pack<Spec::vec>(a + (i * (idx)n[1] + j) * {1} + k);
      fill_pack(v, k, [&](idx k, int e) -> f32 {{ return p[e] + load(b, k); }});
    }};
  }}
}};
TFCC_KERNEL(256, kernel, const {0}* a, const {0}* b, {0}* out) {{ pointwise<Spec>(out, {{n[0], n[1], {1}}}, Body{{n, a, b}}); }}
)",
                                              type, width, vec),
                        .grid = {ceil_div(expected.size(), 256 * vec) + 1, 1, 1},
                        .sizes = {2, rows},
                        .inputs = {a, b},
                        .outputs = {{type, std::vector<double>(expected.size())}},
                        .output_offset = offset};
          run(launch);
          EXPECT_EQ(launch.outputs[0].values, tensor(type, expected).values);
        }
      }
    }
  }
}

TEST(Pointwise, RanksOneAndEight) {
  TFCC_NEEDS_DEVICE();
  Launch scalar{.source = R"(#include "cuda/pointwise.cuh"
struct Spec { using Out = i32; static constexpr int rank = 1, vec = 1; };
struct Body { const i64* n; TFCC_FN auto operator()() const { return [=, *this](idx, i64 (&v)[1]) { v[0] = n[0] * 2; }; } };
TFCC_KERNEL(32, kernel, i32* out) { pointwise<Spec>(out, {1}, Body{n}); }
)",
                .threads = 32,
                .sizes = {21},
                .outputs = {{"i32", {0}}}};
  run(scalar);
  EXPECT_EQ(scalar.outputs[0].values[0], 42);

  Launch wide{.source = R"(#include "cuda/pointwise.cuh"
struct Spec { using Out = i64; static constexpr int rank = 8, vec = 1; };
struct Body {
  TFCC_FN auto operator()(idx a, idx b, idx c, idx d, idx e, idx f, idx g) const {
    return [=](idx h, i64 (&v)[1]) { v[0] = ((((((a * 10 + b) * 10 + c) * 10 + d) * 10 + e) * 10 + f) * 10 + g) * 10 + h; };
  }
};
TFCC_KERNEL(256, kernel, i64* out) { pointwise<Spec>(out, {2, n[0], 1, 2, n[1], 2, 1, 3}, Body{}); }
)",
              .grid = {2, 1, 1},
              .sizes = {3, 2},
              .outputs = {{"i64", std::vector<double>(144)}}};
  run(wide);
  const int dims[8] = {2, 3, 1, 2, 2, 2, 1, 3};
  for (int e = 0; e < 144; ++e) {
    int rest = e, digits = 0, place = 1;
    for (int k = 7; k >= 0; --k, place *= 10) digits += rest % dims[k] * place, rest /= dims[k];
    ASSERT_EQ(wide.outputs[0].values[e], digits);
  }
}

/// out[o] = Op over r of x[o, r], or of x[r, o].
void check_reduce(const std::string& type, const std::string& op, int outputs, int length,
                  int per_row, bool across) {
  SCOPED_TRACE(fmt::format("{} {} outputs {} length {} threads {} across {}", type, op, outputs,
                           length, per_row, across));
  bool integer = type == "i64";
  HostTensor x = op == "Prod" ? random(type, size_t(outputs) * length, 3, 0.9, 1.1)
                              : random(type, size_t(outputs) * length, 3, integer ? -100 : -1,
                                       integer ? 100 : 1);
  std::vector<double> expected;
  for (int o = 0; o < outputs; ++o) {
    double v = op == "Prod" ? 1 : op == "Max" ? -INFINITY : op == "Min" ? INFINITY : 0;
    for (int r = 0; r < length; ++r) {
      double e = x.values[across ? size_t(r) * outputs + o : size_t(o) * length + r];
      v = op == "Prod"  ? v * e
          : op == "Max" ? std::max(v, e)
          : op == "Min" ? std::min(v, e)
                        : v + e;
    }
    if (op == "Mean") v = integer ? std::trunc(v / length) : v / length;
    expected.push_back(v);
  }
  int threads = per_row > 32 ? per_row : 128;
  Launch launch{
      .source = fmt::format(R"(#include "cuda/reduce.cuh"
struct Spec {{
  using Out = {0}; using Op = {1};
  static constexpr int rank = 1, reduce_rank = 1, threads_per_row = {2}, threads = {3};
  static constexpr bool across = {4};
}};
struct Value {{
  const i64* n; const {0}* x;
  TFCC_FN Compute<{0}> operator()(idx o, idx r) const {{ return load(x, {4} ? r * (idx)n[0] + o : o * (idx)n[1] + r); }}
}};
TFCC_KERNEL({3}, kernel, const {0}* x, {0}* out) {{ reduce<Spec>(out, {{n[0]}}, {{n[1]}}, Value{{n, x}}); }}
)",
                            type, op, across ? 1 : per_row, threads, across),
      .grid = {across ? ceil_div(outputs, 32) : ceil_div(outputs, threads / per_row), 1, 1},
      .threads = unsigned(threads),
      .sizes = {outputs, length},
      .inputs = {x},
      .outputs = {{type, std::vector<double>(outputs)}}};
  run(launch);
  if (integer || op == "Max" || op == "Min") EXPECT_EQ(launch.outputs[0].values, expected);
  else
    EXPECT_LE(relative_error(launch.outputs[0].values, expected),
              2 * rounding(type));  // few values: no average
}

TEST(Reduce, AllKinds) {
  TFCC_NEEDS_DEVICE();
  for (const char* op : {"Sum", "Mean", "Max", "Min", "Prod"}) {
    for (int length : {1, 31, 32, 33, 257, 1000}) {
      for (int outputs : {1, 31, 65}) {
        check_reduce("f32", op, outputs, length, 32, false);
        check_reduce("f32", op, outputs, length, 256, false);
        check_reduce("f32", op, outputs, length, 32, true);
      }
    }
    check_reduce("f16", op, 5, 300, 32, false);
    check_reduce("f64", op, 5, 300, 256, false);
    if (op != std::string("Prod")) check_reduce("i64", op, 40, 77, 32, true);
  }
}

TEST(Reduce, OfNothing) {
  TFCC_NEEDS_DEVICE();
  check_reduce("f32", "Sum", 3, 0, 32, false);
  check_reduce("f32", "Max", 3, 0, 256, false);
  check_reduce("f32", "Prod", 3, 0, 32, true);
}

TEST(Cumsum, EveryDirection) {
  TFCC_NEEDS_DEVICE();
  for (const char* type : {"i64", "f32"}) {
    for (bool exclusive : {false, true}) {
      for (bool reverse : {false, true}) {
        for (int inner : {1, 3}) {
          for (int length : {1, 31, 32, 33, 200}) {
            const int outer = 5;
            HostTensor x = random(type, size_t(outer) * length * inner, 7, -9, 9);
            std::vector<double> expected(x.values.size());
            for (int line = 0; line < outer * inner; ++line) {
              double sum = 0;
              for (int k = 0; k < length; ++k) {
                size_t at =
                    (size_t(line / inner) * length + (reverse ? length - 1 - k : k)) * inner +
                    line % inner;
                expected[at] = exclusive ? sum : sum + x.values[at];
                sum += x.values[at];
              }
            }
            Launch launch{.source = fmt::format(R"(#include "cuda/cumsum.cuh"
struct Spec {{ using In = {0}; using Out = {0}; static constexpr bool exclusive = {1}, reverse = {2}, contiguous = {3}; }};
TFCC_KERNEL(128, kernel, const {0}* x, {0}* out) {{ cumsum<Spec>(out, x, n[1], n[2], n[0]); }}
)",
                                                type, exclusive, reverse, inner == 1),
                          .grid = {ceil_div(outer * inner, inner == 1 ? 4 : 128), 1, 1},
                          .threads = 128,
                          .sizes = {outer, length, inner},
                          .inputs = {x},
                          .outputs = {{type, std::vector<double>(expected.size())}}};
            run(launch);
            EXPECT_LE(relative_error(launch.outputs[0].values, expected),
                      type == std::string("i64") ? 0 : 1e-6);
          }
        }
      }
    }
  }
}

void check_softmax(const std::string& type, int rows, int cols, int per_row, int registers,
                   double size, bool log) {
  SCOPED_TRACE(fmt::format("{} rows {} cols {} threads {} registers {} log {}", type, rows, cols,
                           per_row, registers, log));
  HostTensor x = random(type, size_t(rows) * cols, 5, -size, size);
  std::vector<double> expected(x.values.size());
  for (int r = 0; r < rows; ++r) {
    const double* row = &x.values[size_t(r) * cols];
    double top = *std::max_element(row, row + cols), sum = 0;
    for (int c = 0; c < cols; ++c) sum += std::exp(row[c] - top);
    for (int c = 0; c < cols; ++c) {
      expected[size_t(r) * cols + c] =
          log ? row[c] - top - std::log(sum) : std::exp(row[c] - top) / sum;
    }
  }
  int threads = per_row > 32 ? per_row : 128;
  Launch launch{.source = fmt::format(R"(#include "cuda/softmax.cuh"
struct Spec {{ using Out = {0}; static constexpr int registers = {1}, threads_per_row = {2}, threads = {3}; static constexpr bool log = {4}; }};
struct Value {{ const {0}* x; idx cols; TFCC_FN f32 operator()(idx row, idx col) const {{ return load(x, row * cols + col); }} }};
TFCC_KERNEL({3}, kernel, const {0}* x, {0}* out) {{ softmax<Spec>(out, n[1], Value{{x, (idx)n[1]}}, n[0]); }}
)",
                                      type, registers, per_row, threads, log),
                .grid = {ceil_div(rows, threads / per_row) + 1, 1, 1},
                .threads = unsigned(threads),
                .sizes = {rows, cols},
                .inputs = {x},
                .outputs = {{type, std::vector<double>(expected.size())}}};
  run(launch);
  EXPECT_LE(relative_error(launch.outputs[0].values, expected), 2 * rounding(type));
}

TEST(Softmax, LengthsInRegistersAndPasses) {
  TFCC_NEEDS_DEVICE();
  for (int cols : {1, 31, 32, 33, 127, 128, 129, 1000, 5000}) {
    for (double size : {1.0, 1e4}) {
      check_softmax("f32", 5, cols, 32, 4, size, false);
      check_softmax("f16", 5, cols, 256, 16, size, false);
      check_softmax("f32", 5, cols, 256, 1, size, true);
    }
  }
}

void check_norm(const NormStub& s, int rows, double mean) {
  SCOPED_TRACE(fmt::format("{} hidden {} rows {} mean {} rms {} residual {} bias {}", s.type,
                           s.hidden, rows, mean, s.rms, s.has_residual, s.has_bias));
  const int h = s.hidden;
  HostTensor x = random(s.type, size_t(rows) * h, 1, mean - 1, mean + 1),
             other = random(s.type, size_t(rows) * h, 2);
  HostTensor gamma = random(s.type, h, 3, 0.5, 1.5), beta = random(s.type, h, 4),
             bias = random(s.type, h, 5);
  std::vector<double> sums, expected;
  for (int r = 0; r < rows; ++r) {
    std::vector<double> v(x.values.begin() + size_t(r) * h, x.values.begin() + size_t(r + 1) * h);
    for (int c = 0; c < h; ++c) {
      v[c] += s.has_residual ? other.values[size_t(r) * h + c] : 0;
      v[c] += s.has_bias ? bias.values[c] : 0;
    }
    sums.insert(sums.end(), v.begin(), v.end());
    double center = s.rms ? 0 : std::accumulate(v.begin(), v.end(), 0.0) / h, square = 0;
    for (double e : v) square += (e - center) * (e - center);
    double scale = 1 / std::sqrt(square / h + 1e-5);
    for (int c = 0; c < h; ++c) {
      expected.push_back((v[c] - center) * scale * gamma.values[c] +
                         (s.has_beta ? beta.values[c] : 0));
    }
  }
  Launch launch{.source = s.text(),
                .grid = {ceil_div(rows, s.threads() / s.threads_per_row()) + 1, 1, 1},
                .threads = unsigned(s.threads()),
                .sizes = {rows},
                .inputs = {x, other, gamma, beta, bias},
                .outputs = {{s.type, std::vector<double>(expected.size())},
                            {s.type, std::vector<double>(expected.size())}}};
  run(launch);
  // A float holds 1000 + x to 6e-5 only: that is the input's rounding, but the sum with a residual
  // adds to it.
  double sum_error = s.has_residual && s.type == "f32" ? std::abs(mean) * 1e-7 : 0;
  EXPECT_LE(relative_error(launch.outputs[0].values, expected),
            2 * rounding(s.type) + std::abs(mean) * 2e-7 + sum_error);
  if (!s.has_sum) return;
  EXPECT_LE(relative_error(launch.outputs[1].values, sums), rounding(s.type));
}

TEST(Norms, AnyHiddenSize) {
  TFCC_NEEDS_DEVICE();
  for (const char* type : kReals) {
    for (int hidden : {1, 64, 96, 255, 768, 770, 1024, 1032, 4096, 8192, 8200, 16384}) {
      check_norm({.type = type, .hidden = hidden}, 5, 0);
      check_norm({.type = type, .hidden = hidden, .rms = true, .has_beta = false}, 5, 0);
      check_norm(
          {.type = type, .hidden = hidden, .has_residual = true, .has_bias = true, .has_sum = true},
          5, 0);
    }
  }
}

TEST(Norms, RowsMeansAndOptions) {
  TFCC_NEEDS_DEVICE();
  for (const char* type : {"f32", "f16"}) {
    for (int rows : {1, 4, 129}) {
      check_norm({.type = type, .has_beta = false}, rows, 1000);
      check_norm({.type = type, .has_sum = true}, rows, 0);
      check_norm(
          {.type = type, .rms = true, .has_beta = false, .has_residual = true, .has_sum = true},
          rows, 0);
      check_norm({.type = type, .hidden = 2048, .has_residual = true}, rows,
                 type == std::string("f32") ? 1000 : 0);
    }
  }
}

TEST(Bind, StoresTheValues) {
  TFCC_NEEDS_DEVICE();
  // The struct is a parameter: the wrapper of this test fills it on the device.
  Launch launch{.source = R"(#include "cuda/bind.cuh"
struct BlockValues { i64 v[200]; };
TFCC_KERNEL(128, kernel, i64* block) {
  __shared__ BlockValues values;
  for (int k = threadIdx.x; k < 200; k += 128) values.v[k] = n[0] + k;
  __syncthreads();
  bind<200>(values.v, block);
}
)",
                .threads = 128,
                .sizes = {1000},
                .outputs = {{"i64", std::vector<double>(200)}}};
  run(launch);
  for (int k = 0; k < 200; ++k) EXPECT_EQ(launch.outputs[0].values[k], 1000 + k);
}

}  // namespace
}  // namespace tfcc::test
