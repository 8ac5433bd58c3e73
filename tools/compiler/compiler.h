// SPDX-License-Identifier: Apache-2.0
// The compiler as a library: a model and what is wanted of it in, a .tfcc file out. The command,
// the C API (tfcc_compiler.h), Python and the tests compile through it. It prints nothing; what
// there is to say goes through Options and the results.
//
//     Options options;
//     options.targets = {"cpu", "sm_90"};
//     options.precision = "f16";
//     tools::Files files;
//     TFCC_TRY(Compiled done, compile({"model.onnx"}, "model.tfcc", options, files));
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "codegen/compile.h"
#include "frontend/import/import.h"
#include "ir/graph.h"
#include "passes/passes.h"
#include "tools/compiler/model_source.h"
#include "tools/compiler/sizes.h"

namespace tfcc::compiler {

struct Options {
  std::optional<std::vector<std::string>>
      targets;  ///< names as parse_targets() takes them; without: default_target()
  std::vector<std::string>
      cpu_levels;  ///< what the target cpu stands for; empty: native, x86-64-v3 and x86-64-v2
  std::string
      precision;  ///< of products on GPUs: "f16", "bf16", "tf32", "tf32x3"; empty: as exported
  std::string
      cpu_weights;  ///< of products on the CPU, which computes in f32: "bf16"; empty: as exported
  std::optional<std::vector<std::string>> passes;  ///< in place of the default ones
  std::vector<std::string> skip_passes;            ///< default passes that do not run
  SizeOptions sizes;
  bool keep_padding = false;  ///< compute padding too
  bool batch_variance =
      false;  ///< generation: let a library compute products of many rows (docs/generate.md)
  /// What inputs of a decoder are for, where their names do not tell: {"tokens_in", "ids"}. Roles are
  /// those of GeneratorOptions::roles, which finds them in the file.
  std::vector<std::pair<std::string, std::string>> roles = {};
  bool ragged =
      false;  ///< add a program for tokens without padding (docs/ragged.md); an error if there can be none
  bool literal_only = false;   ///< leave out the program for generation
  bool generate_only = false;  ///< leave out all but that
  bool strict = false;         ///< a fusion that did not happen is an error
  bool strip = false;          ///< leave IR, sources and trace out of the file
  std::string
      tokenizer;  ///< a folder, or one file that text::Tokenizer::load() takes, to keep in the file; empty: none
  std::string timing_cache;  ///< a file of `tfcc tune` to keep in the file; empty: none
  int threads = 0;           ///< that compile kernels and make weights; 0: one per core
  codegen::KernelCacheOptions cache;
  OnGraph on_graph;
  std::function<void(const std::string& stage, size_t done, size_t total)>
      progress;  ///< by threads that compile, one at a time
};

/// Of NAME=ROLE each; without a sign the role is empty, which is none.
std::vector<std::pair<std::string, std::string>> parse_roles(const std::vector<std::string>& all);

/// Whoever names levels of CPU wants code for one: adds the target cpu, which may be there already.
inline void add_cpu(Options& o) {
  if (!o.targets) o.targets.emplace();
  o.targets->push_back("cpu");
}

/// What stands between a model and code: graphs after all passes, and what was done.
struct Optimised {
  Source source;
  frontend::ImportReport import;
  size_t imported_ops = 0;  // after import, constants not counted
  ir::Graph graph;          // after the passes, before it is made for a target
  std::vector<passes::PassReport> passes;
  std::vector<std::string> notes;  // lines that say what an option came to mean
  std::vector<codegen::TargetName> targets;
  std::vector<codegen::PlanInput> inputs;
  size_t lifted = 0;          // attentions of the program for generation
  std::string no_generation;  // why there is none
  std::vector<std::pair<std::string, std::string>> texts;        // kept for inspection
  std::vector<std::pair<std::string, std::string>> attachments;  // files of the tokenizer
  std::string timings;
};

/// What became of a model.
struct Compiled {
  Optimised optimised;
  codegen::CompileResult code;
};

/// Reads the model, resolves sizes, runs the passes for every family of targets. Files that it
/// reads are noted in `files`.
/// Errors: usage errors (tools/support/usage.h), those of load_graph(), io.
Result<Optimised> optimise(const Source& source, const Options& options, tools::Files& files);

/// Errors: unsupported, if an attention, norm or GELU was left unfused, or padding was to be
/// removed and was not; names the first. Also if a pass that fuses them did not run.
Result<void> check_strict(const Optimised& optimised);

/// Makes code of it and writes `output`, whole or not at all. Errors: those of codegen::compile().
Result<codegen::CompileResult> write_code(const Optimised& optimised, const std::string& output,
                                          const Options& options);

/// Both, with check_strict() between them if `strict` says so. Errors: also invalid_argument, if
/// `output` is a file that is read.
Result<Compiled> compile(const Source& source, const std::string& output, const Options& options,
                         tools::Files& files);

/// Why the passes, ragged-input among them, gave no program without padding; nothing if they did.
std::optional<Error> why_not_ragged(const std::string& model,
                                    const std::vector<passes::PassReport>& reports);

/// Ops of a graph, constants not counted.
size_t count_ops(const ir::Graph& graph);

/// What a pass left alone and what is still so at the end: a norm that fuse-residual-norm leaves
/// may be taken by fuse-embedding.
std::vector<passes::Miss> still_missed(const passes::PassReport& report, const ir::Graph& graph);

/// What was asked for in vain, or not asked for and likely wanted; empty: nothing.
std::string advice(const Optimised& optimised, const codegen::CompileResult& code,
                   const Options& options);

}  // namespace tfcc::compiler
