// SPDX-License-Identifier: Apache-2.0
// Inputs made up for a model, and outputs in a line of text. Used by run, verify and bench.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "runtime/tfcc.h"
#include "tools/support/npy.h"
#include "tools/support/wanted_sizes.h"

namespace CLI {
class App;
}

namespace tfcc::tools {

using NamedArrays = std::vector<std::pair<std::string, Array>>;

/// What --input and --inputs give: all arrays of an .npz (empty: none), and each of
/// "input_ids=ids.npy", which comes before one of its name in the .npz. Errors: invalid_argument,
/// as read_npy() and read_npz().
Result<NamedArrays> read_inputs(const std::string& npz, const std::vector<std::string>& texts);
/// Adds --input and --inputs; `others` says what becomes of inputs that neither gives.
void add_inputs(CLI::App& command, std::string& npz, std::vector<std::string>& texts,
                const std::string& others = "");

/// All inputs: those given, and random ones of these sizes. A size that is not given follows from
/// another input's dim of the same name or from a sum in which it is the only one not known, else
/// it is 2 for the first axis and 16 for the others. Integers: 0 or 1 where the name says mask or
/// type, else 0..99; reals: normal. Given names that the model has not come last, as they are.
/// Errors: as solve_sizes().
Result<NamedArrays> random_inputs(const std::vector<TensorInfo>& inputs, const WantedSizes& wanted,
                                  uint64_t seed, NamedArrays given = {});

/// "last_hidden_state f32[2,16,64]: min -2.31, max 2.87, mean 0.0012, first 0.1 0.2 0.3"
std::string summary(const std::string& name, const ArrayView& array);

}  // namespace tfcc::tools
