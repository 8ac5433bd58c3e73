// SPDX-License-Identifier: Apache-2.0
// tfcc verify: a compiled model against the float64 evaluation of the graph as imported, and
// against another runtime if asked; on a difference who made it: a pass, an op's kernel, or the
// import of a node.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "frontend/onnx/onnx_reader.h"
#include "runtime/core/artifact.h"
#include "runtime/core/profile.h"
#include "tools/tfcc/command.h"
#include "tools/tfcc/inspect.h"
#include "tools/compiler/compiler.h"
#include "tools/tfcc/verify_against.h"
#include "tools/tfcc/verify_bisect.h"
#include "tools/tfcc/verify_target.h"

namespace tfcc::tools {
namespace {

constexpr double kTolerance = 1e-4, kTolerance16 = 1e-2,
                 kToleranceBf16 = 6e-2;  // relative L2: fp32, 16-bit values
/// Of a graph that rounds what it computes to integers: a value between two steps may go to either,
/// and what follows differs by so much at most.
constexpr double kToleranceOfSteps = 5e-2;

struct Options {
  std::string model, original, target, passes, skip_passes, shapes, against, python = "python3";
  std::vector<std::string> inputs;
  std::string npz;
  std::string cpu_weights;
  bool fp16 = false, bf16 = false, tf32 = false, tf32x3 = false, passes_given = false, json = false,
       ragged = false;
  double tolerance = 0, largest = INFINITY;
  uint64_t seed = 1;
  int threads = 0;
};

/// An output of a case that differs.
struct Failed {
  size_t which;  // case
  std::string output;
  Difference difference;
};

bool has_values_of(const ir::Graph& graph, DType type) {
  for (ir::OpId o : graph.order()) {
    for (ir::ValueId v : graph.op(o).results) {
      if (graph.value(v).type.dtype == type) return true;
    }
  }
  return false;
}

// A file for the CPU with weights in bf16.
bool stores_bfloats(const runtime::Manifest& m, const std::string& target) {
  return std::any_of(m.targets.begin(), m.targets.end(), [&](const runtime::Target& t) {
    const runtime::Plan& plan = m.plans[t.plan];
    return t.name == target && plan.family == Family::cpu &&
           std::any_of(plan.buffers.begin(), plan.buffers.end(), [](const runtime::Buffer& b) {
             return b.place == runtime::BufferClass::constant && b.dtype == DType::bf16;
           });
  });
}

bool is_16_bit(DType t) { return t == DType::f16 || t == DType::bf16; }

bool rounds(const ir::Op& op) {
  ir::ExprRef body = op.kind == ir::OpKind::pointwise ? op.as<ir::PointwiseAttrs>().body
                     : op.kind == ir::OpKind::matmul  ? op.as<ir::MatmulAttrs>().epilogue
                                                      : nullptr;
  bool found = false;
  if (body)
    ir::for_each_node(
        body, [&](ir::ExprRef n) { found |= n->kind == ir::ExprKind::rint && n->has_load; });
  return found;
}

int64_t elements(const HostTensors& tensors) {
  int64_t n = 0;
  for (const auto& [name, t] : tensors) n += t.element_count();
  return n;
}

class Verifier {
 public:
  /// A file that is compiled already, beside the graph that it was compiled from.
  Verifier(const Options& o, CompiledGraph file, const codegen::TargetName& target, DType precision,
           ir::Graph imported)
      : o_(o),
        imported_(std::move(imported)),
        optimised_(imported_),
        precision_(precision),
        file_(std::move(file)) {
    prepare(target);
  }

  Verifier(const Options& o, const codegen::TargetName& target, ir::Graph imported)
      : o_(o), imported_(std::move(imported)), optimised_(imported_) {
    prepare(target);
  }

  Result<void> run() {
    TFCC_TRY_VOID(optimise());
    TFCC_TRY(cases_, find_cases());
    std::optional<Against> against;
    if (!o_.against.empty()) {
      TFCC_TRY(Against peer, Against::start({o_.against, graph_path(), o_.python, o_.threads},
                                            cases_.front().inputs));
      against.emplace(std::move(peer));
    }
    if (!file_) {
      TFCC_TRY(CompiledGraph compiled, CompiledGraph::make(optimised_, compiling_));
      file_.emplace(std::move(compiled));
    }
    for (size_t i = 0; i < cases_.size();) {
      const Result<HostTensors> got = run_case(cases_[i]);
      if (!got && refuses_padding(cases_[i], got.error())) {
        refuse(i, got.error().message);
        continue;
      }
      if (!got) return got.error();
      compare_with_reference(i, *got);
      if (against) TFCC_TRY_VOID(compare_with_peer(i, *got, *against));
      ++i;
    }
    if (!failed_.empty() && !o_.ragged &&
        (o_.original.empty() ||
         std::ranges::all_of(failed_, [&](const Failed& f) { return within_steps(f.difference); })))
      explain_target();
    if (failed_.empty() && !parted_.empty()) explain_peer(*against);
    Result<void> right = verdict(against);
    if (o_.json) print_json(right);
    return right;
  }

 private:
  const std::string& graph_path() const { return o_.original.empty() ? o_.model : o_.original; }

  void prepare(const codegen::TargetName& target) {
    compiling_.target = target;
    compiling_.threads = o_.threads;
    progress_ = [this](const std::string& stage, size_t done, size_t total) {
      if (line_) line_->update(stage, done, total);
    };
  }

  // Of a file what its compiler did is done again, for the search of steps alone.
  Result<void> optimise() {
    TFCC_TRY(std::vector<std::string> names,
             compiler::default_passes_without(split(o_.skip_passes)));
    if (o_.passes_given) names = split(o_.passes);
    if (o_.ragged) names.push_back("ragged-input");
    const Family family = compiling_.target.family;
    if (family == Family::cuda && (o_.fp16 || o_.bf16 || is_16_bit(precision_)))
      compiling_.precision = o_.fp16 || precision_ == DType::f16 ? "f16" : "bf16";
    if (family == Family::cuda && o_.tf32) compiling_.precision = runtime::kTf32;
    if (family == Family::cuda && o_.tf32x3) compiling_.precision = runtime::kTf32x3;
    const auto more = compiler::passes_of_target(family, compiling_.precision, o_.cpu_weights);
    names.insert(names.end(), more.begin(), more.end());
    TFCC_TRY(const auto reports, passes::run_passes(optimised_, names));
    if (o_.ragged) {
      if (auto why = compiler::why_not_ragged(graph_path(), reports)) return *why;
    }
    steps_ = steps_of(names);
    set_tolerance();
    return {};
  }

  void set_tolerance() {
    auto has = [&](DType t) {
      return t == precision_ || has_values_of(optimised_, t) || has_values_of(imported_, t);
    };
    const auto& ops = imported_.order();
    has_steps_ = o_.tolerance == 0 && std::any_of(ops.begin(), ops.end(), [&](ir::OpId op) {
                   return rounds(imported_.op(op));
                 });
    tolerance_ = o_.tolerance > 0                                            ? o_.tolerance
                 : has(DType::bf16)                                          ? kToleranceBf16
                 : has(DType::f16) || compiling_.precision == runtime::kTf32 ? kTolerance16
                                                                             : kTolerance;
    if (has_steps_ && tolerance_ > kTolerance)
      tolerance_ =
          std::max(tolerance_, kToleranceOfSteps);  // which moves many values to another step
  }

  Result<std::vector<VerifyCase>> find_cases() const {
    CaseOptions options;
    options.seed = o_.seed;
    TFCC_TRY(options.wanted, parse_shapes(o_.shapes));
    TFCC_TRY(options.given, read_inputs(o_.npz, o_.inputs));
    options.padding = padding_id(optimised_);
    TFCC_TRY(auto cases, make_cases(imported_, options));
    if (o_.ragged) {
      std::erase_if(cases, [](const VerifyCase& c) { return !c.defined.first_tokens(); });
      if (cases.empty())
        return usage_error("--ragged: no case has tokens at the beginning of each row alone");
    }
    return cases;
  }

  Result<HostTensors> run_case(const VerifyCase& c) const {
    return o_.ragged ? file_->run_ragged(c.inputs, *c.defined.first_tokens())
                     : file_->run(c.inputs);
  }

  // A run may end where a mask that verify made up has padding before tokens, and the compiled
  // graph, not the model, flags that (docs/numerics.md).
  bool refuses_padding(const VerifyCase& c, const Error& error) const {
    if (!o_.npz.empty() || !o_.inputs.empty() || c.defined.first_tokens()) return false;
    return std::ranges::any_of(optimised_.flags, [&](const std::string& flag) {
      return error.message.find(flag) != std::string::npos &&
             std::ranges::find(imported_.flags, flag) == imported_.flags.end();
    });
  }

  void refuse(size_t i, const std::string& why) {
    say("skip  %s: refused: %s\n", cases_[i].title.c_str(), why.c_str());
    refused_.push_back({{"case", cases_[i].title}, {"reason", why}});
    cases_.erase(cases_.begin() + static_cast<std::ptrdiff_t>(i));
  }

  bool within(const Difference& d) const {
    return d.problem.empty() && d.relative <= tolerance_ && d.max_abs <= o_.largest;
  }

  // Perhaps by steps alone: explain_target() tells.
  bool within_steps(const Difference& d) const {
    return has_steps_ && d.problem.empty() && d.relative <= kToleranceOfSteps &&
           d.max_abs <= o_.largest;
  }

  std::string allowed() const {
    return fmt::format(
        "tolerance {:.0e}{}", tolerance_,
        std::isfinite(o_.largest) ? fmt::format(" and {:.0e} absolute", o_.largest) : "");
  }

  // What people read; with --json nothing.
  template <class... T> [[gnu::always_inline]] void say(const char* format, T... parts) const {
    if (o_.json) return;
    std::printf(format, parts...);
    std::fflush(stdout);
  }

  // The same for --json.
  void note(size_t i, const std::string& output, const Difference& d, const char* state,
            const std::string& against = "") {
    nlohmann::json j = {{"case", cases_[i].title}, {"output", output},    {"state", state},
                        {"max_abs", nullptr},      {"relative", nullptr}, {"problem", nullptr},
                        {"against", nullptr}};
    if (d.problem.empty()) j.update({{"max_abs", d.max_abs}, {"relative", d.relative}});
    else j["problem"] = d.problem;
    if (!against.empty()) j["against"] = against;
    outputs_.push_back(std::move(j));
  }

  // A line per output.
  void compare_with_reference(size_t i, const HostTensors& got) {
    const VerifyCase& c = cases_[i];
    for (const ir::Graph::Output& output : imported_.outputs) {
      const auto own = got.find(output.name);
      const Difference d = own == got.end()
                               ? Difference{INFINITY, INFINITY, "there is no such output"}
                               : compare(own->second, c.expected.at(output.name), c.defined);
      say("%-4s  %s: %s: %s%s\n",
          within(d)         ? "ok"
          : within_steps(d) ? "step"
                            : "FAIL",
          c.title.c_str(), output.name.c_str(), to_string(d).c_str(),
          d.problem.empty() ? (", " + allowed()).c_str() : "");
      note(i, output.name, d, within(d) ? "ok" : within_steps(d) ? "step" : "fail");
      if (!within(d)) failed_.push_back({i, output.name, d});
    }
  }

  Result<void> compare_with_peer(size_t i, const HostTensors& got, Against& against) {
    const VerifyCase& c = cases_[i];
    TFCC_TRY(HostTensors theirs, against.run(c.inputs));
    for (const ir::Graph::Output& output : imported_.outputs) {
      const auto it = theirs.find(output.name);
      if (it == theirs.end())
        return Error{ErrorCode::invalid_argument,
                     fmt::format("{} gives no output '{}'", against.name(), output.name)};
      const Difference d = compare(got.at(output.name), it->second, c.defined);
      const Difference exact = compare(it->second, c.expected.at(output.name), c.defined);
      say("%-4s  %s: %s: against %s: %s%s; its own from float64: %s\n", within(d) ? "ok" : "FAIL",
          c.title.c_str(), output.name.c_str(), against.name().c_str(), to_string(d).c_str(),
          d.problem.empty() ? (", " + allowed()).c_str() : "",
          exact.problem.empty() ? fmt::format("{:.1e}", exact.relative).c_str()
                                : exact.problem.c_str());
      note(i, output.name, d, within(d) ? "ok" : "fail", against.name());
      if (!within(d)) parted_.push_back({i, output.name, exact});
    }
    return {};
  }

  // The smallest case is the quickest to search; of its outputs the first in the graph.
  const Failed& easiest(const std::vector<Failed>& all) const {
    return *std::min_element(all.begin(), all.end(), [&](const Failed& a, const Failed& b) {
      return elements(cases_[a.which].inputs) < elements(cases_[b.which].inputs);
    });
  }

  // Searches in the smallest case that failed, an output at a time: one that differs by a step
  // alone excuses what depends on that step.
  void explain_target() {
    const Target target = compiling_target(compiling_);
    std::vector<ir::ValueId> steps;
    std::set<std::string> excused;
    while (true) {
      std::vector<Failed> open;
      std::ranges::copy_if(failed_, std::back_inserter(open), [&](const Failed& f) {
        return !within_steps(f.difference) || !excused.count(f.output);
      });
      if (open.empty()) return;
      const Failed f = easiest(open);
      const VerifyCase& c = cases_[f.which];
      line_.emplace();
      auto guilty =
          bisect({imported_, steps_, c.inputs, c.defined, f.output, f.difference, tolerance_},
                 target, progress_);
      line_.reset();
      if (guilty && guilty->op) guilty->op->node = with_operator(guilty->op->node);
      if (guilty && within_steps(f.difference) && is_step(*guilty)) {
        if (!step_) step_ = *guilty->op;
        excused.insert(f.output);
        const std::set<ir::ValueId> after = depending_on(optimised_.find_value(guilty->op->value));
        for (const ir::Graph::Output& out : optimised_.outputs) {
          if (after.count(out.value)) excused.insert(out.name);
        }
        continue;
      }
      step_.reset();
      return print_indented(c.title + ": " + f.output + ":\n" +
                            (guilty ? report(*guilty, target)
                                    : "cannot be searched: " + guilty.error().message + "\n"));
    }
  }

  // The values of the compiled graph that are computed from this one, and itself.
  std::set<ir::ValueId> depending_on(ir::ValueId v) const {
    std::set<ir::ValueId> all = {v};
    for (ir::OpId o : optimised_.order()) {
      const ir::Op& op = optimised_.op(o);
      if (std::ranges::any_of(op.operands, [&](ir::ValueId x) { return all.count(x) > 0; }))
        all.insert(op.results.begin(), op.results.end());
    }
    return all;
  }

  // An op that rounds, of operands that are right, whose integers differ by one.
  bool is_step(const Guilty& g) const {
    if (!g.pass.empty() || !g.op || !g.op->narrowed || !g.op->difference ||
        !g.op->unknown.empty() || g.op->operands.value_or(0) > kTolerance)
      return false;
    const ir::Op& op = optimised_.op(g.op->op);
    const bool integers =
        is_integer(g.op->dtype) || (op.kind == ir::OpKind::pointwise &&
                                    op.as<ir::PointwiseAttrs>().body->kind == ir::ExprKind::i2f);
    return rounds(op) && integers && g.op->difference->max_abs <= 1;
  }

  void explain_peer(Against& against) {
    const Failed& f = easiest(parted_);
    const VerifyCase& c = cases_[f.which];
    if (f.difference.problem.empty() && f.difference.relative <= tolerance_) {
      print_indented(
          "both are within the tolerance of the float64 evaluation, on different sides of it\n");
      return;
    }
    line_.emplace();
    auto op = against.first_difference(imported_, c, f.output, tolerance_, progress_);
    line_.reset();
    std::string text =
        "cannot be searched: " + (op ? "no node computes it" : op.error().message) + "\n";
    if (op && *op) {
      (*op)->node = with_operator((*op)->node);
      text = fmt::format("the first value of the imported graph where {} differs from float64: ",
                         against.name()) +
             describe(**op) + "either the import of that node or the other runtime is wrong\n";
    }
    print_indented(c.title + ": " + f.output + ":\n" + text);
  }

  // "/encoder/Add_3 (Add)", where the model tells.
  std::string with_operator(const std::string& node) const {
    if (node.empty() || graph_path().ends_with(".tfir")) return node;
    auto model = frontend::read_onnx(graph_path());
    if (!model) return node;
    for (const frontend::Node& n : model->nodes) {
      if (n.name == node || (!n.outputs.empty() && n.outputs[0] == node))
        return node + " (" + n.op_type + ")";
    }
    return node;
  }

  void print_indented(const std::string& text) {
    explanation_ += text;
    for (const std::string& line : split(text, '\n')) say("      %s\n", line.c_str());
  }

  static size_t count_cases(const std::vector<Failed>& failed) {
    std::vector<size_t> all;
    for (const Failed& f : failed) all.push_back(f.which);
    return static_cast<size_t>(std::unique(all.begin(), all.end()) - all.begin());
  }

  Result<void> verdict(const std::optional<Against>& against) const {
    const std::string& target = compiling_.target.name;
    if (step_) {
      say("%s: right on %s in %zu cases; in %zu of them a value between two steps was rounded to the other one, which is as right\n",
          o_.model.c_str(), target.c_str(), cases_.size(), count_cases(failed_));
      say("      first in %%%s\n", step_->value.c_str());
      if (!step_->node.empty()) say("      ONNX node: %s\n", step_->node.c_str());
      return {};
    }
    if (!failed_.empty() && !o_.original.empty()) {
      return Error{
          ErrorCode::internal,
          fmt::format(
              "{}: {} of {} cases differ from {} on {}; `tfcc verify {} --target {}{}` searches for where that begins",
              o_.model, count_cases(failed_), cases_.size(), o_.original, target, o_.original,
              target,
              o_.tf32                     ? " --tf32"
              : o_.tf32x3                 ? " --tf32x3"
              : precision_ == DType::f16  ? " --fp16"
              : precision_ == DType::bf16 ? " --bf16"
              : !o_.cpu_weights.empty()   ? " --cpu-weights=bf16"
                                          : "")};
    }
    if (!failed_.empty()) {
      return Error{
          ErrorCode::internal,
          fmt::format(
              "{}: {} of {} cases differ on {}; the lines above say where, please report it with the model",
              o_.model, count_cases(failed_), cases_.size(), target)};
    }
    if (!parted_.empty()) {
      return Error{
          ErrorCode::internal,
          fmt::format(
              "{}: {} of {} cases are right in float64 and differ from {}; the lines above say where",
              o_.model, count_cases(parted_), cases_.size(), against->name())};
    }
    say("%s: right on %s in %zu cases%s\n", o_.model.c_str(), target.c_str(), cases_.size(),
        against ? (", as " + against->name() + " is").c_str() : "");
    return {};
  }

  void print_json(const Result<void>& right) const {
    nlohmann::json j = {
        {"schema", 1},          {"model", o_.model},      {"target", compiling_.target.name},
        {"right", bool(right)}, {"cases", cases_.size()}, {"tolerance", tolerance_},
        {"outputs", outputs_},  {"refused", refused_},    {"explanation", nullptr},
        {"step", nullptr}};
    if (!explanation_.empty()) j["explanation"] = explanation_;
    if (step_) j["step"] = {{"value", step_->value}, {"node", step_->node}};
    std::printf("%s\n", j.dump(1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
  }

  const Options& o_;
  TargetOptions compiling_;
  ir::Graph imported_, optimised_;
  std::vector<Step> steps_;
  std::vector<VerifyCase> cases_;
  std::vector<Failed> failed_, parted_;  // from float64, from the peer alone
  DType precision_ = DType::f32;
  std::optional<CompiledGraph> file_;
  double tolerance_ = kTolerance;
  bool has_steps_ = false;
  std::optional<WrongOp> step_;
  nlohmann::json outputs_ = nlohmann::json::array(), refused_ = nlohmann::json::array();
  std::string explanation_;
  std::optional<Progress> line_;
  SearchProgress progress_;
};

bool is_compiled(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  char magic[sizeof runtime::kMagic] = {};
  return in.read(magic, sizeof magic) &&
         std::equal(std::begin(magic), std::end(magic), runtime::kMagic);
}

// The sizes that a file takes, by the names of its graph's.
frontend::SizeRanges sizes_of(const Model& model) {
  frontend::SizeRanges ranges;
  for (const TensorInfo& info : model.inputs()) {
    for (const DimInfo& d : info.dims) {
      const bool name = !d.text.empty() && std::ranges::all_of(d.text, [](unsigned char c) {
        return std::isalnum(c) || c == '_' || c == '.' || c == '-';
      }) && !std::isdigit(static_cast<unsigned char>(d.text[0]));
      if (name) ranges[d.text] = {d.min, d.max ? std::optional(d.max) : std::nullopt};
    }
  }
  return ranges;
}

// Names and types of what goes in and out.
Result<void> check_interface(const Options& o, const Model& model, const ir::Graph& graph) {
  const auto lacks = [](const std::string& who, const std::string& other, const std::string& what) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("{} was not compiled from {}, which has {}", who, other, what)};
  };
  const auto side =
      [&](const char* role, const std::vector<TensorInfo>& of_file,
          const std::vector<std::pair<std::string, DType>>& of_graph) -> Result<void> {
    for (const TensorInfo& info : of_file) {
      if (std::ranges::count(of_graph, std::pair(info.name, info.dtype)) == 0)
        return lacks(o.model, o.original,
                     fmt::format("no {} '{}' of {}", role, info.name, to_string(info.dtype)));
    }
    for (const auto& [name, dtype] : of_graph) {
      if (std::ranges::count(of_file, name, &TensorInfo::name) == 0)
        return lacks(o.model, o.original, fmt::format("an {} '{}' besides", role, name));
    }
    return {};
  };
  std::vector<std::pair<std::string, DType>> inputs, outputs;
  for (ir::ValueId v : graph.inputs())
    inputs.emplace_back(graph.value(v).name, graph.value(v).type.dtype);
  for (const ir::Graph::Output& out : graph.outputs)
    outputs.emplace_back(out.name, graph.value(out.value).type.dtype);
  TFCC_TRY_VOID(side("input", model.inputs(), inputs));
  return side("output", model.outputs(), outputs);
}

Result<void> verify_file(Options o) {
  if (o.original.empty())
    return usage_error(fmt::format(
        "{} is compiled already; --model=FILE.onnx names the model that it is compared with",
        o.model));
  if (o.fp16 || o.bf16 || o.tf32 || o.tf32x3 || o.passes_given || !o.skip_passes.empty() ||
      !o.cpu_weights.empty())
    return usage_error(
        "--fp16, --bf16, --tf32, --tf32x3, --cpu-weights, --passes and --skip-passes are of a model that verify compiles, not of a .tfcc file");
  std::string device = "auto";
  if (!o.target.empty()) {
    auto targets = codegen::parse_targets(split(o.target));
    if (!targets) return usage_error(targets.error().message);
    if (targets->empty() || split(o.target).size() > 1)
      return usage_error("verify takes one --target");
    device = targets->front().family == Family::cpu ? "cpu" : "cuda";
  }
  TFCC_TRY(CompiledGraph file, CompiledGraph::load(o.model, device, o.threads));
  if (file.model().generation_alone())
    return Error{
        ErrorCode::unsupported,
        fmt::format("{}: was compiled with --generate-only: it does not take the inputs of "
                    "{}; compile it without to compare them",
                    o.model, o.original)};
  const std::string running = file.model().target();
  if (!o.target.empty() && o.target != "cpu" && o.target != "cuda" && o.target != running) {
    return Error{ErrorCode::unsupported, fmt::format("{}: what runs here of its code is {}, not {}",
                                                     o.model, running, o.target)};
  }
  TFCC_TRY(const InspectedFile inside, InspectedFile::open(o.model));
  const std::string& source = inside.manifest.model;
  if (!source.empty() && source != std::filesystem::path(o.original).filename())
    std::fprintf(stderr, "%s: was compiled from %s\n", o.model.c_str(), source.c_str());
  TFCC_TRY(const auto targets, codegen::parse_targets({running}));
  TFCC_TRY(ir::Graph graph,
           compiler::load_graph({o.original}, process_files(), nullptr, sizes_of(file.model())));
  TFCC_TRY_VOID(check_interface(o, file.model(), graph));
  TFCC_TRY(const Executor executor, file.model().executor());
  const DType precision = runtime::precision_of(executor);
  if (stores_bfloats(inside.manifest, running)) o.cpu_weights = "bf16";
  o.tf32 = runtime::tf32_products(executor) == 1;
  o.tf32x3 = runtime::tf32_products(executor) == 3;
  return Verifier(o, std::move(file), targets.front(), precision, std::move(graph)).run();
}

Result<void> verify(Options o) {
  if (is_compiled(o.model)) return verify_file(std::move(o));
  if (!o.original.empty())
    return usage_error(fmt::format("--model is for a .tfcc file, and {} is none", o.model));
  if (o.target.empty()) o.target = compiler::default_target();
  auto targets = codegen::parse_targets(split(o.target));
  if (!targets) return usage_error(targets.error().message);
  if (targets->empty() || split(o.target).size() > 1)
    return usage_error("verify takes one --target");
  TFCC_TRY_VOID(compiler::check_passes(split(o.passes)));
  TFCC_TRY(ir::Graph graph, compiler::load_graph({o.model}, process_files()));
  return Verifier(o, targets->front(), std::move(graph)).run();
}

}  // namespace

void add_verify(CLI::App& app, Action& action) {
  auto o = std::make_shared<Options>();
  CLI::App* c = app.add_subcommand("verify", "compare a compiled model with its graph in float64");
  c->add_option("model", o->model, "the model: .onnx or .tfir; or a .tfcc file, with --model")
      ->required();
  c->add_option("--model", o->original, "the .onnx or .tfir that the .tfcc file was compiled from");
  c->add_option("--target", o->target,
                "the target to check: cpu, sm_90, ...; default: the GPU that is there, else cpu");
  CLI::Option* fp16 = c->add_flag("--fp16", o->fp16, "as compile --fp16");
  CLI::Option* bf16 = c->add_flag("--bf16", o->bf16, "as compile --bf16")->excludes(fp16);
  CLI::Option* tf32 =
      c->add_flag("--tf32", o->tf32, "as compile --tf32")->excludes(fp16)->excludes(bf16);
  c->add_flag("--tf32x3", o->tf32x3, "as compile --tf32x3")
      ->excludes(fp16)
      ->excludes(bf16)
      ->excludes(tf32);
  c->add_option("--cpu-weights", o->cpu_weights, "as compile --cpu-weights")
      ->check(CLI::IsMember({"bf16"}));
  CLI::Option* passes =
      c->add_option("--passes", o->passes,
                    "run these passes instead of the default ones; --passes= runs none")
          ->expected(0, 1);
  c->add_option("--skip-passes", o->skip_passes, "run the default passes without these")
      ->excludes(passes);
  c->add_flag(
      "--ragged", o->ragged,
      "the program for tokens without padding, as compile --ragged makes it (docs/ragged.md)");
  add_inputs(*c, o->npz, o->inputs, "; the others are made up");
  c->add_option("--shapes,--input-shapes", o->shapes,
                "sizes of made-up inputs: batch_size=4,sequence_length=32, or input_ids:4x32");
  c->add_option(
       "--tolerance,--rtol", o->tolerance,
       "largest relative L2 error; default 1e-4, with fp16 values or --tf32 1e-2, with bf16 6e-2")
      ->check(positive());
  c->add_option("--atol", o->largest,
                "also the largest absolute error of one element; default: any")
      ->check(not_negative());
  c->add_flag("--json", o->json, "the result as one JSON object (docs/verify.md)");
  c->add_option("--seed", o->seed, "seed of made-up inputs");
  c->add_option("--against", o->against,
                "compare with this as well, on the same inputs: onnxruntime");
  c->add_option("--python", o->python,
                "the Python that has the package of --against; default: python3");
  add_threads(*c, o->threads, "CPU threads");
  c->callback([o, passes, &action] {
    o->passes_given = passes->count() > 0;
    action = [o] { return verify(*o); };
  });
}

}  // namespace tfcc::tools
