// SPDX-License-Identifier: Apache-2.0
// Every case of the table on this machine's GPU: with code of its own in f32, f16 and bf16, and
// with PTX alone. Skipped without a device.
#include <dlfcn.h>
#include <fmt/format.h>

#include "tests/templates/harness.h"

namespace tfcc::test {
namespace {

/// "sm_90", or empty without a driver and a device. The few functions are declared here: cuda.h is
/// not needed.
std::string find_device() {
  constexpr int kMajor = 75, kMinor = 76;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  if (!library) return {};
  const auto init = reinterpret_cast<int (*)(unsigned)>(dlsym(library, "cuInit"));
  const auto get = reinterpret_cast<int (*)(int*, int)>(dlsym(library, "cuDeviceGet"));
  const auto attribute =
      reinterpret_cast<int (*)(int*, int, int)>(dlsym(library, "cuDeviceGetAttribute"));
  int device = 0, major = 0, minor = 0;
  if (!init || !get || !attribute || init(0) != 0 || get(&device, 0) != 0) return {};
  if (attribute(&major, kMajor, device) != 0 || attribute(&minor, kMinor, device) != 0) return {};
  return fmt::format("sm_{}{}", major, minor);
}

const std::string& device() {
  static const std::string d = find_device();
  return d;
}

class GpuKernels : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (device().empty()) GTEST_SKIP() << "no CUDA device";
  }
};

TEST_P(GpuKernels, F32) { check_case(GetParam(), {device(), Family::cuda}); }

TEST_P(GpuKernels, F16) {
  if (GetParam().f16) check_case(GetParam(), {device(), Family::cuda, DType::f16});
}

TEST_P(GpuKernels, Bf16) {
  if (GetParam().bf16) check_case(GetParam(), {device(), Family::cuda, DType::bf16});
}

TEST_P(GpuKernels, Tf32) {
  if (multiplies_reals(GetParam())) {
    for (int products : {1, 3}) {
      check_case(GetParam(), {device(), Family::cuda, DType::f32, products});
      check_case(GetParam(), {"compute_80", Family::cuda, DType::f32, products});
    }
  }
}

// The driver compiles the PTX that every file carries for GPUs to come, in the forms of the oldest.
TEST_P(GpuKernels, Ptx) {
  check_case(GetParam(), {"compute_80", Family::cuda});
  if (GetParam().f16) check_case(GetParam(), {"compute_80", Family::cuda, DType::f16});
}

TEST(GpuSequences, HaveTheSameBitsInEveryBatch) {
  if (device().empty()) GTEST_SKIP() << "no CUDA device";
  for (const Case& c : all_cases()) {
    if (same_bits_in_every_batch(c)) check_sequence_alone(c, {device(), Family::cuda, DType::f16});
  }
}

// Their blocks wait for each other, on streams that have the GPU at the same time.
TEST(GpuSequences, AreSharedByBlocksOfManyStreams) {
  if (device().empty()) GTEST_SKIP() << "no CUDA device";
  for (const Case& c : all_cases()) {
    if (c.name == "linear_attention_spans_64_of_8_heads")
      return check_at_once(c, {device(), Family::cuda, DType::bf16}, {1, 8192});
  }
  FAIL() << "no such case";
}

INSTANTIATE_TEST_SUITE_P(Table, GpuKernels, testing::ValuesIn(all_cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tfcc::test
