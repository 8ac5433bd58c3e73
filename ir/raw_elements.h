// SPDX-License-Identifier: Apache-2.0
// What constants and the making of their bytes share: elements in raw bytes, dims.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace tfcc::ir {

template <class T> T load_raw(const std::byte* data, size_t i) {
  T v;
  std::memcpy(&v, data + i * sizeof(T), sizeof(T));
  return v;
}

template <class T> void store_raw(std::byte* data, size_t i, T v) {
  std::memcpy(data + i * sizeof(T), &v, sizeof(T));
}

inline int64_t product(const std::vector<int64_t>& dims) {
  int64_t n = 1;
  for (int64_t d : dims) n *= d;
  return n;
}

inline std::vector<int64_t> permuted(const std::vector<int64_t>& v,
                                     const std::vector<int64_t>& permutation) {
  std::vector<int64_t> out;
  for (int64_t p : permutation) out.push_back(v[static_cast<size_t>(p)]);
  return out;
}

}  // namespace tfcc::ir
