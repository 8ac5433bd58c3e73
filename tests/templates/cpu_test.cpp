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

// Few rows by codes, tiles of more, and many, for which 16 bits are widened.
TEST(CpuRows, HaveTheSameBitsAmongOthers) {
  int checked = 0;
  for (const Case& c : all_cases()) {
    if (c.name != "matmul_weights_in_bits" && c.name != "matmul_weights_in_16_bits" &&
        (!c.name.starts_with("grouped_matmul_") || c.name == "grouped_matmul_rows"))
      continue;
    for (const std::string target : {codegen::native_cpu_level(), std::string("x86-64-v2")})
      check_first_rows(c, {target, Family::cpu});
    ++checked;
  }
  EXPECT_GE(checked, 18);
}

INSTANTIATE_TEST_SUITE_P(Table, CpuKernels, testing::ValuesIn(all_cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tfcc::test
