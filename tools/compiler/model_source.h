// SPDX-License-Identifier: Apache-2.0
// Where a graph comes from, and what "the default" means for passes and targets. Used by the
// compiler and by the commands verify and opt.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "frontend/import/import.h"
#include "ir/graph.h"
#include "runtime/core/family.h"
#include "tools/support/output_file.h"

namespace tfcc::compiler {

/// A model: a file, .onnx or .tfir, or the bytes of an ONNX model, which must stay in memory as
/// long as any graph made of them.
struct Source {
  std::string path;  ///< of the file; with `bytes` what messages call the model
  std::span<const std::byte> bytes = {};

  bool in_memory() const { return bytes.data() != nullptr; }
  /// Without folders, for inspection.
  std::string name() const;
};

/// Reads a .tfir graph or imports an ONNX model, and notes every file that it reads in `files`.
/// Files of weights that a .tfir names are looked for beside it, then in the current folder.
/// Errors: those of the parser and the importer. `ranges` narrows sizes, as import_onnx().
Result<ir::Graph> load_graph(const Source& source, tools::Files& files,
                             frontend::ImportReport* report = nullptr,
                             const frontend::SizeRanges& ranges = {});

/// The inputs of a model alone, an identity of the first its only output: their sizes have the names
/// that the file gives them. Of a .tfir file the whole graph.
Result<ir::Graph> load_inputs(const Source& source, tools::Files& files);

/// The text of a graph that load_graph read from the file `model`, for a file in `folder`: names of
/// weight files lead there from it.
std::string print_for_folder(const ir::Graph& graph, const std::string& model,
                             const std::string& folder);

/// A graph as it stands after `step`, for whoever dumps graphs: "import", the name of a pass,
/// "generate-" and the name of a pass.
using OnGraph = std::function<Result<void>(const std::string& step, const ir::Graph& graph)>;

/// Writes that text to `folder`/NN-STEP.tfir, which is made; an empty folder: nothing does. `files`
/// must live as long.
/// Its errors: io, invalid_argument (the file is one that is read).
OnGraph dump_graphs(const std::string& folder, const std::string& model, tools::Files& files);

/// Errors: a usage error of `option` for the first name that no pass has, with the list.
Result<void> check_passes(const std::vector<std::string>& names, const char* option = "--passes");

/// The default passes without those that `skip` names.
/// Errors: a usage error for the first name that is not one of them.
Result<std::vector<std::string>> default_passes_without(const std::vector<std::string>& skip);

/// What runs after them for a family of targets: Options::precision is for CUDA, Options::cpu_weights
/// for the CPU.
std::vector<std::string> passes_of_target(Family family, const std::string& precision,
                                          const std::string& cpu_weights);

/// Compute capability of the first GPU as "sm_90", or empty if there is no driver or no GPU.
std::string detect_gpu();

/// The target when none is named: the GPU that is there (as PTX if it is newer than tfcc), else
/// cpu.
std::string default_target();

}  // namespace tfcc::compiler
