// SPDX-License-Identifier: Apache-2.0
// tfcc and a peer in alternation on the same tensors: outputs compared first, then rounds of runs.
#pragma once

#include <string>
#include <vector>

#include "tools/tfcc/bench.h"

namespace tfcc::tools {

struct ComparedOutput {
  std::string name;
  double relative_l2 = 0, max_abs = 0;
};

struct PeerReport {
  std::string name, model;
  bool by_events = false;  // GPU time between events on both sides, else time on the host
  double tolerance = 0;
  std::vector<ComparedOutput> outputs;
  Series ours, theirs;              // all runs of all rounds
  Series our_rounds, their_rounds;  // medians of the rounds
  Series ratios;                    // theirs / ours, by round: above 1, tfcc is faster
};

/// Errors: invalid_argument (options, a package that is missing, outputs that differ), as
/// Executor::run().
Result<PeerReport> compare_with_peer(Subject& subject, const BenchOptions& options,
                                     const Model& model, const NamedArrays& inputs);

void print_peer(const PeerReport& report);
nlohmann::json json_of(const PeerReport& report);

}  // namespace tfcc::tools
