// SPDX-License-Identifier: Apache-2.0
#include "tools/tfcc/verify_target.h"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>

namespace tfcc::tools {
namespace {

namespace fs = std::filesystem;

struct TemporaryFolder {
  std::string path;
  ~TemporaryFolder() {
    std::error_code ignored;
    if (!path.empty()) fs::remove_all(path, ignored);
  }
};

// A launch is named after the first result of its op.
std::string kernel_of(const ir::Graph& graph, const std::string& value, const TargetOptions& o) {
  const ir::Op* op = graph.def(graph.find_value(value));
  if (!op) return "";
  codegen::WeightPool weights;
  const codegen::PlanInput input = compiler::plan_input(graph, o);
  auto lowered =
      codegen::lower(input.graph, codegen::class_of(o.target.name), weights, input.options);
  if (!lowered) return "";
  for (const runtime::Launch& l : lowered->plan.buckets.back().launches) {
    if (l.name != graph.value(op->results[0]).name) continue;
    if (l.kernel) return lowered->plan.kernels[l.kernel->kernel].name;
    return o.target.family == Family::cuda ? "a product of cuBLASLt" : "a product of oneDNN";
  }
  return "";
}

}  // namespace

Result<CompiledGraph> CompiledGraph::make(const ir::Graph& graph, const TargetOptions& o) {
  std::error_code ignored;
  TemporaryFolder folder{(fs::temp_directory_path(ignored) / "tfcc-verify-XXXXXX").string()};
  if (!mkdtemp(folder.path.data())) {
    return Error{ErrorCode::io,
                 fmt::format("{}: cannot make a folder; set TMPDIR to a place that is writable",
                             std::exchange(folder.path, ""))};
  }
  compiler::GraphOptions options = o;
  options.strip = true;
  const std::string file = folder.path + "/model.tfcc";
  TFCC_TRY([[maybe_unused]] auto result, compiler::compile_graph(graph, file, options));
  LoadOptions load;
  load.device = o.target.family == Family::cpu ? "cpu" : "cuda";
  load.threads = o.threads;
  TFCC_TRY(Model model, Model::load(file, load));
  return CompiledGraph(std::move(model));
}

Result<CompiledGraph> CompiledGraph::load(const std::string& file, const std::string& device,
                                          int threads) {
  LoadOptions load;
  load.device = device;
  load.threads = threads;
  const auto loading = std::make_shared<bool>(true);  // what is said of runs is of no interest
  load.log = [loading](std::string_view line) {
    if (*loading) std::fprintf(stderr, "%.*s\n", static_cast<int>(line.size()), line.data());
  };
  TFCC_TRY(Model model, Model::load(file, load));
  *loading = false;
  return CompiledGraph(std::move(model));
}

Result<HostTensors> CompiledGraph::run(const HostTensors& inputs) const {
  TFCC_TRY(Executor executor, model_.executor());
  std::map<std::string, Array> arrays;
  for (const auto& [name, tensor] : inputs) {
    Array& a = arrays[name] = to_array(tensor);
    TFCC_TRY_VOID(executor.set(name, TensorRef{a.bytes.data(), a.dtype, a.shape, Place::host}));
  }
  TFCC_TRY_VOID(executor.run());
  TFCC_TRY_VOID(executor.status());
  HostTensors out;
  for (const TensorInfo& info : model_.outputs()) {
    TFCC_TRY(Tensor t, executor.output(info.name));
    out[info.name] = to_host_tensor(ArrayView(t.dtype, t.shape, t.data));
  }
  return out;
}

Result<HostTensors> CompiledGraph::run_ragged(const HostTensors& inputs,
                                              const RealRows& real) const {
  TFCC_TRY(const Model ragged, model_.ragged());
  TFCC_TRY(Executor executor, ragged.executor());
  NamedArrays arrays;
  for (const auto& [name, tensor] : inputs) arrays.emplace_back(name, to_array(tensor));
  TFCC_TRY(arrays, without_padding(ragged.inputs(), real, std::move(arrays)));
  for (auto& [name, a] : arrays)
    TFCC_TRY_VOID(executor.set(name, TensorRef{a.bytes.data(), a.dtype, a.shape, Place::host}));
  TFCC_TRY_VOID(executor.run());
  TFCC_TRY_VOID(executor.status());
  HostTensors out;
  const auto batch = static_cast<int64_t>(real.ends.size()) - 1;
  for (const TensorInfo& info : ragged.outputs()) {
    TFCC_TRY(Tensor t, executor.output(info.name));
    if (!is_of_tokens(info)) {
      out[info.name] = to_host_tensor(ArrayView(t.dtype, t.shape, t.data));
      continue;
    }
    std::vector<int64_t> shape{batch, real.places / batch};
    shape.insert(shape.end(), t.shape.begin() + 1, t.shape.end());
    Array padded = make_array(t.dtype, shape);
    const size_t width = padded.bytes.size() / static_cast<size_t>(real.places);
    for (size_t i = 0; i < real.rows.size(); ++i)
      std::memcpy(padded.bytes.data() + static_cast<size_t>(real.rows[i]) * width,
                  static_cast<const std::byte*>(t.data) + i * width, width);
    out[info.name] = to_host_tensor(ArrayView(padded.dtype, padded.shape, padded.bytes.data()));
  }
  return out;
}

Target compiling_target(const TargetOptions& options) {
  Target t;
  t.name = options.target.name;
  t.run = [options](const ir::Graph& graph, const HostTensors& inputs) -> Result<HostTensors> {
    TFCC_TRY(CompiledGraph compiled, CompiledGraph::make(graph, options));
    return compiled.run(inputs);
  };
  t.kernel = [options](const ir::Graph& graph, const std::string& value) {
    return kernel_of(graph, value, options);
  };
  return t;
}

}  // namespace tfcc::tools
