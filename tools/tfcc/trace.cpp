// SPDX-License-Identifier: Apache-2.0
#include "tools/tfcc/trace.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "ir/ir.h"

namespace tfcc::tools {
namespace {

using nlohmann::json;

bool is_op(const ir::Graph& g, ir::OpId o) { return g.op(o).kind != ir::OpKind::constant; }

json value_names(const ir::Graph& g, ir::OpId o) {
  json names = json::array();
  for (ir::ValueId v : g.op(o).results) names.push_back(g.value(v).name);
  return names;
}

}  // namespace

Trace::Trace(const ir::Graph& imported, const frontend::ImportReport& report) : imported_(imported), nodes_(report.node_list) {
  if (!nodes_.empty()) return;
  for (ir::OpId o : imported.order()) {
    if (!is_op(imported, o)) continue;
    nodes_.push_back({imported.value(imported.result(o)).name, std::string(ir::to_string(imported.op(o).kind)), {o}});
  }
}

void Trace::add_graph(const std::string& family, const ir::Graph& graph, const passes::Provenance& provenance) {
  finals_.push_back({family, graph, provenance});
}

std::vector<std::pair<std::string, std::string>> Trace::texts() const {
  std::vector<int64_t> node_of(imported_.op_count(), -1);
  json j = {{"schema", 1}, {"nodes", json::array()}, {"graphs", json::object()}};
  for (size_t i = 0; i < nodes_.size(); ++i) {
    json values = json::array();
    for (ir::OpId o : nodes_[i].ops) {
      node_of[o.value] = static_cast<int64_t>(i);
      for (const json& name : value_names(imported_, o)) values.push_back(name);
    }
    j["nodes"].push_back({{"name", nodes_[i].name}, {"op", nodes_[i].op_type}, {"values", values}});
  }
  for (const Final& f : finals_) {
    json list = json::array();
    for (ir::OpId o : f.graph.order()) {
      if (!is_op(f.graph, o)) continue;
      const auto& source = f.provenance.of(o);
      std::vector<int64_t> nodes;
      json ops = json::array();
      for (ir::OpId from : source.ops) {
        ops.push_back(imported_.value(imported_.result(from)).name);
        if (node_of[from.value] >= 0) nodes.push_back(node_of[from.value]);
      }
      std::sort(nodes.begin(), nodes.end());
      nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
      list.push_back({{"value", f.graph.value(f.graph.result(o)).name}, {"nodes", nodes}, {"from", ops}, {"passes", source.passes}});
    }
    j["graphs"][f.family] = std::move(list);
  }
  const std::string text = j.dump(-1, ' ', false, json::error_handler_t::replace);
  return {{kImportText, ir::print(imported_)}, {kTraceText, text}};
}

}  // namespace tfcc::tools
