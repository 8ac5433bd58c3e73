// SPDX-License-Identifier: Apache-2.0
#include "tools/tfcc/model_source.h"

#include <algorithm>
#include <filesystem>

#include "codegen/compile.h"
#include "ir/ir.h"
#include "tools/tfcc/command.h"
#include "tools/tfcc/npy.h"

namespace tfcc::tools {

Result<ir::Graph> load_graph(const std::string& path, frontend::ImportReport* report) {
  if (std::filesystem::path(path).extension() == ".tfir") {
    TFCC_TRY(std::vector<std::byte> bytes, read_file(path));
    return ir::parse({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path);
  }
  TFCC_TRY(frontend::Model model, frontend::read_onnx(path));
  return frontend::import_onnx(model, report);
}

Result<void> check_passes(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (passes::find_pass(name)) continue;
    ir::Graph none;
    return usage_error(passes::run_passes(none, {name}).error().message);
  }
  return {};
}

std::string default_target() {
  const std::string gpu = detect_gpu();
  if (gpu.empty()) return "cpu";
  const auto& known = codegen::cuda_architectures();
  return std::find(known.begin(), known.end(), gpu) != known.end() ? gpu : "compute_80";
}

}  // namespace tfcc::tools
