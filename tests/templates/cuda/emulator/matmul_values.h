// SPDX-License-Identifier: Apache-2.0
// Factors and an epilogue for emulated products of f32.
#pragma once

#include <fmt/format.h>

#include <random>
#include <vector>

#include "cuda/sm90.cuh"

namespace tfcc::test {

/// s + column - row; both must lie inside.
struct Sum {
  int rows, columns;
  f32 operator()(f32 s, idx r, idx c) const {
    if (r < 0 || r >= rows || c < 0 || c >= columns)
      simt().fail(fmt::format("the epilogue is asked for ({}, {})", r, c));
    return s + static_cast<f32>(c % 7 - r % 5);
  }
  f32 operator()(f32 s, f32 t, idx r, idx c) const { return (*this)(s - 3 * t, r, c); }
};

template <class T> std::vector<T> filled(unsigned seed, int n) {
  std::mt19937 random(seed);
  std::vector<T> v(static_cast<size_t>(n));
  for (T& x : v) {
    if constexpr (sizeof(T) == 2)
      x.whole = static_cast<int16_t>(static_cast<int>(random() % 5) - 2);
    else x = static_cast<f32>(static_cast<int>(random())) * 0x1p-31f;  // rounds in every step
  }
  return v;
}

}  // namespace tfcc::test
