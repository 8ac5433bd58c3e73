// SPDX-License-Identifier: Apache-2.0
// What a program for generation takes and gives: docs/generate.md, "The program itself".
#pragma once

#include <string>
#include <vector>

#include "runtime/tfcc.h"

namespace tfcc::runtime {

/// Whether a state holds keys or values in pages, as "cache.0.keys", or sums in slots, as
/// "state.0".
inline bool is_cache(const TensorInfo& state) { return state.name.starts_with("cache."); }
inline bool is_sums(const TensorInfo& state) { return state.name.starts_with("state."); }
/// Why these are no inputs and outputs of a program for generation, whose schedulers index dims by
/// what they are; empty if they are.
std::string no_generation_program(const std::vector<TensorInfo>& inputs,
                                  const std::vector<TensorInfo>& outputs);

}  // namespace tfcc::runtime
