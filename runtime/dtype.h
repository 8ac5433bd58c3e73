// SPDX-License-Identifier: Apache-2.0
// Element types of tensors, shared by the IR, the artifact and the public API.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tfcc {
inline namespace v1 {

/// Element type. The numbers are those of the artifact and never change.
enum class DType : uint8_t {
  f32 = 0,
  f16 = 1,
  bf16 = 2,
  f64 = 3,
  i64 = 4,
  i32 = 5,
  i16 = 6,
  i8 = 7,
  u8 = 8,
  boolean = 9
};

inline constexpr int kDTypeCount = 10;

/// Bytes of one element.
constexpr size_t size_of(DType t) {
  constexpr size_t kSizes[kDTypeCount] = {4, 2, 2, 8, 8, 4, 2, 1, 1, 1};
  return kSizes[static_cast<int>(t)];
}

/// The spelling of `.tfir`, of messages and of `inspect`.
constexpr const char* to_string(DType t) {
  constexpr const char* kNames[kDTypeCount] = {"f32", "f16", "bf16", "f64", "i64",
                                               "i32", "i16", "i8",   "u8",  "bool"};
  return kNames[static_cast<int>(t)];
}

constexpr bool is_float(DType t) { return static_cast<int>(t) <= static_cast<int>(DType::f64); }
constexpr bool is_integer(DType t) { return !is_float(t) && t != DType::boolean; }

}  // namespace v1
}  // namespace tfcc
