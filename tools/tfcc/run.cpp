// SPDX-License-Identifier: Apache-2.0
// tfcc run: one run of a .tfcc file on .npy inputs or random ones, with a summary of each output.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>

#include "runtime/tfcc.h"
#include "tools/tfcc/command.h"
#include "tools/support/npz.h"
#include "tools/support/output_file.h"
#include "tools/tfcc/ranges.h"
#include "tools/tfcc/tensors.h"

namespace tfcc::tools {
namespace {

struct Options {
  std::string model, output, device = "auto", shapes, npz;
  std::vector<std::string> inputs;
  bool random = false, verify_weights = false, ragged = false;
  uint64_t seed = 1;
  int threads = 0;
};

Result<NamedArrays> gather_inputs(const Options& o, const Model& model) {
  TFCC_TRY(auto out, read_inputs(o.npz, o.inputs));
  if (!o.random && o.shapes.empty()) return out;
  TFCC_TRY(auto shapes, parse_shapes(o.shapes));
  return random_inputs(model.inputs(), shapes, o.seed, std::move(out));
}

Result<void> check_all_given(const Model& model, const NamedArrays& inputs) {
  for (const TensorInfo& info : model.inputs()) {
    if (std::any_of(inputs.begin(), inputs.end(),
                    [&](const auto& i) { return i.first == info.name; }))
      continue;
    return Error{
        ErrorCode::invalid_argument,
        fmt::format(
            "input '{0}' is missing; give it with --input {0}=FILE.npy, or make it up with --random",
            info.name)};
  }
  return {};
}

Result<void> run_model(const Options& o) {
  LoadOptions load;
  load.device = o.device;
  load.threads = o.threads;
  load.verify_weights = o.verify_weights;
  load.graphs = false;  // one run is over before a capture pays
  load.ranges = profiler_ranges();
  load.log = [](std::string_view line) {
    std::fprintf(stderr, "%.*s\n", static_cast<int>(line.size()), line.data());
  };
  TFCC_TRY_VOID(note_input(o.model));
  TFCC_TRY_VOID(plan_output("--output", o.output));
  TFCC_TRY(Model model, Model::load(o.model, load));
  if (o.ragged) {
    TFCC_TRY(model, model.ragged());
  }
  TFCC_TRY(auto inputs, gather_inputs(o, model));
  TFCC_TRY(Executor executor, model.executor());
  for (auto& [name, array] : inputs) {
    TFCC_TRY_VOID(
        executor.set(name, TensorRef{array.bytes.data(), array.dtype, array.shape, Place::host}));
  }
  TFCC_TRY_VOID(
      check_all_given(model, inputs));  // after the names: a misspelled one is also missing
  TFCC_TRY_VOID(executor.run());
  std::vector<std::pair<std::string, ArrayView>> outputs;
  for (const TensorInfo& info : model.outputs()) {
    TFCC_TRY(Tensor t, executor.output(info.name));
    outputs.emplace_back(info.name, ArrayView(t.dtype, t.shape, t.data));
    std::printf("%s\n", summary(info.name, outputs.back().second).c_str());
  }
  TFCC_TRY_VOID(executor.status());
  if (o.output.empty()) return {};
  return write_npz(o.output, outputs);
}

}  // namespace

void add_run(CLI::App& app, Action& action) {
  auto o = std::make_shared<Options>();
  CLI::App* c = app.add_subcommand("run", "run a .tfcc file once");
  c->add_option("model", o->model, "the .tfcc file")->required();
  add_inputs(*c, o->npz, o->inputs);
  c->add_flag("--random", o->random, "make up the inputs that are not given");
  c->add_option(
      "--shapes", o->shapes,
      "sizes of made-up inputs: batch_size=4,sequence_length=32, or input_ids:4x32; the others follow");
  c->add_option("--seed", o->seed, "seed of made-up inputs");
  c->add_option("--output", o->output, "write all outputs to this .npz");
  c->add_option("--device", o->device, "auto, cpu, cuda or cuda:N");
  add_threads(*c, o->threads, "CPU threads");
  c->add_flag(
      "--ragged", o->ragged,
      "the program for tokens without padding, with cu_seqlens in place of a mask (docs/ragged.md)");
  c->add_flag("--verify-weights", o->verify_weights, "check the checksums of the weights too");
  c->callback([o, &action] { action = [o] { return run_model(*o); }; });
}

}  // namespace tfcc::tools
