// SPDX-License-Identifier: Apache-2.0
#include "tools/compiler/report.h"

#include <nlohmann/json.hpp>

namespace tfcc::compiler {
namespace {

using nlohmann::json;

json plan_of(const runtime::Plan& plan) {
  json launches = json::array();
  for (const runtime::Launch& launch : plan.buckets.back().launches) {
    launches.push_back(
        {{"name", launch.name},
         {"ops", launch.ops},
         {"kernel", launch.kernel ? json(plan.kernels[launch.kernel->kernel].name) : json()},
         {"flops", launch.flops.text},
         {"bytes", launch.bytes.text}});
  }
  json slots = json::array();
  for (const auto& s : plan.slots) slots.push_back(s.text);
  return {{"family", to_string(plan.family)},
          {"name", plan.name},
          {"precision", plan.precision},
          {"launches", launches},
          {"slots", slots}};
}

}  // namespace

json report_of(const Optimised& o) {
  json j;
  j["schema"] = 1;
  j["model"] = o.source.name();
  j["import"] = {{"nodes", o.import.nodes},
                 {"shape_nodes", o.import.shape_nodes},
                 {"ops", o.imported_ops},
                 {"shape_ops_left", o.import.shape_ops_left}};
  j["passes"] = json::array();
  for (const passes::PassReport& r : o.passes) {
    json misses = json::array();
    for (const passes::Miss& m : still_missed(r, o.graph))
      misses.push_back({{"node", m.node}, {"reason", m.reason}});
    j["passes"].push_back(
        {{"name", r.pass}, {"rewrites", r.rewrites}, {"ops", r.ops}, {"misses", misses}});
  }
  return j;
}

json report_of(const Optimised& optimised, const codegen::CompileResult& code) {
  json j = report_of(optimised);
  j["plans"] = json::array();
  for (const codegen::Lowered& l : code.plans) j["plans"].push_back(plan_of(l.plan));
  j["kernels"] = json::array();
  for (const codegen::KernelResult& k : code.kernels) {
    j["kernels"].push_back({{"name", k.name},
                            {"target", k.target},
                            {"registers", k.registers},
                            {"spill_bytes", k.spill_bytes},
                            {"cached", k.cached},
                            {"ms", k.ms}});
  }
  return j;
}

}  // namespace tfcc::compiler
