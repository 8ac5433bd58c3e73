// SPDX-License-Identifier: Apache-2.0
// ONNX to IR. One import function per ONNX operator (importers.def), sizes as dim expressions,
// weights by reference.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "frontend/onnx/onnx_reader.h"
#include "ir/graph.h"

namespace tfcc::frontend {

/// An ONNX node, or one of a branch or function, and the ops that it became; none if it was
/// arithmetic of sizes or constants.
struct ImportedNode {
  std::string name;           // of the node, or of its first output if it has none
  std::string op_type;        // with the domain if that is not ONNX's own
  std::vector<ir::OpId> ops;  // of the graph, constants left out
};

/// What the import found, for the compile report.
struct ImportReport {
  size_t nodes = 0;  // ONNX nodes
  size_t shape_nodes =
      0;  // of these, how many left no op in the graph (shape and constant arithmetic)
  size_t shape_ops_left =
      0;  // integer ops over sizes alone that remain; 0 unless a size is used as data
  std::vector<std::string> warnings;
  std::vector<ImportedNode> node_list;  // in the order of the file
};

/// Promises about sizes.
using SizeRanges = std::map<std::string, ir::SymbolRange>;

/// Builds a verified graph. Errors: unsupported (all unsupported operators in one message),
/// bad_file, shape; the message starts with the path and names the node. `ranges`: narrower ranges
/// of sizes, by the names that symbols have in the graph; with one value it is no symbol.
Result<ir::Graph> import_onnx(const Model& model, ImportReport* report = nullptr,
                              const SizeRanges& ranges = {});

/// One line of the operator table, for docs/operators.md.
struct OperatorInfo {
  std::string name, domain;
  int64_t min_opset, max_opset;  // 0: no upper limit
  std::string dtypes, notes;
};
std::vector<OperatorInfo> supported_operators();

}  // namespace tfcc::frontend
