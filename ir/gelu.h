// SPDX-License-Identifier: Apache-2.0
// GELU as an element expression: one spelling, which passes and kernels know.
#pragma once

#include <cstdint>
#include <optional>

#include "ir/expr.h"

namespace tfcc::ir {

enum class GeluKind : uint8_t { erf, tanh };

/// x/2 (1 + erf(x / sqrt 2)), or x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).
ExprRef gelu_of(ExprRef x, GeluKind kind);

/// A GELU of any argument.
struct Gelu {
  GeluKind kind;
  ExprRef x;
};
/// The GELU that a body is, if it is spelled as gelu_of() does it.
std::optional<Gelu> as_gelu(ExprRef body);

}  // namespace tfcc::ir
