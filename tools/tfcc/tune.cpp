// SPDX-License-Identifier: Apache-2.0
// tfcc tune: times how a file's products may be executed on the GPU that is there, each inside the
// captured graph of a run, and keeps the fastest.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "runtime/core/timing_cache.h"
#include "runtime/core/tune_graph.h"
#include "tools/compiler/model_source.h"
#include "tools/support/output_file.h"
#include "tools/tfcc/command.h"
#include "tools/tfcc/tensors.h"

namespace tfcc::tools {
namespace {

struct Options {
  std::string model, cache, shapes, device = "cuda";
};

// Random numbers, and masks without padding (random_inputs()): the rows of a product are as many as
// the sizes say. The executor refers to them.
Result<NamedArrays> set_full_inputs(const Model& model, Executor& executor,
                                    const SizesByName& sizes) {
  TFCC_TRY(NamedArrays inputs, random_inputs(model.inputs(), {{}, sizes}, 0));
  for (auto& [name, a] : inputs) {
    TFCC_TRY_VOID(executor.set(name, {a.bytes.data(), a.dtype, a.shape, Place::host}));
  }
  return inputs;
}

std::string text_of(const SizesByName& sizes) {
  std::string s;
  for (const auto& [name, n] : sizes) s += fmt::format("{}{} {}", s.empty() ? "" : ", ", name, n);
  return s;
}

// A line for each bucket of which something was not known.
Result<void> tune_buckets(const Model& model, Executor& executor, const Shapes& shapes) {
  TFCC_TRY(const auto buckets, runtime::runs_of_buckets(executor, shapes));
  for (size_t i = 0; i < buckets.size(); ++i) {
    Progress progress;
    progress.update("measuring " + text_of(buckets[i]), i, buckets.size());
    TFCC_TRY(const NamedArrays inputs, set_full_inputs(model, executor, buckets[i]));
    TFCC_TRY(const runtime::GraphTuning t, runtime::tune_graph(executor));
    if (t.measured == 0) continue;
    const std::string found =
        t.changed == 0
            ? fmt::format("{:.1f} us, {} products measured, none changed by more than 2%",
                          t.before_us, t.measured)
            : fmt::format("{:.1f} us to {:.1f}, {} of {} products changed", t.before_us, t.after_us,
                          t.changed, t.measured);
    std::printf("%s: %s\n", text_of(buckets[i]).c_str(), found.c_str());
    std::fflush(stdout);
  }
  return {};
}

Result<void> tune(const Options& o) {
  TFCC_TRY_VOID(note_input(o.model));
  TFCC_TRY_VOID(plan_output("--timing-cache", o.cache));
  if (compiler::detect_gpu().empty()) {
    return Error{
        ErrorCode::device,
        "tune: there is no GPU here, so nothing to measure; run it on the machine that will run the model"};
  }
  TFCC_TRY(WantedSizes given, parse_shapes(o.shapes));
  LoadOptions load;
  load.device = o.device;
  load.timing_cache = o.cache;
  load.tune = true;
  TFCC_TRY(Model model, Model::load(o.model, load));
  TFCC_TRY(Executor executor, model.executor());
  // Without shapes, all that the file takes.
  Shapes shapes;
  if (!given.empty()) {
    TFCC_TRY(auto inputs, random_inputs(model.inputs(), given, 0));
    for (auto& [name, array] : inputs) shapes.emplace_back(name, array.shape);
  }
  runtime::TimingCache before, after;
  TFCC_TRY_VOID(before.load(o.cache));
  if (!model.generation_alone()) TFCC_TRY_VOID(tune_buckets(model, executor, shapes));
  TFCC_TRY_VOID(executor.prepare_all(shapes));  // what has no graph is timed alone
  TFCC_TRY_VOID(after.load(o.cache));
  std::printf("%s: %zu products measured on %s, %zu known in all\n", o.cache.c_str(),
              after.size() - before.size(), model.device().c_str(), after.size());
  return {};
}

}  // namespace

void add_tune(CLI::App& app, Action& action) {
  auto o = std::make_shared<Options>();
  CLI::App* c = app.add_subcommand(
      "tune",
      "measure how a .tfcc file's matrix products are fastest on this GPU (docs/timing-cache.md)");
  c->add_option("model", o->model, "the .tfcc file")->required();
  c->add_option("--timing-cache,--timingCacheFile", o->cache,
                "where the fastest are kept; what it knows is not measured again")
      ->required();
  c->add_option(
      "--shapes", o->shapes,
      "the largest sizes: input_ids:8x128 or batch_size=8; default: those that the file was compiled for");
  c->add_option("--device", o->device, "cuda or cuda:N");
  c->callback([o, &action] { action = [o] { return tune(*o); }; });
}

}  // namespace tfcc::tools
