// SPDX-License-Identifier: Apache-2.0
// Device memory, a stream and event timing for bench, through libcuda opened at run time.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "runtime/result.h"

namespace tfcc::tools {

/// GPU `index` of this process; the primary context is retained while it lives.
class Device {
 public:
  /// Errors: device (no driver, no such GPU).
  static Result<Device> open(int index);
  Device(Device&&) noexcept;
  Device& operator=(Device&&) noexcept;
  ~Device();

  /// A copy of host bytes on the device, freed with the Device. Errors: memory.
  Result<void*> upload(const void* data, size_t bytes);
  /// Device bytes to the host, after all work that status() or synchronize() waited for. Errors:
  /// device.
  Result<void> download(void* to, const void* from, size_t bytes);
  void* stream() const;
  Result<void> synchronize();

  /// Time between start() and stop() on the stream in milliseconds; stop() waits.
  Result<void> start();
  Result<float> stop();

 private:
  struct Impl;
  explicit Device(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tfcc::tools
