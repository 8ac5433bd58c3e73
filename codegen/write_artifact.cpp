// SPDX-License-Identifier: Apache-2.0
// The only writer of .tfcc files: weights are made from their recipes, a few of them ahead, and
// streamed out, then code and text, then the manifest.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "codegen/artifact_file.h"
#include "codegen/compile.h"
#include "codegen/manifest_bytes.h"
#include "codegen/parallel.h"
#include "codegen/plan/sizes.h"
#include "codegen/plan/size_limit.h"
#include "ir/elements.h"
#include "ir/ir.h"
#include "runtime/core/checksum.h"
#include "runtime/core/timing_cache.h"

namespace tfcc::codegen {
namespace {

using runtime::Manifest;
using runtime::Program;
using runtime::SectionKind;

// A condition over sizes as checks of the runtime: conjunctions of p >= 0 and p == 0.
Result<void> add_checks(Program& m, ir::ExprRef condition, const std::string& message,
                        const std::vector<std::string>& symbols) {
  using ir::ExprKind;
  if (condition->kind == ExprKind::btrue) return {};
  if (condition->kind == ExprKind::band) {
    for (ir::ExprRef a : condition->args) TFCC_TRY_VOID(add_checks(m, a, message, symbols));
    return {};
  }
  if (condition->kind != ExprKind::ge0 && condition->kind != ExprKind::eq0) {
    return Error{
        ErrorCode::unsupported,
        fmt::format("the size condition '{}' cannot be checked at run time", ir::print(condition))};
  }
  m.checks.push_back(
      {size_program(condition->args[0], symbols), condition->kind == ExprKind::eq0, message});
  return {};
}

runtime::TensorType tensor(const std::string& name, const ir::Type& type,
                           const std::vector<std::string>& symbols, bool is_state = false) {
  runtime::TensorType t{name, type.dtype, {}, is_state};
  for (ir::ExprRef d : type.dims) t.dims.push_back(size_program(d, symbols));
  return t;
}

Result<void> set_interface(Program& m, const ir::Graph& g, const LowerOptions& options) {
  const std::vector<std::string> symbols =
      Sizes(g).names();  // shapes and checks are over the graph's own expressions
  for (const ir::SizeSymbol* s : Sizes::told(g)) {
    const ir::SymbolRange range = g.pool().range(s->name);
    runtime::Symbol& x = m.symbols.emplace_back();
    x.name = s->name;
    x.max = range.max.value_or(0);
    x.role = s->role;
    if (!s->read()) {
      x.value = size_program(s->made() ? s->bound : s->formula, symbols);
      x.made = s->made();
    } else {
      x.min = range.min;
      x.input = static_cast<uint32_t>(s->input);
      x.axis = static_cast<uint32_t>(s->axis);
      if (s->multiple > 1) x.multiple = s->multiple;
    }
    const auto said = options.sizes.find(s->name);
    if (said == options.sizes.end()) continue;
    x.min_from = said->second.min_from;
    x.max_from = said->second.max_from;
    x.typical = said->second.typical;
  }
  const size_t outputs = ir::plain_outputs(g);
  for (ir::ValueId v : g.inputs()) {
    const bool is_state =
        std::any_of(g.outputs.begin() + static_cast<std::ptrdiff_t>(outputs), g.outputs.end(),
                    [&](const auto& o) { return ir::state_before(g, o.value) == v; });
    m.inputs.push_back(tensor(g.value(v).name, g.value(v).type, symbols, is_state));
    m.inputs.back().role = g.value(v).role;
  }
  for (size_t i = 0; i < outputs; ++i)
    m.outputs.push_back(tensor(g.outputs[i].name, g.value(g.outputs[i].value).type, symbols));
  for (const ir::SizeCheck& c : g.checks)
    TFCC_TRY_VOID(add_checks(m, c.condition, c.message, symbols));
  if (ir::ExprRef condition = sizes_fit(g)) {
    TFCC_TRY_VOID(add_checks(
        m, condition,
        "the sizes of the inputs are too large: an index made of them would not fit 64 bits; use smaller shapes",
        symbols));
  }
  for (const std::string& f : g.flags) m.flags.push_back({f});
  return {};
}

uint64_t checksum(std::span<const std::byte> bytes) {
  runtime::Checksum sum;
  sum.update(bytes.data(), bytes.size());
  return sum.value();
}

// Does `part` stand in `whole` from there on, at a place where a weight may begin?
bool stands_in(std::span<const std::byte> whole, size_t offset, std::span<const std::byte> part) {
  return offset % runtime::kWeightAlignment == 0 && offset + part.size() <= whole.size() &&
         std::ranges::equal(whole.subspan(offset, part.size()), part);
}

/// A weight's bytes, and their checksum.
struct MadeWeight {
  ir::ConstantBytes bytes;
  uint64_t sum;
};

/// Writes the weights of a file, each once: what is joined in one program and not in another too.
class WeightWriter {
 public:
  WeightWriter(ArtifactFile& file, const WeightPool& weights, const CompileOptions& options)
      : file_(file),
        weights_(weights),
        options_(options),
        parts_(weights.parts()),
        written_(parts_.size()) {}

  /// Those first that others are parts of.
  Result<std::vector<runtime::Weight>> write_all() {
    TFCC_TRY_VOID(write_those([&](size_t i) { return !parts_[i].empty(); }));
    TFCC_TRY_VOID(write_those([](size_t) { return true; }));
    std::vector<runtime::Weight> all;
    for (std::optional<runtime::Weight>& w : written_) all.push_back(*std::move(w));
    return all;
  }

 private:
  static constexpr uint64_t kMostAhead = 8 << 20;
  static constexpr int kMostThreads = 4;  // the one that writes among them; more wait for the disk

  const ir::Constant& constant(size_t i) const { return weights_.entries()[i].constant; }

  template <class F> Result<void> write_those(const F& wanted) {
    std::vector<size_t> order;
    for (size_t i = 0; i < parts_.size(); ++i) {
      if (!written_[i] && wanted(i)) order.push_back(i);
    }
    MakeAhead<Result<MadeWeight>> ahead(
        order.size(), std::min(threads_or_all(options_.threads), kMostThreads) - 1, kMostAhead,
        [&](size_t k) {
          const ir::Constant& c = constant(order[k]);
          return static_cast<uint64_t>(c.element_count()) * size_of(c.result_dtype());
        },
        [&](size_t k) -> Result<MadeWeight> {
          TFCC_TRY(ir::ConstantBytes bytes, ir::read_constant(constant(order[k])));
          const uint64_t sum = checksum(bytes.span());
          return MadeWeight{std::move(bytes), sum};
        });
    for (const size_t i : order) {
      TFCC_TRY(const MadeWeight made, ahead.take());
      if (!written_[i]) TFCC_TRY_VOID(write(i, made));
      ir::let_go(constant(i));
    }
    return {};
  }

  Result<void> write(size_t i, const MadeWeight& made) {
    const std::span<const std::byte> bytes = made.bytes.span();
    TFCC_TRY(const uint64_t offset, file_.align(runtime::kWeightAlignment));
    TFCC_TRY_VOID(file_.write(bytes));
    note(i, offset, bytes.size(), made.sum);
    size_t shared = 0;  // no more than what they lie in: a reader of all reads it twice at most
    for (const WeightPool::Part& p : parts_[i]) {
      if (written_[p.weight]) continue;
      TFCC_TRY(const ir::ConstantBytes part, ir::read_constant(constant(p.weight)));
      const size_t size = part.span().size();
      if (shared + size > bytes.size() || !stands_in(bytes, p.offset, part.span())) continue;
      shared += size;
      note(p.weight, offset + p.offset, size, checksum(part.span()));
    }
    return {};
  }

  void note(size_t i, uint64_t offset, size_t size, uint64_t sum) {
    const WeightPool::Entry& e = weights_.entries()[i];
    written_[i] = {e.name, e.constant.result_dtype(), e.constant.result_dims(), offset, size, sum};
    if (options_.progress) options_.progress("writing weights", ++done_, parts_.size());
  }

  ArtifactFile& file_;
  const WeightPool& weights_;
  const CompileOptions& options_;
  const std::vector<std::vector<WeightPool::Part>> parts_;  // of each weight, what may lie in it
  std::vector<std::optional<runtime::Weight>> written_;
  size_t done_ = 0;
};

Result<void> write_weights(ArtifactFile& file, Manifest& m, const WeightPool& weights,
                           const CompileOptions& options) {
  if (weights.entries().empty()) return {};
  TFCC_TRY_VOID(file.begin_section(SectionKind::weights));
  TFCC_TRY(m.weights, WeightWriter(file, weights, options).write_all());
  file.end_section();
  return {};
}

Result<void> write_code(ArtifactFile& file, Program& m, const std::vector<TargetCode>& code) {
  for (const TargetCode& c : code) {
    TFCC_TRY_VOID(file.begin_section(SectionKind::code));
    runtime::Target& t =
        m.targets.emplace_back(runtime::Target{c.target.name, static_cast<uint32_t>(c.plan)});
    for (const auto& image : c.images) {
      TFCC_TRY(uint64_t offset, file.align(runtime::kWeightAlignment));
      TFCC_TRY_VOID(file.write(image));
      t.images.push_back({offset, image.size()});
    }
    t.section = file.end_section();
    t.min_driver = c.min_driver;
  }
  return {};
}

Result<void> write_texts(ArtifactFile& file, Manifest& m, const std::vector<BuiltProgram>& programs,
                         const CompileOptions& options) {
  if (options.strip && options.timings.empty() && options.attachments.empty()) return {};
  TFCC_TRY_VOID(file.begin_section(SectionKind::text));
  auto add = [&](const std::string& name, const std::string& text) -> Result<void> {
    m.texts.push_back({name, file.section_bytes(), text.size()});
    return file.write(std::as_bytes(std::span(text.data(), text.size())));
  };
  if (!options.timings.empty()) TFCC_TRY_VOID(add(runtime::kTimingText, options.timings));
  for (const auto& [name, bytes] : options.attachments)
    TFCC_TRY_VOID(add(runtime::kAttachmentPrefix + name, bytes));
  if (!options.strip) {
    for (const auto& [name, text] : options.texts) TFCC_TRY_VOID(add(name, text));
    for (const BuiltProgram& program : programs) {
      for (const Lowered& l : program.plans) {
        for (const KernelSource& k : l.kernels)
          TFCC_TRY_VOID(add("kernels/" + runtime::source_file(l.plan, k.name), k.text));
      }
    }
    for (const BuiltProgram& program : programs) {
      for (const PlanInput* in : program.inputs) {
        TFCC_TRY_VOID(add(fmt::format("ir/{}{}.tfir", to_string(in->family), suffix(in->kind)),
                          ir::print(in->graph)));
      }
    }
  }
  file.end_section();
  return {};
}

uint64_t features_of(const runtime::Plan& plan, const runtime::Launch& launch) {
  uint64_t features = 0;
  if (!launch.kernel) return launch.matmul->side_by_side ? runtime::kSideBySide : features;
  if (launch.kernel->tiles) features |= runtime::kTileChoices;
  for (const runtime::TensorMap& map : launch.kernel->maps) {
    const size_t size = size_of(plan.buffers[map.buffer].dtype);
    features |= runtime::kTensorMaps;
    if (size == 1) features |= runtime::kByteMaps;
    if (size == 4) features |= runtime::kF32Maps;
  }
  return features;
}

// What a reader must know of to run this program.
uint64_t features_of(const Program& program) {
  uint64_t features = 0;
  for (const runtime::Plan& p : program.plans) {
    if (p.counters > 0) features |= runtime::kCounters;
    for (const runtime::Kernel& k : p.kernels) features |= k.cluster > 1 ? runtime::kClusters : 0;
    for (const runtime::Buffer& b : p.buffers)
      features |= b.place == runtime::BufferClass::state ? runtime::kStates : 0;
    for (const runtime::Bucket& b : p.buckets) {
      for (const runtime::Launch& l : b.launches) {
        features |= features_of(p, l);
        if (l.makes) features |= runtime::kMadeSizes;
      }
    }
  }
  for (const runtime::Symbol& s : program.symbols)
    features |= s.multiple > 1 ? runtime::kMultiples : 0;
  return features;
}

Result<uint64_t> write_program(ArtifactFile& file, Program& m, const BuiltProgram& program,
                               const CompileOptions& options) {
  TFCC_TRY_VOID(set_interface(m, program.inputs[0]->graph, program.inputs[0]->options));
  TFCC_TRY_VOID(write_code(file, m, program.code));
  for (const Lowered& p : program.plans) m.plans.push_back(p.plan);
  for (runtime::Plan& p : m.plans) {
    if (!options.strip) break;
    for (runtime::Bucket& b : p.buckets) {
      for (runtime::Launch& l : b.launches) l.why.clear();
    }
  }
  return features_of(m);
}

}  // namespace

Result<void> write_artifact(const std::string& path, const std::vector<BuiltProgram>& programs,
                            const WeightPool& weights, const CompileOptions& options,
                            CompileResult& result) {
  TFCC_TRY(ArtifactFile file, ArtifactFile::create(path));
  Manifest m;
  m.producer = "tfcc " TFCC_VERSION;
  m.model = options.model_name;
  m.report = options.report;
  m.no_generation = options.no_generation;
  m.no_ragged = options.no_ragged;
  m.generation_alone = programs[0].inputs[0]->kind == ProgramKind::generation;
  TFCC_TRY_VOID(write_weights(file, m, weights, options));
  TFCC_TRY(uint64_t features, write_program(file, m, programs[0], options));
  for (size_t i = 1; i < programs.size(); ++i) {
    const bool ragged = programs[i].inputs[0]->kind == ProgramKind::ragged;
    Program& other = (ragged ? m.ragged : m.generation).emplace_back();
    TFCC_TRY(const uint64_t more, write_program(file, other, programs[i], options));
    features |= more;
  }
  TFCC_TRY_VOID(write_texts(file, m, programs, options));
  result.weight_bytes = runtime::weight_bytes(m);
  uint64_t all = 0;
  for (const runtime::Weight& w : m.weights) all += w.size;
  if (all != result.weight_bytes) features |= runtime::kSharedWeights;
  const std::string bytes = manifest_bytes(m);
  TFCC_TRY_VOID(file.finish(std::as_bytes(std::span(bytes.data(), bytes.size())), features));
  return {};
}

}  // namespace tfcc::codegen
