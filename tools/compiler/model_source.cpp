// SPDX-License-Identifier: Apache-2.0
#include "tools/compiler/model_source.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>

#include "codegen/compile.h"
#include "frontend/import/input_roles.h"
#include "frontend/import/size_roles.h"
#include "ir/computed.h"
#include "ir/ir.h"
#include "passes/passes.h"
#include "tools/support/npy.h"
#include "tools/support/usage.h"

namespace tfcc::compiler {
namespace {

namespace fs = std::filesystem;
using tools::Files, tools::usage_error;
using FileRef = std::shared_ptr<const ir::SourceFile>;
using Computed = std::shared_ptr<const ir::ComputedConstant>;

// Puts what f returns of it in the place of each file that constants come from, also those that are
// joined or computed; once for each name.
class FileReplacer {
 public:
  explicit FileReplacer(std::function<FileRef(const FileRef&)> f) : f_(std::move(f)) {}

  void run(ir::Graph& graph) {
    for (ir::OpId o : graph.order()) {
      if (graph.op(o).kind == ir::OpKind::constant)
        run(graph.op(o).as<ir::ConstantAttrs>().constant);
    }
  }

 private:
  void run(ir::Constant& c) {
    for (ir::Constant& part : c.parts) run(part);
    if (c.file) c.file = replaced(c.file);
    if (c.computed) c.computed = replaced(c.computed);
  }

  FileRef replaced(const FileRef& file) {
    FileRef& once = files_[file->name];
    if (!once) once = f_(file);
    return once;
  }

  Computed replaced(const Computed& computed) {
    Computed& once = computed_[computed.get()];
    if (!once) {
      ir::Graph graph = computed->graph();
      run(graph);
      once = std::make_shared<const ir::ComputedConstant>(std::move(graph));
      kept_.push_back(computed);  // its address stands for it
    }
    return once;
  }

  std::function<FileRef(const FileRef&)> f_;
  std::map<std::string, FileRef> files_;
  std::map<const ir::ComputedConstant*, Computed> computed_;
  std::vector<Computed> kept_;
};

// A file that lies beside the graph, under the name that the graph has for it.
Result<FileRef> file_beside(const FileRef& file, const fs::path& folder, Files& files) {
  std::error_code failed;
  for (const fs::path& read : {fs::path(file->name), folder / file->name}) {
    if (fs::exists(read, failed)) TFCC_TRY_VOID(files.note_input(read.string()));
  }
  auto mapped = ir::map_source_file((folder / file->name).string());
  if (!mapped) return file;
  auto renamed = std::make_shared<ir::SourceFile>(**mapped);
  renamed->name = file->name;
  return FileRef(std::move(renamed));
}

Result<ir::Graph> parse_graph(const std::string& path, Files& files,
                              const frontend::SizeRanges& ranges) {
  TFCC_TRY_VOID(files.note_input(path));
  TFCC_TRY(std::vector<std::byte> bytes, tools::read_file(path));
  TFCC_TRY(ir::Graph graph,
           ir::parse({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path));
  Result<void> noted;
  FileReplacer([&](const FileRef& f) {
    auto beside = file_beside(f, fs::path(path).parent_path(), files);
    if (!beside && noted) noted = beside.error();
    return beside ? *std::move(beside) : f;
  }).run(graph);
  TFCC_TRY_VOID(std::move(noted));
  if (const auto broken = ir::verify(graph);
      !broken.empty()) {  // what passes and code generation rely on
    return Error{
        ErrorCode::bad_file,
        fmt::format("{}: {}{}", path, to_string(broken[0]),
                    broken.size() > 1 ? fmt::format(" (and {} more)", broken.size() - 1) : "")};
  }
  const auto& sizes = graph.symbols;
  const bool told = std::any_of(sizes.begin(), sizes.end(),
                                [](const ir::SizeSymbol& s) { return s.role != SizeRole::none; });
  if (!told) frontend::tell_roles(graph, ranges);
  const auto has_role = [&](ir::ValueId v) { return graph.value(v).role != InputRole::none; };
  if (std::ranges::none_of(graph.inputs(), has_role)) frontend::tell_input_roles(graph);
  for (const auto& [name, range] : ranges) graph.pool().set_range(name, range);
  return graph;
}

}  // namespace

std::string Source::name() const { return fs::path(path).filename().string(); }

namespace {

Result<frontend::Model> read_model(const Source& source, Files& files) {
  if (source.in_memory()) return frontend::read_onnx(source.path, source.bytes);
  TFCC_TRY_VOID(files.note_input(source.path));
  TFCC_TRY(frontend::Model model, frontend::read_onnx(source.path));
  for (const std::string& file : model.data_files)
    TFCC_TRY_VOID(files.note_input((fs::path(source.path).parent_path() / file).string()));
  return model;
}

bool is_text(const Source& source) {
  return !source.in_memory() && fs::path(source.path).extension() == ".tfir";
}

}  // namespace

Result<ir::Graph> load_graph(const Source& source, Files& files, frontend::ImportReport* report,
                             const frontend::SizeRanges& ranges) {
  if (is_text(source)) return parse_graph(source.path, files, ranges);
  TFCC_TRY(const frontend::Model model, read_model(source, files));
  return frontend::import_onnx(model, report, ranges);
}

Result<ir::Graph> load_inputs(const Source& source, Files& files) {
  if (is_text(source)) return parse_graph(source.path, files, {});
  TFCC_TRY(frontend::Model model, read_model(source, files));
  model.nodes.clear();
  model.outputs.clear();
  if (!model.inputs.empty()) model.outputs.push_back(model.inputs.front());
  return frontend::import_onnx(model, nullptr, {});
}

std::string print_for_folder(const ir::Graph& graph, const std::string& model,
                             const std::string& folder) {
  ir::Graph copy = graph;
  FileReplacer([&](const FileRef& f) -> FileRef {
    std::error_code failed;
    const fs::path name = fs::path(model).parent_path() / f->name;
    const fs::path relative = fs::relative(name, folder.empty() ? "." : folder, failed);
    if (failed || relative.empty() || !fs::exists(name, failed)) return f;
    auto renamed = std::make_shared<ir::SourceFile>(*f);
    renamed->name = relative.string();
    return renamed;
  }).run(copy);
  return ir::print(copy);
}

OnGraph dump_graphs(const std::string& folder, const std::string& model, Files& files) {
  if (folder.empty()) return {};
  return [=, &files, number = 0](const std::string& step,
                                 const ir::Graph& graph) mutable -> Result<void> {
    std::error_code ec;
    fs::create_directories(folder, ec);
    const std::string path =
        (fs::path(folder) / fmt::format("{:02}-{}.tfir", number++, step)).string();
    TFCC_TRY_VOID(files.plan_output("--dump-ir", path));
    return tools::write_text(path, print_for_folder(graph, model, folder), files);
  };
}

Result<void> check_passes(const std::vector<std::string>& names, const char* option) {
  for (const std::string& name : names) {
    if (passes::find_pass(name)) continue;
    ir::Graph none;
    return usage_error(
        fmt::format("{}: {}", option, passes::run_passes(none, {name}).error().message));
  }
  return {};
}

Result<std::vector<std::string>> default_passes_without(const std::vector<std::string>& skipped) {
  TFCC_TRY_VOID(check_passes(skipped, "--skip-passes"));
  std::vector<std::string> names = passes::default_pipeline();
  for (const std::string& name : skipped) {
    if (std::erase(names, name) == 0)
      return usage_error(fmt::format("--skip-passes: '{}' is not a default pass", name));
  }
  return names;
}

std::vector<std::string> passes_of_target(Family family, const std::string& precision,
                                          const std::string& cpu_weights) {
  if (family == Family::cpu)  // its products are f32
    return {"convert-precision-f32", cpu_weights.empty() ? "narrow-weights" : "narrow-weights-bf16",
            "fuse-dequantize", "tabulate-scores"};
  std::vector<std::string> names;
  if (!precision.empty() && precision != runtime::kTf32 && precision != runtime::kTf32x3)
    names.push_back("convert-precision-" + precision);
  names.push_back("transpose-weights");  // products of few rows take few columns at a time
  names.push_back("fuse-gate");
  names.push_back("fuse-dequantize");
  names.push_back("tabulate-scores");
  return names;
}

std::string detect_gpu() {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!driver) return "";
  auto init = reinterpret_cast<int (*)(unsigned)>(dlsym(driver, "cuInit"));
  auto count = reinterpret_cast<int (*)(int*)>(dlsym(driver, "cuDeviceGetCount"));
  auto attribute = reinterpret_cast<int (*)(int*, int, int)>(dlsym(driver, "cuDeviceGetAttribute"));
  constexpr int kMajor = 75, kMinor = 76;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR
  int devices = 0, major = 0, minor = 0;
  const bool found = init && count && attribute && init(0) == 0 && count(&devices) == 0 &&
                     devices > 0 && attribute(&major, kMajor, 0) == 0 &&
                     attribute(&minor, kMinor, 0) == 0;
  return found ? "sm_" + std::to_string(major * 10 + minor) : "";
}

std::string default_target() {
  const std::string gpu = detect_gpu();
  if (gpu.empty()) return "cpu";
  const auto& known = codegen::cuda_architectures();
  return std::find(known.begin(), known.end(), gpu) != known.end() ? gpu : "compute_80";
}

}  // namespace tfcc::compiler
