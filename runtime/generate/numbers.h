// SPDX-License-Identifier: Apache-2.0
// Numbers of tensors in host memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/dtype.h"

namespace tfcc::generate {

using Bytes = std::vector<std::byte>;

/// Elements of a tensor of reals, from the first on as many as `out` has.
void numbers_from(const void* data, DType type, size_t first, std::span<float> out);
/// A whole number as a type of inputs; of 16-bit reals 0 and 1 alone.
void append_number(int64_t value, DType type, Bytes& out);

/// Element i of whole numbers of 32 or 64 bits, which is one of 32.
int32_t whole_number_from(const void* data, DType type, size_t i);

}  // namespace tfcc::generate
