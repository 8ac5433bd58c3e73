// SPDX-License-Identifier: Apache-2.0
// Inputs made up for a model, and outputs in a line of text. Used by run, verify and bench.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "runtime/tfcc.h"
#include "tools/tfcc/npy.h"

namespace tfcc::tools {

using NamedShapes = std::map<std::string, std::vector<int64_t>>;

/// "input_ids:4x32,attention_mask:4x32"; `option` is what messages name. Errors: invalid_argument.
Result<NamedShapes> parse_shapes(const std::string& text, const std::string& option = "--shapes");

/// "input_ids=ids.npy", read. Errors: invalid_argument, as read_npy().
Result<std::pair<std::string, Array>> read_input(const std::string& text);

/// All inputs: those given, and random ones of these shapes. A size that is not given follows from another input's dim of
/// the same name, else 2 for the first axis and 16 for the others. Integers: 0 or 1 where the name says mask or type, else
/// 0..99; reals: normal. Given names that the model has not come last, as they are. Errors: invalid_argument (unknown input
/// in `shapes`), shape.
Result<std::vector<std::pair<std::string, Array>>> random_inputs(const std::vector<TensorInfo>& inputs, const NamedShapes& shapes, uint64_t seed,
                                                                 std::vector<std::pair<std::string, Array>> given = {});

/// "last_hidden_state f32[2,16,64]: min -2.31, max 2.87, mean 0.0012, first 0.1 0.2 0.3"
std::string summary(const std::string& name, const ArrayView& array);

}  // namespace tfcc::tools
