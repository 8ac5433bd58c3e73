// SPDX-License-Identifier: Apache-2.0
// tfcc inspect: what a .tfcc file holds, from its header and manifest; nothing of it is executed.
#include "tools/tfcc/inspect.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "tools/tfcc/command.h"
#include "tools/tfcc/inspect_onnx.h"
#include "tools/tfcc/inspect_page.h"
#include "tools/support/output_file.h"

namespace tfcc::tools {
namespace {

struct Options {
  std::string file, shapes, text, html, onnx, why;
  bool json = false, ir = false, kernels = false, launches = false, texts = false,
       generation = false, ragged = false;
};

Result<std::string> shown(const Options& o, const InspectedFile& f) {
  if (!o.text.empty()) return f.text(o.text);
  if (!o.why.empty()) return inspect_why(f, o.why);
  if (o.json)
    return to_json(f).dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  return inspect_text(f, {.launches = o.launches,
                          .kernels = o.kernels,
                          .ir = o.ir,
                          .texts = o.texts,
                          .values = !o.shapes.empty()});
}

Result<void> inspect(const Options& o) {
  TFCC_TRY_VOID(plan_output("--html", o.html));
  TFCC_TRY_VOID(plan_output("--onnx", o.onnx));
  TFCC_TRY(InspectedFile f, InspectedFile::open(o.file));
  if (o.generation) TFCC_TRY_VOID(f.show_generation());
  if (o.ragged) TFCC_TRY_VOID(f.show_ragged());
  TFCC_TRY(const WantedSizes wanted, parse_shapes(o.shapes));
  TFCC_TRY_VOID(f.set_sizes(wanted));
  if (!o.onnx.empty()) {
    TFCC_TRY(const OnnxView view, inspect_onnx(f));
    for (
        const std::string& weights :
        view.weights) {  // beside the model, as it is meant to lie, it must not replace what it reads
      const std::filesystem::path beside = std::filesystem::path(o.onnx).parent_path() / weights;
      std::error_code none;
      if (!std::filesystem::equivalent(beside, o.onnx, none)) continue;
      return Error{
          ErrorCode::invalid_argument,
          fmt::format(
              "--onnx: {} holds the weights that the graph refers to; give another file name",
              o.onnx)};
    }
    TFCC_TRY_VOID(write_text(o.onnx, view.bytes));
  }
  if (!o.html.empty()) {
    TFCC_TRY(const std::string page, inspect_page(f));
    TFCC_TRY_VOID(write_text(o.html, page));
  }
  if (!o.html.empty() || !o.onnx.empty()) return {};
  TFCC_TRY(const std::string text, shown(o, f));
  std::fwrite(text.data(), 1, text.size(), stdout);  // main looks whether it arrived
  return {};
}

}  // namespace

void add_inspect(CLI::App& app, Action& action) {
  auto o = std::make_shared<Options>();
  CLI::App* c = app.add_subcommand("inspect", "show what a .tfcc file holds");
  c->add_option("file", o->file, "the .tfcc file")->required();
  c->add_flag("--json", o->json, "everything as JSON (docs/inspect-json.md)");
  c->add_option(
      "--html", o->html,
      "write a page to read: graph before and after, kernels with source, launches, memory over time");
  c->add_option(
      "--onnx", o->onnx,
      "write the graph that was compiled as ONNX, ops in the domain tfcc: for viewers of ONNX");
  c->add_flag(
      "--generation", o->generation,
      "the program for generation in place of the graph as it was exported (docs/generate.md)");
  c->add_flag("--ragged", o->ragged,
              "the program for tokens without padding in its place (docs/ragged.md)")
      ->excludes("--generation");
  c->add_flag("--launches", o->launches, "every launch with its kernel, flops and bytes");
  c->add_flag("--kernels", o->kernels, "every kernel");
  c->add_flag("--ir", o->ir, "the graphs that the plans were made from");
  c->add_flag("--texts", o->texts, "the names of the texts in the file");
  c->add_option("--text", o->text, "print this text of the file alone");
  c->add_option("--why", o->why,
                "how the launches of this name, or with it in their names, were chosen");
  c->add_option("--shapes", o->shapes,
                "sizes at which bytes and flops are given: input_ids:4x32 or batch_size=4");
  c->callback([o, &action] { action = [o] { return inspect(*o); }; });
}

}  // namespace tfcc::tools
