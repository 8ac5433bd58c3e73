// SPDX-License-Identifier: Apache-2.0
#include "tools/compiler/trace.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "ir/ir.h"

namespace tfcc::compiler {
namespace {

using nlohmann::json;

bool is_op(const ir::Graph& g, ir::OpId o) { return g.op(o).kind != ir::OpKind::constant; }

// The number of each op among those that are no constants, in the order of the text; by OpId.
std::vector<size_t> numbers(const ir::Graph& g) {
  std::vector<size_t> out(g.op_count());
  size_t n = 0;
  for (ir::OpId o : g.order()) {
    if (is_op(g, o)) out[o.value] = n++;
  }
  return out;
}

}  // namespace

Trace::Trace(const ir::Graph& imported, const frontend::ImportReport& report)
    : imported_(imported), nodes_(report.node_list) {
  if (!nodes_.empty()) return;
  for (ir::OpId o : imported.order()) {
    if (!is_op(imported, o)) continue;
    nodes_.push_back({imported.value(imported.result(o)).name,
                      std::string(ir::to_string(imported.op(o).kind)),
                      {o}});
  }
}

void Trace::add_graph(const std::string& family, const ir::Graph& graph,
                      const passes::Provenance& provenance) {
  finals_.push_back({family, graph, provenance});
}

std::vector<std::pair<std::string, std::string>> Trace::texts() const {
  const std::vector<size_t> number = numbers(imported_);
  std::vector<int64_t> node_of(imported_.op_count(), -1);
  json j = {{"schema", 1}, {"nodes", json::array()}, {"graphs", json::object()}};
  for (size_t i = 0; i < nodes_.size(); ++i) {
    json ops = json::array();
    for (ir::OpId o : nodes_[i].ops) {
      node_of[o.value] = static_cast<int64_t>(i);
      ops.push_back(number[o.value]);
    }
    j["nodes"].push_back({{"name", nodes_[i].name}, {"op", nodes_[i].op_type}, {"ops", ops}});
  }
  for (const Final& f : finals_) {
    json list = json::array();
    for (ir::OpId o : f.graph.order()) {
      if (!is_op(f.graph, o)) continue;
      const auto& source = f.provenance.of(o);
      std::vector<int64_t> nodes;
      json ops = json::array();
      for (ir::OpId from : source.ops) {
        ops.push_back(number[from.value]);
        if (node_of[from.value] >= 0) nodes.push_back(node_of[from.value]);
      }
      std::sort(nodes.begin(), nodes.end());
      nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
      list.push_back({{"nodes", nodes}, {"ops", ops}, {"passes", source.passes}});
    }
    j["graphs"][f.family] = std::move(list);
  }
  const std::string text = j.dump(-1, ' ', false, json::error_handler_t::replace);
  return {{kImportText, ir::print(imported_)}, {kTraceText, text}};
}

}  // namespace tfcc::compiler
