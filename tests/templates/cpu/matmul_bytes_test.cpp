// SPDX-License-Identifier: Apache-2.0
// The forms of the sums of matmul_bytes, each by itself: a CPU with VNNI never takes the one for
// CPUs without.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "codegen/clang_cpu.h"
#include "tests/templates/cpu/cpu_kernel.h"

namespace tfcc::codegen {
namespace {

using test::CpuKernels;

constexpr int64_t kK = 76, kPanel = 48, kRows = 5;

std::string source() {
  std::string s = "#include \"cpu/matmul_bytes.h\"\nnamespace {\n";
  for (const char* type : {"u8", "i8"})
    s += fmt::format(
        "struct Spec_{0} {{ using A = {0}; static constexpr int k = {1}, panel = {2}; }};\n", type,
        kK, kPanel);
  s +=
      "}\n#if defined(__AVX512F__)\nTFCC_KERNEL(vnni) { *(i32*)a[0] = matmul_bytes_detail::has_vnni(); }\n#else\nTFCC_KERNEL(vnni) { *(i32*)a[0] = 0; }\n#endif\n";
  for (const char* type : {"u8", "i8"}) {
    const auto kernel = [&](const char* form) {
      return fmt::format(
          "TFCC_KERNEL({0}_{1}) {{ matmul_bytes_detail::sums_by_{0}<Spec_{1}, {2}>((i32*)a[2], (const {1}*)a[0], (const i8*)a[1]); }}\n",
          form, type, kRows);
    };
    s += kernel("pairs") + "#if defined(__AVX512F__)\n" + kernel("fours") + "#endif\n";
  }
  return s;
}

class MatmulBytes : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Levels, MatmulBytes,
                         ::testing::Values("x86-64-v2", "x86-64-v3", "x86-64-v4"));

// Extremes of both types among them: of what VNNI would saturate, and of what a pair of i16 holds.
TEST_P(MatmulBytes, FormsAreExact) {
  if (cpu_compiler_version().empty()) GTEST_SKIP() << "this build has no CPU target";
  if (GetParam() > native_cpu_level()) GTEST_SKIP() << "this machine is below " << GetParam();
  CpuKernels kernels(source(), GetParam());
  int32_t vnni = 0;
  kernels.run("vnni", {}, {&vnni}, 1);
  std::vector<uint8_t> a(kRows * kK);
  std::vector<int8_t> b(kK * kPanel), packed(b.size());
  for (size_t i = 0; i < a.size(); ++i)
    a[i] = static_cast<uint8_t>(i < kK ? 255 : i < 2 * kK ? 128 : i * 97 + i / 7);
  for (size_t i = 0; i < b.size(); ++i)
    b[i] = static_cast<int8_t>(i % 5 == 0 ? -128 : i % 5 == 1 ? 127 : i * 31);
  for (int64_t k = 0; k < kK; ++k) {
    for (int64_t j = 0; j < kPanel; ++j)
      packed[(k / 4 * kPanel + j) * 4 + k % 4] = b[k * kPanel + j];
  }
  for (const bool is_signed : {false, true}) {
    for (const char* form : {"pairs", "fours"}) {
      if (form[0] == 'f' && !vnni) continue;
      std::vector<int32_t> out(kRows * kPanel, -1);
      kernels.run(fmt::format("{}_{}", form, is_signed ? "i8" : "u8"), {},
                  {a.data(), packed.data(), out.data()}, 1);
      for (int64_t i = 0; i < kRows; ++i) {
        for (int64_t j = 0; j < kPanel; ++j) {
          int32_t want = 0;
          for (int64_t k = 0; k < kK; ++k)
            want += (is_signed ? static_cast<int8_t>(a[i * kK + k]) : a[i * kK + k]) *
                    b[k * kPanel + j];
          ASSERT_EQ(out[i * kPanel + j], want)
              << form << (is_signed ? " signed" : "") << " at " << i << ", " << j;
        }
      }
    }
  }
}

}  // namespace
}  // namespace tfcc::codegen
