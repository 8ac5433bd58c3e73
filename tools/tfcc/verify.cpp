// SPDX-License-Identifier: Apache-2.0
// tfcc verify: a compiled model against the float64 evaluation of the graph as imported, and on a
// difference who made it: the first pass that changed a value, or the first op whose kernel
// computes something else.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "codegen/compile.h"
#include "runtime/tfcc.h"
#include "tools/tfcc/command.h"
#include "tools/tfcc/model_source.h"
#include "tools/tfcc/verify_cases.h"

namespace tfcc::tools {
namespace {

namespace fs = std::filesystem;

constexpr double kTolerance = 1e-4, kTolerance16 = 1e-2;  // relative L2, fp32 and 16-bit

struct Options {
  std::string model, target, passes, shapes;
  std::vector<std::string> inputs;
  bool fp16 = false, passes_given = false;
  double tolerance = 0;
  uint64_t seed = 1;
  int threads = 0;
};

struct Difference {
  double max_abs = 0, relative = 0;
  std::string problem;  // not comparable at all
};

Difference compare(const ir::HostTensor& got, const ir::HostTensor& want, const Defined& defined) {
  Difference d;
  if (got.dims != want.dims) {
    d.problem = fmt::format("shape [{}], expected [{}]", fmt::join(got.dims, ","),
                            fmt::join(want.dims, ","));
    return d;
  }
  auto value = [](const ir::HostTensor& t, size_t i) {
    return is_float(t.dtype) ? t.reals[i] : static_cast<double>(t.ints[i]);
  };
  double error = 0, norm = 0;
  for (int64_t i = 0; i < want.element_count(); ++i) {
    if (!defined.at(want.dims, i)) continue;
    const double w = value(want, static_cast<size_t>(i)), g = value(got, static_cast<size_t>(i));
    if (w == g || (std::isnan(w) && std::isnan(g))) {
      norm += std::isfinite(w) ? w * w : 0;
      continue;
    }
    if (!std::isfinite(g - w)) d.problem = fmt::format("{} at element {}, expected {}", g, i, w);
    d.max_abs = std::max(d.max_abs, std::abs(g - w));
    error += (g - w) * (g - w);
    norm += w * w;
  }
  d.relative = error == 0 ? 0 : norm > 0 ? std::sqrt(error / norm) : std::sqrt(error);
  return d;
}

bool within(const Difference& d, double tolerance) {
  return d.problem.empty() && d.relative <= tolerance;
}

/// A graph compiled for one target into a file that is gone once it is loaded.
class Compiled {
 public:
  static Result<Compiled> make(const ir::Graph& graph, const codegen::TargetName& target,
                               const Options& o) {
    std::error_code ignored;
    const fs::path folder = fs::temp_directory_path(ignored) / "tfcc-verify-XXXXXX";
    std::string name = folder.string();
    if (!mkdtemp(name.data())) {
      return Error{ErrorCode::io,
                   fmt::format("{}: cannot make a folder; set TMPDIR to a place that is writable",
                               folder.string())};
    }
    struct Remove {
      std::string path;
      ~Remove() {
        std::error_code ec;
        fs::remove_all(path, ec);
      }
    } remove{name};
    codegen::PlanInput input{target.family, graph, {}};
    if (o.fp16 && target.family == codegen::Family::cuda) input.options.precision = "f16";
    codegen::CompileOptions options;
    options.targets = {target};
    options.strip = true;
    options.threads = o.threads;
    const std::string file = name + "/model.tfcc";
    TFCC_TRY([[maybe_unused]] auto result, codegen::compile({input}, file, options));
    LoadOptions load;
    load.device = target.family == codegen::Family::cpu ? "cpu" : "cuda";
    load.threads = o.threads;
    TFCC_TRY(Model model, Model::load(file, load));
    return Compiled(std::move(model));
  }

  Result<HostTensors> run(const HostTensors& inputs) const {
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

 private:
  explicit Compiled(Model model) : model_(std::move(model)) {}
  Model model_;
};

class Verifier {
 public:
  Verifier(const Options& o, codegen::TargetName target, ir::Graph imported)
      : o_(o), target_(std::move(target)), imported_(std::move(imported)), optimised_(imported_) {}

  Result<void> run() {
    pass_names_ = o_.passes_given ? split(o_.passes) : passes::default_pipeline();
    const bool cpu = target_.family == codegen::Family::cpu;  // its products are f32
    if (cpu || o_.fp16) pass_names_.push_back(cpu ? "convert-precision-f32" : "convert-precision-f16");
    TFCC_TRY([[maybe_unused]] auto reports, passes::run_passes(optimised_, pass_names_));
    const bool narrow = has_16_bit_values(optimised_) || has_16_bit_values(imported_);
    tolerance_ = o_.tolerance > 0 ? o_.tolerance : narrow ? kTolerance16 : kTolerance;
    TFCC_TRY(std::vector<VerifyCase> cases, find_cases());
    TFCC_TRY(Compiled compiled, Compiled::make(optimised_, target_, o_));
    size_t failed = 0;
    for (const VerifyCase& c : cases) {
      TFCC_TRY(bool ok, check(compiled, c));
      if (!ok && failed++ == 0) TFCC_TRY_VOID(diagnose(c));
    }
    if (failed > 0) {
      return Error{ErrorCode::internal,
                   fmt::format("{}: {} of {} cases differ on {}; the lines above say where, please "
                               "report it with the model",
                               o_.model, failed, cases.size(), target_.name)};
    }
    std::printf("%s: right on %s in %zu cases\n", o_.model.c_str(), target_.name.c_str(),
                cases.size());
    return {};
  }

 private:
  static bool has_16_bit_values(const ir::Graph& graph) {
    for (ir::OpId o : graph.order()) {
      for (ir::ValueId v : graph.op(o).results) {
        const DType t = graph.value(v).type.dtype;
        if (t == DType::f16 || t == DType::bf16) return true;
      }
    }
    return false;
  }

  Result<std::vector<VerifyCase>> find_cases() const {
    CaseOptions options;
    options.seed = o_.seed;
    TFCC_TRY(options.shapes, parse_shapes(o_.shapes));
    for (const std::string& text : o_.inputs) {
      const size_t at = text.find('=');
      if (at == std::string::npos || at == 0)
        return usage_error(fmt::format("--input takes name=file.npy, not '{}'", text));
      TFCC_TRY(Array a, read_npy(text.substr(at + 1)));
      options.given.emplace_back(text.substr(0, at), std::move(a));
    }
    return make_cases(imported_, options);
  }

  // Prints a line per output. False if one differs.
  Result<bool> check(const Compiled& compiled, const VerifyCase& c) const {
    TFCC_TRY(HostTensors got, compiled.run(c.inputs));
    const Defined defined(c.inputs);
    bool ok = true;
    for (const ir::Graph::Output& output : imported_.outputs) {
      const Difference d = compare(got[output.name], c.expected.at(output.name), defined);
      const bool good = within(d, tolerance_);
      ok = ok && good;
      const std::string what =
          d.problem.empty()
              ? fmt::format("max abs error {:.1e}, relative L2 {:.1e}, tolerance {:.0e}", d.max_abs,
                            d.relative, tolerance_)
              : d.problem;
      std::printf("%-4s  %s: %s: %s\n", good ? "ok" : "FAIL", c.title.c_str(), output.name.c_str(),
                  what.c_str());
    }
    std::fflush(stdout);
    return ok;
  }

  // What a pass may change: constants rounded to f32, such as those of an approximation that it
  // recognises.
  double pass_tolerance() const { return std::max(tolerance_ / 10, 1e-6); }

  bool outputs_agree(const HostTensors& got, const HostTensors& want,
                     const Defined& defined) const {
    return std::all_of(want.begin(), want.end(), [&](const auto& w) {
      const auto it = got.find(w.first);
      return it != got.end() && within(compare(it->second, w.second, defined), pass_tolerance());
    });
  }

  // Says which pass changed what an output means, or else which op the target computes wrongly.
  Result<void> diagnose(const VerifyCase& c) const {
    const Defined defined(c.inputs);
    HostTensors trace;
    TFCC_TRY(HostTensors want, ir::eval(imported_, c.inputs, {}, &trace));
    ir::Graph graph = imported_;
    for (const std::string& name : pass_names_) {
      TFCC_TRY([[maybe_unused]] auto report, passes::run_passes(graph, {name}));
      HostTensors now;
      auto got = ir::eval(graph, c.inputs, {}, &now);
      if (got && outputs_agree(*got, want, defined)) continue;
      std::printf("      pass %s changed the result%s\n", name.c_str(),
                  got ? first_changed(graph, now, trace, defined).c_str()
                      : (": " + got.error().message).c_str());
      return {};
    }
    std::printf("      the passes keep the meaning: the kernels of %s differ\n",
                target_.name.c_str());
    return first_wrong_kernel(c, defined);
  }

  std::string first_changed(const ir::Graph& graph, const HostTensors& now,
                            const HostTensors& before, const Defined& defined) const {
    for (ir::OpId o : graph.order()) {
      for (ir::ValueId v : graph.op(o).results) {
        const std::string& name = graph.value(v).name;
        const auto a = now.find(name), b = before.find(name);
        if (a == now.end() || b == before.end() || a->second.dims != b->second.dims) continue;
        const Difference d = compare(a->second, b->second, defined);
        if (!within(d, pass_tolerance())) {
          return fmt::format("; the first value that differs: {} = {}, relative L2 {:.1e}", name,
                             ir::to_string(graph.op(o).kind), d.relative);
        }
      }
    }
    return "";
  }

  // Compiles the graph once more with every value as an output.
  Result<void> first_wrong_kernel(const VerifyCase& c, const Defined& defined) const {
    ir::Graph graph = optimised_;
    std::map<std::string, std::string> origin;
    for (ir::OpId o : graph.order()) {
      if (graph.op(o).kind == ir::OpKind::constant) continue;
      for (ir::ValueId v : graph.op(o).results) {
        const std::string& name = graph.value(v).name;
        const bool taken =
            std::any_of(graph.outputs.begin(), graph.outputs.end(),
                        [&](const auto& x) { return x.name == name || x.value == v; });
        if (!taken) graph.outputs.push_back({name, v});
      }
    }
    auto compiled = Compiled::make(graph, target_, o_);
    auto got = compiled ? compiled->run(c.inputs) : Result<HostTensors>(compiled.error());
    if (!got) {
      std::printf("      with every value as an output: %s\n", got.error().message.c_str());
      return {};
    }
    TFCC_TRY(HostTensors want, ir::eval(graph, c.inputs));
    for (ir::OpId o : graph.order()) {
      for (const ir::Graph::Output& output : graph.outputs) {
        const auto& results = graph.op(o).results;
        if (std::find(results.begin(), results.end(), output.value) == results.end()) continue;
        const Difference d = compare((*got)[output.name], want[output.name], defined);
        if (within(d, tolerance_)) continue;
        std::printf("      the first op that differs: %s = %s: %s\n", output.name.c_str(),
                    std::string(ir::to_string(graph.op(o).kind)).c_str(),
                    d.problem.empty() ? fmt::format("relative L2 {:.1e}", d.relative).c_str()
                                      : d.problem.c_str());
        return {};
      }
    }
    std::printf("      no op differs alone with every value kept: a buffer is reused too early\n");
    return {};
  }

  const Options& o_;
  codegen::TargetName target_;
  ir::Graph imported_, optimised_;
  std::vector<std::string> pass_names_;
  double tolerance_ = kTolerance;
};

Result<void> verify(Options o) {
  if (o.target.empty()) o.target = default_target();
  auto targets = codegen::parse_targets(split(o.target));
  if (!targets) return usage_error(targets.error().message);
  if (targets->empty() || split(o.target).size() > 1)
    return usage_error("verify takes one --target");
  TFCC_TRY_VOID(check_passes(split(o.passes)));
  TFCC_TRY(ir::Graph graph, load_graph(o.model));
  return Verifier(o, targets->front(), std::move(graph)).run();
}

}  // namespace

void add_verify(CLI::App& app, Action& action) {
  auto o = std::make_shared<Options>();
  CLI::App* c = app.add_subcommand("verify", "compare a compiled model with its graph in float64");
  c->add_option("model", o->model, "the model: .onnx or .tfir")->required();
  c->add_option("--target", o->target,
                "the target to check: cpu, sm_90, ...; default: the GPU that is there, else cpu");
  c->add_flag("--fp16", o->fp16, "as compile --fp16");
  CLI::Option* passes =
      c->add_option("--passes", o->passes,
                    "run these passes instead of the default ones; --passes= runs none")
          ->expected(0, 1);
  c->add_option("--input", o->inputs, "an input as name=file.npy; repeat; the others are made up");
  c->add_option("--shapes", o->shapes, "sizes of made-up inputs: input_ids:4x32");
  c->add_option("--rtol", o->tolerance,
                "largest relative L2 error; default 1e-4, or 1e-2 with 16-bit values")
      ->check(CLI::PositiveNumber);
  c->add_option("--seed", o->seed, "seed of made-up inputs");
  c->add_option("--threads", o->threads, "CPU threads; default: one per core")
      ->check(CLI::NonNegativeNumber);
  c->callback([o, passes, &action] {
    o->passes_given = passes->count() > 0;
    action = [o] { return verify(*o); };
  });
}

}  // namespace tfcc::tools
