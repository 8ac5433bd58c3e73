// SPDX-License-Identifier: Apache-2.0
// The op where a wrong result begins: from a value known to be wrong back towards the inputs,
// measuring a few values at a time. What measures is the caller's, so that passes, kernels and
// another runtime are searched alike.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "tools/tfcc/verify_compare.h"

namespace tfcc::tools {

/// The differences of these values, in their order; none where it cannot be told.
using Differences = std::vector<std::optional<Difference>>;
using Measure = std::function<Result<Differences>(const std::vector<ir::ValueId>&)>;
/// All of these at once, or none where that cannot be done.
using Attempt = std::function<Result<std::optional<Differences>>(const std::vector<ir::ValueId>&)>;
/// Asks for fewer values where all at once cannot be told; one that cannot be told alone is left
/// out.
Result<Differences> measured_in_parts(const std::vector<ir::ValueId>& values,
                                      const Attempt& attempt);
/// What is being done, how many of how many ops are decided.
using SearchProgress = std::function<void(const std::string& stage, size_t done, size_t total)>;

struct SearchOptions {
  double tolerance = 1e-4;  // largest relative difference of a right value
  size_t width = 16;        // values measured at once
  size_t most = 40;         // measurements in all
  SearchProgress progress = {};
};

struct FirstWrong {
  ir::ValueId value;
  std::optional<Difference>
      difference;  // none: the value that the search began with was not measured again
  std::optional<double>
      operands;  // the largest relative difference of the values that it is computed from
  std::vector<ir::ValueId> unknown;  // computed before it from right values, and cannot be told
  bool narrowed = true;              // false: gave up; the error may begin earlier
};

/// `wrong` must differ. All values that the result is computed from, those that cannot be told left
/// out, were measured and are right. Errors: those of `measure`.
Result<FirstWrong> find_first_wrong(const ir::Graph& graph, ir::ValueId wrong,
                                    const Measure& measure, const SearchOptions& options);

}  // namespace tfcc::tools
