// SPDX-License-Identifier: Apache-2.0
// Compiles CPU kernel source in a test and calls it as the runtime would. Failures abort the test.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <vector>

#include "codegen/clang_cpu.h"

namespace tfcc::test {

/// A test of the CPU target; skipped in a build without it.
class CpuTargetTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (codegen::cpu_compiler_version().empty()) GTEST_SKIP() << "this build has no CPU target";
  }
};

/// Units as one shared object, as `compile` makes it.
inline Result<std::vector<std::byte>> compile_cpu(const std::vector<codegen::CpuSource>& units,
                                                  const std::string& level = "native") {
  std::vector<std::vector<std::byte>> objects;
  for (const codegen::CpuSource& unit : units) {
    TFCC_TRY(auto object, codegen::compile_cpu_object(unit, level));
    objects.push_back(std::move(object));
  }
  return codegen::link_cpu(objects, level);
}

/// A loaded shared object of kernels.
class CpuKernels {
 public:
  explicit CpuKernels(const std::string& source, const std::string& level = "native") {
    auto image = compile_cpu({{"kernels", source}}, level);
    EXPECT_TRUE(bool(image)) << (image ? "" : image.error().message);
    if (!image) return;
    fd_ = memfd_create("kernels", 0);
    EXPECT_EQ(write(fd_, image->data(), image->size()), static_cast<ssize_t>(image->size()));
    handle_ = dlopen(("/proc/self/fd/" + std::to_string(fd_)).c_str(), RTLD_NOW | RTLD_LOCAL);
    EXPECT_TRUE(handle_) << dlerror();
  }
  ~CpuKernels() {
    if (handle_) dlclose(handle_);
    close(fd_);
  }
  CpuKernels(const CpuKernels&) = delete;
  CpuKernels& operator=(const CpuKernels&) = delete;

  /// Runs work items [0, work) in three calls, so that ranges that do not start at 0 are tested as
  /// well.
  void run(const std::string& name, const std::vector<int64_t>& n,
           const std::vector<const void*>& buffers, int64_t work) {
    using Kernel = void (*)(const int64_t*, uint32_t*, void* const*, int64_t, int64_t);
    auto kernel = handle_ ? reinterpret_cast<Kernel>(dlsym(handle_, name.c_str())) : nullptr;
    ASSERT_TRUE(kernel) << name;
    std::vector<void*> a;
    for (const void* p : buffers) a.push_back(const_cast<void*>(p));
    const int64_t cuts[] = {0, work / 3, work - work / 4, work};
    for (int k = 0; k < 3; ++k) kernel(n.data(), flags, a.data(), cuts[k], cuts[k + 1]);
  }
  uint32_t flags[8] = {};

 private:
  void* handle_ = nullptr;
  int fd_ =
      -1;  // open as long as the object is: the loader knows objects by path, and numbers are reused
};

/// Pseudo-random floats in [lo, hi), the same in every run.
inline std::vector<float> random_floats(size_t count, float lo = -1, float hi = 1,
                                        uint32_t seed = 1) {
  std::vector<float> v(count);
  for (float& x : v) {
    seed = seed * 1664525u + 1013904223u;
    x = lo + (hi - lo) * static_cast<float>(seed >> 8) * 0x1p-24f;
  }
  return v;
}

}  // namespace tfcc::test
