// SPDX-License-Identifier: Apache-2.0
// Memory for kernels that must not read beside what they are given.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstring>
#include <utility>

#include "runtime/result.h"

namespace tfcc::testing_support {

/// A copy of an array between reserved gigabytes: what reads or writes past its end ends the
/// process, and what does so far before its start; the other way round if it stands at the start of
/// its pages.
class Guarded {
 public:
  Guarded(const void* data, size_t size, bool at_end = true)
      : bytes_((size + kPage - 1) / kPage * kPage) {
    start_ = static_cast<std::byte*>(mmap(nullptr, bytes_ + 2 * kGuard, PROT_NONE,
                                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    TFCC_CHECK(start_ != MAP_FAILED);
    TFCC_CHECK(bytes_ == 0 || mprotect(start_ + kGuard, bytes_, PROT_READ | PROT_WRITE) == 0);
    if (bytes_ > 0) std::memset(start_ + kGuard, 0x5a, bytes_);
    data_ = start_ + kGuard + (at_end ? bytes_ - size : 0);
    if (size > 0) std::memcpy(data_, data, size);
  }
  Guarded(Guarded&& other) noexcept
      : bytes_(other.bytes_), start_(std::exchange(other.start_, nullptr)), data_(other.data_) {}
  Guarded& operator=(Guarded&&) = delete;
  ~Guarded() {
    if (start_) munmap(start_, bytes_ + 2 * kGuard);
  }
  std::byte* data() const { return data_; }

 private:
  static constexpr size_t kPage = 4096, kGuard = size_t{1} << 30;
  size_t bytes_;
  std::byte *start_, *data_;
};

}  // namespace tfcc::testing_support
