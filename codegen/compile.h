// SPDX-License-Identifier: Apache-2.0
// From graphs to a .tfcc file: lowers each graph to a plan, compiles its kernels for every target,
// writes the artifact.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "codegen/kernel_cache.h"
#include "codegen/lower.h"
#include "ir/graph.h"

namespace tfcc::codegen {

/// One code section: "sm_90", "compute_80" (PTX), "x86-64-v2".
struct TargetName {
  std::string name;
  Family family;
};

/// All names that parse_targets() knows.
std::vector<std::string> target_names();

/// Parses a list such as {"sm_90", "cpu", "cuda"}: "cpu" is what `cpu_levels` name, "cuda" every
/// GPU tfcc knows, and any GPU brings PTX for GPUs to come. Errors: invalid_argument (unknown
/// target, with the list).
Result<std::vector<TargetName>> parse_targets(const std::vector<std::string>& names,
                                              const std::vector<std::string>& cpu_levels = {
                                                  "native", "x86-64-v2"});
/// The levels of CPU with code of their own, lowest first.
const std::vector<std::string>& cpu_levels();
/// The GPUs with code of their own.
const std::vector<std::string>& cuda_architectures();

/// The programs that a file may have: the graph as it was exported, and beside it one for generation
/// and one for tokens without padding. This is their order in a file.
enum class ProgramKind : uint8_t { exported, generation, ragged };
/// Behind the names of its plans and texts: "", ".generate", ".ragged".
std::string_view suffix(ProgramKind kind);

/// A graph, after passes, for one family; each class of its targets gets a plan of it, or shares
/// one that is the same.
struct PlanInput {
  Family family;
  ir::Graph graph;
  LowerOptions options;
  ProgramKind kind = ProgramKind::exported;
};

struct CompileOptions {
  std::vector<TargetName> targets;
  std::string model_name;  // for inspection
  std::string report;      // JSON kept in the manifest
  bool strip = false;      // leave IR, kernel sources and `texts` out
  std::vector<std::pair<std::string, std::string>>
      texts;  // more to keep for inspection: name and text
  std::vector<std::pair<std::string, std::string>>
      attachments;            // files to keep with the model, whatever `strip` says: name and bytes
  std::string no_generation;  // why there is no program for generation
  std::string no_ragged;      // why there is none for tokens without padding
  std::string timings;        // a timing cache to keep in the file (docs/timing-cache.md)
  int threads = 0;            // 0: all cores
  KernelCacheOptions cache;
  std::function<void(const std::string& stage, size_t done, size_t total)> progress;
};

struct KernelResult {
  std::string name, target;
  int registers = 0;
  int spill_bytes = 0;
  bool cached = false;
  double ms = 0;  ///< to compile it, or the unit it is in; to find it, if it was cached
};

struct CompileResult {
  std::vector<Lowered> plans;  // equal ones once, in the order of the targets, program by program
  std::vector<KernelResult> kernels;
  uint64_t weight_bytes = 0;
};

/// Writes `path`; nothing is left behind on an error. Errors: unsupported, io, device (no NVRTC),
/// memory, internal.
Result<CompileResult> compile(const std::vector<PlanInput>& inputs, const std::string& path,
                              const CompileOptions& options);

/// Code in the order of the targets: images of each kernel, or one shared object.
struct TargetCode {
  TargetName target;
  size_t plan;
  std::vector<std::vector<std::byte>> images;
  uint32_t min_driver = 0;  // of CUDA
};

/// One use of a model, compiled: graphs of the same interface for each family, plans and code.
struct BuiltProgram {
  std::vector<const PlanInput*> inputs;
  std::vector<Lowered> plans;
  std::vector<TargetCode> code;
};

/// The artifact alone, from what compile() made: the first program is the file's, which may be
/// for generation alone; others stand beside it.
Result<void> write_artifact(const std::string& path, const std::vector<BuiltProgram>& programs,
                            const WeightPool& weights, const CompileOptions& options,
                            CompileResult& result);

}  // namespace tfcc::codegen
