// SPDX-License-Identifier: Apache-2.0
// tfcc opt: graph text in, passes over it, graph text out. What each pass did goes to stderr.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "ir/ir.h"
#include "tools/tfcc/command.h"
#include "tools/compiler/model_source.h"
#include "tools/support/output_file.h"

namespace tfcc::tools {
namespace {

struct Options {
  std::string model, output, passes;
  bool list = false, defaults = false, quiet = false;
};

void list_passes() {
  for (const passes::PassInfo& p : passes::all_passes()) {
    std::printf("%-22.*s %.*s\n", static_cast<int>(p.name.size()), p.name.data(),
                static_cast<int>(p.summary.size()), p.summary.data());
  }
}

Result<void> optimise(const Options& o) {
  if (o.list) {
    list_passes();
    return {};
  }
  if (o.model.empty()) return usage_error("opt needs a graph: tfcc opt in.tfir --passes=NAME,NAME");
  const std::vector<std::string> names = o.defaults ? passes::default_pipeline() : split(o.passes);
  TFCC_TRY_VOID(compiler::check_passes(names));
  TFCC_TRY_VOID(plan_output("-o", o.output));
  TFCC_TRY(ir::Graph graph, compiler::load_graph({o.model}, process_files()));
  TFCC_TRY(auto reports, passes::run_passes(graph, names));
  for (const passes::PassReport& r : reports) {
    if (o.quiet) break;
    std::fprintf(stderr, "%s: %zu rewrites\n", r.pass.c_str(), r.rewrites);
    for (const passes::Miss& m : r.misses) {
      std::fprintf(stderr, "  not %s: %s\n", m.node.c_str(), m.reason.c_str());
    }
  }
  if (!o.output.empty()) {
    const std::string folder = std::filesystem::path(o.output).parent_path().string();
    return write_text(o.output, compiler::print_for_folder(graph, o.model, folder));
  }
  const std::string text = ir::print(graph);
  std::fwrite(text.data(), 1, text.size(), stdout);  // main looks whether it arrived
  return {};
}

}  // namespace

void add_opt(CLI::App& app, Action& action) {
  auto o = std::make_shared<Options>();
  CLI::App* c = app.add_subcommand("opt", "run passes over a graph in text form");
  c->add_option("graph", o->model, "the graph: .tfir (or .onnx)");
  c->add_option("--passes", o->passes, "the passes to run, in this order; none prints the graph")
      ->expected(0, 1);
  c->add_flag("--default", o->defaults, "run the passes that compile runs");
  c->add_option("-o,--output", o->output, "the .tfir to write; default: standard output");
  c->add_flag("--list", o->list, "print every pass with what it does");
  c->add_flag("-q,--quiet", o->quiet, "do not print what each pass did");
  c->callback([o, &action] { action = [o] { return optimise(*o); }; });
}

}  // namespace tfcc::tools
