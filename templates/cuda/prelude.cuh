// SPDX-License-Identifier: Apache-2.0
// What every CUDA kernel starts from: types, loads and stores, packs, reductions over warps and
// blocks, and the macros of stubs. Compiled by NVRTC without any other header. The CPU's
// counterpart with the same names: cpu/prelude.h.
#pragma once

using f32 = float;
using f64 = double;
using i64 = long long;
using i32 = int;
using i16 = short;
using i8 = signed char;
using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned;
using u64 = unsigned long long;
using b8 = bool;
using idx = int;

struct f16 {
  u16 bits;
};
struct bf16 {
  u16 bits;
};

#define TFCC_CUDA 1
#define TFCC_FN __device__ __forceinline__
#define TFCC_KERNEL(THREADS, NAME, ...) TFCC_KERNEL_RESIDENT(THREADS, 1, NAME, __VA_ARGS__)
/// BLOCKS of it fit a multiprocessor at once: registers are shared out so.
#define TFCC_KERNEL_RESIDENT(THREADS, BLOCKS, NAME, ...)        \
  extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) \
      NAME([[maybe_unused]] const i64* n, [[maybe_unused]] u32* flags, __VA_ARGS__)

/// The launch's shared memory, which all kernels of a program share by one name.
#define TFCC_DYNAMIC_SHARED(NAME) extern __shared__ unsigned char NAME[]

inline constexpr int kWarp = 32;
inline constexpr u32 kAllLanes = 0xffffffffu;

template <class To, class From> TFCC_FN To bit_cast(From x) {
  static_assert(sizeof(To) == sizeof(From), "bit_cast needs equal sizes");
  To to;
  memcpy(&to, &x, sizeof(To));
  return to;
}

// Compute<T>: the type that arithmetic on elements of T uses.
template <class T> struct ComputeOf { using type = i64; };
template <> struct ComputeOf<f32> { using type = f32; };
template <> struct ComputeOf<f16> { using type = f32; };
template <> struct ComputeOf<bf16> { using type = f32; };
template <> struct ComputeOf<f64> { using type = f64; };
template <> struct ComputeOf<b8> { using type = bool; };
template <class T> using Compute = typename ComputeOf<T>::type;

template <class A, class B> inline constexpr bool kSame = false;
template <class A> inline constexpr bool kSame<A, A> = true;
template <class T> inline constexpr bool kIsReal = kSame<Compute<T>, f32> || kSame<Compute<T>, f64>;

TFCC_FN constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }
TFCC_FN constexpr int round_up(int a, int b) { return ceil_div(a, b) * b; }
TFCC_FN constexpr bool is_power_of_two(int x) { return x > 0 && (x & (x - 1)) == 0; }

// ---- conversions ----

TFCC_FN f32 f16_to_f32(u16 bits) {
  f32 r;
  asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(bits));
  return r;
}
TFCC_FN u16 f32_to_f16(f32 x) {
  u16 r;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r) : "f"(x));
  return r;
}
TFCC_FN u16 f64_to_f16(f64 x) {
  u16 r;
  asm("cvt.rn.f16.f64 %0, %1;" : "=h"(r) : "d"(x));
  return r;
}
TFCC_FN f32 bf16_to_f32(u16 bits) { return __uint_as_float((u32)bits << 16); }
TFCC_FN u16 f32_to_bf16(f32 x) {
  u16 r;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r) : "f"(x));
  return r;
}
/// Through a float rounded to odd, so that the value is rounded only once.
TFCC_FN u16 f64_to_bf16(f64 x) {
  f32 t = __double2float_rz(x);
  return f32_to_bf16((f64)t == x ? t : __uint_as_float(__float_as_uint(t) | 1));
}

/// Two floats as a register of two 16-bit elements, `lo` in the low half.
template <class T> TFCC_FN u32 pack2(f32 lo, f32 hi);
template <> TFCC_FN u32 pack2<f16>(f32 lo, f32 hi) {
  u32 r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  return r;
}
template <> TFCC_FN u32 pack2<bf16>(f32 lo, f32 hi) {
  u32 r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  return r;
}

/// Both elements of such a register.
template <class T> TFCC_FN void unpack2(u32 pair, f32& lo, f32& hi) {
  if constexpr (kSame<T, f16>) lo = f16_to_f32((u16)pair), hi = f16_to_f32((u16)(pair >> 16));
  else lo = bf16_to_f32((u16)pair), hi = bf16_to_f32((u16)(pair >> 16));
}

// ---- elements ----

TFCC_FN f32 to_compute(f16 x) { return f16_to_f32(x.bits); }
TFCC_FN f32 to_compute(bf16 x) { return bf16_to_f32(x.bits); }
template <class T> TFCC_FN Compute<T> to_compute(T x) { return (Compute<T>)x; }

template <class T> struct To {
  template <class V> static TFCC_FN T from(V v) { return (T)v; }
};
template <> struct To<f16> {
  static TFCC_FN f16 from(f32 v) { return {f32_to_f16(v)}; }
  static TFCC_FN f16 from(f64 v) { return {f64_to_f16(v)}; }
};
template <> struct To<bf16> {
  static TFCC_FN bf16 from(f32 v) { return {f32_to_bf16(v)}; }
  static TFCC_FN bf16 from(f64 v) { return {f64_to_bf16(v)}; }
};

template <class T> TFCC_FN Compute<T> load(const T* p, idx i) { return to_compute(p[i]); }
/// A byte other than 0 and 1 is true, so that a caller's buffer cannot make a bool of two minds.
TFCC_FN bool load(const b8* p, idx i) { return ((const u8*)p)[i] != 0; }
template <class T, class V> TFCC_FN void store(T* p, idx i, V v) { p[i] = To<T>::from(v); }

// ---- packs: N neighbours by as few accesses of up to 16 bytes as their alignment (N elements)
// allows ----

template <int bytes> struct Words;
template <> struct Words<1> { using type = u8; };
template <> struct Words<2> { using type = u16; };
template <> struct Words<4> { using type = u32; };
template <> struct Words<8> { using type = uint2; };
template <> struct Words<16> { using type = uint4; };

template <int N, class T> TFCC_FN void load_pack(const T* p, Compute<T> (&v)[N]) {
  constexpr int kBytes = N * (int)sizeof(T) < 16 ? N * (int)sizeof(T) : 16;
  constexpr int kChunk = kBytes / (int)sizeof(T);
  using W = typename Words<kBytes>::type;
#pragma unroll
  for (int c = 0; c < N; c += kChunk) {
    union {
      W word;
      T e[kChunk];
    } u;
    u.word = *(const W*)(p + c);
#pragma unroll
    for (int k = 0; k < kChunk; ++k) v[c + k] = to_compute(u.e[k]);
  }
}

template <int N, class T> TFCC_FN void store_pack(T* p, const Compute<T> (&v)[N]) {
  constexpr int kBytes = N * (int)sizeof(T) < 16 ? N * (int)sizeof(T) : 16;
  constexpr int kChunk = kBytes / (int)sizeof(T);
  using W = typename Words<kBytes>::type;
#pragma unroll
  for (int c = 0; c < N; c += kChunk) {
    union {
      W word;
      T e[kChunk];
    } u;
#pragma unroll
    for (int k = 0; k < kChunk; ++k) u.e[k] = To<T>::from(v[c + k]);
    *(W*)(p + c) = u.word;
  }
}

/// v & mask, a number of 0 to 2^23, as a real, by operations that are faster than conversions.
template <int mask = 0x7fffff> TFCC_FN f32 real_by_bits(int v) {
  int bits;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;"
      : "=r"(bits)
      : "r"(v), "r"(mask), "r"(0x4b000000));  // v & mask | 2^23
  return __int_as_float(bits) - 8388608.0f;
}

template <int N, class T> TFCC_FN bool pack_aligned(const T* p) {
  return ((u64)p & (N * sizeof(T) - 1)) == 0;
}

/// N neighbours of T, as arithmetic uses them.
template <int N, class T> struct Pack {
  Compute<T> v[N];
  TFCC_FN Compute<T> operator[](int k) const { return v[k]; }
};
template <int N, class T> TFCC_FN Pack<N, T> read_pack(const T* p) {
  Pack<N, T> r;
  load_pack(p, r.v);
  return r;
}
/// The same at any address.
template <int N, class T> TFCC_FN Pack<N, T> read_pack_anywhere(const T* p) {
  if (pack_aligned<N>(p)) return read_pack<N>(p);
  Pack<N, T> r;
#pragma unroll
  for (int k = 0; k < N; ++k) r.v[k] = load(p, k);
  return r;
}
/// Writes v, which may be of another type, to any address if it is the caller's.
template <class T, class V, int N> TFCC_FN void write_pack(T* p, const V (&v)[N]) {
  Compute<T> w[N];
#pragma unroll
  for (int k = 0; k < N; ++k) w[k] = (Compute<T>)v[k];
  if (pack_aligned<N>(p)) return store_pack(p, w);
#pragma unroll
  for (int k = 0; k < N; ++k) store(p, k, w[k]);
}
/// v[k] = value(first + k, k).
template <class V, int N, class F> TFCC_FN void fill_pack(V (&v)[N], idx first, const F& value) {
#pragma unroll
  for (int k = 0; k < N; ++k) v[k] = value(first + k, k);
}

// ---- before the launch before this one has ended ----
//
// A kernel of capability 9.0 and later may be started while its predecessor still runs
// (Kernel.starts_early). Until wait_for_predecessor() it may touch constants alone: everything else
// may not be written yet, and what it would write may still be read. Sizes may be read by
// FreshSizes where no launch before this one but those before its predecessor makes them; the
// caller's addresses, tensors of the caller that no launch writes, and what such a launch wrote, by
// fresh() in the same way (docs/kernel-abi.md).

/// Asks for a constant that the kernel will read; block 0 does it for all.
TFCC_FN void prefetch([[maybe_unused]] const void* p, [[maybe_unused]] u32 bytes) {
#if __CUDA_ARCH__ >= 900
  if (blockIdx.x + blockIdx.y + blockIdx.z == 0) {
    for (u32 at = threadIdx.x * 128; at < bytes; at += blockDim.x * 128) {
      asm volatile("prefetch.global.L2 [%0];" ::"l"((const char*)p + at));
    }
  }
#endif
}

/// The same for a constant of which every block reads all: it is in the L1 cache then, whose
/// sectors have 32 bytes.
TFCC_FN void bring_near([[maybe_unused]] const void* p, [[maybe_unused]] u32 bytes) {
#if __CUDA_ARCH__ >= 900
  for (u32 at = threadIdx.x * 32; at < bytes; at += blockDim.x * 32) {
    u32 unused;
    asm volatile("ld.global.u8 %0, [%1];" : "=r"(unused) : "l"((const char*)p + at));
  }
#endif
}

/// Parameters that are needed after the wait are fetched before it: their lines of constant memory
/// are far at first.
template <class... P> TFCC_FN void bring_parameters_near([[maybe_unused]] P... p) {
#if __CUDA_ARCH__ >= 900
  (..., [](const void* q) { asm volatile("" ::"l"(q)); }((const void*)p));
#endif
}

/// Waits until what the launches before this one wrote is there; then the launch after this one may
/// be started, whose own wait lasts until this one has ended. Every kernel must call it: a chain of
/// waits is what orders a run.
TFCC_FN void wait_for_predecessor() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;\n\tgriddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// The launch after this one may be started as soon as all blocks of this one have come here, for
/// what it does before its own wait.
TFCC_FN void let_successor_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// The sizes of the run, read where all multiprocessors see the same: a cache of this one may hold
/// what was there before.
struct FreshSizes {
  const i64* n;
  TFCC_FN i64 operator[](int i) const {
    i64 v;
    asm volatile("ld.relaxed.gpu.global.s64 %0, [%1];" : "=l"(v) : "l"(n + i) : "memory");
    return v;
  }
};

/// The address of a tensor of the caller, or a number in it, read in the same way.
template <class T> TFCC_FN T* fresh(T* const* p) {
  u64 v;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return (T*)v;
}
TFCC_FN i32 fresh(const i32* p) {
  i32 v;
  asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}

// ---- lists of sizes ----

/// N sizes; N may be 0. Sizes may be given as i64.
template <int N> struct Dims {
  idx d[N > 0 ? N : 1];
  template <class... A> TFCC_FN Dims(A... a) : d{(idx)a...} {}
  TFCC_FN idx operator[](int k) const { return d[k]; }
  TFCC_FN idx count() const {
    idx r = 1;
#pragma unroll
    for (int k = 0; k < N; ++k) r *= d[k];
    return r;
  }
};

/// f(indices[0], ..., indices[N-1]).
template <int... K> struct Sequence {};
template <int N, int... K> struct MakeSequence : MakeSequence<N - 1, N - 1, K...> {};
template <int... K> struct MakeSequence<0, K...> { using type = Sequence<K...>; };
template <class F, int... K> TFCC_FN auto apply(const F& f, const idx* i, Sequence<K...>) {
  return f(i[K]...);
}
template <int N, class F> TFCC_FN auto apply(const F& f, const idx* i) {
  return apply(f, i, typename MakeSequence<N>::type{});
}

/// A number that the compiler does not know, nor makes again where it is used.
template <class T> TFCC_FN T held(T number) {
  asm volatile("" : "+r"(number));
  return number;
}

/// Sets i[0 .. N-1] to the indices of element `linear` of a tensor with these dims, of which the
/// first `units` are 1. Unsigned 32-bit division.
template <int N, int units = 0> TFCC_FN void unravel(idx linear, const Dims<N>& dims, idx* i) {
  u32 rest = (u32)linear;
#pragma unroll
  for (int k = N - 1; k > 0; --k) {
    if (k <= units) {
      i[k] = k == units ? (idx)rest : 0;
      if (k == units) rest = 0;
      continue;
    }
    u32 d = (u32)dims[k];
    u32 q = rest / d;
    i[k] = (idx)(rest - q * d);
    rest = q;
  }
  if (N > 0) i[0] = (idx)rest;
}

// ---- reductions: the same order in every run ----

struct Add {
  template <class V> TFCC_FN V operator()(V a, V b) const { return a + b; }
};

/// The combination over `width` neighbouring lanes, in all of them. Every lane of the warp must
/// call it.
template <int width, class V, class Op> TFCC_FN V reduce_lanes(V v, Op op) {
#pragma unroll
  for (int step = width / 2; step > 0; step /= 2) v = op(v, __shfl_xor_sync(kAllLanes, v, step));
  return v;
}

/// The combination over a block of `threads` threads, in all of them. Every thread must call it.
template <int threads, class V, class Op> TFCC_FN V reduce_block(V v, Op op) {
  constexpr int kWarps = threads / kWarp;
  v = reduce_lanes<kWarp>(v, op);
  if constexpr (kWarps > 1) {
    __shared__ V partial[kWarps];
    __syncthreads();  // the previous call's readers are done
    if (threadIdx.x % kWarp == 0) partial[threadIdx.x / kWarp] = v;
    __syncthreads();
    v = partial[0];
#pragma unroll
    for (int w = 1; w < kWarps; ++w) v = op(v, partial[w]);
  }
  return v;
}

/// One row per warp, or one per block: the combination over the threads of a row.
template <class Spec, class V, class Op> TFCC_FN V reduce_row(V v, Op op) {
  static_assert(Spec::threads % kWarp == 0 && Spec::threads <= 1024,
                "threads: a multiple of 32 up to 1024");
  static_assert(Spec::threads_per_row == kWarp || Spec::threads_per_row == Spec::threads,
                "threads_per_row: 32, or all threads of the block");
  if constexpr (Spec::threads_per_row == kWarp) return reduce_lanes<kWarp>(v, op);
  else return reduce_block<Spec::threads>(v, op);
}

/// The row that this thread works on, and its place among the row's threads.
template <class Spec> TFCC_FN idx row_of_thread() {
  return (idx)(blockIdx.x * (Spec::threads / Spec::threads_per_row) +
               threadIdx.x / Spec::threads_per_row);
}
template <class Spec> TFCC_FN int lane_of_row() {
  return (int)(threadIdx.x % Spec::threads_per_row);
}

#include "expr.h"
