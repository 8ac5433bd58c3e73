// SPDX-License-Identifier: Apache-2.0
// Every case of the table on the CPU: with the code of this machine's level and with that of the
// lowest.
#include "codegen/clang_cpu.h"
#include "tests/kernels/harness.h"

namespace tfcc::test {
namespace {

class CpuKernels : public testing::TestWithParam<Case> {};

TEST_P(CpuKernels, NativeLevel) {
  check_case(GetParam(), {codegen::native_cpu_level(), codegen::Family::cpu});
}

TEST_P(CpuKernels, LowestLevel) { check_case(GetParam(), {"x86-64-v2", codegen::Family::cpu}); }

INSTANTIATE_TEST_SUITE_P(Table, CpuKernels, testing::ValuesIn(all_cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tfcc::test
