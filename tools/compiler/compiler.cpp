// SPDX-License-Identifier: Apache-2.0
#include "tools/compiler/compiler.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "ir/norm.h"
#include "passes/match.h"
#include "runtime/text/tokenizer.h"
#include "runtime/tfcc.h"
#include "runtime/core/timing_cache.h"
#include "tools/compiler/report.h"
#include "tools/compiler/trace.h"
#include "tools/support/usage.h"

namespace tfcc::compiler {
namespace {

namespace fs = std::filesystem;
using tools::Files, tools::usage_error;

// What a timing cache holds, in the form that is kept. Products are measured by `tfcc tune`, which
// needs a GPU.
Result<std::string> timings_of(const std::string& path, Files& files) {
  if (path.empty()) return std::string();
  TFCC_TRY_VOID(files.note_input(path));
  runtime::TimingCache cache;
  TFCC_TRY_VOID(cache.load(path));
  if (cache.size() == 0) {
    return Error{ErrorCode::io,
                 path + ": holds no timings; `tfcc tune` measures them, on a machine with a GPU"};
  }
  return cache.text();
}

// The files of a tokenizer, which `tfcc generate` reads. It is read here too: a file that cannot be
// used is not kept.
Result<std::vector<std::pair<std::string, std::string>>> tokenizer_files(const std::string& folder,
                                                                         Files& files) {
  std::vector<std::pair<std::string, std::string>> out;
  if (folder.empty()) return out;
  TFCC_TRY_VOID(text::Tokenizer::load(folder));
  // That of the folder, or the file that is named, under the name that tells what it is.
  const bool is_folder = fs::is_directory(folder);
  std::string own = folder.ends_with(".model")  ? "tokenizer.model"
                    : folder.ends_with(".gguf") ? "tokenizer.gguf"
                                                : text::kTokenizerFiles[0];
  for (const char* name : text::kTokenizerFiles)
    if (is_folder && !fs::exists(fs::path(folder) / own)) own = name;
  for (const std::string& name :
       {own, std::string("chat.json"), std::string("generation_config.json"),
        std::string("config.json")}) {
    const fs::path path =
        is_folder ? fs::path(folder) / name : fs::path(folder).parent_path() / name;
    const fs::path file = name == own && !is_folder ? fs::path(folder) : path;
    std::ifstream stream(file, std::ios::binary);
    if (!stream) continue;
    TFCC_TRY_VOID(files.note_input(file.string()));
    if (name == "tokenizer.gguf") {  // without the weights
      TFCC_TRY(std::string metadata, text::gguf_metadata(stream));
      out.emplace_back(name, std::move(metadata));
      continue;
    }
    out.emplace_back(name, std::string((std::istreambuf_iterator<char>(stream)),
                                       std::istreambuf_iterator<char>()));
  }
  return out;
}

// What code generation says of an op, with the model that the op is of.
Error about_model(Error e, const std::string& model) {
  const bool of_model = e.code == ErrorCode::unsupported || e.code == ErrorCode::shape ||
                        e.code == ErrorCode::internal;
  if (of_model && !e.message.starts_with(model)) e.message = model + ": " + e.message;
  return e;
}

bool has_family(const std::vector<codegen::TargetName>& targets, Family family) {
  return std::any_of(targets.begin(), targets.end(),
                     [&](const auto& t) { return t.family == family; });
}

Result<std::vector<codegen::TargetName>> targets_of(const Options& o) {
  const std::vector<std::string> levels =
      o.cpu_levels.empty() ? std::vector<std::string>{"native", "x86-64-v3", "x86-64-v2"}
                           : o.cpu_levels;
  auto targets = codegen::parse_targets(
      o.targets ? *o.targets : std::vector<std::string>{default_target()}, levels);
  if (!targets) return usage_error(targets.error().message);
  if (targets->empty()) return usage_error("--target names no target");
  return targets;
}

// The way of one model through the passes.
class Pipeline {
 public:
  Pipeline(const Source& source, const Options& options, Files& files)
      : options_(options), files_(files) {
    out_.source = source;
  }

  Result<Optimised> run() {
    TFCC_TRY_VOID(check_options());
    TFCC_TRY(out_.timings, timings_of(options_.timing_cache, files_));
    TFCC_TRY(out_.attachments, tokenizer_files(options_.tokenizer, files_));
    TFCC_TRY(out_.targets, targets_of(options_));
    TFCC_TRY_VOID(check_passes(options_.passes.value_or(std::vector<std::string>())));
    TFCC_TRY(default_passes_, default_passes_without(options_.skip_passes));
    if (options_.keep_padding) std::erase(default_passes_, "remove-padding");
    plan_lifting();
    TFCC_TRY_VOID(import());
    Trace trace(out_.graph, out_.import);
    passes::Provenance provenance(out_.graph);
    TFCC_TRY(out_.passes,
             run_passes(out_.graph, options_.passes.value_or(default_passes_), "", &provenance));
    TFCC_TRY_VOID(lift());
    if (options_.generate_only && !lifted_)
      return Error{ErrorCode::unsupported,
                   fmt::format("{}: --generate-only: it has no program for generation: {}",
                               out_.source.path, out_.no_generation)};
    if (options_.ragged) TFCC_TRY_VOID(make_ragged());
    TFCC_TRY_VOID(make_inputs(trace, provenance));
    if (!options_.strip) out_.texts = trace.texts();
    return std::move(out_);
  }

 private:
  Result<void> check_options() const {
    if (options_.threads < 0 || options_.threads > kMaxThreads) {
      return usage_error(
          fmt::format("--threads: {} is no number of threads from 0 (one per core) to {}",
                      options_.threads, kMaxThreads));
    }
    const std::string& p = options_.precision;
    if (!p.empty() && p != "f16" && p != "bf16" && p != runtime::kTf32 && p != runtime::kTf32x3)
      return usage_error(fmt::format("the precision is f16, bf16, tf32 or tf32x3, not '{}'", p));
    if (options_.literal_only && options_.generate_only)
      return usage_error("--literal-only and --generate-only leave nothing of a model");
    if (options_.ragged && options_.keep_padding)
      return usage_error("--ragged and --keep-padding are of different programs; leave one out");
    if (options_.ragged && options_.generate_only)
      return usage_error(
          "--ragged adds to the graph as it was exported, which --generate-only leaves out");
    if (const std::string& w = options_.cpu_weights; !w.empty() && w != "bf16")
      return usage_error(fmt::format("--cpu-weights is bf16, not '{}'", w));
    return {};
  }

  Result<void> see(const std::string& step, const ir::Graph& graph) const {
    return options_.on_graph ? options_.on_graph(step, graph) : Result<void>();
  }

  Result<void> import() {
    auto graph = load_graph(out_.source, files_, &out_.import);
    const bool takes_any = static_cast<bool>(graph);
    if (!takes_any) {  // perhaps it takes those of the options alone
      if (!options_.sizes.any()) return graph.error();
      const auto inputs = load_inputs(out_.source, files_);
      if (!inputs) return graph.error();
      TFCC_TRY(sizes_, resolve_sizes(options_.sizes, *inputs));
    } else {
      TFCC_TRY(sizes_, resolve_sizes(options_.sizes, *graph));
    }
    if (!takes_any || !sizes_.ranges.empty()) {
      TFCC_TRY(graph, load_graph(out_.source, files_, &out_.import, sizes_.ranges));
    }
    out_.graph = *std::move(graph);
    out_.notes = sizes_.notes;
    out_.imported_ops = count_ops(out_.graph);
    TFCC_TRY_VOID(check_roles());
    give_roles(out_.graph);
    std::string roles;
    for (const auto& [name, role] : options_.roles) roles += name + "=" + role + "\n";
    if (!roles.empty()) out_.attachments.emplace_back("roles.txt", roles);
    if (const auto most = most_context(); most && options_.generate_only)
      out_.attachments.emplace_back("max_context.txt", std::to_string(*most));
    return see("import", out_.graph);
  }

  // Tokens that the graph as exported takes, of a past and one more, or at once; nothing if any
  // number. The program for generation does not say.
  std::optional<int64_t> most_context() const {
    const ir::Graph& g = out_.graph;
    if (const ir::SizeSymbol* past = g.size_with(SizeRole::past)) {
      const auto most = g.pool().range(past->name).max;
      return most ? std::optional(*most + 1) : std::nullopt;
    }
    const ir::SizeSymbol* length = g.size_with(SizeRole::length);
    return length ? g.pool().range(length->name).max : std::nullopt;
  }

  // Whether the graph is kept for generation on its way through the passes, and if not why.
  void plan_lifting() {
    const auto kept =
        std::find(default_passes_.begin(), default_passes_.end(), passes::kLiftedBefore);
    const bool can = kept != default_passes_.begin() && kept != default_passes_.end();
    if (options_.literal_only) out_.no_generation = "it was compiled with --literal-only";
    else if (options_.passes) out_.no_generation = "its passes were chosen by hand";
    else if (!can)
      out_.no_generation =
          fmt::format("it is made before {}, which was left out", passes::kLiftedBefore);
    else before_lifting_ = kept - default_passes_.begin();
  }

  // Passes by name; the graph as it was before `kLiftedBefore` is kept for generation.
  Result<std::vector<passes::PassReport>> run_passes(ir::Graph& graph,
                                                     const std::vector<std::string>& names,
                                                     const std::string& prefix,
                                                     passes::Provenance* provenance) {
    Result<void> seen;
    auto left = before_lifting_;
    auto after = [&](const passes::PassReport& r, const ir::Graph& g) {
      if (&graph == &out_.graph && left > 0 && --left == 0) lifted_ = g;
      if (seen) seen = see(prefix + r.pass, g);
    };
    TFCC_TRY(auto reports, passes::run_passes(graph, names, after, provenance));
    TFCC_TRY_VOID(std::move(seen));
    for (const passes::PassReport& r : reports) {
      for (const passes::Miss& miss : r.misses) {
        if (miss.reason.starts_with(passes::kUndone))
          out_.notes.push_back(fmt::format("{}{}: {}", prefix, r.pass, miss.reason));
      }
    }
    return reports;
  }

  // What --role says of inputs; that of a present is for the graph as it was exported.
  void give_roles(ir::Graph& g) const {
    for (const auto& [input, role] : options_.roles) {
      for (int i = 1; i < kGivenRoleCount; ++i) {
        const auto is = static_cast<InputRole>(i);
        const ir::ValueId v = g.find_value(input);
        if (to_string(is) == role && v.valid() && !g.def(v)) {
          for (ir::ValueId other : g.inputs()) {
            if (g.value(other).role == is) g.set_role(other, InputRole::none);
          }
          g.set_role(v, is);
        }
      }
    }
  }

  Result<void> check_roles() const {
    std::set<std::string> inputs, all, taken;
    for (ir::ValueId v : out_.graph.inputs()) inputs.insert(out_.graph.value(v).name);
    all = inputs;
    for (const ir::Graph::Output& o : out_.graph.outputs) all.insert(o.name);
    const std::set<std::string> roles = {"ids", "mask", "positions", "types", "logits"};
    for (const auto& [name, role] : options_.roles) {
      if (!all.contains(name))
        return usage_error(
            fmt::format("--role: '{}' is no input or output of {}", name, out_.source.name()));
      if (!roles.contains(role) && !inputs.contains(role))
        return usage_error(fmt::format(
            "--role: '{}' of '{}' is neither ids, mask, positions, types or logits nor an input",
            role, name));
      if (const ir::ValueId v = out_.graph.find_value(name);
          inputs.contains(name) && roles.contains(role)) {
        const ir::Type& type = out_.graph.value(v).type;
        const bool whole = type.dtype == DType::i64 || type.dtype == DType::i32;
        if (type.rank() != 2 || (!whole && role != "mask"))
          return usage_error(fmt::format("--role: '{}' is {}; {} are {}of [batch, length]", name,
                                         ir::to_string(type), role,
                                         role == "mask" ? "numbers " : "whole numbers "));
      }
      if (!taken.insert(role).second)
        return usage_error(fmt::format("--role: two have the role {}", role));
    }
    return {};
  }

  // The program for generation, from the graph as it was kept.
  Result<void> lift() {
    if (!lifted_) return {};
    const std::string prefix = kGeneratePrefix;
    TFCC_TRY(const auto lifting, run_passes(*lifted_, {"lift-kv-cache"}, prefix, nullptr));
    out_.lifted = lifting[0].rewrites;
    if (out_.lifted == 0) {
      out_.no_generation =
          lifting[0].misses.empty()
              ? "it has no attention"
              : fmt::format("{}: {}", lifting[0].misses[0].node, lifting[0].misses[0].reason);
      lifted_.reset();
      return {};
    }
    std::vector<std::string> rest = passes::generation_passes(default_passes_);
    rest.erase(rest.begin());
    TFCC_TRY([[maybe_unused]] const auto done, run_passes(*lifted_, rest, prefix, nullptr));
    return {};
  }

  // The program for tokens without padding, of the graph without it.
  Result<void> make_ragged() {
    ragged_ = out_.graph;
    TFCC_TRY(const auto done, run_passes(*ragged_, {"ragged-input"}, "", nullptr));
    if (done[0].rewrites > 0) return {};
    std::vector<passes::PassReport> all = out_.passes;
    all.insert(all.end(), done.begin(), done.end());
    return *why_not_ragged(out_.source.path, all);
  }

  using ProgramKind = codegen::ProgramKind;

  // The graph of a program, if the file gets that program.
  const ir::Graph* graph_of(ProgramKind kind) const {
    if (kind == ProgramKind::generation) return lifted_ ? &*lifted_ : nullptr;
    if (kind == ProgramKind::ragged) return ragged_ ? &*ragged_ : nullptr;
    return options_.generate_only ? nullptr : &out_.graph;
  }

  Result<void> make_inputs(Trace& trace, const passes::Provenance& provenance) {
    for (const ProgramKind kind :
         {ProgramKind::exported, ProgramKind::generation, ProgramKind::ragged}) {
      if (graph_of(kind) == nullptr) continue;
      for (const Family family : {Family::cuda, Family::cpu}) {
        if (!has_family(out_.targets, family)) continue;
        passes::Provenance sources = provenance;
        const bool exported = kind == ProgramKind::exported;
        TFCC_TRY(codegen::PlanInput in, make_input(family, kind, exported ? &sources : nullptr));
        if (exported) trace.add_graph(std::string(to_string(family)), in.graph, sources);
        out_.inputs.push_back(std::move(in));
      }
    }
    return {};
  }

  // The graph of a program as a family of targets computes it.
  Result<codegen::PlanInput> make_input(Family family, ProgramKind kind,
                                        passes::Provenance* sources) {
    const bool generates = kind == ProgramKind::generation;
    codegen::PlanInput in{family, *graph_of(kind), {}, kind};
    if (!generates) sizes_.give(in.options);
    in.options.batch_variance = options_.batch_variance;
    if (family == Family::cuda && !options_.precision.empty())
      in.options.precision = options_.precision;
    std::vector<std::string> names =
        passes_of_target(family, options_.precision, options_.cpu_weights);
    if (generates) names.push_back("sample-tokens");
    TFCC_TRY([[maybe_unused]] auto converted,
             run_passes(in.graph, names,
                        generates                     ? kGeneratePrefix
                        : kind == ProgramKind::ragged ? kRaggedPrefix
                                                      : "",
                        sources));
    return in;
  }

  // Before the names of passes, in dumps.
  static constexpr const char *kGeneratePrefix = "generate-", *kRaggedPrefix = "ragged-";

  const Options& options_;
  Files& files_;
  Optimised out_;
  std::vector<std::string> default_passes_;
  ResolvedSizes sizes_;
  std::ptrdiff_t before_lifting_ = 0;  // passes before the graph is kept; 0: it is not
  std::optional<ir::Graph> lifted_;    // what they made, then its form for generation
  std::optional<ir::Graph> ragged_;    // the form for tokens without padding
};

}  // namespace

std::optional<Error> why_not_ragged(const std::string& model,
                                    const std::vector<passes::PassReport>& reports) {
  const passes::Miss* why = nullptr;
  for (const passes::PassReport& r : reports) {
    // Why its padding was kept, where that is the reason.
    if (r.pass == "remove-padding" && r.rewrites == 0 && !r.misses.empty()) why = &r.misses[0];
    if (r.pass != "ragged-input") continue;
    if (r.rewrites > 0) return std::nullopt;
    if (why == nullptr) why = &r.misses.at(0);
  }
  if (why == nullptr) return std::nullopt;
  return Error{ErrorCode::unsupported,
               fmt::format("{}: --ragged: it takes no tokens without padding: {}: {}", model,
                           why->node, why->reason)};
}

std::vector<std::pair<std::string, std::string>> parse_roles(const std::vector<std::string>& all) {
  std::vector<std::pair<std::string, std::string>> out;
  for (const std::string& role : all) {
    const size_t at = role.rfind('=');
    out.emplace_back(role.substr(0, at), at == role.npos ? "" : role.substr(at + 1));
  }
  return out;
}

Result<Optimised> optimise(const Source& source, const Options& options, Files& files) {
  return Pipeline(source, options, files).run();
}

Result<codegen::CompileResult> write_code(const Optimised& optimised, const std::string& output,
                                          const Options& o) {
  codegen::CompileOptions options;
  options.targets = optimised.targets;
  options.model_name = optimised.source.name();
  options.report =
      report_of(optimised).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  options.strip = o.strip;
  options.texts = optimised.texts;
  options.attachments = optimised.attachments;
  options.no_generation = optimised.no_generation;
  if (!o.ragged) options.no_ragged = "it was compiled without --ragged";
  options.timings = optimised.timings;
  options.threads = o.threads;
  options.cache = o.cache;
  options.progress = o.progress;
  auto code = codegen::compile(optimised.inputs, output, options);
  if (!code) return about_model(code.error(), optimised.source.path);
  return code;
}

Result<void> check_strict(const Optimised& optimised) {
  const auto insists_on = [](const std::string& pass) {
    return pass == "fuse-attention" || pass == "classify-mask" || pass.starts_with("raise-");
  };
  for (const std::string& pass : passes::default_pipeline()) {
    const auto ran = [&](const passes::PassReport& r) { return r.pass == pass; };
    if (insists_on(pass) && std::none_of(optimised.passes.begin(), optimised.passes.end(), ran)) {
      return Error{ErrorCode::unsupported,
                   fmt::format("{}: --strict: {} did not run; leave --skip-passes and --passes out",
                               optimised.source.path, pass)};
    }
  }
  size_t n = 0;
  std::string first;
  for (const passes::PassReport& r : optimised.passes) {
    if (r.misses.empty() || (r.pass != "remove-padding" && !insists_on(r.pass))) continue;
    if (n == 0) first = fmt::format("{}: {}: {}", r.pass, r.misses[0].node, r.misses[0].reason);
    n += r.misses.size();
  }
  if (n == 0) return {};
  return Error{
      ErrorCode::unsupported,
      fmt::format("{}: --strict: {} fusion{} did not happen; the first: {}{}",
                  optimised.source.path, n, n == 1 ? "" : "s", first,
                  first.starts_with("remove-padding") ? "; --keep-padding does without" : "")};
}

Result<Compiled> compile(const Source& source, const std::string& output, const Options& options,
                         Files& files) {
  TFCC_TRY_VOID(files.plan_output("output", output));
  TFCC_TRY(Optimised optimised, optimise(source, options, files));
  if (options.strict) TFCC_TRY_VOID(check_strict(optimised));
  TFCC_TRY(codegen::CompileResult code, write_code(optimised, output, options));
  return Compiled{std::move(optimised), std::move(code)};
}

size_t count_ops(const ir::Graph& graph) {
  size_t ops = 0;
  for (ir::OpId o : graph.order()) ops += graph.op(o).kind != ir::OpKind::constant;
  return ops;
}

std::vector<passes::Miss> still_missed(const passes::PassReport& report, const ir::Graph& graph) {
  std::vector<passes::Miss> out = report.misses;
  if (report.pass != "fuse-residual-norm") return out;
  for (ir::OpId o : graph.order()) {
    if (graph.op(o).kind != ir::OpKind::norm || ir::normed_value(graph, o)) continue;
    std::erase_if(out, [&](const passes::Miss& m) { return m.node == passes::label(graph, o); });
  }
  return out;
}

std::string advice(const Optimised& optimised, const codegen::CompileResult& code,
                   const Options& o) {
  const bool cuda = has_family(optimised.targets, Family::cuda);
  if (!o.precision.empty() && !cuda)
    return fmt::format("--{} is for GPUs; the CPU computes in f32",
                       o.precision == "f16" ? "fp16" : o.precision);
  if (!o.cpu_weights.empty() && !has_family(optimised.targets, Family::cpu))
    return "--cpu-weights is for the CPU, and none of the targets is one";
  if ((o.precision == runtime::kTf32 || o.precision == runtime::kTf32x3) &&
      std::ranges::none_of(
          code.plans, [&](const codegen::Lowered& l) { return l.plan.precision == o.precision; }))
    return fmt::format(
        "--{} changes nothing: {}", o.precision,
        o.generate_only && !o.batch_variance
            ? "a generated token has the same bits in any batch; --allow-batch-variance gives that up"
            : "the model has no product of f32 that could be in TF32");
  if (!o.precision.empty() || !cuda) return "";
  for (const codegen::PlanInput& in : optimised.inputs) {
    if (in.family != Family::cuda) continue;
    for (ir::OpId op : in.graph.order()) {
      const ir::Op& x = in.graph.op(op);
      if (x.kind != ir::OpKind::matmul || in.graph.value(x.operands[0]).type.dtype != DType::f32)
        continue;
      return fmt::format(
          "its GPU code computes in f32; with --tf32x3 it is faster beyond 128 rows and nearly as accurate, with --fp16 or --tf32 several times faster, and `tfcc verify {} --fp16`, or --tf32, tells how far that is off",
          optimised.source.path);
    }
  }
  return "";
}

}  // namespace tfcc::compiler
