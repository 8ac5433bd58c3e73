// SPDX-License-Identifier: Apache-2.0
// Every case of the table compiles for CUDA and spills no registers. Needs NVRTC and no device.
#include "codegen/nvrtc.h"
#include "tests/templates/harness.h"

namespace tfcc::test {
namespace {

class CudaCompile : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (!codegen::cuda_compiler_version()) GTEST_SKIP() << "no NVRTC";
  }
};

TEST_P(CudaCompile, F32) { compile_case(GetParam(), {"sm_90", Family::cuda}); }

TEST_P(CudaCompile, Tf32) {
  if (multiplies_reals(GetParam()))
    compile_case(GetParam(), {"sm_80", Family::cuda, DType::f32, 1});
}

TEST_P(CudaCompile, Tf32x3) {
  if (!multiplies_reals(GetParam())) return;
  for (const char* target : {"sm_80", "sm_86", "sm_90"})
    compile_case(GetParam(), {target, Family::cuda, DType::f32, 3});
}

TEST_P(CudaCompile, F16) {
  if (!GetParam().f16) return;
  compile_case(GetParam(), {"sm_80", Family::cuda, DType::f16});
  compile_case(GetParam(), {"sm_90", Family::cuda, DType::f16});
  if (GetParam().bf16) compile_case(GetParam(), {"sm_90", Family::cuda, DType::bf16});
}

INSTANTIATE_TEST_SUITE_P(Table, CudaCompile, testing::ValuesIn(all_cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tfcc::test
