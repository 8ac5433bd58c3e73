// SPDX-License-Identifier: Apache-2.0
// The passes: graph to graph, one file each. An optimisation cannot fail: it rewrites or leaves
// alone, and reports both.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "passes/provenance.h"

namespace tfcc::passes {

/// Something a pass looked at and left alone: the node and the guard that failed.
struct Miss {
  std::string node;
  std::string reason;
};

/// How the reason begins where a pass made what no graph may be, and was undone.
inline constexpr std::string_view kUndone =
    "the whole pass is left alone, its result breaks a rule";

struct PassReport {
  std::string pass;  // as on the command line
  size_t rewrites = 0;
  size_t ops = 0;  // in the graph after it, constants not counted
  std::vector<Miss> misses;
};

#define TFCC_PASS(function, name, summary) PassReport function(ir::Graph& graph);
#include "passes/passes.def"
#undef TFCC_PASS

struct PassInfo {
  std::string_view name, summary;
  PassReport (*run)(ir::Graph&);
};
const std::vector<PassInfo>& all_passes();
/// Null if there is none of that name.
const PassInfo* find_pass(std::string_view name);

/// The optimisations in their order; pipeline.cpp says why.
const std::vector<std::string>& default_pipeline();

/// The pass before which a graph is lifted for generation, and what then runs in its place and
/// after it, of these passes.
inline constexpr std::string_view kLiftedBefore = "fuse-qkv";
std::vector<std::string> generation_passes(const std::vector<std::string>& passes);

/// Runs passes by name, verifying the graph after each; a pass whose result breaks a rule is undone
/// and reported as a miss. `after` sees the graph after each pass (for --dump-ir); `provenance`, if
/// given, is kept up to date.
/// Errors: invalid_argument (unknown pass, with the list).
Result<std::vector<PassReport>> run_passes(
    ir::Graph& graph, const std::vector<std::string>& names,
    const std::function<void(const PassReport&, const ir::Graph&)>& after = {},
    Provenance* provenance = nullptr);

}  // namespace tfcc::passes
