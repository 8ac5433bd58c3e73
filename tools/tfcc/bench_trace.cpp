// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <nlohmann/json.hpp>

#include "tools/tfcc/bench_profile.h"

namespace tfcc::tools {
namespace {

using nlohmann::json;

constexpr size_t kMostRuns = 2000;  // a viewer wants no more slices of a track
enum Track { kRuns = 1, kLaunches = 2 };

json named(Track track, const char* what, const std::string& name) {
  return {{"ph", "M"},
          {"pid", static_cast<int>(track)},
          {"tid", 1},
          {"name", what},
          {"args", {{"name", name}}}};
}

json slice(Track track, const std::string& name, const std::string& category, double start_ms,
           double ms, json args) {
  return {{"ph", "X"},        {"pid", static_cast<int>(track)},
          {"tid", 1},         {"name", name},
          {"cat", category},  {"ts", start_ms * 1000},
          {"dur", ms * 1000}, {"args", std::move(args)}};
}

// The run whose launches took the median time together.
size_t median_run(const ProfileReport& report) {
  std::vector<std::pair<double, size_t>> totals;
  for (size_t r = 0; r < static_cast<size_t>(report.runs); ++r) {
    double total = 0;
    for (const ProfileRow& row : report.launches) total += row.each.ms[r];
    totals.emplace_back(total, r);
  }
  std::nth_element(totals.begin(), totals.begin() + static_cast<std::ptrdiff_t>(totals.size() / 2),
                   totals.end());
  return totals[totals.size() / 2].second;
}

}  // namespace

nlohmann::json trace_of(const Measured& times, const ProfileReport& report,
                        const std::string& title) {
  json events = {named(kRuns, "process_name", "timed runs"), named(kRuns, "thread_name", "host"),
                 named(kLaunches, "process_name", "launches one by one"),
                 named(kLaunches, "thread_name", "one run")};
  for (size_t i = 0; i < std::min(times.latency.ms.size(), kMostRuns); ++i) {
    json args = {{"run", i}};
    if (!times.gpu.ms.empty())
      args.update({{"enqueue_ms", times.enqueue.ms[i]}, {"gpu_ms", times.gpu.ms[i]}});
    events.push_back(
        slice(kRuns, "run", "run", times.started_ms[i], times.latency.ms[i], std::move(args)));
  }
  const size_t run = report.launches.empty() ? 0 : median_run(report);
  double at = 0;
  for (const ProfileRow& row : report.launches) {
    json args = {{"flops", row.flops}, {"bytes", row.bytes}, {"median_us", row.ms * 1000}};
    if (!row.kernel.empty()) args["kernel"] = row.kernel;
    if (row.of_limit > 0)
      args.update({{"of_limit", row.of_limit}, {"bound", row.by_compute ? "flops" : "bytes"}});
    events.push_back(slice(kLaunches, row.name, row.op, at, row.each.ms[run], std::move(args)));
    at += row.each.ms[run];
  }
  return {{"traceEvents", std::move(events)},
          {"displayTimeUnit", "ms"},
          {"otherData", {{"title", title}}}};
}

}  // namespace tfcc::tools
