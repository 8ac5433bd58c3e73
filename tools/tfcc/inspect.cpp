// SPDX-License-Identifier: Apache-2.0
// tfcc inspect: what a .tfcc file holds, from its header and manifest; nothing of it is executed.
#include "tools/tfcc/inspect.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <map>
#include <memory>

#include "tools/tfcc/command.h"
#include "tools/tfcc/inspect_page.h"
#include "tools/tfcc/output_file.h"

namespace tfcc::tools {
namespace {

struct Options {
  std::string file, shapes, text, html;
  bool json = false, ir = false, kernels = false, launches = false, texts = false;
};

template <class... Args>
void line(fmt::format_string<Args...> format, Args&&... args) {
  const std::string s = fmt::format(format, std::forward<Args>(args)...);
  std::fwrite(s.data(), 1, s.size(), stdout);
  std::fputc('\n', stdout);
}

std::string bytes_text(std::optional<int64_t> bytes) {
  if (!bytes) return "too many bytes";
  if (*bytes < 10'000) return fmt::format("{} bytes", *bytes);
  if (*bytes < 10'000'000) return fmt::format("{:.1f} kB", static_cast<double>(*bytes) / 1e3);
  return fmt::format("{:.1f} MB", static_cast<double>(*bytes) / 1e6);
}

std::string value_text(std::optional<int64_t> v) { return v ? std::to_string(*v) : "overflow"; }

void show_tensors(const char* title, const std::vector<runtime::TensorType>& list) {
  line("{}:", title);
  for (const auto& t : list) line("  {} {}{}", t.name, to_string(t.dtype), dims_text(t.dims));
}

void show_symbol(const runtime::Manifest& m, const runtime::Symbol& s) {
  std::string range =
      s.max ? fmt::format("{} to {}", s.min, s.max) : fmt::format("{} or more", s.min);
  if (s.derived()) range = s.value.print() + (s.max ? fmt::format(", at most {}", s.max) : "");
  if (!s.derived()) range += fmt::format(", axis {} of {}", s.axis, m.inputs[s.input].name);
  for (const std::string* from : {&s.min_from, &s.max_from}) {
    if (!from->empty()) range += fmt::format(" ({})", *from);
  }
  if (s.typical) range += fmt::format(", typically {}", s.typical);
  line("size {}: {}", s.name, range);
}

void show_interface(const InspectedFile& f) {
  const runtime::Manifest& m = f.manifest;
  line("{}: {}, {} from {}", f.path, bytes_text(static_cast<int64_t>(f.artifact.file.size())),
       m.producer, m.model);
  show_tensors("inputs", m.inputs);
  show_tensors("outputs", m.outputs);
  for (const runtime::Symbol& s : m.symbols) show_symbol(m, s);
  for (const runtime::Check& c : m.checks) line("check: {}", c.message);
  for (const runtime::Flag& c : m.flags) line("flag: {}", c.message);
  line("weights: {}, {}", m.weights.size(), bytes_text(static_cast<int64_t>(f.weight_bytes())));
  line("targets:");
  for (const runtime::Target& t : m.targets) {
    line("  {:<12} {} plan, {} of code", t.name, m.plans[t.plan].family,
         bytes_text(static_cast<int64_t>(f.code_bytes(t))));
  }
}

std::string op_counts(const runtime::Bucket& bucket) {
  std::map<std::string, size_t> counts;
  for (const runtime::Launch& l : bucket.launches)
    ++counts[fmt::format("{}", fmt::join(l.ops, "+"))];
  std::string s;
  for (const auto& [op, n] : counts) s += fmt::format("{}{} {}", s.empty() ? "" : ", ", n, op);
  return s;
}

void show_launches(const InspectedFile& f, const runtime::Plan& p, const runtime::Bucket& b,
                   bool values) {
  for (const runtime::Launch& l : b.launches) {
    const std::string what = l.kernel ? p.kernels[l.kernel->kernel].name : "product";
    const std::string flops = values ? value_text(f.at(l.flops)) : l.flops.print();
    const std::string bytes = values ? value_text(f.at(l.bytes)) : l.bytes.print();
    line("    {:<32} {:<18} {:<44} flops {}, bytes {}", l.name,
         fmt::format("{}", fmt::join(l.ops, "+")), what, flops, bytes);
  }
}

void show_plan(const InspectedFile& f, const runtime::Plan& p, const Options& o) {
  line("plan {}: {}, {} kernels, {} slots", p.family, p.precision, p.kernels.size(),
       p.slots.size());
  const auto ratio = f.arena_ratio(p);
  line("  at {}: arena {}, most live at once {}{}", sizes_text(f), bytes_text(f.arena_bytes(p)),
       bytes_text(f.live_bytes(p)), ratio ? fmt::format(", ratio {:.2f}", *ratio) : "");
  for (const runtime::Check& c : p.limits) line("  limit: {}", c.message);
  if (!p.lengths.empty()) line("  graphs for lengths up to {}", fmt::join(p.lengths, ", "));
  std::string names;
  for (const runtime::Buffer* b : f.quadratic_buffers(p)) {
    names += fmt::format("{}{}{}", names.empty() ? "" : ", ", b->name, dims_text(b->dims));
  }
  line("  buffers that grow with the square of a size: {}", names.empty() ? "none" : names);
  for (const runtime::Bucket& b : p.buckets) {
    line("  bucket {}{}: {} launches: {}", b.name,
         &b == f.bucket(p) ? " (runs at these sizes)" : "", b.launches.size(), op_counts(b));
    if (const auto layers = f.layers(p, b)) {
      line("    {} layers of {} launches", layers->count, layers->launches);
    }
    if (o.launches) show_launches(f, p, b, !o.shapes.empty());
  }
  if (!o.kernels) return;
  line("  kernels:");
  for (const runtime::Kernel& k : p.kernels) {
    line("    {} ({}){}", k.name, k.op,
         k.threads
             ? fmt::format(", {} threads, {} bytes of shared memory", k.threads, k.shared_bytes)
             : "");
  }
}

Result<void> inspect(const Options& o) {
  TFCC_TRY(InspectedFile f, InspectedFile::open(o.file));
  TFCC_TRY(NamedShapes shapes, parse_shapes(o.shapes));
  TFCC_TRY_VOID(f.set_sizes(shapes));
  if (!o.html.empty()) {
    TFCC_TRY(const std::string page, inspect_page(f));
    TFCC_TRY(OutputFile out, OutputFile::create(o.html));
    TFCC_TRY_VOID(out.write(page.data(), page.size()));
    TFCC_TRY_VOID(out.commit());
  } else if (!o.text.empty()) {
    TFCC_TRY(std::string text, f.text(o.text));
    std::fwrite(text.data(), 1, text.size(), stdout);
  } else if (o.json) {
    line("{}", to_json(f).dump(1, ' ', false, nlohmann::json::error_handler_t::replace));
  } else {
    show_interface(f);
    for (const runtime::Plan& p : f.manifest.plans) show_plan(f, p, o);
    for (const runtime::Text& t : f.manifest.texts) {
      if (o.texts) line("text {}: {}", t.name, bytes_text(static_cast<int64_t>(t.size)));
      if (!o.ir || t.name.rfind("ir/", 0) != 0) continue;
      TFCC_TRY(std::string text, f.text(t.name));
      line("{}:\n{}", t.name, text);
    }
    if (o.ir && f.manifest.texts.empty()) return f.text("ir/").error();
  }
  return {};
}

}  // namespace

void add_inspect(CLI::App& app, Action& action) {
  auto o = std::make_shared<Options>();
  CLI::App* c = app.add_subcommand("inspect", "show what a .tfcc file holds");
  c->add_option("file", o->file, "the .tfcc file")->required();
  c->add_flag("--json", o->json, "everything as JSON (docs/inspect-json.md)");
  c->add_option("--html", o->html, "write a page to read: graph before and after, kernels with source, launches, memory over time");
  c->add_flag("--launches", o->launches, "every launch with its kernel, flops and bytes");
  c->add_flag("--kernels", o->kernels, "every kernel");
  c->add_flag("--ir", o->ir, "the graphs that the plans were made from");
  c->add_flag("--texts", o->texts, "the names of the texts in the file");
  c->add_option("--text", o->text, "print this text of the file alone");
  c->add_option("--shapes", o->shapes, "sizes at which bytes and flops are given: input_ids:4x32");
  c->callback([o, &action] { action = [o] { return inspect(*o); }; });
}

}  // namespace tfcc::tools
