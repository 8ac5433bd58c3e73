// SPDX-License-Identifier: Apache-2.0
// Tests of CUDA templates: host tensors rounded to a storage type, and one function that compiles a
// stub and runs it. libcuda is opened at run time; without a device the tests are skipped.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tfcc::test {

/// Values as they are after rounding to `type` (f32, f16, bf16, f64, i64, i32, u8, b8).
struct HostTensor {
  std::string type;
  std::vector<double> values;
};

/// Rounds `values` to `type`, to nearest even.
HostTensor tensor(const std::string& type, std::vector<double> values);
/// `count` values uniform in [low, high], the same for the same seed.
HostTensor random(const std::string& type, size_t count, uint32_t seed, double low = -1,
                  double high = 1);

/// A kernel NAME "kernel" and its launch. Parameters: n, flags, the inputs, the outputs.
struct Launch {
  std::string source = {};
  unsigned grid[3] = {1, 1, 1};
  unsigned threads = 256;
  unsigned shared_bytes = 0;
  std::vector<int64_t> sizes = {};
  std::vector<HostTensor> inputs = {};
  std::vector<HostTensor> outputs = {};  // type and count; values are replaced by the result
  unsigned output_offset = 0;            // bytes by which the outputs are misaligned
  unsigned flags = 0;                    // after the run: the first word of flags
};

/// Compiles for this machine's device and runs. Outputs are poisoned with NaN before, memory around
/// all buffers too; a write outside of the outputs is a failure. Fails the test on any error.
void run(Launch& launch);

/// False without a device: skip.
bool has_device();

/// ||a - b|| / ||b||; infinite if a has a NaN that b lacks.
double relative_error(const std::vector<double>& a, const std::vector<double>& b);
/// One rounding to this type, relative to normal data, and 2e-6 for f32.
double rounding(const std::string& type);

}  // namespace tfcc::test

#define TFCC_NEEDS_DEVICE() \
  if (!tfcc::test::has_device()) GTEST_SKIP() << "no CUDA device"
