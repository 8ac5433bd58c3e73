// SPDX-License-Identifier: Apache-2.0
// Ranges, bit patterns and roundings of the small element types.
#include "frontend/onnx/element_types.h"

#include <cmath>
#include <limits>

namespace tfcc::frontend {
namespace {

using ir::ExprRef;

constexpr SmallFloat kE4M3FN{4, 3, 7, false, true, false, 448},
    kE4M3FNUZ{4, 3, 8, false, false, true, 240};
constexpr SmallFloat kE5M2{5, 2, 15, true, false, false, 57344},
    kE5M2FNUZ{5, 2, 16, false, false, true, 57344};
constexpr SmallFloat kE2M1{2, 1, 1, false, false, false, 6};

ElementType integer(int onnx_type, DType value, DType stored, int bits, bool is_signed) {
  const int64_t half = int64_t{1} << (bits - 1);
  return {
      onnx_type, value, stored, bits, is_signed ? -half : 0, is_signed ? half - 1 : 2 * half - 1,
      {}};
}

ElementType real(int onnx_type, DType t) {
  return {onnx_type, t, t, static_cast<int>(8 * size_of(t)), 0, 0, {}};
}

ElementType small(int onnx_type, int bits, const SmallFloat& format) {
  return {onnx_type, DType::f16, DType::u8, bits, 0, 0, format};
}

int smallest_exponent(const SmallFloat& f) { return 1 - f.bias; }

// The distance of neighbours at magnitude `a`: a tree of comparisons with the powers of two from
// `low` to `high`.
ExprRef quantum(ExprRef a, const SmallFloat& f, int low, int high) {
  if (low == high) return a->pool->real(std::ldexp(1, low - f.mantissa_bits), a->type);
  const int middle = low + (high - low + 1) / 2;
  return ir::select(ir::lt(a, a->pool->real(std::ldexp(1, middle), a->type)),
                    quantum(a, f, low, middle - 1), quantum(a, f, middle, high));
}

}  // namespace

std::optional<ElementType> element_type(int onnx_type) {
  switch (onnx_type) {
    case 1: return real(onnx_type, DType::f32);
    case 2: return integer(onnx_type, DType::u8, DType::u8, 8, false);
    case 3: return integer(onnx_type, DType::i8, DType::i8, 8, true);
    case 4: return integer(onnx_type, DType::i32, DType::i16, 16, false);
    case 5: return integer(onnx_type, DType::i16, DType::i16, 16, true);
    case 6: return integer(onnx_type, DType::i32, DType::i32, 32, true);
    case 10: return real(onnx_type, DType::f16);
    case 11: return real(onnx_type, DType::f64);
    case 12: return integer(onnx_type, DType::i64, DType::i32, 32, false);
    case 16: return real(onnx_type, DType::bf16);
    case 17: return small(onnx_type, 8, kE4M3FN);
    case 18: return small(onnx_type, 8, kE4M3FNUZ);
    case 19: return small(onnx_type, 8, kE5M2);
    case 20: return small(onnx_type, 8, kE5M2FNUZ);
    case 21: return integer(onnx_type, DType::u8, DType::u8, 4, false);
    case 22: return integer(onnx_type, DType::i8, DType::u8, 4, true);
    case 23: return small(onnx_type, 4, kE2M1);
    case 25: return integer(onnx_type, DType::u8, DType::u8, 2, false);
    case 26: return integer(onnx_type, DType::i8, DType::u8, 2, true);
    default: return std::nullopt;
  }
}

int onnx_type_of(DType t) {
  constexpr int kNumbers[kDTypeCount] = {1, 10, 16, 11, 7, 6, 5, 3, 2, 9};
  return kNumbers[static_cast<int>(t)];
}

double small_float_value(const SmallFloat& f, int bits, unsigned pattern) {
  const unsigned sign = pattern >> (bits - 1) & 1, magnitude = pattern & ((1u << (bits - 1)) - 1);
  const unsigned mantissa = magnitude & ((1u << f.mantissa_bits) - 1);
  const int exponent = static_cast<int>(magnitude >> f.mantissa_bits);
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  if (f.zero_nan && sign && magnitude == 0) return kNan;
  if (f.finite_nan && magnitude == (1u << (bits - 1)) - 1) return kNan;
  double v;
  if (f.infinities && exponent == (1 << f.exponent_bits) - 1) {
    v = mantissa ? kNan : std::numeric_limits<double>::infinity();
  } else if (exponent == 0) {
    v = std::ldexp(mantissa, smallest_exponent(f) - f.mantissa_bits);
  } else {
    v = std::ldexp(mantissa + (1u << f.mantissa_bits), exponent - f.bias - f.mantissa_bits);
  }
  return sign ? -v : v;
}

ExprRef round_to_small_float(ExprRef e, const SmallFloat& f, bool saturate) {
  ir::ExprPool& pool = *e->pool;
  ExprRef a = ir::abs(e);
  ExprRef step = quantum(a, f, smallest_exponent(f), std::ilogb(f.largest));
  ExprRef r = ir::mul(ir::unary(ir::ExprKind::rint, ir::div(a, step)),
                      step);  // powers of two: only rint rounds
  constexpr double kInf = std::numeric_limits<double>::infinity();
  const double past = saturate       ? f.largest
                      : f.infinities ? kInf
                                     : std::numeric_limits<double>::quiet_NaN();
  r = ir::select(ir::lt(pool.real(f.largest, e->type), r), pool.real(past, e->type), r);
  return ir::select(ir::lt(e, pool.real(0, e->type)), ir::neg(r), r);
}

ExprRef wrap_to_integer(ExprRef e, const ElementType& t) {
  return ir::wrap(e, t.bits, t.lowest < 0);
}

}  // namespace tfcc::frontend
