// SPDX-License-Identifier: Apache-2.0
// The element types of ONNX that tensors of tfcc have not: unsigned of 16 and 32 bits, 4 and 2
// bits, and floats of 8 and 4 bits. Their values lie in a wider type (every one of them is exact
// there); weights stay as small as they are in the file.
#pragma once

#include <cstdint>
#include <optional>

#include "ir/expr.h"
#include "runtime/dtype.h"

namespace tfcc::frontend {

/// A float of up to 8 bits: a sign, an exponent, a significand.
struct SmallFloat {
  int exponent_bits, mantissa_bits, bias;
  bool infinities;  // and NaNs, as in IEEE 754
  bool finite_nan;  // all ones but the sign is NaN
  bool zero_nan;    // what would be -0 is NaN, and there is no -0
  double largest;
};

/// An integer or float type by its number in ONNX.
struct ElementType {
  int onnx_type = 0;
  DType value = DType::f32;         // of a tensor that holds its values
  DType stored = DType::f32;        // of a weight's bytes
  int bits = 32;                    // per element, in a weight
  int64_t lowest = 0, highest = 0;  // integers
  std::optional<SmallFloat> small_float;
  bool is_integer() const { return lowest < highest; }
  /// Values lie in a wider type than they have in ONNX.
  bool is_packed() const { return bits != static_cast<int>(8 * size_of(value)); }
  int per_byte() const { return bits < 8 ? 8 / bits : 1; }
};

/// Empty for types without numbers, and for the unsigned one of 64 bits, which no type of tfcc
/// holds.
std::optional<ElementType> element_type(int onnx_type);
/// The number in ONNX of a type of tfcc.
int onnx_type_of(DType t);

/// What the bits mean.
double small_float_value(const SmallFloat& format, int bits, unsigned pattern);

/// The real `e` rounded to nearest even; past the largest value the largest if `saturate`, else
/// infinity or NaN.
ir::ExprRef round_to_small_float(ir::ExprRef e, const SmallFloat& format, bool saturate);
/// The integer `e` with the bits of an integer type, as a cast wraps.
ir::ExprRef wrap_to_integer(ir::ExprRef e, const ElementType& type);

}  // namespace tfcc::frontend
