// SPDX-License-Identifier: Apache-2.0
// tfcc compile: ONNX (or .tfir) to .tfcc, with dumps and a report of what was fused, what was not and why.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>

#include "codegen/compile.h"
#include "codegen/plan/print.h"
#include "ir/ir.h"
#include "passes/match.h"
#include "runtime/text/tokenizer.h"
#include "runtime/timing_cache.h"
#include "tools/tfcc/command.h"
#include "tools/tfcc/fold.h"
#include "tools/tfcc/model_source.h"
#include "tools/tfcc/output_file.h"
#include "tools/tfcc/size_options.h"
#include "tools/tfcc/trace.h"

namespace tfcc::tools {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

struct Options {
  std::string model, output, targets, passes, dump_ir, dump_kernels, report, cache_dir, cpu, timing_cache, skip_passes, tokenizer;
  bool fp16 = false, bf16 = false, strict = false, strip = false, no_cache = false, quiet = false;
  bool passes_given = false, keep_padding = false, verbose = false, literal_only = false, batch_variance = false;
  int threads = 0;
  SizeFlags sizes;
};

size_t count_ops(const ir::Graph& graph) {
  size_t ops = 0;
  for (ir::OpId o : graph.order()) ops += graph.op(o).kind != ir::OpKind::constant;
  return ops;
}

json report_of(const Options& o, const frontend::ImportReport& import, size_t imported_ops, const std::vector<passes::PassReport>& reports) {
  json j;
  j["schema"] = 1;
  j["model"] = fs::path(o.model).filename().string();
  j["import"] = {{"nodes", import.nodes}, {"shape_nodes", import.shape_nodes}, {"ops", imported_ops}, {"shape_ops_left", import.shape_ops_left}};
  j["passes"] = json::array();
  for (const passes::PassReport& r : reports) {
    json misses = json::array();
    for (const passes::Miss& m : r.misses) misses.push_back({{"node", m.node}, {"reason", m.reason}});
    j["passes"].push_back({{"name", r.pass}, {"rewrites", r.rewrites}, {"ops", r.ops}, {"misses", misses}});
  }
  return j;
}

void add_plans(json& j, const codegen::CompileResult& result) {
  j["plans"] = json::array();
  for (const codegen::Lowered& l : result.plans) {
    json launches = json::array();
    for (const runtime::Launch& launch : l.plan.buckets.back().launches) {
      launches.push_back({{"name", launch.name}, {"ops", launch.ops}, {"kernel", launch.kernel ? json(l.plan.kernels[launch.kernel->kernel].name) : json()},
                          {"flops", launch.flops.text}, {"bytes", launch.bytes.text}});
    }
    json slots = json::array();
    for (const auto& s : l.plan.slots) slots.push_back(s.text);
    j["plans"].push_back({{"family", to_string(l.plan.family)}, {"name", l.plan.name}, {"precision", l.plan.precision}, {"launches", launches}, {"slots", slots}});
  }
  j["kernels"] = json::array();
  for (const codegen::KernelResult& k : result.kernels) {
    j["kernels"].push_back({{"name", k.name}, {"target", k.target}, {"registers", k.registers}, {"spill_bytes", k.spill_bytes}, {"cached", k.cached}});
  }
}

// A norm that fuse-residual-norm leaves may be taken by fuse-embedding: what is no more as a pass saw it is not missed.
std::vector<passes::Miss> still_missed(const passes::PassReport& report, const ir::Graph& graph) {
  std::vector<passes::Miss> out = report.misses;
  if (report.pass != "fuse-residual-norm") return out;
  for (ir::OpId o : graph.order()) {
    if (graph.op(o).kind != ir::OpKind::pointwise_norm) continue;
    std::erase_if(out, [&](const passes::Miss& m) { return m.node == passes::label(graph, o); });
  }
  return out;
}

void show(const frontend::ImportReport& import, const ir::Graph& graph, const std::vector<passes::PassReport>& reports, bool everything) {
  for (const std::string& w : import.warnings) std::fprintf(stderr, "warning: %s\n", w.c_str());
  std::printf("imported %zu ONNX nodes, %zu of them shape and constant arithmetic that left no op (%zu such ops remain)\n", import.nodes,
              import.shape_nodes, import.shape_ops_left);
  for (const passes::PassReport& r : reports) {
    const bool fusion = r.pass.rfind("raise-", 0) == 0 || r.pass.rfind("fuse-", 0) == 0 || r.pass.rfind("classify-", 0) == 0 || r.pass.rfind("remove-", 0) == 0;
    const std::vector<passes::Miss> misses = still_missed(r, graph);
    if (!fusion || (r.rewrites == 0 && misses.empty())) continue;
    std::printf("  %-20s %4zu\n", r.pass.c_str(), r.rewrites);
    std::vector<std::pair<std::string, std::string>> items;
    for (const passes::Miss& m : misses) {
      items.emplace_back(m.node, m.reason);
      if (everything) std::printf("    not %s: %s\n", m.node.c_str(), m.reason.c_str());
    }
    if (everything) continue;
    for (const Folded& f : fold(items)) {
      std::printf("    not %s%s: %s\n", f.name.c_str(), f.count > 1 ? fmt::format(" ({} times)", f.count).c_str() : "", items[f.first].second.c_str());
    }
  }
  std::printf("%zu ops after all passes\n", count_ops(graph));
}

// Fusions that --strict insists on: every attention, norm and GELU that a pass looked at and left alone.
size_t count_strict_misses(const std::vector<passes::PassReport>& reports) {
  size_t n = 0;
  for (const passes::PassReport& r : reports) {
    if (r.pass == "remove-padding" || r.pass == "fuse-attention" || r.pass == "classify-mask" || r.pass.rfind("raise-", 0) == 0) n += r.misses.size();
  }
  return n;
}

Result<void> dump_kernels(const std::string& dir, const codegen::CompileResult& result) {
  for (const codegen::Lowered& l : result.plans) {
    const fs::path folder = fs::path(dir) / l.plan.name;
    std::error_code ec;
    fs::create_directories(folder, ec);
    const auto write = [&](const fs::path& path, const std::string& text) -> Result<void> {
      TFCC_TRY_VOID(plan_output("--dump-kernels", path.string()));
      return write_text(path.string(), text);
    };
    TFCC_TRY_VOID(write(folder / "plan.txt", codegen::print(l.plan)));
    for (const codegen::KernelSource& k : l.kernels) TFCC_TRY_VOID(write(fs::path(dir) / runtime::source_file(l.plan, k.name), k.text));
  }
  return {};
}

Result<void> dump_graph(const Options& o, int number, const std::string& name, const ir::Graph& graph) {
  std::error_code ec;
  fs::create_directories(o.dump_ir, ec);
  const std::string path = (fs::path(o.dump_ir) / fmt::format("{:02}-{}.tfir", number, name)).string();
  TFCC_TRY_VOID(plan_output("--dump-ir", path));
  return write_text(path, print_for_folder(graph, o.model, o.dump_ir));
}

double seconds_since(std::chrono::steady_clock::time_point t) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - t).count();
}

// What a timing cache holds, in the form that is kept. Products are measured by `tfcc tune`, which needs a GPU.
Result<std::string> timings_of(const std::string& path) {
  if (path.empty()) return std::string();
  runtime::TimingCache cache;
  TFCC_TRY_VOID(cache.load(path));
  if (cache.size() == 0) {
    return Error{ErrorCode::io, path + ": holds no timings; `tfcc tune` measures them, on a machine with a GPU"};
  }
  return cache.text();
}

// What code generation says of an op, with the file that the op is of.
Error about_model(Error e, const std::string& model) {
  const bool of_model = e.code == ErrorCode::unsupported || e.code == ErrorCode::shape || e.code == ErrorCode::internal;
  if (of_model && !e.message.starts_with(model)) e.message = model + ": " + e.message;
  return e;
}

// The files of a tokenizer, which `tfcc generate` reads. It is read here too: a file that cannot be used is not kept.
Result<std::vector<std::pair<std::string, std::string>>> tokenizer_files(const std::string& folder) {
  std::vector<std::pair<std::string, std::string>> out;
  if (folder.empty()) return out;
  TFCC_TRY_VOID(text::Tokenizer::load(folder));
  for (const char* name : {"tokenizer.json", "chat.json", "generation_config.json", "config.json"}) {
    const fs::path path = fs::is_directory(folder) ? fs::path(folder) / name : fs::path(folder).parent_path() / name;
    const fs::path file = name == std::string("tokenizer.json") && !fs::is_directory(folder) ? fs::path(folder) : path;
    std::ifstream stream(file, std::ios::binary);
    if (!stream) continue;
    TFCC_TRY_VOID(note_input(file.string()));
    out.emplace_back(name, std::string((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>()));
  }
  return out;
}

// What was asked for in vain, or not asked for and likely wanted.
std::string hint(const Options& o, const std::vector<codegen::TargetName>& targets, const std::vector<codegen::PlanInput>& inputs) {
  const bool cuda = std::any_of(targets.begin(), targets.end(), [](const auto& t) { return t.family == Family::cuda; });
  const bool narrow = o.fp16 || o.bf16;
  if (narrow && !cuda) return fmt::format("note: --{} is for GPUs; the CPU computes in f32", o.fp16 ? "fp16" : "bf16");
  if (narrow || !cuda) return "";
  for (const codegen::PlanInput& in : inputs) {
    if (in.family != Family::cuda) continue;
    for (ir::OpId op : in.graph.order()) {
      const ir::Op& x = in.graph.op(op);
      if (x.kind != ir::OpKind::matmul || in.graph.value(x.results[0]).type.dtype != DType::f32) continue;
      return fmt::format("note: its GPU code computes in f32; with --fp16 it is several times faster, and `tfcc verify {} --fp16` tells how far that is off", o.model);
    }
  }
  return "";
}

Result<void> compile_model(Options o) {
  const auto start = std::chrono::steady_clock::now();
  if (o.output.empty()) o.output = fs::path(o.model).replace_extension(".tfcc").string();
  TFCC_TRY_VOID(note_input(o.model));
  if (!o.timing_cache.empty()) TFCC_TRY_VOID(note_input(o.timing_cache));
  TFCC_TRY(auto attachments, tokenizer_files(o.tokenizer));
  TFCC_TRY_VOID(plan_output("-o", o.output));
  TFCC_TRY_VOID(plan_output("--report", o.report));
  if (!o.cpu.empty()) o.targets += o.targets.empty() ? "cpu" : ",cpu";
  if (o.targets.empty()) o.targets = default_target();
  auto targets = codegen::parse_targets(split(o.targets), split(o.cpu.empty() ? "native,x86-64-v3,x86-64-v2" : o.cpu));
  if (!targets) return usage_error(targets.error().message);
  if (targets->empty()) return usage_error("--target names no target");
  TFCC_TRY_VOID(check_passes(split(o.passes)));
  TFCC_TRY(auto default_passes, default_passes_without(o.skip_passes));
  if (o.keep_padding) std::erase(default_passes, "remove-padding");

  frontend::ImportReport import;
  TFCC_TRY(ir::Graph graph, load_graph(o.model, &import));
  TFCC_TRY(const ResolvedSizes sizes, resolve_sizes(o.sizes, graph));
  if (!sizes.ranges.empty()) {
    TFCC_TRY(graph, load_graph(o.model, &import, sizes.ranges));
  }
  int number = 0;
  if (!o.dump_ir.empty()) TFCC_TRY_VOID(dump_graph(o, number++, "import", graph));
  std::optional<Error> dump_error;
  std::string dump_prefix;
  std::optional<ir::Graph> lifted;  // what the passes before fuse-qkv made, then its form for generation
  const auto kept_before = std::find(default_passes.begin(), default_passes.end(), passes::kLiftedBefore);
  const bool lifts = !o.passes_given && kept_before != default_passes.begin() && kept_before != default_passes.end();
  auto passes_before = lifts ? kept_before - default_passes.begin() : 0;
  auto after = [&](const passes::PassReport& r, const ir::Graph& g) {
    if (lifts && --passes_before == 0) lifted = g;
    if (o.dump_ir.empty() || dump_error) return;
    auto written = dump_graph(o, number++, dump_prefix + r.pass, g);
    if (!written) dump_error = written.error();
  };
  const size_t imported_ops = count_ops(graph);
  Trace trace(graph, import);
  passes::Provenance provenance(graph);
  TFCC_TRY(auto reports, passes::run_passes(graph, o.passes_given ? split(o.passes) : default_passes, after, &provenance));
  if (dump_error) return *dump_error;
  if (!o.quiet) show(import, graph, reports, o.verbose);
  for (const std::string& note : sizes.notes) {
    if (!o.quiet) std::printf("%s\n", note.c_str());
  }
  if (const size_t n = count_strict_misses(reports); o.strict && n > 0) {
    return Error{ErrorCode::unsupported, fmt::format("{}: --strict: {} fusions did not happen; the lines marked 'not' say which and why", o.model, n)};
  }

  std::string no_generation = o.literal_only ? "it was compiled with --literal-only" : o.passes_given ? "its passes were chosen by hand"
                              : !lifts         ? fmt::format("it is made before {}, which was left out", passes::kLiftedBefore) : "";
  if (lifted && no_generation.empty()) {
    dump_prefix = "generate-";
    TFCC_TRY(const auto lifting, passes::run_passes(*lifted, {"lift-kv-cache"}, after));
    if (lifting[0].rewrites == 0) {
      no_generation = lifting[0].misses.empty() ? "it has no attention" : fmt::format("{}: {}", lifting[0].misses[0].node, lifting[0].misses[0].reason);
      lifted.reset();
    } else {
      std::vector<std::string> rest = passes::generation_passes(default_passes);
      rest.erase(rest.begin());
      TFCC_TRY([[maybe_unused]] const auto done, passes::run_passes(*lifted, rest, after));
      if (!o.quiet) std::printf("  %-20s %4zu\n", "lift-kv-cache", lifting[0].rewrites);
    }
    if (dump_error) return *dump_error;
  } else {
    lifted.reset();
  }

  std::vector<codegen::PlanInput> inputs;
  for (const bool generates : {false, true}) {
    if (generates && !lifted) continue;
    dump_prefix = generates ? "generate-" : "";
    for (const Family family : {Family::cuda, Family::cpu}) {
      const bool wanted = std::any_of(targets->begin(), targets->end(), [&](const auto& t) { return t.family == family; });
      if (!wanted) continue;
      codegen::PlanInput in{family, generates ? *lifted : graph, {}, generates};
      passes::Provenance sources = provenance;
      passes::Provenance* const kept = generates ? nullptr : &sources;
      if (!generates) sizes.give(in.options);
      in.options.batch_variance = o.batch_variance;
      std::string precision = family == Family::cpu ? "f32" : "";  // the products of a CPU are f32
      if ((o.fp16 || o.bf16) && family == Family::cuda) precision = in.options.precision = o.fp16 ? "f16" : "bf16";
      if (!precision.empty()) {
        TFCC_TRY([[maybe_unused]] auto converted, passes::run_passes(in.graph, {"convert-precision-" + precision}, after, kept));
        if (dump_error) return *dump_error;
      }
      if (lifted && family == Family::cuda) {  // a step of generation reads few columns at a time
        TFCC_TRY([[maybe_unused]] auto transposed, passes::run_passes(in.graph, {"transpose-weights"}, after, kept));
        if (dump_error) return *dump_error;
      }
      if (!generates) trace.add_graph(std::string(to_string(family)), in.graph, sources);
      inputs.push_back(std::move(in));
    }
  }
  json report = report_of(o, import, imported_ops, reports);
  codegen::CompileOptions options;
  options.targets = *targets;
  options.model_name = fs::path(o.model).filename().string();
  options.report = report.dump();
  options.strip = o.strip;
  if (!o.strip) options.texts = trace.texts();
  options.attachments = std::move(attachments);
  options.no_generation = no_generation;
  TFCC_TRY(options.timings, timings_of(o.timing_cache));
  options.threads = o.threads;
  options.cache.dir = o.cache_dir;
  options.cache.enabled = !o.no_cache;
  std::optional<OutputFile> report_file;  // opened first: what cannot be written should not cost a compilation
  if (!o.report.empty()) {
    TFCC_TRY(OutputFile file, OutputFile::create(o.report));
    report_file.emplace(std::move(file));
  }
  std::optional<Progress> progress(std::in_place);
  options.progress = [&](const std::string& stage, size_t done, size_t total) { progress->update(stage, done, total); };
  Result<codegen::CompileResult> compiled = codegen::compile(inputs, o.output, options);
  progress.reset();
  if (!compiled) return about_model(compiled.error(), o.model);
  codegen::CompileResult& result = *compiled;
  add_plans(report, result);
  if (report_file) {
    const std::string text = report.dump(1) + "\n";
    TFCC_TRY_VOID(report_file->write(text.data(), text.size()));
    TFCC_TRY_VOID(report_file->commit());
  }
  if (!o.dump_kernels.empty()) TFCC_TRY_VOID(dump_kernels(o.dump_kernels, result));
  for (const codegen::KernelResult& k : result.kernels) {
    if (k.spill_bytes > 0) std::fprintf(stderr, "warning: kernel %s spills %d bytes on %s\n", k.name.c_str(), k.spill_bytes, k.target.c_str());
  }
  if (!o.quiet) {
    std::string names;
    for (const auto& t : *targets) names += (names.empty() ? "" : ", ") + t.name;
    for (const codegen::Lowered& l : result.plans) {
      std::printf("%s plan: %zu launches, %zu kernels, %s\n", l.plan.name.c_str(), l.plan.buckets.back().launches.size(), l.kernels.size(), l.plan.precision.c_str());
    }
    std::printf("wrote %s for %s: %.1f MB of weights, %.2f s\n", o.output.c_str(), names.c_str(), static_cast<double>(result.weight_bytes) / 1e6, seconds_since(start));
    if (const std::string note = hint(o, *targets, inputs); !note.empty()) std::printf("%s\n", note.c_str());
  }
  return {};
}

}  // namespace

void add_compile(CLI::App& app, Action& action) {
  auto o = std::make_shared<Options>();
  CLI::App* c = app.add_subcommand("compile", "compile an ONNX model (or a .tfir graph) to a .tfcc file");
  c->add_option("model", o->model, "the model: .onnx or .tfir")->required();
  c->add_option("-o,--output", o->output, "the file to write; default: the model's name with .tfcc");
  c->add_option("--target", o->targets, "what to compile for: cpu, cuda, sm_80, sm_86, sm_89, sm_90, sm_100, sm_120, x86-64-v2..v4; default: the GPU that is there, else cpu");
  c->add_option("--cpu", o->cpu, "compile for these levels of CPU: native, x86-64-v2, x86-64-v3 (AVX2), x86-64-v4 (AVX-512), all, or a list; the best that a machine has is run. Default for the target cpu: native,x86-64-v3,x86-64-v2");
  CLI::Option* fp16 = c->add_flag("--fp16", o->fp16, "store and multiply in fp16 on CUDA; statistics and accumulation stay fp32");
  c->add_flag("--bf16", o->bf16, "the same in bf16")->excludes(fp16);
  CLI::Option* passes = c->add_option("--passes", o->passes, "run these passes instead of the default ones; --passes= runs none")->expected(0, 1);
  c->add_option("--skip-passes", o->skip_passes, "run the default passes without these")->excludes(passes);
  c->add_flag("--keep-padding", o->keep_padding, "compute padding too: by default real tokens alone are computed where attention proves which they are, and outputs are 0 at padding");
  c->add_flag("--allow-batch-variance", o->batch_variance, "let a library compute products of many rows of generation: faster prompts on Hopper GPUs, but logits have other bits beside other sequences and in other chunks");
  c->add_flag("--literal-only", o->literal_only, "leave out the program for generation, which a decoder's file has beside its graph as it was exported (see docs/generate.md)");
  add_size_flags(*c, o->sizes);
  c->add_option("--dump-ir", o->dump_ir, "write the graph after every pass into this folder");
  c->add_option("--dump-kernels", o->dump_kernels, "write the source of every kernel into this folder");
  c->add_option("--report", o->report, "write what was done as JSON");
  c->add_option("--tokenizer", o->tokenizer, "keep the tokenizer of this folder in the file: tokenizer.json and, if there, chat.json, generation_config.json, config.json");
  c->add_flag("--strict", o->strict, "fail if an attention, norm or GELU was left unfused, or padding was to be removed and was not");
  c->add_flag("--strip", o->strip, "leave IR, kernel sources and trace out of the file");
  add_threads(*c, o->threads, "threads that compile");
  c->add_option("--cache-dir", o->cache_dir, "where compiled kernels are kept; default: $XDG_CACHE_HOME/tfcc");
  c->add_option("--timing-cache,--timingCacheFile", o->timing_cache, "measured algorithms of products, from `tfcc tune`, to keep in the file");
  c->add_flag("--no-cache", o->no_cache, "compile every kernel again");
  c->add_flag("-v,--verbose", o->verbose, "a line for each node that was not fused, also where layers say the same");
  c->add_flag("-q,--quiet", o->quiet, "print errors and warnings alone");
  c->callback([o, passes, &action] {
    o->passes_given = passes->count() > 0;
    action = [o] { return compile_model(*o); };
  });
}

}  // namespace tfcc::tools
