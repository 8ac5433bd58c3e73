// SPDX-License-Identifier: Apache-2.0
// A plan as text: what --dump-kernels writes beside the kernels, and what golden tests compare.
#pragma once

#include <string>

#include "codegen/lower.h"

namespace tfcc::codegen {

/// One line per buffer, kernel and launch: place, sizes and programs by their text, what a launch
/// reads and writes by buffer number.
///
///     plan cuda f16
///     buffer 2: arena y f16[B,S,768] at 0 in slot 0, launches 3 to 5
///     bucket s16: S must be at most 16
///       y = norm: norm__f16_h768(1, 4, 5, 2) grid [(B*S + 3)/4]
std::string print(const runtime::Plan& plan);

}  // namespace tfcc::codegen
