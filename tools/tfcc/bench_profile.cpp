// SPDX-License-Identifier: Apache-2.0
#include "tools/tfcc/bench_profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <tuple>

namespace tfcc::tools {
namespace {

// "layer.11.output" as "layer.*.output": equal launches of different layers share it.
std::string without_numbers(const std::string& name) {
  std::string out;
  for (char c : name) {
    if (!std::isdigit(static_cast<unsigned char>(c))) out += c;
    else if (out.empty() || out.back() != '*') out += '*';
  }
  return out;
}

void rate(ProfileRow& row, const ProfileReport& report) {
  const double seconds = row.ms / 1000;
  if (seconds <= 0) return;
  row.share = row.ms / report.total_ms;
  row.flops_per_s = static_cast<double>(row.flops) / seconds;
  row.bytes_per_s = static_cast<double>(row.bytes) / seconds;
  auto found = report.limits.flops_per_s.find(row.arithmetic);
  const double most = found == report.limits.flops_per_s.end() ? 0 : found->second;
  const double compute = most > 0 ? row.flops_per_s / most : 0;
  const double memory =
      report.limits.bytes_per_s > 0 ? row.bytes_per_s / report.limits.bytes_per_s : 0;
  row.by_compute = compute > memory;
  row.of_limit = std::max(compute, memory);
}

ProfileRow row_of(const runtime::LaunchProfile& l) {
  ProfileRow row;
  row.name = l.name;
  row.op = l.op;
  row.kernel = l.kernel;
  row.sizes = l.sizes;
  row.arithmetic = l.arithmetic;
  row.count = 1;
  row.flops = l.flops;
  row.bytes = l.bytes;
  row.each.ms = l.ms;
  row.ms = row.each.median();
  return row;
}

std::vector<ProfileRow> group(const std::vector<ProfileRow>& launches) {
  std::vector<ProfileRow> out;
  std::map<std::tuple<std::string, std::string, std::vector<int64_t>, int64_t, int64_t>, size_t>
      places;
  for (const ProfileRow& l : launches) {
    const auto [it, added] = places.emplace(
        std::tuple{without_numbers(l.name), l.kernel, l.sizes, l.flops, l.bytes}, out.size());
    if (added) {
      out.push_back(l);
      continue;
    }
    ProfileRow& row = out[it->second];
    row.name = without_numbers(l.name);
    row.each.ms.clear();
    row.count += 1;
    row.flops += l.flops;
    row.bytes += l.bytes;
    row.ms += l.ms;
    if (row.graph_ms) *row.graph_ms += *l.graph_ms;
  }
  return out;
}

Limits measure_limits(Executor& executor, const std::vector<runtime::LaunchProfile>& launches) {
  Limits limits;
  Progress progress;
  for (const auto& l : launches) {
    if (limits.flops_per_s.contains(l.arithmetic)) continue;
    progress.say("measuring products of " + std::string(to_string(l.arithmetic)));
    auto rate = runtime::measured_product_rate(executor, l.arithmetic);
    limits.flops_per_s[l.arithmetic] = rate ? *rate : 0;
  }
  progress.say("measuring copies");
  auto copy = runtime::measured_copy_rate(executor);
  limits.bytes_per_s = copy ? *copy : 0;
  return limits;
}

nlohmann::json known(double value) {
  return value > 0 ? nlohmann::json(value) : nlohmann::json(nullptr);
}

nlohmann::json json_of(const ProfileRow& r) {
  nlohmann::json j = {{"name", r.name},
                      {"op", r.op},
                      {"arithmetic", to_string(r.arithmetic)},
                      {"count", r.count},
                      {"flops", r.flops},
                      {"bytes", r.bytes},
                      {"ms", r.ms},
                      {"graph_ms", r.graph_ms ? nlohmann::json(*r.graph_ms) : nlohmann::json()},
                      {"share", r.share},
                      {"flops_per_s", r.flops_per_s},
                      {"bytes_per_s", r.bytes_per_s},
                      {"share_of_limit", known(r.of_limit)},
                      {"limit", r.of_limit > 0 ? nlohmann::json(r.by_compute ? "compute" : "memory")
                                               : nlohmann::json(nullptr)}};
  if (r.kernel.empty())
    j["product"] = {{"batch", r.sizes[0]}, {"m", r.sizes[1]}, {"n", r.sizes[2]}, {"k", r.sizes[3]}};
  else j["kernel"] = r.kernel;
  if (r.count == 1) j["times_ms"] = json_of(r.each);
  return j;
}

std::string percent(double share) { return share > 0 ? fmt::format("{:.0f}%", share * 100) : "-"; }

// In some seconds: a part for each launch, each behind the whole graph.
Result<void> add_graph_times(Executor& executor, double run_ms, ProfileReport& report) {
  constexpr double kMostMs = 4000;
  const double round_ms = static_cast<double>(report.launches.size() + 1) * 1.5 * (run_ms + 0.1);
  const int runs = static_cast<int>(std::clamp(kMostMs / round_ms, 5.0, 50.0));
  TFCC_TRY(const runtime::GraphProfile graph, runtime::profile_graph(executor, runs));
  if (graph.ms.size() != report.launches.size()) return {};  // it has none
  report.graph_ms = graph.begin_ms;
  for (size_t i = 0; i < graph.ms.size(); ++i) {
    report.launches[i].graph_ms = graph.ms[i];
    *report.graph_ms += graph.ms[i];
  }
  return {};
}

}  // namespace

std::string with_prefix(double value) {
  if (value <= 0) return "-";
  const char* prefix = " kMGTPE";
  int i = 0;
  while (value >= 999.5 && i < 6) {
    value /= 1000;
    ++i;
  }
  return fmt::format("{:.{}f} {}", value, value < 9.995 ? 2 : value < 99.95 ? 1 : 0, prefix[i]);
}

std::string what_it_is(const ProfileRow& row) {
  if (!row.kernel.empty()) return row.op;
  const auto& s = row.sizes;
  return fmt::format("product {} {}{}x{}x{}", to_string(row.arithmetic),
                     s[0] > 1 ? fmt::format("{} of ", s[0]) : "", s[1], s[2], s[3]);
}

Result<ProfileReport> profile(Subject& subject, const BenchOptions& o, double run_ms) {
  ProfileReport report;
  // About as long as the timed runs; a profiled run takes longer than a timed one.
  report.runs =
      static_cast<int>(std::clamp(o.duration_s * 1000 / 2 / std::max(run_ms, 1e-3), 5.0, 200.0));
  TFCC_TRY(auto launches, runtime::profile_launches(subject.executor(), 2, report.runs));
  report.limits = measure_limits(subject.executor(), launches);
  for (const auto& l : launches) {
    report.launches.push_back(row_of(l));
    report.total_ms += report.launches.back().ms;
  }
  TFCC_TRY_VOID(add_graph_times(subject.executor(), run_ms, report));
  report.groups = group(report.launches);
  for (auto* rows : {&report.launches, &report.groups}) {
    for (ProfileRow& row : *rows) rate(row, report);
  }
  std::stable_sort(report.groups.begin(), report.groups.end(),
                   [](const auto& a, const auto& b) { return a.ms > b.ms; });
  return report;
}

void print_profile(const ProfileReport& report, double run_ms) {
  std::printf(
      "\nLaunches: %zu in %.4f ms one by one, a timed run takes %.4f ms; medians of %d runs\n",
      report.launches.size(), report.total_ms, run_ms, report.runs);
  if (report.graph_ms)
    std::printf("In the graph: %.4f ms, in which each adds what is under `graph us`\n",
                *report.graph_ms);
  std::printf("Limits measured here:");
  for (auto [type, rate] : report.limits.flops_per_s)
    std::printf(" %s products %sFLOP/s,", to_string(type), with_prefix(rate).c_str());
  std::printf(" copies %sB/s\n", with_prefix(report.limits.bytes_per_s).c_str());
  std::printf("%10s %7s %6s %10s %9s %8s %8s %9s  %s\n", "time ms", "share", "count", "each us",
              "graph us", "FLOP/s", "B/s", "of limit", "launch");
  for (const ProfileRow& r : report.groups) {
    const auto count = static_cast<double>(r.count);
    const std::string graph = r.graph_ms ? fmt::format("{:.2f}", *r.graph_ms * 1000 / count) : "-";
    std::printf("%10.4f %6.1f%% %6lld %10.2f %9s %8s %8s %5s %-3s  %s  %s\n", r.ms, r.share * 100,
                static_cast<long long>(r.count), r.ms * 1000 / count, graph.c_str(),
                with_prefix(r.flops_per_s).c_str(), with_prefix(r.bytes_per_s).c_str(),
                percent(r.of_limit).c_str(),
                r.of_limit <= 0 ? ""
                : r.by_compute  ? "fl"
                                : "mem",
                what_it_is(r).c_str(), r.name.c_str());
  }
}

nlohmann::json json_of(const ProfileReport& report) {
  nlohmann::json j = {
      {"runs", report.runs},
      {"total_ms", report.total_ms},
      {"graph_ms", report.graph_ms ? nlohmann::json(*report.graph_ms) : nlohmann::json()},
      {"launches", nlohmann::json::array()},
      {"groups", nlohmann::json::array()}};
  j["limits"] = {{"bytes_per_s", known(report.limits.bytes_per_s)},
                 {"flops_per_s", nlohmann::json::object()}};
  for (auto [type, rate] : report.limits.flops_per_s)
    j["limits"]["flops_per_s"][to_string(type)] = known(rate);
  for (const auto& r : report.launches) j["launches"].push_back(json_of(r));
  for (const auto& r : report.groups) j["groups"].push_back(json_of(r));
  return j;
}

}  // namespace tfcc::tools
