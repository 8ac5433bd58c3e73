// SPDX-License-Identifier: Apache-2.0
// The expressions of a linear attention, or of its step, as the functors that the templates are
// given.
#pragma once

#include <string>
#include <vector>

#include "codegen/emit/stub.h"

namespace tfcc::codegen {

/// q_map, k_map, visible, decay, epilogue and beta in this order: an object of a functor each, or of what
/// says that there is none.
std::vector<std::string> linear_functors(Stub& stub, const ir::LinearAttentionAttrs& attrs);

}  // namespace tfcc::codegen
