// SPDX-License-Identifier: Apache-2.0
// What templates/cuda/matmul_ordered.cuh uses of cuda/prelude.cuh and cuda/sm80.cuh, for the CPU: names, layouts and the meaning of each function are
// those of the real headers. Elements of 16 bits are whole numbers here, so that sums are exact.
#pragma once

#include <functional>

#include "cuda/sm90.cuh"

inline constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }
inline constexpr int round_up(int a, int b) { return ceil_div(a, b) * b; }

namespace emulated {

/// Copies of each thread that are under way, in groups; some are done when they are asked for, the others when they are waited for.
struct Copies {
  std::map<int, std::vector<std::vector<std::function<void()>>>> groups;
  bool late = false;
};
inline Copies copies;

inline unsigned char* in_shared(u32 offset) { return shared_memory + offset; }
inline u32 offset_of(const void* p, int bytes) {
  const i64 at = static_cast<const unsigned char*>(p) - shared_memory;
  if (at < 0 || at + bytes > kSharedBytes || at % (bytes < 16 ? bytes : 16) != 0)
    simt().fail("an address outside of shared memory, or between elements");
  return static_cast<u32>(at);
}

}  // namespace emulated

template <int bytes> void copy_async(void* to, const void* from, bool valid) {
  emulated::offset_of(to, bytes);
  if (valid && reinterpret_cast<std::uintptr_t>(from) % bytes != 0)
    simt().fail("a copy from between its elements");
  const auto copy = [=] {
    if (valid) std::memcpy(to, from, bytes);
    else std::memset(to, 0, bytes);
  };
  auto& groups = emulated::copies.groups[simt().thread()];
  if (groups.empty()) groups.emplace_back();
  if (emulated::copies.late) groups.back().push_back(copy);
  else copy();
}
inline void commit_copies() {
  auto& groups = emulated::copies.groups[simt().thread()];
  if (groups.empty()) groups.emplace_back();
  groups.emplace_back();
}
/// All but the last `left` groups that were committed.
template <int left> void wait_copies() {
  auto& groups = emulated::copies.groups[simt().thread()];
  for (size_t g = 0; g + 1 + left < groups.size(); ++g) {
    for (const auto& copy : groups[g]) copy();
    groups[g].clear();
  }
}

inline void load_matrices(u32 (&r)[4], const void* row) {
  const u32 own = emulated::offset_of(row, 16);
  const auto lane = static_cast<u32>(simt().lane());
  for (u32 m = 0; m < 4; ++m) {
    const auto at = static_cast<u32>(simt().shuffle(own, static_cast<int>(8 * m + lane / 4)));
    std::memcpy(&r[m], emulated::in_shared(at) + lane % 4 * 4, 4);
  }
}

inline void round_to_tf32(u32 (&x)[4]) {
  for (u32& v : x) v = (v + 0x1000u) & 0xffffe000u;
}
inline void split_to_tf32(u32 (&x)[4], u32 (&low)[4]) {
  for (int i = 0; i < 4; ++i) {
    const auto whole = std::bit_cast<f32>(x[i]);
    x[i] = (x[i] + 0x1000u) & 0xffffe000u;
    low[i] = std::bit_cast<u32>(whole - std::bit_cast<f32>(x[i])) & 0xffffe000u;
  }
}
/// m16n8k8 of f32.
inline void multiply_add_floats(f32 (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  const int lane = simt().lane();
  const auto of = [](u32 v, int from) {
    return std::bit_cast<f32>(static_cast<u32>(simt().shuffle(v, from)));
  };
  for (int k = 0; k < 8; ++k) {
    f32 left[2], right[2];
    for (int h = 0; h < 2; ++h)
      left[h] = of(a[h + k / 4 * 2], lane / 4 * 4 + k % 4),
      right[h] = of(k < 4 ? b0 : b1, (lane % 4 * 2 + h) * 4 + k % 4);
    for (int i = 0; i < 4; ++i) c[i] = std::fmaf(left[i / 2], right[i % 2], c[i]);
  }
}
template <class T> void multiply_add(f32 (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  if constexpr (kSame<T, f32>) return multiply_add_floats(c, a, b0, b1);
  const int lane = simt().lane();
  const auto half = [](u32 pair, int e) {
    return static_cast<f32>(static_cast<int16_t>(static_cast<uint16_t>(pair >> 16 * e)));
  };
  for (int eight = 0; eight < 2; ++eight) {  // k of 0 to 7, 8 to 15
    for (int t = 0; t < 4; ++t) {
      u32 left[2], right[2];
      for (int h = 0; h < 2; ++h) {
        left[h] = static_cast<u32>(simt().shuffle(a[2 * eight + h], lane / 4 * 4 + t));
        // Lane n * 4 + t has b of column n: this lane's are 2 (lane % 4) and the next.
        right[h] = static_cast<u32>(simt().shuffle(eight ? b1 : b0, (lane % 4 * 2 + h) * 4 + t));
      }
      for (int e = 0; e < 2; ++e) {
        for (int i = 0; i < 4; ++i) c[i] += half(left[i / 2], e) * half(right[i % 2], e);
      }
    }
  }
}

inline u32 pair_of_digits(u32 byte, u32 zero_and_1024, u32 scale) {
  f32 zero, factor, unused;
  unpack2<f16>(zero_and_1024, zero, unused);
  unpack2<f16>(scale, factor, unused);
  return pack2<f16>((1024 + static_cast<f32>(byte & 15) - zero) * factor,
                    (1024 + static_cast<f32>(byte >> 4) - zero) * factor);
}

inline u32 select_byte(int t) { return static_cast<u32>(t); }
inline u32 pair_of_digits(u32 bytes, u32 selector, u32 zeros, u32 scale) {
  f32 low, high, factor, unused;
  unpack2<f16>(zeros, low, high);
  unpack2<f16>(scale, factor, unused);
  const u32 byte = bytes >> 8 * selector & 255;
  return pack2<f16>((1024 + static_cast<f32>(byte & 15) + low) * factor,
                    (64 + static_cast<f32>(byte >> 4) + high) * factor);
}

inline u32 select_two_bytes(int first) { return static_cast<u32>(first); }
inline u32 pair_of_bytes(u32 low, u32 high, u32 selector, u32 zeros, u32 scale) {
  f32 zero, factor, unused;
  unpack2<f16>(zeros, zero, unused);
  unpack2<f16>(scale, factor, unused);
  const auto byte = [&](u32 k) {
    return static_cast<f32>((k < 4 ? low >> 8 * k : high >> 8 * (k - 4)) & 255);
  };
  return pack2<f16>((1024 + byte(selector) + zero) * factor,
                    (1024 + byte(selector + 1) + zero) * factor);
}
