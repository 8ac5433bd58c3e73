// SPDX-License-Identifier: Apache-2.0
// The compiler as a process that tests/differential/judge.py asks: `differential_judge [CACHE]`.
// One command a line, one answer a line, "ok ..." or "error MESSAGE"; tensors travel as .npz files.
//   load FILE                  imports a model; what was known before is forgotten
//   optimise NAME PASSES       passes by name, "default" or "none", on a copy; answers with rewrites and with what the result holds
//   compile NAME LEVEL         compiles that copy for a level of the CPU and loads it
//   eval NAME IN.npz OUT.npz   evaluates in float64; "imported" is the graph before any pass
//   run NAME IN.npz OUT.npz    runs the compiled copy
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <map>
#include <optional>
#include <sstream>

#include "tools/compiler/compile_graph.h"
#include "frontend/import/import.h"
#include "ir/gelu.h"
#include "ir/ir.h"
#include "ir/norm.h"
#include "passes/passes.h"
#include "runtime/tfcc.h"
#include "tests/support/guarded.h"
#include "tools/support/npz.h"
#include "tools/tfcc/verify_cases.h"

namespace {

using tfcc::Error;
using tfcc::ErrorCode;
using tfcc::Result;
using tfcc::ir::Graph;
using tfcc::tools::Array;
using tfcc::tools::HostTensors;
using Arrays = std::vector<std::pair<std::string, Array>>;
namespace fs = std::filesystem;

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> words;
  std::istringstream in(text);
  for (std::string word; std::getline(in, word, ',');) words.push_back(word);
  return words;
}

Result<void> write(const std::string& path, const Arrays& arrays) {
  std::vector<std::pair<std::string, tfcc::tools::ArrayView>> views(arrays.begin(), arrays.end());
  return tfcc::tools::write_npz(path, views);
}

// "attention:1 masked:1 matmul:4": the ops of a graph by kind; "masked" are attentions with a
// condition for keys, "residual" norms of a sum, "gelu" elementwise ops and epilogues that are one.
std::string contents(const Graph& graph) {
  std::map<std::string, int> counts;
  for (tfcc::ir::OpId o : graph.order()) {
    const tfcc::ir::Op& op = graph.op(o);
    if (op.kind == tfcc::ir::OpKind::constant) continue;
    ++counts[std::string(tfcc::ir::to_string(op.kind))];
    if (op.kind == tfcc::ir::OpKind::attention && op.as<tfcc::ir::AttentionAttrs>().visible)
      ++counts["masked"];
    if (op.kind == tfcc::ir::OpKind::norm && tfcc::ir::normed_sum(graph, o)) ++counts["residual"];
    tfcc::ir::ExprRef body =
        op.kind == tfcc::ir::OpKind::pointwise ? op.as<tfcc::ir::PointwiseAttrs>().body
        : op.kind == tfcc::ir::OpKind::matmul  ? op.as<tfcc::ir::MatmulAttrs>().epilogue
                                               : nullptr;
    if (body && tfcc::ir::as_gelu(body)) ++counts["gelu"];
  }
  std::string text;
  for (const auto& [kind, count] : counts) text += fmt::format(" {}:{}", kind, count);
  return text;
}

class Judge {
 public:
  explicit Judge(std::string cache) : cache_(std::move(cache)) {}

  Result<std::string> answer(const std::string& line) {
    std::istringstream words(line);
    std::string command, name, in, out;
    words >> command >> name >> in >> out;
    if (command == "load") return load(name);
    if (command == "optimise") return optimise(name, in);
    if (command == "compile") return compile(name, in);
    if (command == "eval") return eval(name, in, out);
    if (command == "run") return run(name, in, out);
    return Error{ErrorCode::invalid_argument, "no command '" + command + "'"};
  }

 private:
  Result<std::string> load(const std::string& file) {
    graphs_.clear();
    models_.clear();
    TFCC_TRY(source_, tfcc::frontend::read_onnx(file));
    TFCC_TRY(Graph graph, tfcc::frontend::import_onnx(*source_));
    graphs_.emplace("imported", std::move(graph));
    return contents(graphs_.at("imported"));
  }

  Result<std::string> optimise(const std::string& name, const std::string& passes) {
    TFCC_TRY(const Graph* imported, find("imported"));
    Graph graph = *imported;
    std::vector<std::string> names = passes == "default" ? tfcc::passes::default_pipeline()
                                                         : split(passes == "none" ? "" : passes);
    names.push_back("convert-precision-f32");  // as for any CPU target
    TFCC_TRY(auto reports, tfcc::passes::run_passes(graph, names));
    std::string text = contents(graph);
    for (const auto& report : reports) {
      if (report.rewrites > 0) text += fmt::format(" {}:{}", report.pass, report.rewrites);
      for (const auto& miss : report.misses) {
        if (miss.reason.starts_with(tfcc::passes::kUndone)) text += " broken:" + report.pass;
      }
    }
    graphs_.insert_or_assign(name, std::move(graph));
    return text;
  }

  Result<std::string> compile(const std::string& name, const std::string& level) {
    TFCC_TRY(const Graph* graph, find(name));
    tfcc::compiler::GraphOptions options{{level, tfcc::Family::cpu}};
    options.threads = 1;
    options.cache.dir = cache_;
    options.cache.enabled = !cache_.empty();
    const std::string file =
        fmt::format("{}/tfcc-differential-{}.tfcc", fs::temp_directory_path().string(), getpid());
    TFCC_TRY_VOID(tfcc::compiler::compile_graph(*graph, file, options));
    tfcc::LoadOptions load;
    load.device = "cpu";
    load.threads = 1;
    auto model = tfcc::Model::load(file, load);
    fs::remove(file);
    if (!model) return model.error();
    models_.insert_or_assign(name, *std::move(model));
    return std::string();
  }

  Result<std::string> eval(const std::string& name, const std::string& in, const std::string& out) {
    TFCC_TRY(const Graph* graph, find(name));
    TFCC_TRY(Arrays arrays, tfcc::tools::read_npz(in));
    HostTensors inputs;
    for (const auto& [input, array] : arrays) inputs[input] = tfcc::tools::to_host_tensor(array);
    TFCC_TRY(HostTensors got, tfcc::ir::eval(*graph, inputs));
    Arrays results;
    for (const auto& [output, tensor] : got)
      results.emplace_back(output, tfcc::tools::to_array(tensor));
    TFCC_TRY_VOID(write(out, results));
    return std::string();
  }

  Result<std::string> run(const std::string& name, const std::string& in, const std::string& out) {
    const auto it = models_.find(name);
    if (it == models_.end())
      return Error{ErrorCode::invalid_argument, "'" + name + "' is not compiled"};
    TFCC_TRY(Arrays arrays, tfcc::tools::read_npz(in));
    TFCC_TRY(tfcc::Executor executor, it->second.executor());
    std::vector<tfcc::testing_support::Guarded> memory;
    for (auto& [input, a] : arrays) {
      memory.emplace_back(a.bytes.data(), a.bytes.size());
      TFCC_TRY_VOID(
          executor.set(input, {memory.back().data(), a.dtype, a.shape, tfcc::Place::host}));
    }
    TFCC_TRY_VOID(executor.run());
    TFCC_TRY_VOID(executor.status());
    std::vector<std::pair<std::string, tfcc::tools::ArrayView>> results;
    for (const tfcc::TensorInfo& info : it->second.outputs()) {
      TFCC_TRY(tfcc::Tensor t, executor.output(info.name));
      results.emplace_back(info.name, tfcc::tools::ArrayView(t.dtype, t.shape, t.data));
    }
    TFCC_TRY_VOID(tfcc::tools::write_npz(out, results));
    return std::string();
  }

  Result<const Graph*> find(const std::string& name) const {
    const auto it = graphs_.find(name);
    if (it == graphs_.end()) return Error{ErrorCode::invalid_argument, "no graph '" + name + "'"};
    return &it->second;
  }

  std::string cache_;
  std::optional<tfcc::frontend::Model> source_;  // graphs point into its file
  std::map<std::string, Graph> graphs_;
  std::map<std::string, tfcc::Model> models_;
};

}  // namespace

int main(int argc, char** argv) {
  Judge judge(argc > 1 ? argv[1] : "");
  for (std::string line; std::getline(std::cin, line);) {
    auto answer = judge.answer(line);
    std::string text = answer ? "ok" + *answer : "error " + answer.error().message;
    for (char& c : text) c = c == '\n' ? ' ' : c;
    std::cout << text << std::endl;
  }
}
