// SPDX-License-Identifier: Apache-2.0
// The primitives of printed expressions, for NVRTC and Clang alike; docs/kernel-abi.md has the
// table. Real functions have a float and a double form. CUDA uses the accurate device functions,
// the CPU those of cpu/math.h.
#pragma once

#ifndef TFCC_CUDA
#include "cpu/math.h"
#endif

// ---- reals, per target ----

#ifdef TFCC_CUDA

#define kInf __int_as_float(0x7f800000)  // NVRTC has no constant expression for these
#define kNan __int_as_float(0x7fc00000)

#define TFCC_REAL_1(name, single, twice)        \
  TFCC_FN f32 name(f32 x) { return single(x); } \
  TFCC_FN f64 name(f64 x) { return twice(x); }
#define TFCC_REAL_2(name, single, twice)                  \
  TFCC_FN f32 name(f32 x, f32 y) { return single(x, y); } \
  TFCC_FN f64 name(f64 x, f64 y) { return twice(x, y); }
TFCC_REAL_1(fexp, ::expf, ::exp)
TFCC_REAL_1(flog, ::logf, ::log)
TFCC_REAL_1(fsqrt, ::sqrtf, ::sqrt)
TFCC_REAL_1(ferf, ::erff, ::erf)
TFCC_REAL_1(ftanh, ::tanhf, ::tanh)
TFCC_REAL_1(fsin, ::sinf, ::sin)
TFCC_REAL_1(fcos, ::cosf, ::cos)
TFCC_REAL_1(fatan, ::atanf, ::atan)
TFCC_REAL_1(fabs_, ::fabsf, ::fabs)
TFCC_REAL_1(ffloor, ::floorf, ::floor)
TFCC_REAL_1(fceil, ::ceilf, ::ceil)
TFCC_REAL_1(frint, ::rintf, ::rint)
TFCC_REAL_2(fpow, ::powf, ::pow)
TFCC_REAL_2(fmod_, ::fmodf, ::fmod)
#undef TFCC_REAL_1
#undef TFCC_REAL_2

/// 1 + erf(x) for results of 16 bits: within 4e-6 of it, and where it is above 2e-4 within 7e-5 of
/// its value. It is twice a logistic function, 2 / (1 + 2^-q(x)). q is odd and smooth, x times a
/// polynomial in x^2, fitted to the error of GELU: at most 0.44 units of the last place of its f16,
/// and below 3e-8 where that is less. Beyond the fit q still grows, so that the ends are 0 and 2.
TFCC_FN f32 one_plus_erf_short(f32 x) {
  const f32 u = x * x;
  f32 p = -3.63703293e-07f;
  p = ::fmaf(p, u, 1.45435642e-05f);
  p = ::fmaf(p, u, -0.000231018101f);
  p = ::fmaf(p, u, 0.00167814316f);
  p = ::fmaf(p, u, 0.000799210684f);
  p = ::fmaf(p, u, -0.296750993f);
  p = ::fmaf(p, u, -3.25575519f);
  f32 power, result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * p));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(::fmaf(power, 0.5f, 0.5f)));
  return result;
}
/// e^x and a / b for what is rounded to 16 bits next: 2 units of the last place, and as many more
/// as x has of its own; e^x below 2^-126 is 0.
TFCC_FN f32 fexp_short(f32 x) {
  f32 r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x * 1.44269504088896340736f));
  return r;
}
TFCC_FN f32 fdiv_short(f32 a, f32 b) {
  f32 r;
  asm("div.full.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}
/// A select whose sides are both computed: a branch around ex2, which compilers make of ?:, would
/// wait for every single one.
TFCC_FN f32 either(bool condition, f32 a, f32 b) { return condition ? a : b; }

#else

inline constexpr f32 kInf = math::kInf32;
inline constexpr f32 kNan = math::kNan32;

#define TFCC_REAL_1(name, function)               \
  TFCC_FN f32 name(f32 x) { return function(x); } \
  TFCC_FN f64 name(f64 x) { return function(x); }
#define TFCC_REAL_2(name, function)                         \
  TFCC_FN f32 name(f32 x, f32 y) { return function(x, y); } \
  TFCC_FN f64 name(f64 x, f64 y) { return function(x, y); }
TFCC_REAL_1(fexp, math::exp)
TFCC_REAL_1(flog, math::log)
TFCC_REAL_1(fsqrt, math::sqrt)
TFCC_REAL_1(ferf, math::erf)
TFCC_REAL_1(ftanh, math::tanh)
TFCC_REAL_1(fsin, math::sin)
TFCC_REAL_1(fcos, math::cos)
TFCC_REAL_1(fatan, math::atan)
TFCC_REAL_1(fabs_, math::abs)
TFCC_REAL_1(ffloor, math::floor)
TFCC_REAL_1(fceil, math::ceil)
TFCC_REAL_1(frint, math::rint)
TFCC_REAL_2(fpow, math::pow)
TFCC_REAL_2(fmod_, math::fmod)
#undef TFCC_REAL_1
#undef TFCC_REAL_2

#endif

// ---- reals, shared ----

template <class T> TFCC_FN bool fisnan(T x) { return x != x; }

/// The smaller and the larger, the right one of equal numbers; a NaN on either side is the result.
/// kInf may be narrower than the other side. Only y is asked for NaN: x != x ? x : x > y ? x : y of
/// |x| and 0 becomes x > 0 ? |x| : 0 in Clang 19.
template <class A, class B> TFCC_FN auto fmin_(A a, B b) {
  using T = decltype(a + b);
  T x = a, y = b;
  return y != y ? y : x >= y ? y : x;
}
template <class A, class B> TFCC_FN auto fmax_(A a, B b) {
  using T = decltype(a + b);
  T x = a, y = b;
  return y != y ? y : x <= y ? y : x;
}

/// a < b and a <= b where one side is a constant.
template <class A, class B> TFCC_FN bool flt(A a, B b) { return a < b; }
template <class A, class B> TFCC_FN bool fle(A a, B b) { return a <= b; }

#ifdef TFCC_CUDA
// ptxas takes |x|, x * x and sums of such for >= 0 even where x is NaN, so that comparisons of f32
// with a constant lose the NaN; it does keep a test for NaN. In inline PTX nothing merges that test
// with the comparison before ptxas.
TFCC_FN bool are_numbers(f32 a, f32 b) {
  u32 r;
  asm("{.reg .pred p; setp.num.f32 p, %1, %2; selp.u32 %0, 1, 0, p;}" : "=r"(r) : "f"(a), "f"(b));
  return r != 0;
}
TFCC_FN bool flt(f32 a, f32 b) { return (a < b) & are_numbers(a, b); }
TFCC_FN bool fle(f32 a, f32 b) { return (a <= b) & are_numbers(a, b); }
TFCC_FN f32 fmin_(f32 a, f32 b) {
  f32 r;
  asm("{.reg .pred p; .reg .f32 t; setp.lt.f32 p, %1, %2; selp.f32 %0, %1, %2, p; add.f32 t, %1, %2; setp.nan.f32 p, %1, %2; selp.f32 %0, t, %0, p;}"
      : "=&f"(r)
      : "f"(a), "f"(b));
  return r;
}
TFCC_FN f32 fmax_(f32 a, f32 b) {
  f32 r;
  asm("{.reg .pred p; .reg .f32 t; setp.gt.f32 p, %1, %2; selp.f32 %0, %1, %2, p; add.f32 t, %1, %2; setp.nan.f32 p, %1, %2; selp.f32 %0, t, %0, p;}"
      : "=&f"(r)
      : "f"(a), "f"(b));
  return r;
}
#endif

/// -1, 0 or 1; NaN stays.
template <class T> TFCC_FN T fsign(T x) {
  return x != x ? x : x > T(0) ? T(1) : x < T(0) ? T(-1) : x;
}  // NaN first: NVRTC folds x > 0 of 0.1 + |x| to true

// Rounding to 16 bits as the graph's Cast does (to nearest even, overflow to infinity), in the same
// type.

TFCC_FN f32 round_f16(f32 x) { return f16_to_f32(f32_to_f16(x)); }
TFCC_FN f32 round_bf16(f32 x) { return bf16_to_f32(f32_to_bf16(x)); }

/// `bits` bits of significand, exponents from `min_exponent`: adding and subtracting 1.5 * 2^52
/// quanta rounds once.
TFCC_FN f64 round_to(f64 x, int bits, int min_exponent, f64 limit) {
  u64 biased = (bit_cast<u64>(x) >> 52) & 0x7ff;
  u64 low = (u64)(1023 + min_exponent);
  u64 exponent = biased < low ? low : biased > 1500 ? 1500 : biased;
  f64 magic = bit_cast<f64>((exponent + (u64)(53 - bits)) << 52) * 1.5;
  f64 r = (x + magic) - magic;
  r = r >= limit ? (f64)kInf : r <= -limit ? -(f64)kInf : r;
  r = x != x || x - x != 0.0 ? x : r;
  return bit_cast<f64>((bit_cast<u64>(r) & 0x7fffffffffffffffu) |
                       (bit_cast<u64>(x) & 0x8000000000000000u));
}
TFCC_FN f64 round_f16(f64 x) { return round_to(x, 11, -14, 65536.0); }
TFCC_FN f64 round_bf16(f64 x) { return round_to(x, 8, -126, 0x1p128); }

// ---- integers ----

/// Rounds to minus infinity; b > 0.
template <class A, class B> TFCC_FN auto floordiv(A a, B b) {
  using T = decltype(a + b);
  T x = a, y = b;
  T q = x / y;
  return x - q * y < 0 ? q - 1 : q;
}
/// a - b * floordiv(a, b): in [0, b) for b > 0.
template <class A, class B> TFCC_FN auto floormod(A a, B b) {
  using T = decltype(a + b);
  T x = a, y = b;
  T r = x - x / y * y;
  return r < 0 ? r + y : r;
}
/// The same of a >= 0 and b > 0: shifts and masks where b is a power of two.
template <class A, class B> TFCC_FN auto quotient(A a, B b) {
  using T = decltype(a + b);
  if constexpr (sizeof(T) == 4) return (T)((u32)a / (u32)b);
  else return (T)((u64)a / (u64)b);
}
template <class A, class B> TFCC_FN auto remainder(A a, B b) {
  using T = decltype(a + b);
  if constexpr (sizeof(T) == 4) return (T)((u32)a % (u32)b);
  else return (T)((u64)a % (u64)b);
}
template <class A, class B> TFCC_FN auto imin(A a, B b) {
  using T = decltype(a + b);
  return (T)a < (T)b ? (T)a : (T)b;
}
template <class A, class B> TFCC_FN auto imax(A a, B b) {
  using T = decltype(a + b);
  return (T)a > (T)b ? (T)a : (T)b;
}
/// -a.
template <class A> TFCC_FN A ineg(A a) { return -a; }
#ifdef TFCC_CUDA
// ptxas 13.0 loses a negation in max(max(a, -b), c) of 32 bits on sm_90 and sm_100 (VIMNMX3); not
// and add it keeps.
TFCC_FN idx ineg(idx a) {
  idx r;
  asm("{.reg .b32 t; not.b32 t, %1; add.s32 %0, t, 1;}" : "=r"(r) : "r"(a));
  return r;
}
#endif
template <class A, class B> TFCC_FN i64 ibitand(A a, B b) { return (i64)a & (i64)b; }
/// The least integer is its own magnitude, as in two's complement.
template <class A> TFCC_FN A iabs(A a) { return a < 0 ? (A)(0 - (u64)a) : a; }
#ifdef TFCC_CUDA
// NVRTC and ptxas take what they see to be a magnitude (abs.s64 too) for >= 0; the empty asm keeps
// them from seeing it.
TFCC_FN i64 iabs(i64 a) {
  i64 sign = a >> 63;
  asm("" : "+l"(sign));
  return (i64)(((u64)a ^ (u64)sign) - (u64)sign);
}
#endif
/// The low bits of an integer, as a signed and as an unsigned number.
template <int bits> TFCC_FN i64 wrap_signed(i64 a) {
  return (i64)((u64)a << (64 - bits)) >> (64 - bits);
}
template <int bits> TFCC_FN i64 wrap_unsigned(i64 a) {
  return (i64)((u64)a << (64 - bits) >> (64 - bits));
}

/// e if 0 <= e < n, else the nearest such value (0 for n = 0), and the flag is raised.
template <class N> TFCC_FN idx bounded(i64 e, N n, u32* flag) {
  if (e >= 0 && e < (i64)n) return (idx)e;
  *flag = 1;
  return e < 0 || n <= 0 ? 0 : (idx)(n - 1);
}

/// Truncates what an i32 holds; NaN is 0.
template <class T> TFCC_FN i64 f2i_small(T x) { return x == x ? (i64)(i32)x : 0; }

/// Truncates; saturates at the ends of i64; NaN is 0.
template <class T> TFCC_FN i64 f2i(T x) {
  return x != x           ? 0
         : x >= (T)0x1p63 ? (i64)0x7fffffffffffffff
         : x < (T)-0x1p63 ? -(i64)0x7fffffffffffffff - 1
                          : (i64)x;
}
