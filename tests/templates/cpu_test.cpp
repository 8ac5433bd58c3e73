// SPDX-License-Identifier: Apache-2.0
// Every case of the table on the CPU: with the code of this machine's level and with that of the
// lowest; those whose kernels are written for a width of vectors at the level between them too.
#include "codegen/clang_cpu.h"
#include "tests/templates/harness.h"

namespace tfcc::test {
namespace {

class CpuKernels : public testing::TestWithParam<Case> {};

TEST_P(CpuKernels, NativeLevel) {
  check_case(GetParam(), {codegen::native_cpu_level(), Family::cpu});
}

TEST_P(CpuKernels, LowestLevel) { check_case(GetParam(), {"x86-64-v2", Family::cpu}); }

class CpuKernelsOfWidth : public testing::TestWithParam<Case> {};

TEST_P(CpuKernelsOfWidth, MiddleLevel) {
  if (codegen::native_cpu_level() == "x86-64-v2") GTEST_SKIP() << "this machine has no x86-64-v3";
  check_case(GetParam(), {"x86-64-v3", Family::cpu});
}

INSTANTIATE_TEST_SUITE_P(Matmul, CpuKernelsOfWidth, testing::ValuesIn(matmul_cases()),
                         [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(GroupedMatmul, CpuKernelsOfWidth,
                         testing::ValuesIn(grouped_matmul_cases()),
                         [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(Attention, CpuKernelsOfWidth, testing::ValuesIn(attention_cases()),
                         [](const auto& info) { return info.param.name; });

TEST(CpuSequences, HaveTheSameBitsInEveryBatch) {
  for (const Case& c : all_cases()) {
    if (same_bits_in_every_batch(c))
      check_sequence_alone(c, {codegen::native_cpu_level(), Family::cpu});
  }
}

// Outputs of matmul_weights_* that no panel computes. The library does, which sums few rows in another
// order than many on CPUs with AVX2 (docs/numerics.md).
const std::set<std::string> kOfTheLibrary = {
    "twice",        "elsewhere",   "triangle",      "column",       "one",
    "y128_80_4_16", "y72_80_4_32", "y320_136_4_32", "y320_72_8_32", "af16_40_72",
    "af16_40_72_t", "abf16_40_72", "abf16_40_72_t"};

// Few rows by codes, tiles of more, and many, for which 16 bits are widened.
TEST(CpuRows, HaveTheSameBitsAmongOthers) {
  int checked = 0;
  for (const Case& c : all_cases()) {
    if (c.name != "matmul_weights_in_bits" && c.name != "matmul_weights_in_16_bits" &&
        (!c.name.starts_with("grouped_matmul_") || c.name == "grouped_matmul_rows" ||
         c.name.ends_with("_tokens")))  // whose rows are known
      continue;
    for (const std::string target : {codegen::native_cpu_level(), std::string("x86-64-v2")})
      check_first_rows(c, {target, Family::cpu}, kOfTheLibrary);
    ++checked;
  }
  EXPECT_GE(checked, 18);
}

INSTANTIATE_TEST_SUITE_P(Table, CpuKernels, testing::ValuesIn(all_cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tfcc::test
