// SPDX-License-Identifier: Apache-2.0
// What a model without a mask takes for padding: one id, told by the program without padding.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "ir/ir.h"

namespace tfcc::tools {

struct PaddingId {
  std::string input;  // ids [B,S]
  int64_t id = 0;
};

/// The id of whose tokens `optimised`, a graph as its passes left it, keeps none; nothing if no
/// padding is left out, if more than one input says which, or if of the ids 0 to 63 not one alone
/// is padding.
std::optional<PaddingId> padding_id(const ir::Graph& optimised);

}  // namespace tfcc::tools
