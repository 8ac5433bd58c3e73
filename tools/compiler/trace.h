// SPDX-License-Identifier: Apache-2.0
// What became of the model's nodes: the texts that `tfcc compile` keeps for `tfcc inspect --html`
// (docs/artifact.md, Texts).
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "codegen/compile.h"
#include "frontend/import/import.h"
#include "passes/passes.h"

namespace tfcc::compiler {

inline constexpr const char* kImportText = "ir/import.tfir";
inline constexpr const char* kTraceText = "trace.json";

class Trace {
 public:
  /// `imported`: the graph before any pass. A graph that was text to begin with has its own ops as
  /// nodes.
  Trace(const ir::Graph& imported, const frontend::ImportReport& report);
  /// A graph that a plan is made from, and where its ops came from.
  void add_graph(const std::string& family, const ir::Graph& graph,
                 const passes::Provenance& provenance);
  /// The imported graph and trace.json, by name.
  std::vector<std::pair<std::string, std::string>> texts() const;

 private:
  const ir::Graph imported_;
  std::vector<frontend::ImportedNode> nodes_;
  struct Final {
    std::string family;
    ir::Graph graph;
    passes::Provenance provenance;
  };
  std::vector<Final> finals_;
};

}  // namespace tfcc::compiler
