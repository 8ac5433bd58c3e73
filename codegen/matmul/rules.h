// SPDX-License-Identifier: Apache-2.0
// What the user asks of the products of a program.
#pragma once

#include <cstdint>
#include <string_view>

#include "runtime/core/manifest.h"

namespace tfcc::codegen {

/// How a GPU multiplies f32: by fused multiply-adds; on tensor cores, whose operands have 10 bits of
/// fraction (TF32); or by three products there, of operands that are sums of two such numbers. The
/// value is how many products there are on tensor cores for one of f32.
enum class F32Products : uint8_t { exact = 0, tf32 = 1, tf32x3 = 3 };
/// By what runtime::Plan::precision says.
inline F32Products f32_products(std::string_view precision) {
  return precision == runtime::kTf32     ? F32Products::tf32
         : precision == runtime::kTf32x3 ? F32Products::tf32x3
                                         : F32Products::exact;
}
inline std::string_view to_string(F32Products f) {
  return f == F32Products::tf32     ? runtime::kTf32
         : f == F32Products::tf32x3 ? runtime::kTf32x3
                                    : std::string_view("f32");
}

struct ProductRules {
  bool any_order =
      false;  // steps of generation: sums may have another order for other numbers of tokens
  F32Products f32 = F32Products::exact;
};

}  // namespace tfcc::codegen
