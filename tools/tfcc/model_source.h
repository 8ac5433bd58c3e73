// SPDX-License-Identifier: Apache-2.0
// Where compile, verify and opt get a graph from, and the choices that they share.
#pragma once

#include <string>
#include <vector>

#include "frontend/import.h"
#include "ir/graph.h"

namespace tfcc::tools {

/// Reads a .tfir graph or imports an ONNX model. Errors: those of the parser and the importer.
Result<ir::Graph> load_graph(const std::string& path, frontend::ImportReport* report = nullptr);

/// Errors: a usage error for the first name that no pass has, with the list.
Result<void> check_passes(const std::vector<std::string>& names);

/// The target when none is named: the GPU that is there (as PTX if it is newer than tfcc), else cpu.
std::string default_target();

}  // namespace tfcc::tools
