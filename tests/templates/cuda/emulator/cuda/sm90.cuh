// SPDX-License-Identifier: Apache-2.0
// What templates/cuda/matmul_wgmma.cuh and matmul_stream.cuh use of cuda/prelude.cuh and cuda/sm90.cuh, for the CPU: names, layouts and the meaning of each
// function are those of the real headers. Elements of 16 bits are whole numbers here, so that sums are exact.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "tests/templates/cuda/emulator/simt.h"

#define __CUDA_ARCH__ 900
#define TFCC_FN inline
#define __shared__ static
#define TFCC_DYNAMIC_SHARED(NAME) unsigned char* const NAME = shared_memory

using f32 = float;
using i64 = long long;
using i32 = int;
using u32 = unsigned;
using u64 = unsigned long long;
using idx = int;
using u8 = unsigned char;
using i8 = signed char;
struct f16 {
  int16_t whole;
};
struct uint4 {
  u32 x, y, z, w;
};
inline uint4 make_uint4(u32 x, u32 y, u32 z, u32 w) { return {x, y, z, w}; }

inline constexpr int kWarp = 32;

inline tfcc::test::Simt& simt() { return *tfcc::test::Simt::current(); }
struct ThreadIndex {
  struct {
    operator u32() const { return static_cast<u32>(simt().thread()); }
  } x;
};
struct BlockIndex {
  struct {
    operator u32() const { return static_cast<u32>(simt().block().x); }
  } x;
  struct {
    operator u32() const { return static_cast<u32>(simt().block().y); }
  } y;
  struct {
    operator u32() const { return static_cast<u32>(simt().block().z); }
  } z;
};
struct GridSize {
  struct {
    operator u32() const { return static_cast<u32>(simt().grid().x); }
  } x;
};
inline ThreadIndex threadIdx;
inline BlockIndex blockIdx;
inline GridSize gridDim;
inline int block_threads = 0;  // set by the test
struct BlockSize {
  const int& x = block_threads;
};
inline BlockSize blockDim;
inline void __syncthreads() { simt().meet(0, block_threads); }

/// Dynamic shared memory, at multiples of 16 bytes.
inline constexpr int kSharedBytes = 227 << 10;
alignas(16) inline unsigned char shared_memory[kSharedBytes];

inline constexpr u32 kAllLanes = 0xffffffffu;
inline int __shfl_sync(u32, int value, int from) {
  return static_cast<int>(simt().shuffle(static_cast<u32>(value), from));
}
inline int __shfl_xor_sync(u32, int value, int mask) {
  return __shfl_sync(kAllLanes, value, simt().lane() ^ mask);
}
inline f32 __shfl_sync(u32, f32 value, int from) {
  return std::bit_cast<f32>(__shfl_sync(kAllLanes, std::bit_cast<int>(value), from));
}
inline f32 __shfl_xor_sync(u32, f32 value, int mask) {
  return __shfl_sync(kAllLanes, value, simt().lane() ^ mask);
}
inline void __syncwarp() { simt().shuffle(0, 0); }
inline f32 rsqrtf(f32 x) { return 1 / std::sqrt(x); }

template <class T> T held(T number) { return number; }
template <class T, class U> inline constexpr bool kSame = false;
template <class T> inline constexpr bool kSame<T, T> = true;
template <class T> void unpack2(u32 pair, f32& lo, f32& hi) {
  lo = static_cast<int16_t>(static_cast<uint16_t>(pair));
  hi = static_cast<int16_t>(static_cast<uint16_t>(pair >> 16));
}
template <class T> u32 pack2(f32 lo, f32 hi) {
  const auto bits = [](f32 v) {
    return static_cast<u32>(static_cast<uint16_t>(static_cast<int16_t>(v)));
  };
  return bits(lo) | bits(hi) << 16;
}
inline void store(f16* p, idx i, f32 v) { p[i].whole = static_cast<int16_t>(v); }
inline void store(f32* p, idx i, f32 v) { p[i] = v; }
template <int N> void store_pack(f32* p, const f32 (&v)[N]) { std::memcpy(p, v, sizeof v); }
template <int N, class T> void store_pack(T* p, const f32 (&v)[N]) {
  for (int i = 0; i < N; ++i) store(p, i, v[i]);
}
inline idx imin(idx a, idx b) { return a < b ? a : b; }
template <int N> void load_pack(const f32* p, f32 (&v)[N]) { std::memcpy(v, p, sizeof v); }
template <int N> void load_pack(const f16* p, f32 (&v)[N]) {
  for (int i = 0; i < N; ++i) v[i] = p[i].whole;
}

/// A matrix of f16 in memory of the host, or of bytes, two of them in each, or of f32, each two of them; the real one is opaque.
struct TensorMap {
  const f16* data;
  i64 rows, columns;
  int box_rows;
  bool weight;
  int parts = 1;
  bool bytes = false, floats = false;
};

namespace emulated {

struct Barrier {
  u32 expected = 0, pending = 0, phase = 0;
  i64 bytes = 0;
};
/// Of a block: its barriers, who has waited for the launch before, and the products that each thread has under way.
/// `floats`: the left factor in registers, of f32.
struct Product {
  f32* d;
  int n;
  u64 a, b;
  bool add, across;
  bool floats = false;
  u32 left[4] = {};
};
struct State {
  std::map<const u64*, Barrier> barriers;
  std::map<int, bool> waited;
  std::map<int, std::vector<std::vector<Product>>> groups;
  bool maps_prefetched = false;
  int announced_early = 0;  // parts, before the launch before has ended
  const void *others_begin = nullptr, *others_end = nullptr;  // what that launch writes
};
inline State state;

inline void advance_phase(Barrier& b) {
  if (b.pending != 0 || b.bytes != 0) return;
  b.phase ^= 1;
  b.pending = b.expected;
}
inline Barrier& barrier_of(const u64* b) {
  const auto it = state.barriers.find(b);
  if (it == state.barriers.end()) simt().fail("a barrier is used before it is made");
  return it->second;
}
inline void arrive(const u64* b, i64 bytes) {
  Barrier& x = barrier_of(b);
  if (x.pending == 0) simt().fail("more arrive at a barrier than it expects");
  x.bytes += bytes;
  --x.pending;
  advance_phase(x);
}
inline u32 swizzled(u32 address) { return address ^ (address >> 7 & 7) << 4; }
inline f32 element(u32 address) {
  if (swizzled(address) + 2 > kSharedBytes) simt().fail("a product reads behind shared memory");
  f16 e;
  std::memcpy(&e, shared_memory + swizzled(address), 2);
  return e.whole;
}
inline u32 address_in(u64 descriptor) { return static_cast<u32>(descriptor & 0x3fff) << 4; }

inline void compute(const Product& p) {
  const int lane = simt().lane(), warp = simt().warp() % 4;
  const auto groups_apart = [](u64 descriptor) {
    return static_cast<u32>(descriptor >> 32 & 0x3fff) << 4;
  };
  const u32 a = address_in(p.a), b = address_in(p.b),
            apart = static_cast<u32>(p.b >> 16 & 0x3fff) << 4;
  const auto row_of_k = [&](u64 descriptor, u32 i) {
    return i / 8 * groups_apart(descriptor) + i % 8 * 128;
  };
  for (int j = 0; j < p.n / 8; ++j) {
    for (int h = 0; h < 2; ++h) {
      for (int e = 0; e < 2; ++e) {
        const u32 row = static_cast<u32>(16 * warp + lane / 4 + 8 * h),
                  column = static_cast<u32>(8 * j + 2 * (lane % 4) + e);
        f32 sum = p.add ? p.d[4 * j + 2 * h + e] : 0.0f;
        for (u32 k = 0; k < 16; ++k) {
          const u32 at = p.across ? column / 64 * apart + k * 128 + column % 64 * 2
                                  : row_of_k(p.b, column) + k * 2;
          sum += element(a + row_of_k(p.a, row) + k * 2) * element(b + at);
        }
        p.d[4 * j + 2 * h + e] = sum;
      }
    }
  }
}

inline void compute_floats(const Product& p) {
  const int lane = simt().lane();
  f32 left[2][8];  // of this lane's two rows
  for (int h = 0; h < 2; ++h)
    for (int k = 0; k < 8; ++k)
      left[h][k] = std::bit_cast<f32>(
          static_cast<u32>(simt().shuffle(p.left[h + k / 4 * 2], lane / 4 * 4 + k % 4)));
  for (int i = 0; i < p.n / 2; ++i) {
    const u32 column = static_cast<u32>(i / 4 * 8 + lane % 4 * 2 + i % 2),
              row = address_in(p.b) + column / 8 * 1024 + column % 8 * 128;
    f32 sum = p.add ? p.d[i] : 0.0f;
    for (u32 k = 0; k < 8; ++k) {
      f32 right;
      std::memcpy(&right, shared_memory + swizzled(row + k * 4), 4);
      if (std::bit_cast<u32>(right) & 0x1fff || std::bit_cast<u32>(left[i / 2 % 2][k]) & 0x1fff)
        simt().fail("a factor is no number of TF32");
      sum = std::fmaf(left[i / 2 % 2][k], right, sum);
    }
    p.d[i] = sum;
  }
}

}  // namespace emulated

inline void let_successor_start() {}
inline void wait_for_predecessor() { emulated::state.waited[simt().thread()] = true; }

namespace sm90 {

/// Bytes from the begin of shared memory, as an aligned block has them.
inline u32 shared_address(const void* p) {
  return static_cast<u32>(static_cast<const unsigned char*>(p) - shared_memory);
}
inline void init_barrier(u64* b, u32 arrivals) {
  emulated::state.barriers[b] = {arrivals, arrivals, 0, 0};
}
inline void publish_barriers() {}
inline void arrive(u64* b) { emulated::arrive(b, 0); }
/// All lanes must come with the same arguments.
inline bool same_in_all(u64 value) {
  if (simt().shuffle(value, 0) != value) simt().fail("lanes of a warp ask for different things");
  return simt().lane() == 0;
}
inline void arrive_and_announce_once(u64* b, u32 bytes) {
  if (!same_in_all(reinterpret_cast<uintptr_t>(b) + bytes)) return;
  if (!emulated::state.waited[simt().thread()]) ++emulated::state.announced_early;
  emulated::arrive(b, bytes);
}
inline void arrive_and_announce(u64* b, u32 bytes) { emulated::arrive(b, bytes); }
inline void announce(u64* b, u32 bytes) {
  if (!emulated::state.waited[simt().thread()]) ++emulated::state.announced_early;
  emulated::barrier_of(b).bytes += bytes;
}
/// From memory that the launch before writes only when it has ended.
inline void copy_bytes(void* to, const void* from, u32 bytes, u64* barrier) {
  if (from >= emulated::state.others_begin && from < emulated::state.others_end &&
      !emulated::state.waited[simt().thread()])
    simt().fail("what a launch before writes is read before it has ended");
  const u32 at = shared_address(to);
  if (at % 16 != 0 || bytes % 16 != 0 || reinterpret_cast<uintptr_t>(from) % 16 != 0 ||
      at + bytes > static_cast<u32>(kSharedBytes))
    simt().fail("a bulk copy to " + std::to_string(at) + " of " + std::to_string(bytes) + " bytes");
  simt().later([=] {
    std::memcpy(to, from, bytes);
    emulated::Barrier& x = emulated::state.barriers.at(barrier);
    x.bytes -= bytes;
    emulated::advance_phase(x);
  });
}
inline void wait(u64* b, u32 parity) {
  const emulated::Barrier& x = emulated::barrier_of(b);
  simt().yield_until([&x, parity] { return (x.phase & 1) != parity; });
}

struct Barriers {
  u64* first;
  explicit Barriers(u64* b) : first(b) {}
  void wait(int number, u32 parity) const { sm90::wait(first + number, parity); }
  void arrive(int number) const { sm90::arrive(first + number); }
};

template <int stages> struct RingPlace {
  int slot = 0;
  u32 parity = 0;
  void next() {
    if (++slot < stages) return;
    slot = 0;
    parity ^= 1;
  }
};

inline void prefetch_map(const TensorMap&) {}
/// `parts` boxes of 64 columns, one behind the other.
inline void copy_boxes(void* to, const TensorMap& map, i32 row, i32 column, int parts,
                       u64* barrier) {
  const u64 asked = reinterpret_cast<uintptr_t>(to) * 31 + static_cast<u64>(row) * 1000003 +
                    static_cast<u64>(column) * 7919 + reinterpret_cast<uintptr_t>(barrier);
  if (!same_in_all(asked)) return;
  if (!map.weight && !emulated::state.waited[simt().thread()])
    simt().fail("what a launch before writes is read before it has ended");
  const u32 at = shared_address(to);
  const u32 bytes = static_cast<u32>(map.box_rows * parts) * 128;
  if (at % 1024 != 0 || at + bytes > static_cast<u32>(kSharedBytes))
    simt().fail("a box lies at " + std::to_string(at));
  const TensorMap from = map;
  simt().later([=] {
    for (int p = 0; p < parts; ++p) {
      for (int r = 0; r < from.box_rows; ++r) {
        for (int c = 0; c < 64; ++c) {
          const i64 x = column + p * 64 + c;
          const bool inside = row + r < from.rows && x < from.columns;
          const f16 e = inside ? from.data[(row + r) * from.columns + x] : f16{0};
          std::memcpy(
              shared_memory +
                  emulated::swizzled(at + static_cast<u32>((p * from.box_rows + r) * 128 + c * 2)),
              &e, 2);
        }
      }
    }
    emulated::Barrier& x = emulated::state.barriers.at(barrier);
    x.bytes -= bytes;
    emulated::advance_phase(x);
  });
}
inline void copy_box_once(void* to, const TensorMap& map, i32 row, i32 column, u64* barrier) {
  copy_boxes(to, map, row, map.bytes ? column / 2 : map.floats ? column * 2 : column, 1, barrier);
}
inline void copy_deep_box_once(void* to, const TensorMap& map, i32 row, i32 part, u64* barrier) {
  copy_boxes(to, map, row, part * 64, map.parts, barrier);
}

inline uint4 load_16_bytes(const void* from) {
  uint4 v;
  std::memcpy(&v, from, sizeof v);
  return v;
}
/// What a thread has written to shared memory counts for products once it is published and the others have met it.
inline void publish_writes() {}
template <int id> void meet(int threads) { simt().meet(id, threads); }
template <int id> void arrive(int threads) { simt().arrive(id, threads); }

inline void copy_16_bytes(void* to, const void* from) {
  if (from >= emulated::state.others_begin && from < emulated::state.others_end &&
      !emulated::state.waited[simt().thread()])
    simt().fail("what stands beside the sums is read before the launch before has ended");
  std::memcpy(to, from, 16);
}
inline void wait_for_copies() {}

inline u32 uniform(u32 v) { return static_cast<u32>(simt().shuffle(v, 0)); }
inline u64 rows_of_k(u32 address, u32 apart = 1024) {
  return (u64)(0x40000000 | apart >> 4) << 32 | 1 << 16 | (address & 0x3ffff) >> 4;
}
inline u64 rows_of_n(u32 address, u32 apart) {
  return (u64)0x40000040 << 32 | (apart >> 4) << 16 | (address & 0x3ffff) >> 4;
}
inline u64 advance(u64 descriptor, u32 bytes) {
  return (descriptor >> 32 << 32) | (u32)((u32)descriptor + (bytes >> 4));
}

inline void begin_products() { emulated::state.groups[simt().thread()].emplace_back(); }
inline void end_products() {}
template <int N> void wait_for_products() {
  auto& groups = emulated::state.groups[simt().thread()];
  while (groups.size() > N) {
    for (const emulated::Product& p : groups.front())
      p.floats ? emulated::compute_floats(p) : emulated::compute(p);
    groups.erase(groups.begin());
  }
  simt().shuffle(0, 0);  // a warp waits as one
}
template <int N> void hold(f32 (&)[N]) {}
template <int N> void hold(u32 (&)[N]) {}
template <int count> void give_registers() {}
template <int count> void take_registers() {}
template <int n> void multiply_tf32(f32 (&d)[n / 2], const u32 (&a)[4], u64 b, bool add) {
  emulated::state.groups[simt().thread()].back().push_back(
      {d, n, 0, b, add, false, true, {a[0], a[1], a[2], a[3]}});
}
template <class T, int n, bool across> void multiply(f32 (&d)[n / 2], u64 a, u64 b, bool add) {
  emulated::state.groups[simt().thread()].back().push_back({d, n, a, b, add, across});
}

/// The address that another lane gives.
inline unsigned char* address_of_lane(void* own, int lane) {
  const auto bits = reinterpret_cast<u64>(own);
  const u64 low = static_cast<u32>(simt().shuffle(static_cast<u32>(bits), lane)),
            high = static_cast<u32>(simt().shuffle(static_cast<u32>(bits >> 32), lane));
  return reinterpret_cast<unsigned char*>(high << 32 | low);
}
inline void store_matrices(void* row, const u32 (&r)[4]) {
  const int lane = simt().lane();
  for (int m = 0; m < 4; ++m)
    std::memcpy(address_of_lane(row, m * 8 + lane / 4) + lane % 4 * 4, &r[m], 4);
}

}  // namespace sm90
