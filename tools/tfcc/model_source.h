// SPDX-License-Identifier: Apache-2.0
// Where compile, verify and opt get a graph from, and the choices that they share.
#pragma once

#include <string>
#include <vector>

#include "frontend/import.h"
#include "ir/graph.h"

namespace tfcc::tools {

/// Reads a .tfir graph or imports an ONNX model. Files of weights that a .tfir names are looked for
/// beside it, then in the current folder. Errors: those of the parser and the importer.
/// `ranges` narrows sizes, as import_onnx().
Result<ir::Graph> load_graph(const std::string& path, frontend::ImportReport* report = nullptr,
                             const frontend::SizeRanges& ranges = {});

/// The text of a graph that load_graph read from `model`, for a file in `folder`: names of weight
/// files lead there from it.
std::string print_for_folder(const ir::Graph& graph, const std::string& model,
                             const std::string& folder);

/// Errors: a usage error for the first name that no pass has, with the list.
Result<void> check_passes(const std::vector<std::string>& names);

/// The default passes without those that `skip` names (a list with commas).
/// Errors: a usage error for the first name that is not one of them.
Result<std::vector<std::string>> default_passes_without(const std::string& skip);

/// The target when none is named: the GPU that is there (as PTX if it is newer than tfcc), else
/// cpu.
std::string default_target();

}  // namespace tfcc::tools
