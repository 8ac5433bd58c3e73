// SPDX-License-Identifier: Apache-2.0
// What each launch of a run costs beside what this machine can do: the table of `tfcc bench
// --dumpProfile`, its JSON and the roofline page.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/core/profile.h"
#include "tools/tfcc/bench.h"

namespace tfcc::tools {

/// Limits measured on this machine in this run; 0: could not be measured.
struct Limits {
  std::map<DType, double> flops_per_s;  // of products, by the type of their operands
  double bytes_per_s = 0;               // of a copy, read and written
};

/// A launch, or launches that are equal but for the layer.
struct ProfileRow {
  std::string name;            // numbers that differ are '*'
  std::string op, kernel;      // kernel: empty for a product
  std::vector<int64_t> sizes;  // of a product: batch, m, n, k
  DType arithmetic = DType::f32;
  int64_t count = 0, flops = 0, bytes = 0;  // of all together
  double ms = 0, share = 0;                 // medians, summed; of the sum over all launches
  std::optional<double> graph_ms;           // what it adds to the captured graph
  double flops_per_s = 0, bytes_per_s = 0;
  double of_limit = 0;      // least time by the limits / ms; 0: unknown
  bool by_compute = false;  // which limit that is
  Series each;              // a row of one launch: its times
};

struct ProfileReport {
  Limits limits;
  std::vector<ProfileRow> launches;  // in order
  std::vector<ProfileRow> groups;    // by time, longest first
  double total_ms = 0;
  std::optional<double> graph_ms;  // of the captured graph: what launches add, and its beginning
  int runs = 0;
};

/// Measures the limits and profiles the subject's inputs, in runs of their own. Errors: as
/// Executor::run().
Result<ProfileReport> profile(Subject& subject, const BenchOptions& options, double run_ms);

void print_profile(const ProfileReport& report, double run_ms);
nlohmann::json json_of(const ProfileReport& report);

/// One self-contained page: every group as a point under the machine's roof, and the table. `title`
/// names model and shapes.
std::string roofline_page(const ProfileReport& report, const std::string& title);

/// The timed runs, and the launches of one run of the profile end to end, in Chrome's trace event
/// format (chrome://tracing, Perfetto).
nlohmann::json trace_of(const Measured& times, const ProfileReport& report,
                        const std::string& title);

/// "1.23 T" for 1.23e12: four characters and a prefix.
std::string with_prefix(double value);
/// "product f32 1024x1536x384", "attention".
std::string what_it_is(const ProfileRow& row);

}  // namespace tfcc::tools
