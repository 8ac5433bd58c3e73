// SPDX-License-Identifier: Apache-2.0
// tfcc tune: times the algorithms of a file's products on the GPU that is there, and keeps the
// fastest.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "runtime/cuda/timing_cache.h"
#include "tools/tfcc/command.h"
#include "tools/compiler/model_source.h"
#include "tools/support/output_file.h"
#include "tools/tfcc/tensors.h"

namespace tfcc::tools {
namespace {

struct Options {
  std::string model, cache, shapes, device = "cuda";
};

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
  TFCC_TRY_VOID(executor.prepare_all(shapes));
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
      "measure the algorithms of a .tfcc file's matrix products on this GPU (docs/timing-cache.md)");
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
