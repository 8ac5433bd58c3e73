// SPDX-License-Identifier: Apache-2.0
// Elementary functions for CPU kernels: no library call, no table, selects instead of branches, so
// that the loops that call them are vectorised. Special values are those of C's math.h (except the
// sign of some zeros).
//
// float: exp, log, tanh, sin, cos, atan, pow within 3 ulp, erf within 2e-7. double: about 1e-14
// relative. sin and cos of arguments beyond 2^20 take a slow exact reduction, which keeps their
// loops scalar. The polynomials are Chebyshev interpolants on the ranges named beside them.
#pragma once

#include "cpu/prelude.h"

namespace math {

inline constexpr f32 kInf32 = __builtin_inff();
inline constexpr f64 kInf64 = __builtin_inf();
inline constexpr f32 kNan32 = __builtin_nanf("");
inline constexpr f64 kNan64 = __builtin_nan("");

/// c0 + x * (c1 + x * (...)).
template <class T> TFCC_FN T poly(T, T c) { return c; }
template <class T, class... Rest> TFCC_FN T poly(T x, T c, Rest... rest) {
  return c + x * poly(x, rest...);
}

template <class T> TFCC_FN T sqrt(T x) { return __builtin_elementwise_sqrt(x); }
template <class T> TFCC_FN T floor(T x) { return __builtin_elementwise_floor(x); }
template <class T> TFCC_FN T ceil(T x) { return __builtin_elementwise_ceil(x); }
template <class T> TFCC_FN T trunc(T x) { return __builtin_elementwise_trunc(x); }
template <class T> TFCC_FN T rint(T x) { return __builtin_elementwise_rint(x); }
template <class T> TFCC_FN T abs(T x) { return __builtin_elementwise_abs(x); }
template <class T> TFCC_FN T copysign(T x, T s) { return __builtin_elementwise_copysign(x, s); }

// ---- exp: x = n ln 2 + r, e^r = 1 + r + r^2 q(r) on |r| <= ln 2 / 2; 2^n in two factors reaches subnormals ----

TFCC_FN f32 exp(f32 x) {
  x = x < -104.0f ? -104.0f : x;
  x = x > 89.0f ? 89.0f : x;
  // Adding 1.5 * 2^23 leaves the rounded quotient in the low bits: no conversion, which NaN would
  // make undefined.
  f32 shifted = x * 0x1.715476p+0f + 0x1.8p23f;
  f32 n = shifted - 0x1.8p23f;
  i32 k = bit_cast<i32>(shifted) - 0x4b400000;
  f32 r = x - n * 0x1.62ep-1f;
  r = r - n * 0x1.0bfbe8p-15f;
  f32 q = poly(r, 0.5f, 0x1.5554dcp-3f, 0x1.55551ap-5f, 0x1.120b6ep-7f, 0x1.6d110ap-10f);
  f32 p = 1.0f + (r + r * r * q);
  i32 half = k >> 1;
  return p * bit_cast<f32>((half + 127) << 23) * bit_cast<f32>((k - half + 127) << 23);
}

TFCC_FN f64 exp(f64 x) {
  x = x < -746.0 ? -746.0 : x;
  x = x > 710.0 ? 710.0 : x;
  f64 shifted = x * 0x1.71547652b82fep+0 + 0x1.8p52;
  f64 n = shifted - 0x1.8p52;
  i64 k = bit_cast<i64>(shifted) - 0x4338000000000000;
  f64 r = x - n * 0x1.62e42fee00000p-1;
  r = r - n * 0x1.a39ef35793c76p-33;
  f64 q = poly(r, 0.5, 0x1.5555555555557p-3, 0x1.5555555555556p-5, 0x1.11111111100dcp-7,
               0x1.6c16c16c162d4p-10, 0x1.a01a01abe7fe1p-13, 0x1.a01a01a6d889cp-16,
               0x1.71de0231960ebp-19, 0x1.27e4db646b17ep-22, 0x1.af4de97ca4194p-26,
               0x1.1f730349868cep-29);
  f64 p = 1.0 + (r + r * r * q);
  i64 half = k >> 1;
  return p * bit_cast<f64>((half + 1023) << 52) * bit_cast<f64>((k - half + 1023) << 52);
}

// ---- log: x = 2^e m, m in [sqrt(1/2), sqrt 2), f = m - 1, s = f / (2 + f), log(1 + f) = f - s (f - z g(z)), z = s^2 ----

TFCC_FN f32 log(f32 x) {
  bool tiny = x < 0x1p-126f;
  f32 scaled = tiny ? x * 0x1p25f : x;
  i32 bits = bit_cast<i32>(scaled) - 0x3f3504f3;
  f32 e = (f32)((bits >> 23) - (tiny ? 25 : 0));
  f32 f = bit_cast<f32>((bits & 0x7fffff) + 0x3f3504f3) - 1.0f;
  f32 s = f / (2.0f + f);
  f32 z = s * s;
  f32 g = z * poly(z, 0x1.555556p-1f, 0x1.9999ecp-2f, 0x1.245c3ep-2f, 0x1.ddd00cp-3f);
  f32 r = e * 0x1.62ep-1f + (f + (e * 0x1.0bfbe8p-15f - s * (f - g)));
  r = x == kInf32 ? kInf32 : r;
  r = x == 0.0f ? -kInf32 : r;
  return x >= 0.0f ? r : kNan32;
}

/// The logarithm of a positive finite x as hi + lo, to about 2^-56.
TFCC_FN void log_parts(f64 x, f64& hi, f64& lo) {
  bool tiny = x < 0x1p-1022;
  f64 scaled = tiny ? x * 0x1p54 : x;
  i64 bits = bit_cast<i64>(scaled) - 0x3fe6a09e667f3bcd;
  f64 e = (f64)((i32)(bits >> 52) - (tiny ? 54 : 0));
  f64 f = bit_cast<f64>((bits & 0xfffffffffffff) + 0x3fe6a09e667f3bcd) - 1.0;
  f64 s = f / (2.0 + f);
  f64 z = s * s;
  f64 g = z * poly(z, 0x1.5555555555555p-1, 0x1.9999999999a38p-2, 0x1.2492492476c42p-2,
                   0x1.c71c720168526p-3, 0x1.745cf8fe328f9p-3, 0x1.3b1c36b445cebp-3,
                   0x1.0fbe71ad855c9p-3, 0x1.0c05166ec4148p-3);
  f64 big = e * 0x1.62e42fefa3800p-1;  // exact: 42 bits by at most 11
  f64 sum = big + f;
  f64 low = big == 0.0 ? 0.0 : f - (sum - big);
  low = low + (e * 0x1.ef35793c76730p-45 - s * (f - g));
  hi = sum + low;
  lo = low - (hi - sum);
}

TFCC_FN f64 log(f64 x) {
  f64 hi, lo;
  log_parts(x, hi, lo);
  f64 r = x == kInf64 ? kInf64 : hi + lo;
  r = x == 0.0 ? -kInf64 : r;
  return x >= 0.0 ? r : kNan64;
}

// ---- erf: x p(x^2) up to 1, then 1 - erfc(x) ----

TFCC_FN f32 erf(f32 x) {
  f32 a = abs(x);
  f32 z = x * x;
  f32 small = x * poly(z, 0x1.20dd74p+0f, -0x1.81273ep-2f, 0x1.ce2d1p-4f, -0x1.b7fabap-6f,
                       0x1.54127p-8f, -0x1.a45088p-11f, 0x1.4a569p-14f);
  f32 c = a > 4.0f ? 4.0f : a;  // 1 - erf(4) is below half an ulp
  f32 large = 1.0f - exp(-poly(c, 0x1.8264bp-11f, 0x1.2040bcp+0f, 0x1.472cfp-1f, 0x1.a7699cp-4f,
                               -0x1.72faep-6f, 0x1.c318dcp-9f, -0x1.4d9adep-12f, 0x1.bf9406p-17f));
  return a < 1.0f ? small : copysign(large, x);
}

TFCC_FN f64 erf(f64 x) {
  f64 a = abs(x);
  f64 z = x * x;
  f64 small = x * poly(z, 0x1.20dd750429b6dp+0, -0x1.812746b0379e7p-2, 0x1.ce2f21a042bdep-4,
                       -0x1.b82ce312889bap-6, 0x1.565bcd0e6502dp-8, -0x1.c02db3feeb579p-11,
                       0x1.f9a326c233146p-14, -0x1.f4d2561aeafd4p-17, 0x1.b9e6509b9867dp-20,
                       -0x1.5f6d925a0bc7ap-23, 0x1.fc4356498c2d9p-27, -0x1.4e607b41a6416p-30,
                       0x1.7f072188e194dp-34, -0x1.29b9f1b3df556p-38);
  // erfc(c) e^(c^2) is smooth in 1 / (c + 3), here moved to [-1, 1].
  f64 c = a > 6.0 ? 6.0 : a;
  f64 u = (1.0 / (c + 3.0) - 0x1.71c71c71c71c7p-3) * 0x1.ccccccccccccdp+3;
  f64 h =
      poly(u, 0x1.a9f324d321d3cp-3, 0x1.3c21b61aee88ap-3, 0x1.972131b56d858p-5,
           0x1.a0959cca86019p-7, 0x1.44f7ff14b97afp-9, 0x1.5bb5fdef63d0ep-12, 0x1.4838f334f8fc1p-16,
           -0x1.458d8544e70afp-19, -0x1.297ead73e08ecp-21, 0x1.37131bb531d7cp-28,
           0x1.859dda1632b83p-27, 0x1.22063b44780e2p-32, -0x1.1a943756e5b48p-32,
           -0x1.a7bde3dae52c9p-38, 0x1.a94b47bf09831p-38, -0x1.e29dc0ede7230p-48);
  f64 large = 1.0 - exp(-c * c) * h;
  return a < 1.0 ? small : copysign(large, x);
}

// ---- tanh: x + x^3 p(x^2) near 0, then 1 - 2 / (e^2x + 1) ----

TFCC_FN f32 tanh(f32 x) {
  f32 a = abs(x);
  f32 z = x * x;
  f32 small = x + x * (z * poly(z, -0x1.555552p-2f, 0x1.110e22p-3f, -0x1.b92698p-5f, 0x1.580e82p-6f,
                                -0x1.8fc7e2p-8f));
  f32 large = 1.0f - 2.0f / (exp(2.0f * a) + 1.0f);
  return a < 0.625f ? small : copysign(large, x);
}

TFCC_FN f64 tanh(f64 x) {
  f64 a = abs(x);
  f64 z = x * x;
  f64 small =
      x + x * (z * poly(z, -0x1.5555555555554p-2, 0x1.1111111110ca7p-3, -0x1.ba1ba1b9a09d7p-5,
                        0x1.664f4858deaccp-6, -0x1.226e2e08421ccp-7, 0x1.d6d24f72aa874p-9,
                        -0x1.7d8a96e9fe13bp-10, 0x1.344f4ae815c3fp-11, -0x1.e710d3f9482d6p-13,
                        0x1.5608d4996ede8p-14, -0x1.33a05b8be40c9p-16));
  f64 large = 1.0 - 2.0 / (exp(2.0 * a) + 1.0);
  return a < 0.6 ? small : copysign(large, x);
}

// ---- sin, cos: x = q pi/2 + r, |r| <= pi/4 ----

inline constexpr f64 kEasyReduction = 0x1p20;

// 2/pi after the binary point, with 64 zero bits before it.
inline constexpr u64 kTwoOverPi[21] = {0,
                                       0xa2f9836e4e441529,
                                       0xfc2757d1f534ddc0,
                                       0xdb6295993c439041,
                                       0xfe5163abdebbc561,
                                       0xb7246e3a424dd2e0,
                                       0x06492eea09d1921c,
                                       0xfe1deb1cb129a73e,
                                       0xe88235f52ebb4484,
                                       0xe99c7026b45f7e41,
                                       0x3991d639835339f4,
                                       0x9c845f8bbdf9283b,
                                       0x1ff897ffde05980f,
                                       0xef2f118b5a0a6d1f,
                                       0x6d367ecf27cb09b7,
                                       0x4f463f669e5fea2d,
                                       0x7527bac7ebe5f17b,
                                       0x3d0739f78a5292ea,
                                       0x6bfb5fb11f8d5d08,
                                       0x56033046fc7b6bab,
                                       0xf0cfbc209af4361d};

/// x / (pi/2) from the bits of 2/pi that matter: r in double, the quadrant (mod 4) as result. |x| >
/// 1, finite.
__attribute__((noinline, cold)) static i64 reduce_exactly(f64 x, f64& r) {
  using u128 = unsigned __int128;
  u64 bits = bit_cast<u64>(x);
  u64 mantissa = (bits & 0xfffffffffffff) | 0x10000000000000;
  i64 exponent = (i64)((bits >> 52) & 0x7ff) - 1075;  // |x| = mantissa * 2^exponent
  i64 start = exponent - 2 + 64;                      // multiples of 4 fall off the top
  i64 word = start >> 6;
  int shift = (int)(start & 63);
  u64 w[3];
  for (int k = 0; k < 3; ++k) {
    u64 hi = kTwoOverPi[word + k];
    w[k] = shift == 0 ? hi : (hi << shift) | (kTwoOverPi[word + k + 1] >> (64 - shift));
  }
  // (mantissa * w) mod 2^192: two bits of quadrant, then the fraction.
  u128 p2 = (u128)w[2] * mantissa;
  u128 p1 = (u128)w[1] * mantissa + (u64)(p2 >> 64);
  u64 top = w[0] * mantissa + (u64)(p1 >> 64);
  u64 middle = (u64)p1;
  i64 quadrant = (i64)(top >> 62);
  u64 hi = (top << 2) | (middle >> 62);
  u64 lo = (middle << 2) | ((u64)p2 >> 62);
  bool negative = hi >> 63;
  if (negative) {  // the nearest quadrant is the next one
    quadrant += 1;
    lo = ~lo + 1;
    hi = ~hi + (lo == 0);
  }
  int zeros = hi ? __builtin_clzll(hi) : 64;
  u64 lead = zeros == 0 ? hi : zeros == 64 ? lo : (hi << zeros) | (lo >> (64 - zeros));
  f64 scale = bit_cast<f64>((u64)(1023 - 64 - zeros) << 52);
  f64 fraction = (f64)(lead >> 1) * 2.0 * scale;
  r = fraction * 0x1.921fb54442d18p+0;
  r = negative ? -r : r;
  if (bits >> 63) {
    r = -r;
    quadrant = -quadrant;
  }
  return quadrant & 3;
}

/// The quadrant (mod 4) of x and the rest r. Infinities and NaN give a NaN rest.
TFCC_FN i64 reduce(f64 x, f64& r) {
  if (__builtin_expect(abs(x) > kEasyReduction, 0)) {
    if (abs(x) < kInf64) return reduce_exactly(x, r);
    r = kNan64;
    return 0;
  }
  f64 shifted = x * 0x1.45f306dc9c883p-1 + 0x1.8p52;
  f64 n = shifted - 0x1.8p52;
  r = x - n * 0x1.921fb54400000p+0;  // exact: 33 bits by 20
  r = r - n * 0x1.0b4611a600000p-34;
  r = r - n * 0x1.3198a2e037073p-69;
  return bit_cast<i64>(shifted) & 3;
}

/// sin(r + q pi/2).
TFCC_FN f64 sin_of(f64 r, i64 q) {
  f64 z = r * r;
  f64 s = r + r * (z * poly(z, -0x1.5555555555555p-3, 0x1.1111111111110p-7, -0x1.a01a01a01992fp-13,
                            0x1.71de3a545f836p-19, -0x1.ae645410e937bp-26, 0x1.61217d9252c03p-33,
                            -0x1.ab16f5caa198ap-41));
  f64 c = 1.0 + (z * z *
                     poly(z, 0x1.5555555555555p-5, -0x1.6c16c16c16c16p-10, 0x1.a01a01a019d06p-16,
                          -0x1.27e4fb77125c5p-22, 0x1.1eed8deac3dfep-29, -0x1.9394b8bd50ae1p-37,
                          0x1.ab779550c8d9bp-45) -
                 0.5 * z);
  f64 v = (q & 1) ? c : s;
  return (q & 2) ? -v : v;
}

/// The same to float's precision.
TFCC_FN f32 short_sin_of(f64 r, i64 q) {
  f64 z = r * r;
  f64 s = r + r * (z * poly(z, -0x1.555552p-3, 0x1.110c26p-7, -0x1.9ac856p-13));
  f64 c = 1.0 + (z * z * poly(z, 0x1.555554p-5, -0x1.6c12dp-10, 0x1.9bd786p-16) - 0.5 * z);
  f64 v = (q & 1) ? c : s;
  return (f32)((q & 2) ? -v : v);
}

TFCC_FN f64 sin(f64 x) {
  f64 r;
  i64 q = reduce(x, r);
  return sin_of(r, q);
}
TFCC_FN f64 cos(f64 x) {
  f64 r;
  i64 q = reduce(x, r);
  return sin_of(r, q + 1);
}
TFCC_FN f32 sin(f32 x) {
  f64 r;
  i64 q = reduce((f64)x, r);
  return short_sin_of(r, q);
}
TFCC_FN f32 cos(f32 x) {
  f64 r;
  i64 q = reduce((f64)x, r);
  return short_sin_of(r, q + 1);
}

// ---- atan: |x| > tan(3 pi/8) through -1/x, |x| > tan(pi/8) through (x - 1)/(x + 1); then t + t^3 q(t^2) ----

/// Where x goes: the argument t, and what to add to atan(t).
template <class T> TFCC_FN T reduce_atan(T x, T& base) {
  T a = abs(x);
  bool far = a > (T)0x1.3504f333f9de6p+1, middle = a > (T)0x1.a827999fcef32p-2;
  base = far ? (T)0x1.921fb54442d18p+0 : middle ? (T)0x1.921fb54442d18p-1 : (T)0;
  T top = far ? (T)-1 : middle ? a - (T)1 : a;
  T bottom = far ? a : middle ? a + (T)1 : (T)1;
  return top / bottom;
}

TFCC_FN f32 atan(f32 x) {
  f32 base;
  f32 t = reduce_atan(x, base);
  f32 z = t * t;
  f32 q = poly(z, -0x1.555554p-2f, 0x1.99973p-3f, -0x1.24202ep-3f, 0x1.b80f88p-4f, -0x1.08432cp-4f);
  return copysign(base + (t + t * z * q), x);
}

TFCC_FN f64 atan(f64 x) {
  f64 base;
  f64 t = reduce_atan(x, base);
  f64 z = t * t;
  f64 q =
      poly(z, -0x1.5555555555547p-2, 0x1.999999999336bp-3, -0x1.2492491ff6e7bp-3,
           0x1.c71c6f06c887cp-4, -0x1.745caa21cd7a4p-4, 0x1.3b09febcd8e72p-4, -0x1.108efcdc5a56fp-4,
           0x1.da515382497f8p-5, -0x1.9b37dcc1c7b0ep-5, 0x1.06a2f2d99301bp-4, -0x1.af50fbb405e20p-3,
           0x1.36ef7198332d5p-1, -0x1.7cec6d76c0858p-1);
  return copysign(base + (t + t * z * q), x);
}

// ---- pow ----

/// The value of |x|^y with the sign and the special cases of C's pow.
template <class T> TFCC_FN T finish_pow(T x, T y, T r) {
  bool whole = trunc(y) == y;
  T half = y * (T)0.5;
  bool odd = whole && trunc(half) != half;
  r = x < 0 && !whole && x > (T)-kInf64 ? (T)kNan64 : r;
  r = odd ? copysign(r, x) : r;
  r = abs(x) == 1 && abs(y) == (T)kInf64 ? (T)1 : r;
  r = x != x || y != y ? (T)kNan64 : r;
  return x == 1 || y == 0 ? (T)1 : r;
}

TFCC_FN f32 pow(f32 x, f32 y) {
  if (__builtin_constant_p(y) && y == 2.0f) return x * x;
  if (__builtin_constant_p(y) && y == 3.0f) return x * x * x;
  return finish_pow(x, y, (f32)exp((f64)y * log((f64)abs(x))));
}

TFCC_FN f64 pow(f64 x, f64 y) {
  if (__builtin_constant_p(y) && y == 2.0) return x * x;
  if (__builtin_constant_p(y) && y == 3.0) return x * x * x;
  f64 a = abs(x);
  f64 hi, lo;
  log_parts(a, hi, lo);
  // y * (hi + lo) in two parts; beyond 1e25 the result no longer depends on y.
  f64 c = y > 1e25 ? 1e25 : y;
  c = c < -1e25 ? -1e25 : c;
  f64 t = c * 0x1.0000002p+27;
  f64 c_hi = t - (t - c);
  f64 c_lo = c - c_hi;
  t = hi * 0x1.0000002p+27;
  f64 h_hi = t - (t - hi);
  f64 h_lo = hi - h_hi;
  f64 p = c * hi;
  f64 p_lo = ((c_hi * h_hi - p) + c_hi * h_lo + c_lo * h_hi) + c_lo * h_lo + c * lo;
  f64 e = exp(p);
  f64 r = e > 0 && e < kInf64 ? e + e * p_lo : e;
  bool special = a == 0 || a == kInf64;
  r = special ? ((a == 0) == (y > 0) ? 0.0 : kInf64) : r;
  return finish_pow(x, y, r);
}

// ---- fmod: exact, by long division of the mantissas ----

TFCC_FN f64 fmod(f64 x, f64 y) {
  f64 a = abs(x);
  f64 b = abs(y);
  if (!(a < kInf64) || !(b > 0)) return kNan64;
  if (a < b) return x;
  u64 ua = bit_cast<u64>(a), ub = bit_cast<u64>(b);
  i64 ea = (i64)(ua >> 52), eb = (i64)(ub >> 52);
  u64 ma = ua & 0xfffffffffffff, mb = ub & 0xfffffffffffff;
  ma |= ea ? 0x10000000000000 : 0;
  mb |= eb ? 0x10000000000000 : 0;
  i64 left = (ea ? ea : 1) - (eb ? eb : 1);
  for (ma %= mb; left > 0;) {
    i64 step = left < 11 ? left : 11;
    ma = (ma << step) % mb;
    left -= step;
  }
  if (ma == 0) return copysign(0.0, x);
  // ma * 2^(eb - 1075), built without rounding: scale down only as far as subnormals need.
  f64 r = (f64)ma;
  i64 scale = (eb ? eb : 1) - 1075;
  while (scale < -1000) {
    r *= 0x1p-74;
    scale += 74;
  }
  r *= bit_cast<f64>((u64)(scale + 1023) << 52);
  return copysign(r, x);
}

/// Floats are doubles, and so is the exact rest.
TFCC_FN f32 fmod(f32 x, f32 y) { return (f32)fmod((f64)x, (f64)y); }

}  // namespace math
