// SPDX-License-Identifier: Apache-2.0
// tfcc compile: ONNX (or .tfir) to .tfcc, with dumps and a report of what was fused, what was not
// and why. The work is done by tools/compiler.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "codegen/plan/print.h"
#include "tools/compiler/compiler.h"
#include "tools/compiler/report.h"
#include "tools/support/fold.h"
#include "tools/support/output_file.h"
#include "tools/tfcc/command.h"

namespace tfcc::tools {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// What the parser fills, beside the compiler's own options: lists are texts with commas here.
struct CommandLine {
  std::string model, output, targets, cpu, passes, skip_passes, dump_ir, dump_kernels, report;
  std::vector<std::string> roles;
  bool fp16 = false, bf16 = false, tf32 = false, tf32x3 = false, no_cache = false, quiet = false,
       passes_given = false, verbose = false;
  compiler::Options options;
};

// Has it a past, or tokens that do not see those behind them?
bool is_decoder(const ir::Graph& graph) {
  const auto is_causal = [&](ir::OpId o) {
    const ir::Op& op = graph.op(o);
    if (op.kind == ir::OpKind::linear_attention) return op.as<ir::LinearAttentionAttrs>().causal;
    return op.kind == ir::OpKind::attention && op.as<ir::AttentionAttrs>().causal;
  };
  return graph.size_with(SizeRole::past) || std::ranges::any_of(graph.order(), is_causal);
}

void show(const compiler::Optimised& done, bool everything) {
  const frontend::ImportReport& import = done.import;
  std::printf(
      "imported %zu ONNX nodes, %zu of them shape and constant arithmetic that left no op (%zu such ops remain)\n",
      import.nodes, import.shape_nodes, import.shape_ops_left);
  for (const passes::PassReport& r : done.passes) {
    const bool fusion = r.pass.rfind("raise-", 0) == 0 || r.pass.rfind("fuse-", 0) == 0 ||
                        r.pass.rfind("classify-", 0) == 0 || r.pass.rfind("remove-", 0) == 0 ||
                        r.pass.rfind("join-", 0) == 0 || r.pass == "fold-products";
    const std::vector<passes::Miss> misses = compiler::still_missed(r, done.graph);
    if (!fusion || (r.rewrites == 0 && misses.empty())) continue;
    std::printf("  %-20s %4zu\n", r.pass.c_str(), r.rewrites);
    std::vector<std::pair<std::string, std::string>> items;
    for (const passes::Miss& m : misses) {
      items.emplace_back(m.node, m.reason);
      if (everything) std::printf("    not %s: %s\n", m.node.c_str(), m.reason.c_str());
    }
    if (everything) continue;
    for (const Folded& f : fold(items)) {
      std::printf("    not %s%s: %s\n", f.name.c_str(),
                  f.count > 1 ? fmt::format(" ({} times)", f.count).c_str() : "",
                  items[f.first].second.c_str());
    }
  }
  std::printf("%zu ops after all passes\n", compiler::count_ops(done.graph));
  for (const std::string& note : done.notes) std::printf("%s\n", note.c_str());
  const bool decodes = is_decoder(done.graph) && !done.no_generation.empty();
  if (done.lifted > 0 || decodes) std::printf("  %-20s %4zu\n", "lift-kv-cache", done.lifted);
  if (decodes) std::printf("    no program for generation: %s\n", done.no_generation.c_str());
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
    for (const codegen::KernelSource& k : l.kernels)
      TFCC_TRY_VOID(write(fs::path(dir) / runtime::source_file(l.plan, k.name), k.text));
  }
  return {};
}

double seconds_since(std::chrono::steady_clock::time_point t) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - t).count();
}

void show_code(const CommandLine& c, const compiler::Optimised& optimised,
               const codegen::CompileResult& code, double seconds) {
  std::string names;
  for (const auto& t : optimised.targets) names += (names.empty() ? "" : ", ") + t.name;
  for (const codegen::Lowered& l : code.plans) {
    std::printf("%s plan: %zu launches, %zu kernels, %s\n", l.plan.name.c_str(),
                l.plan.buckets.back().launches.size(), l.kernels.size(), l.plan.precision.c_str());
  }
  std::printf("wrote %s for %s: %.1f MB of weights, %.2f s\n", c.output.c_str(), names.c_str(),
              static_cast<double>(code.weight_bytes) / 1e6, seconds);
  if (const std::string note = compiler::advice(optimised, code, c.options); !note.empty())
    std::printf("note: %s\n", note.c_str());
}

// Lists and flags as the compiler takes them.
compiler::Options options_of(const CommandLine& c) {
  compiler::Options o = c.options;
  if (!c.targets.empty()) o.targets = split(c.targets);
  o.cpu_levels = split(c.cpu);
  if (!c.cpu.empty()) compiler::add_cpu(o);
  o.precision = c.fp16     ? "f16"
                : c.bf16   ? "bf16"
                : c.tf32   ? std::string(runtime::kTf32)
                : c.tf32x3 ? std::string(runtime::kTf32x3)
                           : "";
  if (c.passes_given) o.passes = split(c.passes);
  o.skip_passes = split(c.skip_passes);
  o.roles = compiler::parse_roles(c.roles);
  o.cache.enabled = !c.no_cache;
  o.on_graph = compiler::dump_graphs(c.dump_ir, c.model, process_files());
  return o;
}

Result<void> compile_model(CommandLine c) {
  const auto start = std::chrono::steady_clock::now();
  if (c.output.empty()) c.output = fs::path(c.model).replace_extension(".tfcc").string();
  c.options = options_of(c);
  TFCC_TRY_VOID(note_input(c.model));
  TFCC_TRY_VOID(plan_output("-o", c.output));
  TFCC_TRY_VOID(plan_output("--report", c.report));
  TFCC_TRY(const compiler::Optimised optimised,
           compiler::optimise({c.model}, c.options, process_files()));
  for (const std::string& w : optimised.import.warnings)
    std::fprintf(stderr, "warning: %s\n", w.c_str());
  if (!c.quiet) show(optimised, c.verbose);
  if (c.options.strict) TFCC_TRY_VOID(compiler::check_strict(optimised));

  std::optional<OutputFile>
      report;  // opened first: what cannot be written should not cost a compilation
  if (!c.report.empty()) {
    TFCC_TRY(OutputFile file, OutputFile::create(c.report));
    report.emplace(std::move(file));
  }
  std::optional<Progress> progress(std::in_place);
  c.options.progress = [&](const std::string& stage, size_t done, size_t total) {
    progress->update(stage, done, total);
  };
  const Result<codegen::CompileResult> code = compiler::write_code(optimised, c.output, c.options);
  progress.reset();
  if (!code) return code.error();
  if (report) {
    const std::string text =
        compiler::report_of(optimised, *code).dump(1, ' ', false, json::error_handler_t::replace) +
        "\n";
    TFCC_TRY_VOID(report->write(text.data(), text.size()));
    TFCC_TRY_VOID(report->commit());
  }
  if (!c.dump_kernels.empty()) TFCC_TRY_VOID(dump_kernels(c.dump_kernels, *code));
  for (const codegen::KernelResult& k : code->kernels) {
    if (k.spill_bytes > 0)
      std::fprintf(stderr, "warning: kernel %s spills %d bytes on %s\n", k.name.c_str(),
                   k.spill_bytes, k.target.c_str());
  }
  if (!c.quiet) show_code(c, optimised, *code, seconds_since(start));
  return {};
}

void add_size_options(CLI::App& command, compiler::SizeOptions& sizes) {
  command.add_option(
      "--seq-buckets", sizes.seq_buckets,
      "lengths, such as 64,128,512: kernels and graphs are made for each; longer inputs are refused");
  command.add_option("--max-batch", sizes.max_batch, "largest batch")
      ->check(CLI::Range(int64_t{1}, compiler::kMostOfSize));
  command.add_option("--max-tokens", sizes.max_tokens, "largest batch times length")
      ->check(CLI::Range(int64_t{1}, compiler::kMostOfSize));
  command.add_option(
      "--minShapes", sizes.min_shapes,
      "least sizes: input_ids:1x8 or batch_size=1; equal to --maxShapes: fixed sizes");
  command.add_option("--optShapes", sizes.opt_shapes, "usual sizes: memory is planned for them");
  command.add_option("--maxShapes", sizes.max_shapes, "largest sizes: input_ids:32x512");
}

// The model, what it is compiled for, and in which types.
void add_target_options(CLI::App* c, const std::shared_ptr<CommandLine>& o) {
  c->add_option("model", o->model, "the model: .onnx or .tfir")->required();
  c->add_option("-o,--output", o->output,
                "the file to write; default: the model's name with .tfcc");
  c->add_option(
      "--target", o->targets,
      "what to compile for: cpu, cuda, sm_80, sm_86, sm_89, sm_90, sm_100, sm_120, x86-64-v2..v4; default: the GPU that is there, else cpu");
  c->add_option(
      "--cpu", o->cpu,
      "compile for these levels of CPU: native, x86-64-v2, x86-64-v3 (AVX2), x86-64-v4 (AVX-512), all, or a list; the best that a machine has is run. Default for the target cpu: native,x86-64-v3,x86-64-v2");
  CLI::Option* fp16 =
      c->add_flag("--fp16", o->fp16,
                  "store and multiply in fp16 on CUDA; statistics and accumulation stay fp32");
  CLI::Option* bf16 = c->add_flag("--bf16", o->bf16, "the same in bf16")->excludes(fp16);
  CLI::Option* tf32 =
      c->add_flag(
           "--tf32", o->tf32,
           "multiply matrices of f32 with 10 bits of their fractions on CUDA; all is stored and added in fp32")
          ->excludes(fp16)
          ->excludes(bf16);
  c->add_flag(
       "--tf32x3", o->tf32x3,
       "multiply them on tensor cores with nearly fp32's accuracy, by three products in TF32 for each")
      ->excludes(fp16)
      ->excludes(bf16)
      ->excludes(tf32);
  c->add_option(
       "--cpu-weights", o->options.cpu_weights,
       "store weights of products on the CPU in bf16, which halves what a step of a decoder reads; products stay fp32")
      ->check(CLI::IsMember({"bf16"}));
}

// Returns --passes.
CLI::Option* add_graph_options(CLI::App* c, const std::shared_ptr<CommandLine>& o) {
  CLI::Option* passes =
      c->add_option("--passes", o->passes,
                    "run these passes instead of the default ones; --passes= runs none")
          ->expected(0, 1);
  c->add_option("--skip-passes", o->skip_passes, "run the default passes without these")
      ->excludes(passes);
  c->add_flag(
      "--keep-padding", o->options.keep_padding,
      "compute padding too: by default real tokens alone are computed where attention proves which they are, and outputs are 0 at padding");
  c->add_flag(
      "--allow-batch-variance", o->options.batch_variance,
      "let a library compute products of generation where it is faster: prompts, and on GPUs but Hopper's and in fp32 all; logits then have other bits beside other sequences and in other chunks");
  c->add_option(
      "--role", o->roles,
      "what an input of a decoder is for, if its name does not tell: NAME=ids|mask|positions|types; or OUTPUT=logits, PRESENT=PAST; kept in the file");
  c->add_flag(
      "--ragged", o->options.ragged,
      "also make a program for tokens without padding, sequence after sequence, with cu_seqlens in place of a mask (see docs/ragged.md)");
  c->add_flag(
      "--literal-only", o->options.literal_only,
      "leave out the program for generation, which a decoder's file has beside its graph as it was exported (see docs/generate.md)");
  c->add_flag(
      "--generate-only", o->options.generate_only,
      "leave out the graph as it was exported: a decoder's file is for `tfcc generate` alone, and smaller");
  add_size_options(*c, o->options.sizes);
  return passes;
}

// Files beside the model, and how it is told what was done.
void add_file_options(CLI::App* c, const std::shared_ptr<CommandLine>& o) {
  c->add_option("--dump-ir", o->dump_ir, "write the graph after every pass into this folder");
  c->add_option("--dump-kernels", o->dump_kernels,
                "write the source of every kernel into this folder");
  c->add_option("--report", o->report, "write what was done as JSON");
  c->add_option(
      "--tokenizer", o->options.tokenizer,
      "keep the tokenizer of this folder in the file: tokenizer.json, else tokenizer.model or tekken.json (or name one of these, or a .gguf file) and, if there, chat.json, generation_config.json, config.json");
  c->add_flag(
      "--strict", o->options.strict,
      "fail if an attention, norm or GELU was left unfused, or padding was to be removed and was not");
  c->add_flag("--strip", o->options.strip, "leave IR, kernel sources and trace out of the file");
  add_threads(*c, o->options.threads, "threads that compile");
  c->add_option("--cache-dir", o->options.cache.dir,
                "where compiled kernels are kept; default: $XDG_CACHE_HOME/tfcc");
  c->add_option("--timing-cache,--timingCacheFile", o->options.timing_cache,
                "measured algorithms of products, from `tfcc tune`, to keep in the file");
  c->add_flag("--no-cache", o->no_cache, "compile every kernel again");
  c->add_flag("-v,--verbose", o->verbose,
              "a line for each node that was not fused, also where layers say the same");
  c->add_flag("-q,--quiet", o->quiet, "print errors and warnings alone");
}

}  // namespace

void add_compile(CLI::App& app, Action& action) {
  auto o = std::make_shared<CommandLine>();
  CLI::App* c =
      app.add_subcommand("compile", "compile an ONNX model (or a .tfir graph) to a .tfcc file");
  add_target_options(c, o);
  CLI::Option* passes = add_graph_options(c, o);
  add_file_options(c, o);
  c->callback([o, passes, &action] {
    o->passes_given = passes->count() > 0;
    action = [o] { return compile_model(*o); };
  });
}

}  // namespace tfcc::tools
