// SPDX-License-Identifier: Apache-2.0
// What every CPU kernel starts from: types, loads and stores, and the macros of stubs. Compiled by
// Clang in-process without any header of the system; nothing here may leave an undefined symbol.
#pragma once

using f32 = float;
using f64 = double;
using i64 = long;
using i32 = int;
using i16 = short;
using i8 = signed char;
using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned;
using u64 = unsigned long;
using b8 = bool;
using idx = i64;

static_assert(sizeof(i64) == 8 && sizeof(b8) == 1, "the CPU target is 64-bit Linux");

struct f16 {
  u16 bits;
};
struct bf16 {
  u16 bits;
};

#define TFCC_CPU 1
#define TFCC_FN inline __attribute__((always_inline))
#define TFCC_KERNEL(NAME)                                                                          \
  extern "C" __attribute__((visibility("default"))) void NAME(                                     \
      [[maybe_unused]] const i64* n, [[maybe_unused]] u32* flags, [[maybe_unused]] void* const* a, \
      [[maybe_unused]] i64 begin, [[maybe_unused]] i64 end)

/// Floats in one vector register of the target.
#if defined(__AVX512F__)
inline constexpr int kLanes = 16;
#elif defined(__AVX__)
inline constexpr int kLanes = 8;
#else
inline constexpr int kLanes = 4;
#endif

template <class To, class From> TFCC_FN To bit_cast(From x) { return __builtin_bit_cast(To, x); }

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

TFCC_FN f32 f16_to_f32(u16 bits) {
#if defined(__F16C__)
  return (f32)bit_cast<_Float16>(bits);
#else
  // The exponent is moved by a multiplication, which is exact and gives subnormals their value.
  u32 sign = (u32)(bits & 0x8000) << 16;
  f32 magnitude = bit_cast<f32>((u32)(bits & 0x7fff) << 13) * 0x1p112f;
  u32 special = (bits & 0x7c00) == 0x7c00 ? 0x7f800000u : 0u;
  return bit_cast<f32>(bit_cast<u32>(magnitude) | special | sign);
#endif
}

TFCC_FN u16 f32_to_f16(f32 x) {
#if defined(__F16C__)
  return bit_cast<u16>((_Float16)x);
#else
  u32 u = bit_cast<u32>(x);
  u32 sign = (u >> 16) & 0x8000;
  u32 abs = u & 0x7fffffff;
  // Normal results: round to nearest even on the 13 bits that go; a carry runs into the exponent,
  // up to infinity.
  u32 normal = (abs - (112u << 23) + 0xfff + ((abs >> 13) & 1)) >> 13;
  // Subnormal results: adding 0.5 leaves the rounded multiple of 2^-24 in the low bits.
  u32 subnormal = bit_cast<u32>(bit_cast<f32>(abs) + 0.5f) - 0x3f000000u;
  u32 r = abs < 0x38800000u ? subnormal : normal;
  r = abs >= 0x477ff000u ? 0x7c00u : r;
  r = abs > 0x7f800000u ? 0x7e00u : r;
  return (u16)(r | sign);
#endif
}

TFCC_FN f32 bf16_to_f32(u16 bits) { return bit_cast<f32>((u32)bits << 16); }

TFCC_FN u16 f32_to_bf16(f32 x) {
  u32 u = bit_cast<u32>(x);
  u32 rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
  return (u16)(x != x ? (u >> 16) | 0x40 : rounded);
}

/// Rounded to odd: another rounding, to 16 bits, then gives what a single one would have.
TFCC_FN f32 f64_to_f32_odd(f64 x) {
  f32 t = (f32)x;
  u32 bits = bit_cast<u32>(t);
  f64 back = (f64)t;
  bool away = (x < 0 ? -back : back) > (x < 0 ? -x : x);
  bits = back != x ? (bits - away) | 1 : bits;
  return x != x ? t : bit_cast<f32>(bits);
}
TFCC_FN u16 f64_to_f16(f64 x) { return f32_to_f16(f64_to_f32_odd(x)); }
TFCC_FN u16 f64_to_bf16(f64 x) { return f32_to_bf16(f64_to_f32_odd(x)); }

TFCC_FN f32 load(const f16* p, idx i) { return f16_to_f32(p[i].bits); }
TFCC_FN f32 load(const bf16* p, idx i) { return bf16_to_f32(p[i].bits); }
/// A byte other than 0 and 1 is true, so that a caller's buffer cannot make a bool of two minds.
TFCC_FN bool load(const b8* p, idx i) { return ((const u8*)p)[i] != 0; }
template <class T> TFCC_FN Compute<T> load(const T* p, idx i) { return (Compute<T>)p[i]; }

TFCC_FN void store(f16* p, idx i, f32 v) { p[i].bits = f32_to_f16(v); }
TFCC_FN void store(bf16* p, idx i, f32 v) { p[i].bits = f32_to_bf16(v); }
TFCC_FN void store(f64* p, idx i, f64 v) { p[i] = v; }
TFCC_FN void store(f32* p, idx i, f32 v) { p[i] = v; }
/// A byte as it is stored: no other type's memory, which for a char Clang has to assume of every
/// size that a loop reads.
enum class StoredByte : u8 {};
TFCC_FN void store(b8* p, idx i, bool v) { ((StoredByte*)p)[i] = (StoredByte)v; }
TFCC_FN void store(u8* p, idx i, i64 v) { ((StoredByte*)p)[i] = (StoredByte)v; }
TFCC_FN void store(i8* p, idx i, i64 v) { ((StoredByte*)p)[i] = (StoredByte)v; }
template <class T> TFCC_FN void store(T* p, idx i, i64 v) { p[i] = (T)v; }

/// A list of N sizes; N may be 0.
template <int N> struct Dims {
  idx d[N];
  TFCC_FN idx operator[](int k) const { return d[k]; }
};
template <> struct Dims<0> {
  TFCC_FN idx operator[](int) const { return 1; }
};

/// f(indices[0], ..., indices[N-1]).
template <int... K> struct Sequence {};
template <int N, int... K> struct MakeSequence : MakeSequence<N - 1, N - 1, K...> {};
template <int... K> struct MakeSequence<0, K...> { using type = Sequence<K...>; };
template <class F, int... K>
TFCC_FN auto apply(const F& f, [[maybe_unused]] const idx* i, Sequence<K...>) {
  return f(i[K]...);
}
template <int N, class F> TFCC_FN auto apply(const F& f, const idx* i) {
  return apply(f, i, typename MakeSequence<N>::type{});
}

/// Sets i[0 .. N-1] to the indices of element `linear` of a tensor with these dims.
template <int N, int M> TFCC_FN void unravel(idx linear, const Dims<M>& dims, idx* i) {
  for (int k = N - 1; k >= 0; --k) {
    idx d = dims[k];
    i[k] = k == 0 ? linear : linear % d;
    linear /= d;
  }
}

/// A size by its program (runtime/core/size_expr.h): at most 64 values at once. What the result
/// depends on does not overflow, as the run has found out before.
inline __attribute__((noinline)) i64 size_program(const i64* n, const i64* code, i64 count) {
  i64 stack[64];
  i64* top = stack;  // one past the last value
  for (i64 i = 0; i < count; ++i) {
    if (code[i] < 2) {  // push, symbol
      *top++ = code[i] == 0 ? code[i + 1] : n[code[i + 1]];
      ++i;
      continue;
    }
    if (code[i] == 7 || code[i] == 9) {  // abs, negate
      if (code[i] == 9 || top[-1] < 0) top[-1] = -top[-1];
      continue;
    }
    if (code[i] == 8) {  // select
      top -= 2;
      top[-1] = top[-1] >= 0 ? top[0] : top[1];
      continue;
    }
    const i64 b = *--top, a = top[-1];
    switch (code[i]) {
      case 2: top[-1] = a + b; break;
      case 3: top[-1] = a * b; break;
      case 4:
        top[-1] = b == 0 ? 0 : b == -1 ? -a : a / b - (a % b != 0 && (a < 0) != (b < 0));
        break;  // in a branch not taken
      case 5: top[-1] = a < b ? a : b; break;
      default: top[-1] = a > b ? a : b; break;
    }
  }
  return stack[0];
}
