// SPDX-License-Identifier: Apache-2.0
// Instructions of capability 9.0a as functions: barriers of shared memory, TMA, products of a
// warpgroup.
//
// Shared operands are tiles of 128-byte rows in the 128-byte swizzle, as TMA writes them; a tile
// begins at a multiple of 1024 bytes.
#pragma once
// Inline PTX and tables of registers are laid out by hand.
// clang-format off
#include "cuda/prelude.cuh"

/// A tensor map, made by the host (TensorMap in runtime/core/manifest.proto); a kernel takes it as
/// a __grid_constant__ parameter.
struct alignas(64) TensorMap { u64 words[16]; };

#if __CUDA_ARCH__ >= 900

namespace sm90 {

TFCC_FN u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

// ---- barriers: a phase ends when all arrivals are there and all bytes that were announced ----

TFCC_FN void init_barrier(u64* b, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(arrivals) : "memory");
}
/// After all init_barrier(), before TMA may see them. Behind it the warp that asks TMA must meet, and
/// before they wait the others.
TFCC_FN void publish_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
TFCC_FN void arrive_by_address(u32 b) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(b) : "memory"); }
TFCC_FN void arrive(u64* b) { arrive_by_address(shared_address(b)); }
TFCC_FN void arrive_and_announce(u64* b, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(b)), "r"(bytes) : "memory");
}
/// The same without arriving: the phase cannot end before those bytes have come.
TFCC_FN void announce(u64* b, u32 bytes) {
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(bytes) : "memory");
}
/// Waits for the end of a phase; phases are counted from 0, parity is its lowest bit.
TFCC_FN void wait_by_address(u32 b, u32 parity) {
  asm volatile(
      "{\n\t.reg .pred done;\n"
      "again:\n\tmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n\t@done bra ready;\n\tbra again;\n"
      "ready:\n\t}" ::"r"(b), "r"(parity) : "memory");
}
TFCC_FN void wait(u64* b, u32 parity) { wait_by_address(shared_address(b), parity); }

/// Barriers of a loop that waits and arrives at every turn. Their address stays in a register; of a
/// pointer it would be made anew.
struct Barriers {
  u32 first;
  TFCC_FN explicit Barriers(const u64* b) : first(held(shared_address(b))) {}
  TFCC_FN void wait(int number, u32 parity) const { wait_by_address(first + number * 8, parity); }
  TFCC_FN void arrive(int number) const { arrive_by_address(first + number * 8); }
};

/// Whether the phase has ended.
TFCC_FN bool ended(u64* b, u32 parity) {
  u32 done;
  asm volatile("{\n\t.reg .pred done;\n\tmbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n\tselp.u32 %0, 1, 0, done;\n\t}"
               : "=r"(done) : "r"(shared_address(b)), "r"(parity) : "memory");
  return done != 0;
}

/// A place in a ring of slots, and the parity of the phase in which the slot is used there.
template <int stages> struct RingPlace {
  int slot = 0;
  u32 parity = 0;
  /// The place `count` places on.
  TFCC_FN RingPlace ahead(int count) const {
    const int to = slot + count;
    return {to % stages, parity ^ (u32)(to / stages & 1)};
  }
  TFCC_FN void next() {
    if (++slot < stages) return;
    slot = 0;
    parity ^= 1;
  }
};

// ---- clusters ----

/// What lies at p in block `rank` of the cluster.
template <class T> TFCC_FN const T* of_block(const T* p, u32 rank) {
  u64 there;
  asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"((u64)p), "r"(rank));
  return (const T*)there;
}
/// Arrives at the barrier of block `rank` of the cluster that lies where b is here: there, who
/// waits by wait_for_cluster() sees what was written before.
TFCC_FN void arrive_at(u64* b, u32 rank) {
  asm volatile("{\n\t.reg .b32 there;\n\tmapa.shared::cluster.u32 there, %0, %1;\n\tmbarrier.arrive.release.cluster.shared::cluster.b64 _, [there];\n\t}" ::"r"(shared_address(b)), "r"(rank)
               : "memory");
}
TFCC_FN void wait_for_cluster(u64* b, u32 parity) {
  asm volatile(
      "{\n\t.reg .pred done;\n"
      "again:\n\tmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n\t@done bra ready;\n\tbra again;\n"
      "ready:\n\t}" ::"r"(shared_address(b)), "r"(parity) : "memory");
}
/// All threads of the cluster meet; each sees what the others wrote before.
TFCC_FN void meet_cluster() { asm volatile("barrier.cluster.arrive;\n\tbarrier.cluster.wait;" ::: "memory"); }

// ---- blocks of a launch that meet ----

/// `blocks` neighbouring blocks of a grid meet by a counter, zero before the first time, now for
/// the `times`-th. One thread of each block calls; what is to be seen by others lies behind a
/// barrier of its block, and is read past the first level of the cache.
/// Assumes that blocks begin in the order of their numbers, and that of all grids with the same
/// priority one at a time has blocks that have not begun. Then at most `blocks` - 1 blocks of each
/// of the six priorities wait for some that have not, and others end:
/// teams of at most an eighth of the multiprocessors always come to meet.
TFCC_FN void meet_blocks(u32* counter, u32 blocks, u32 times) {
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
  u32 seen;
  do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(counter) : "memory");
  while (seen < times * blocks);
}
/// After the last of `times` times; the last block that leaves sets the counter to zero.
TFCC_FN void leave_blocks(u32* counter, u32 blocks, u32 times) {
  if (atomicAdd(counter, 1) == times * blocks + blocks - 1) *counter = 0;
}

// ---- TMA ----

TFCC_FN void prefetch_map(const TensorMap& map) { asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory"); }
/// Copies the box that begins at (row, column) to shared memory; what lies outside the matrix
/// becomes 0. The barrier gets the bytes of a whole box.
TFCC_FN void copy_box(void* to, const TensorMap& map, i32 row, i32 column, u64* barrier) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
                   shared_address(to)),
               "l"(&map), "r"(column), "r"(row), "r"(shared_address(barrier))
               : "memory");
}

// The same by all lanes of a warp at once, of which one does it. What they are given is the same in
// all, and the compiler sees that: a thread alone would have to prove it by a loop around every
// instruction.

TFCC_FN void arrive_and_announce_once(u64* b, u32 bytes) {
  asm volatile("{\n\t.reg .pred one;\n\telect.sync _|one, 0xffffffff;\n\t@one mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n\t}" ::"r"(
                   shared_address(b)), "r"(bytes) : "memory");
}
TFCC_FN void copy_box_once(void* to, const TensorMap& map, i32 row, i32 column, u64* barrier) {
  asm volatile("{\n\t.reg .pred one;\n\telect.sync _|one, 0xffffffff;\n\t"
               "@one cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];\n\t}" ::"r"(
                   shared_address(to)),
               "l"(&map), "r"(column), "r"(row), "r"(shared_address(barrier))
               : "memory");
}
/// A box of several parts of 64 columns, from a part on, which come one behind the other: rows of
/// part, rows of part + 1, ..
TFCC_FN void copy_deep_box_once(void* to, const TensorMap& map, i32 row, i32 part, u64* barrier) {
  asm volatile("{\n\t.reg .pred one;\n\telect.sync _|one, 0xffffffff;\n\t"
               "@one cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];\n\t}" ::"r"(
                   shared_address(to)),
               "l"(&map), "r"(0), "r"(row), "r"(part), "r"(shared_address(barrier))
               : "memory");
}

// ---- other copies ----

/// `bytes`, a multiple of 16, to shared memory; the barrier gets them. Both begin at multiples of
/// 16.
TFCC_FN void copy_bytes(void* to, const void* from, u32 bytes, u64* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(barrier)) : "memory");
}

/// 16 bytes to shared memory, which are there after wait_for_copies() of this thread.
TFCC_FN void copy_16_bytes(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
}
TFCC_FN void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

/// Four 8x8 tiles of 16-bit elements from the registers that mma.sync has sums in (packed in
/// pairs): lanes 8 m .. 8 m + 7 give the rows of tile m.
TFCC_FN void store_matrices(void* row, const u32 (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(row)), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]) : "memory");
}
/// 16 bytes of shared memory, asked for here and not where they are needed first.
TFCC_FN uint4 load_16_bytes(const void* from) {
  uint4 v;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(shared_address(from)) : "memory");
  return v;
}
/// 16 bytes to memory of the device.
TFCC_FN void store_16_bytes(void* to, uint4 v) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}

// ---- products of a warpgroup ----

/// The part of a descriptor that the compiler must know to be the same in all lanes: a shuffle
/// tells it.
TFCC_FN u32 uniform(u32 v) { return __shfl_sync(kAllLanes, v, 0); }
/// Rows of the operand's m or n, 64 elements of k each (a row of 128 bytes); groups of 8 rows lie
/// `apart` bytes apart.
/// The next 16 of k are 32 bytes on.
TFCC_FN u64 rows_of_k(u32 address, u32 apart = 1024) { return (u64)(0x40000000 | apart >> 4) << 32 | 1 << 16 | (address & 0x3ffff) >> 4; }
/// Rows of k, 64 elements of n each; groups of 8 rows lie 1024 bytes apart, the next 64 of n
/// `apart` bytes. The next 16 of k are 2048 bytes on.
TFCC_FN u64 rows_of_n(u32 address, u32 apart) { return (u64)0x40000040 << 32 | (apart >> 4) << 16 | (address & 0x3ffff) >> 4; }
/// The descriptor of what lies so many bytes on. One instruction, where making another would take
/// five that wait for each other: longer than a small product takes.
TFCC_FN u64 advance(u64 descriptor, u32 bytes) { return (descriptor >> 32 << 32) | (u32)((u32)descriptor + (bytes >> 4)); }

TFCC_FN void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
TFCC_FN void end_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/// Until no more than N groups of products are under way.
template <int N> TFCC_FN void wait_for_products() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }

/// Sums are written by the hardware until wait_for_products(): what computes with them must not be
/// moved before it, nor what sets them behind begin_products().
template <int N> TFCC_FN void hold(f32 (&d)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
/// The same for operands in registers.
template <int N> TFCC_FN void hold(u32 (&a)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+r"(a[i])::"memory");
}
/// What this thread wrote to shared memory is seen by TMA and products that come after it.
TFCC_FN void publish_writes() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
/// The registers that each thread of a warpgroup has from here on, a multiple of 8. All warpgroups
/// of a block together have those of the launch.
template <int count> TFCC_FN void give_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count)); }
template <int count> TFCC_FN void take_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count)); }
/// All `threads` of barrier `id` (1 to 15; 0 is that of __syncthreads()) meet.
template <int id> TFCC_FN void meet(int threads) { asm volatile("bar.sync %0, %1;" ::"n"(id), "r"(threads) : "memory"); }
/// The same of a thread that does not wait for the others: they see what it wrote before.
template <int id> TFCC_FN void arrive(int threads) { asm volatile("bar.arrive %0, %1;" ::"n"(id), "r"(threads) : "memory"); }

/// Lane q of each four gives p[i] to lane i, and gets from lane i its p[q]: pairs of sums become 16
/// bytes in a row.
TFCC_FN void exchange_in_fours(u32 (&p)[4]) {
  const bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const u32 got = __shfl_xor_sync(kAllLanes, odd ? p[i] : p[i + 1], 1);
    (odd ? p[i] : p[i + 1]) = got;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const u32 got = __shfl_xor_sync(kAllLanes, high ? p[i] : p[i + 2], 2);
    (high ? p[i] : p[i + 2]) = got;
  }
}

// d[64, n] = a[64, 16] b[16, n] (+ d if `add`), f32 sums. Thread t of the group holds d[16 (t / 32)
// + (t % 32) / 4 + 8 h, 8 j + 2 (t % 4) + e] in d[4 j + 2 h + e].
#define TFCC_WGMMA(N, TYPE, REGISTERS, A, B, ADD, TRANS, ...)                                                     \
  asm volatile("{\n\t.reg .pred add;\n\tsetp.ne.b32 add, %" ADD ", 0;\n\t"                                      \
               "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" REGISTERS "}, %" A ", %" B      \
               ", add, 1, 1, 0, %" TRANS ";\n\t}"                                                                 \
               : __VA_ARGS__                                                                                       \
               : "l"(a), "l"(b), "r"((int)add), "n"((int)across))
#define TFCC_WGMMA_REGISTERS(N, TYPE, REGISTERS, A0, A1, A2, A3, B, TRANS, ...)                                   \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" REGISTERS "}, {%" A0 ", %" A1 ", %" A2 ", %" A3 "}, %" B \
               ", 1, 1, 1, %" TRANS ";"                                                                           \
               : __VA_ARGS__                                                                                       \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"((int)across))
// Registers and sums of so many columns, four more for each eight.
#define TFCC_R_8 "%0, %1, %2, %3"
#define TFCC_R_16 TFCC_R_8 ", " "%4, %5, %6, %7"
#define TFCC_R_24 TFCC_R_16 ", " "%8, %9, %10, %11"
#define TFCC_R_32 TFCC_R_24 ", " "%12, %13, %14, %15"
#define TFCC_R_40 TFCC_R_32 ", " "%16, %17, %18, %19"
#define TFCC_R_48 TFCC_R_40 ", " "%20, %21, %22, %23"
#define TFCC_R_56 TFCC_R_48 ", " "%24, %25, %26, %27"
#define TFCC_R_64 TFCC_R_56 ", " "%28, %29, %30, %31"
#define TFCC_R_72 TFCC_R_64 ", " "%32, %33, %34, %35"
#define TFCC_R_80 TFCC_R_72 ", " "%36, %37, %38, %39"
#define TFCC_R_88 TFCC_R_80 ", " "%40, %41, %42, %43"
#define TFCC_R_96 TFCC_R_88 ", " "%44, %45, %46, %47"
#define TFCC_R_104 TFCC_R_96 ", " "%48, %49, %50, %51"
#define TFCC_R_112 TFCC_R_104 ", " "%52, %53, %54, %55"
#define TFCC_R_120 TFCC_R_112 ", " "%56, %57, %58, %59"
#define TFCC_R_128 TFCC_R_120 ", " "%60, %61, %62, %63"
#define TFCC_R_136 TFCC_R_128 ", " "%64, %65, %66, %67"
#define TFCC_R_144 TFCC_R_136 ", " "%68, %69, %70, %71"
#define TFCC_R_152 TFCC_R_144 ", " "%72, %73, %74, %75"
#define TFCC_R_160 TFCC_R_152 ", " "%76, %77, %78, %79"
#define TFCC_R_168 TFCC_R_160 ", " "%80, %81, %82, %83"
#define TFCC_R_176 TFCC_R_168 ", " "%84, %85, %86, %87"
#define TFCC_R_184 TFCC_R_176 ", " "%88, %89, %90, %91"
#define TFCC_R_192 TFCC_R_184 ", " "%92, %93, %94, %95"
#define TFCC_R_200 TFCC_R_192 ", " "%96, %97, %98, %99"
#define TFCC_R_208 TFCC_R_200 ", " "%100, %101, %102, %103"
#define TFCC_R_216 TFCC_R_208 ", " "%104, %105, %106, %107"
#define TFCC_R_224 TFCC_R_216 ", " "%108, %109, %110, %111"
#define TFCC_R_232 TFCC_R_224 ", " "%112, %113, %114, %115"
#define TFCC_R_240 TFCC_R_232 ", " "%116, %117, %118, %119"
#define TFCC_R_248 TFCC_R_240 ", " "%120, %121, %122, %123"
#define TFCC_R_256 TFCC_R_248 ", " "%124, %125, %126, %127"
#define TFCC_SUMS_4(AT) "+f"(d[AT + 0]), "+f"(d[AT + 1]), "+f"(d[AT + 2]), "+f"(d[AT + 3])
#define TFCC_S_8 TFCC_SUMS_4(0)
#define TFCC_S_16 TFCC_S_8, TFCC_SUMS_4(4)
#define TFCC_S_24 TFCC_S_16, TFCC_SUMS_4(8)
#define TFCC_S_32 TFCC_S_24, TFCC_SUMS_4(12)
#define TFCC_S_40 TFCC_S_32, TFCC_SUMS_4(16)
#define TFCC_S_48 TFCC_S_40, TFCC_SUMS_4(20)
#define TFCC_S_56 TFCC_S_48, TFCC_SUMS_4(24)
#define TFCC_S_64 TFCC_S_56, TFCC_SUMS_4(28)
#define TFCC_S_72 TFCC_S_64, TFCC_SUMS_4(32)
#define TFCC_S_80 TFCC_S_72, TFCC_SUMS_4(36)
#define TFCC_S_88 TFCC_S_80, TFCC_SUMS_4(40)
#define TFCC_S_96 TFCC_S_88, TFCC_SUMS_4(44)
#define TFCC_S_104 TFCC_S_96, TFCC_SUMS_4(48)
#define TFCC_S_112 TFCC_S_104, TFCC_SUMS_4(52)
#define TFCC_S_120 TFCC_S_112, TFCC_SUMS_4(56)
#define TFCC_S_128 TFCC_S_120, TFCC_SUMS_4(60)
#define TFCC_S_136 TFCC_S_128, TFCC_SUMS_4(64)
#define TFCC_S_144 TFCC_S_136, TFCC_SUMS_4(68)
#define TFCC_S_152 TFCC_S_144, TFCC_SUMS_4(72)
#define TFCC_S_160 TFCC_S_152, TFCC_SUMS_4(76)
#define TFCC_S_168 TFCC_S_160, TFCC_SUMS_4(80)
#define TFCC_S_176 TFCC_S_168, TFCC_SUMS_4(84)
#define TFCC_S_184 TFCC_S_176, TFCC_SUMS_4(88)
#define TFCC_S_192 TFCC_S_184, TFCC_SUMS_4(92)
#define TFCC_S_200 TFCC_S_192, TFCC_SUMS_4(96)
#define TFCC_S_208 TFCC_S_200, TFCC_SUMS_4(100)
#define TFCC_S_216 TFCC_S_208, TFCC_SUMS_4(104)
#define TFCC_S_224 TFCC_S_216, TFCC_SUMS_4(108)
#define TFCC_S_232 TFCC_S_224, TFCC_SUMS_4(112)
#define TFCC_S_240 TFCC_S_232, TFCC_SUMS_4(116)
#define TFCC_S_248 TFCC_S_240, TFCC_SUMS_4(120)
#define TFCC_S_256 TFCC_S_248, TFCC_SUMS_4(124)

/// across: b lies in rows of k (rows_of_n), not in rows of n (rows_of_k).
template <class T, int n, bool across>
TFCC_FN void multiply(f32 (&d)[n / 2], u64 a, u64 b, bool add) {
  static_assert(n % 8 == 0 && n >= 8 && n <= 256 && (n <= 128 || n % 16 == 0), "n: a multiple of 8 up to 128, and of 16 up to 256");
#define TFCC_WGMMA_OF(TYPE) \
  if constexpr (n == 8) TFCC_WGMMA(8, TYPE, TFCC_R_8, "4", "5", "6", "7", TFCC_S_8); \
  else if constexpr (n == 16) TFCC_WGMMA(16, TYPE, TFCC_R_16, "8", "9", "10", "11", TFCC_S_16); \
  else if constexpr (n == 24) TFCC_WGMMA(24, TYPE, TFCC_R_24, "12", "13", "14", "15", TFCC_S_24); \
  else if constexpr (n == 32) TFCC_WGMMA(32, TYPE, TFCC_R_32, "16", "17", "18", "19", TFCC_S_32); \
  else if constexpr (n == 40) TFCC_WGMMA(40, TYPE, TFCC_R_40, "20", "21", "22", "23", TFCC_S_40); \
  else if constexpr (n == 48) TFCC_WGMMA(48, TYPE, TFCC_R_48, "24", "25", "26", "27", TFCC_S_48); \
  else if constexpr (n == 56) TFCC_WGMMA(56, TYPE, TFCC_R_56, "28", "29", "30", "31", TFCC_S_56); \
  else if constexpr (n == 64) TFCC_WGMMA(64, TYPE, TFCC_R_64, "32", "33", "34", "35", TFCC_S_64); \
  else if constexpr (n == 72) TFCC_WGMMA(72, TYPE, TFCC_R_72, "36", "37", "38", "39", TFCC_S_72); \
  else if constexpr (n == 80) TFCC_WGMMA(80, TYPE, TFCC_R_80, "40", "41", "42", "43", TFCC_S_80); \
  else if constexpr (n == 88) TFCC_WGMMA(88, TYPE, TFCC_R_88, "44", "45", "46", "47", TFCC_S_88); \
  else if constexpr (n == 96) TFCC_WGMMA(96, TYPE, TFCC_R_96, "48", "49", "50", "51", TFCC_S_96); \
  else if constexpr (n == 104) TFCC_WGMMA(104, TYPE, TFCC_R_104, "52", "53", "54", "55", TFCC_S_104); \
  else if constexpr (n == 112) TFCC_WGMMA(112, TYPE, TFCC_R_112, "56", "57", "58", "59", TFCC_S_112); \
  else if constexpr (n == 120) TFCC_WGMMA(120, TYPE, TFCC_R_120, "60", "61", "62", "63", TFCC_S_120); \
  else if constexpr (n == 128) TFCC_WGMMA(128, TYPE, TFCC_R_128, "64", "65", "66", "67", TFCC_S_128); \
  else if constexpr (n == 144) TFCC_WGMMA(144, TYPE, TFCC_R_144, "72", "73", "74", "75", TFCC_S_144); \
  else if constexpr (n == 160) TFCC_WGMMA(160, TYPE, TFCC_R_160, "80", "81", "82", "83", TFCC_S_160); \
  else if constexpr (n == 176) TFCC_WGMMA(176, TYPE, TFCC_R_176, "88", "89", "90", "91", TFCC_S_176); \
  else if constexpr (n == 192) TFCC_WGMMA(192, TYPE, TFCC_R_192, "96", "97", "98", "99", TFCC_S_192); \
  else if constexpr (n == 208) TFCC_WGMMA(208, TYPE, TFCC_R_208, "104", "105", "106", "107", TFCC_S_208); \
  else if constexpr (n == 224) TFCC_WGMMA(224, TYPE, TFCC_R_224, "112", "113", "114", "115", TFCC_S_224); \
  else if constexpr (n == 240) TFCC_WGMMA(240, TYPE, TFCC_R_240, "120", "121", "122", "123", TFCC_S_240); \
  else if constexpr (n == 256) TFCC_WGMMA(256, TYPE, TFCC_R_256, "128", "129", "130", "131", TFCC_S_256)
  if constexpr (kSame<T, f16>) {
    TFCC_WGMMA_OF("f16");
  } else {
    TFCC_WGMMA_OF("bf16");
  }
#undef TFCC_WGMMA_OF
}

/// The same with a in registers: those of a 16x16 tile of mma.sync for the 16 rows of each warp.
/// They must be left alone until wait_for_products().
template <class T, int n, bool across>
TFCC_FN void multiply(f32 (&d)[n / 2], const u32 (&a)[4], u64 b) {
  static_assert(n == 64 || n == 128, "n: 64 or 128");
#define TFCC_WGMMA_OF(TYPE)                                                                                         \
  if constexpr (n == 64) TFCC_WGMMA_REGISTERS(64, TYPE, TFCC_R_64, "32", "33", "34", "35", "36", "37", TFCC_S_64); \
  else TFCC_WGMMA_REGISTERS(128, TYPE, TFCC_R_128, "64", "65", "66", "67", "68", "69", TFCC_S_128)
  if constexpr (kSame<T, f16>) {
    TFCC_WGMMA_OF("f16");
  } else {
    TFCC_WGMMA_OF("bf16");
  }
#undef TFCC_WGMMA_OF
}

/// The same of f32 in TF32: d[64, n] = a[64, 8] b[8, n] (+ d if `add`), with the registers of a
/// 16x8 tile of mma.sync. b lies in rows of n.
template <int n> TFCC_FN void multiply_tf32(f32 (&d)[n / 2], const u32 (&a)[4], u64 b, bool add) {
  static_assert(n == 32 || n == 64 || n == 128, "n: 32, 64 or 128");
#define TFCC_WGMMA_TF32(N, REGISTERS, A0, A1, A2, A3, B, ADD, ...)                                                          \
  asm volatile("{\n\t.reg .pred add;\n\tsetp.ne.b32 add, %" ADD ", 0;\n\t"                                                \
               "wgmma.mma_async.sync.aligned.m64n" #N "k8.f32.tf32.tf32 {" REGISTERS "}, {%" A0 ", %" A1 ", %" A2 ", %" A3 "}, %" B \
               ", add, 1, 1;\n\t}"                                                                                         \
               : __VA_ARGS__                                                                                               \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add))
  if constexpr (n == 32) TFCC_WGMMA_TF32(32, TFCC_R_32, "16", "17", "18", "19", "20", "21", TFCC_S_32);
  else if constexpr (n == 64) TFCC_WGMMA_TF32(64, TFCC_R_64, "32", "33", "34", "35", "36", "37", TFCC_S_64);
  else TFCC_WGMMA_TF32(128, TFCC_R_128, "64", "65", "66", "67", "68", "69", TFCC_S_128);
#undef TFCC_WGMMA_TF32
}

#undef TFCC_WGMMA_REGISTERS
#undef TFCC_WGMMA
#undef TFCC_SUMS_4
#undef TFCC_R_8
#undef TFCC_S_8
#undef TFCC_R_16
#undef TFCC_S_16
#undef TFCC_R_24
#undef TFCC_S_24
#undef TFCC_R_32
#undef TFCC_S_32
#undef TFCC_R_40
#undef TFCC_S_40
#undef TFCC_R_48
#undef TFCC_S_48
#undef TFCC_R_56
#undef TFCC_S_56
#undef TFCC_R_64
#undef TFCC_S_64
#undef TFCC_R_72
#undef TFCC_S_72
#undef TFCC_R_80
#undef TFCC_S_80
#undef TFCC_R_88
#undef TFCC_S_88
#undef TFCC_R_96
#undef TFCC_S_96
#undef TFCC_R_104
#undef TFCC_S_104
#undef TFCC_R_112
#undef TFCC_S_112
#undef TFCC_R_120
#undef TFCC_S_120
#undef TFCC_R_128
#undef TFCC_S_128
#undef TFCC_R_136
#undef TFCC_S_136
#undef TFCC_R_144
#undef TFCC_S_144
#undef TFCC_R_152
#undef TFCC_S_152
#undef TFCC_R_160
#undef TFCC_S_160
#undef TFCC_R_168
#undef TFCC_S_168
#undef TFCC_R_176
#undef TFCC_S_176
#undef TFCC_R_184
#undef TFCC_S_184
#undef TFCC_R_192
#undef TFCC_S_192
#undef TFCC_R_200
#undef TFCC_S_200
#undef TFCC_R_208
#undef TFCC_S_208
#undef TFCC_R_216
#undef TFCC_S_216
#undef TFCC_R_224
#undef TFCC_S_224
#undef TFCC_R_232
#undef TFCC_S_232
#undef TFCC_R_240
#undef TFCC_S_240
#undef TFCC_R_248
#undef TFCC_S_248
#undef TFCC_R_256
#undef TFCC_S_256

}  // namespace sm90

#endif
